"""ONNX: the shrunk network with standard operators, its weights as indices of a few bits.

Takes     a `.reef` file or a state (or nothing: the module's own values), a module, an example.
Gives     a file of opset 21. A tensor of at most 16 values is stored with four bits an element, one
          of at most 256 with eight, beside its codebook: Cast and Gather make floats of them, which
          ONNX Runtime does once, when it opens the file.
Unaware   of methods.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reefknot.errors import ReefknotError
from reefknot.export.shrunk import Source, Written, with_values
from reefknot.files import check_target, write_atomically
from reefknot.progress import doing
from reefknot.shrinking.network import shrink
from reefknot.shrinking.trace import trace

TOLERANCE = 1e-4  # relative to the largest output: ONNX Runtime sums in another order
_NODE_BYTES = 80  # about what Cast and Gather take: indices must save more than that


@doing("exporting")
def onnx(
    source: Source, model: nn.Module, out: Path | str, example_input: Tensor | None = None
) -> Written:
    """Write a network as ONNX, without its dead units; the batch may have any size.

    It is compared with torch before it is written, if `onnxruntime` is installed.

    Args:
        source: a `.reef` file or a state; None for the values that the model has.
        model: the module that the values belong to.
        out: the file to write.
        example_input: a batch of one; not needed if the first layer is dense.
    """
    try:
        import onnx as library
    except ImportError:
        raise ReefknotError(
            'ONNX files need the package onnx: pip install "reefknot[onnx]"'
        ) from None
    check_target(out)
    filled, inputs = with_values(source, model, example_input)
    shrunk = shrink(filled, inputs)
    shrunk.model.eval()
    made = _model(shrunk.model, inputs)
    library.checker.check_model(made, full_check=True)
    data = made.SerializeToString()
    checked = _compare(data, shrunk.model, inputs)
    write_atomically(out, data)
    return Written(Path(out), len(data), shrunk, checked)


def _model(model: nn.Module, inputs: Tensor) -> Any:
    from onnx import helper

    from reefknot.export.onnx_nodes import OPSET, Graph

    found = trace(model, inputs)
    graph = Graph(found)
    given, results = [], []
    for node in found.graph.nodes:
        if node.op == "placeholder":
            graph.names[node] = node.name
            given.append(_port(node.name, found.values[node]))
        elif node.op == "output":
            results += [_port(graph.names[n], found.values[n]) for n in node.all_input_nodes]
        else:
            graph.put(node)
    tensors, decoding = stored(graph.tensors)
    made = helper.make_graph(
        [*decoding, *graph.operators], type(model).__name__, given, results, tensors
    )
    return helper.make_model(
        made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10,
        producer_name="reefknot",
    )  # fmt: skip


def _port(name: str, value: Tensor) -> Any:
    from onnx import TensorProto, helper

    kind = TensorProto.FLOAT if value.is_floating_point() else TensorProto.INT64
    return helper.make_tensor_value_info(name, kind, ["batch", *value.shape[1:]])


# -- tensors ---------------------------------------------------------------------------------


def stored(tensors: dict[str, np.ndarray]) -> tuple[list[Any], list[Any]]:
    """Tensors as they are stored, and the operators that decode those stored as indices.

    Those of four bits share a codebook if they have at most 16 values together.
    """
    from onnx import TensorProto, helper, numpy_helper

    values = {name: np.unique(array) for name, array in tensors.items() if array.dtype.kind == "f"}
    paying = [name for name, book in values.items() if _pays(tensors[name], len(book))]
    few = [name for name in paying if len(values[name]) <= 16]
    together = np.unique(np.concatenate([values[name] for name in few])) if few else np.zeros(0)
    sharing = few if 0 < len(together) <= 16 else []
    kept: list[Any] = [numpy_helper.from_array(together, "codebook")] if sharing else []
    decoding: list[Any] = []
    for name, array in tensors.items():
        if name not in paying:
            kept.append(numpy_helper.from_array(array, name))
            continue
        book = together if name in sharing else values[name]
        indices = np.searchsorted(book, array).reshape(-1)
        narrow = len(book) <= 16
        kind = TensorProto.UINT4 if narrow else TensorProto.UINT8
        raw = _nibbles(indices) if narrow else indices.astype(np.uint8).tobytes()
        kept.append(helper.make_tensor(f"{name}.i", kind, array.shape, raw, raw=True))
        codebook = "codebook" if name in sharing else f"{name}.c"
        if name not in sharing:
            kept.append(numpy_helper.from_array(book, codebook))
        wide = f"{name}.w"
        decoding.append(helper.make_node("Cast", [f"{name}.i"], [wide], to=TensorProto.INT32))
        decoding.append(helper.make_node("Gather", [codebook, wide], [name]))
    return kept, decoding


def _pays(array: np.ndarray, num_values: int) -> bool:
    """Whether indices and a codebook are shorter than the floats."""
    if num_values > 256 or array.ndim < 1:
        return False
    bits = 4 if num_values <= 16 else 8
    return array.size * bits / 8 + 4 * num_values + _NODE_BYTES < 4 * array.size


def _nibbles(indices: np.ndarray) -> bytes:
    """Two elements a byte, the first in the low bits."""
    even = np.append(indices, 0) if len(indices) % 2 else indices
    return (even[0::2] | (even[1::2] << 4)).astype(np.uint8).tobytes()


# -- check -----------------------------------------------------------------------------------


def _compare(data: bytes, model: nn.Module, inputs: Tensor) -> bool:
    """Run three random examples; False if ONNX Runtime is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return False
    if not inputs.is_floating_point():
        several = inputs.repeat(3, *[1] * (inputs.ndim - 1))
    else:
        random = torch.Generator().manual_seed(0)
        several = torch.randn(3, *inputs.shape[1:], generator=random)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    [first, *_] = session.run(None, {session.get_inputs()[0].name: several.numpy()})
    with torch.no_grad():
        expected = model.float()(several)
    expected = expected if isinstance(expected, Tensor) else expected[0]
    scale = max(float(expected.abs().max()), 1.0)
    away = float((torch.from_numpy(first) - expected).abs().max()) / scale
    if not away <= TOLERANCE:
        raise ReefknotError(
            f"ONNX Runtime gives outputs that are off by {away:.1e}; nothing was written: "
            "please report this network"
        )
    return True
