"""BatchNorm folded into the layer before it: one layer less in evaluation.

Takes     a model.
Gives     a copy without each BatchNorm that is the only user of a dense layer or a convolution.
Unaware   of dead units: `shrink` needs no folding, and folding no `shrink`.
"""

import copy

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from reefknot.shrinking.masks import WEIGHTED
from reefknot.shrinking.trace import Trace, followed


def fold_batchnorm(model: nn.Module) -> nn.Module:
    """A copy of the model, in evaluation mode, whose BatchNorms are part of the layers before them.

    A folded BatchNorm becomes an `Identity` of the same name, and its layer gets a bias. Modules
    that are used twice are left alone, and so are layers whose output is used elsewhere. Weights
    that were tied to a few values are not tied any more: each unit has a scale of its own.
    """
    folded = copy.deepcopy(model).eval()
    own, _ = followed(folded)
    trace = Trace(folded, own)
    calls = [str(node.target) for node in own.nodes if node.op == "call_module"]
    for node in own.nodes:
        norm = trace.module(node)
        if not isinstance(norm, nn.modules.batchnorm._BatchNorm) or norm.running_mean is None:
            continue
        [source] = node.all_input_nodes
        layer = trace.module(source)
        if trace.kind(source) not in WEIGHTED or layer is None or len(source.users) > 1:
            continue
        names = [str(source.target), str(node.target)]
        if any(calls.count(name) > 1 for name in names):
            continue
        if isinstance(layer, nn.Linear):
            new: nn.Module = fuse_linear_bn_eval(layer, norm)
        else:
            transposed = trace.kind(source) != "conv"
            new = fuse_conv_bn_eval(layer, norm, transposed)  # type: ignore[type-var]
        folded.set_submodule(names[0], new)
        folded.set_submodule(names[1], nn.Identity())
    return folded
