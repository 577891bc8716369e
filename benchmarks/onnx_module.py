"""An ONNX graph as a torch module, so that it can be packed with inputs.

Products with a weight become `nn.Linear` and convolutions, BatchNormalization a BatchNorm layer, other float
constants parameters; everything between them is computed by torch, operator by operator, as far as the
networks of `packing_shipped.py` need it. Names are those of the graph.
"""

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn import functional as F

TYPES = {
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.INT32: torch.int32,
    onnx.TensorProto.INT64: torch.int64,
    onnx.TensorProto.BOOL: torch.bool,
}


def attributes(node):
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def safe(name):
    return "".join(c if c.isalnum() else "_" for c in name)


def ints(tensor):
    return [int(n) for n in tensor.flatten().tolist()]


class OnnxModule(nn.Module):
    """Runs a graph; takes its inputs in order, gives a tuple of its outputs."""

    def __init__(self, content):
        super().__init__()
        self.graph = onnx.load_from_string(content).graph
        self.constants, self.layers, self.skipped = {}, {}, set()
        graphs = [self.graph]
        while graphs:
            graph = graphs.pop()
            for tensor in graph.initializer:
                self.constants[tensor.name] = tensor_of(tensor)
            for node in graph.node:
                found = attributes(node)
                graphs += [v for v in found.values() if isinstance(v, onnx.GraphProto)]
                if node.op_type == "Constant":
                    self.constants[node.output[0]] = tensor_of(found["value"])
        self.users = {}
        for node in self.graph.node:
            for name in node.input:
                self.users.setdefault(name, []).append(node)
        used = set()
        for node in self.graph.node:
            used |= self._add_layer(node)
        for name, value in self.constants.items():
            if name not in used and value.is_floating_point() and value.numel() > 1:
                self.register_parameter(safe(name), nn.Parameter(value))
                self.constants[name] = None
        self.eval()

    def _add_layer(self, node):
        """A module for a node with weights; gives the names of the constants it has taken."""
        known = [name for name in node.input[1:] if name in self.constants]
        if node.op_type in ("Conv", "ConvTranspose") and known:
            layer = convolution(node, [self.constants[name] for name in known])
        elif node.op_type == "BatchNormalization":
            weight, bias, mean, variance = (self.constants[name] for name in known)
            layer = nn.BatchNorm2d(len(weight), eps=attributes(node).get("epsilon", 1e-5))
            layer.load_state_dict(
                {"weight": weight, "bias": bias, "running_mean": mean, "running_var": variance},
                strict=False,
            )
        elif node.op_type == "MatMul" and known and self.constants[known[0]].dim() == 2:
            after = self.users.get(node.output[0], [])
            bias = None
            if len(after) == 1 and after[0].op_type == "Add":
                names = [n for n in after[0].input if n in self.constants]
                if names and self.constants[names[0]].numel() == self.constants[known[0]].shape[1]:
                    bias = self.constants[names[0]]
                    self.skipped.add(after[0].output[0])
                    known.append(names[0])
            matrix = self.constants[known[0]]
            layer = nn.Linear(*matrix.shape, bias=bias is not None)
            layer.weight = nn.Parameter(matrix.T.contiguous())
            if bias is not None:
                layer.bias = nn.Parameter(bias.flatten())
        else:
            return set()
        self.layers[node.output[0]] = safe(known[0])
        if not hasattr(self, safe(known[0])):  # a weight may have several nodes
            self.add_module(safe(known[0]), layer)
        return set(known)

    def forward(self, *given):
        values = dict(zip((i.name for i in self.graph.input), given))
        self._run(self.graph, values)
        return tuple(values[output.name] for output in self.graph.output)

    def _value(self, name, values):
        if name in values:
            return values[name]
        found = self.constants[name]
        return getattr(self, safe(name)) if found is None else found

    def _run(self, graph, values):
        for node in graph.node:
            at = attributes(node)
            if node.op_type == "Constant":
                continue
            if node.output[0] in self.skipped:
                names = [name for name in node.input if name in values]
                values[node.output[0]] = values[names[0]]
                continue
            if node.op_type == "If":
                branch = at[
                    "then_branch" if bool(self._value(node.input[0], values)) else "else_branch"
                ]
                self._run(branch, values)
                results = [self._value(output.name, values) for output in branch.output]
            elif node.op_type == "LSTM":
                results = self._lstm(graph, node, values)
            elif node.output[0] in self.layers:
                layer = getattr(self, self.layers[node.output[0]])
                x = self._value(node.input[0], values)
                results = convolved(layer, x, at) if node.op_type == "Conv" else layer(x)
            else:
                inputs = [self._value(name, values) if name else None for name in node.input]
                results = OPERATORS[node.op_type](at, *inputs)
            results = results if isinstance(results, list | tuple) else [results]
            values.update(zip(node.output, results))

    def _lstm(self, graph, node, values):
        """With the weights as torch has them: exported graphs reorder the gates by slices."""
        made = {output: n for n in graph.node for output in n.output}

        def root(name):
            names = []
            while name in made:
                n = made[name]
                names += [c for c in n.input if c in self.constants and self.constants[c] is None]
                name = n.input[0]
            return names + ([name] if name in self.constants else [])

        x, _, _, _, _, h, c = [self._value(n, values) if n else None for n in node.input]
        w_ih, w_hh = (getattr(self, safe(root(n)[-1])) for n in node.input[1:3])
        biases = [p for n, p in self.named_parameters() if n.endswith(("bias_ih", "bias_hh"))]
        h, c = h[0], c[0]
        outputs = []
        for step in x:
            gates = F.linear(step, w_ih, biases[0]) + F.linear(h, w_hh, biases[1])
            i, f, g, o = gates.chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h[None])
        return torch.stack(outputs), h[None], c[None]


def tensor_of(tensor):
    return torch.from_numpy(np.array(numpy_helper.to_array(tensor)))


def convolution(node, weights):
    at = attributes(node)
    weight, dims = weights[0], weights[0].dim() - 2
    groups, transposed = at.get("group", 1), node.op_type == "ConvTranspose"
    outer, inner = weight.shape[0], weight.shape[1] * groups
    kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{dims}d")
    layer = kind(
        *((outer, inner) if transposed else (inner, outer)), tuple(weight.shape[2:]),
        stride=tuple(at.get("strides", [1] * dims)), dilation=tuple(at.get("dilations", [1] * dims)),
        groups=groups, bias=len(weights) > 1,
    )  # fmt: skip
    layer.weight = nn.Parameter(weight)
    if len(weights) > 1:
        layer.bias = nn.Parameter(weights[1])
    return layer


def convolved(layer, x, at):
    dims = x.dim() - 2
    function = getattr(F, f"conv{dims}d")
    options = {"stride": at.get("strides", 1), "dilation": at.get("dilations", 1)}
    return function(padded(x, at), layer.weight, layer.bias, groups=at.get("group", 1), **options)


def padded(x, at):
    pads, dims = at.get("pads"), x.dim() - 2
    if at.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise NotImplementedError(at["auto_pad"])
    if not pads or not any(pads):
        return x
    return F.pad(x, [p for d in reversed(range(dims)) for p in (pads[d], pads[d + dims])])


def sliced(at, x, starts, ends, axes=None, steps=None):
    axes = range(len(starts)) if axes is None else ints(axes)
    steps = [1] * len(ints(starts)) if steps is None else ints(steps)
    for start, end, axis, step in zip(ints(starts), ints(ends), axes, steps):
        size = x.shape[axis]
        if step > 0:
            x = x[(slice(None),) * (axis % x.dim()) + (slice(start, end, step),)]
        else:
            which = list(range(size))[start : None if end < -size else end : step]
            x = x.index_select(axis, torch.tensor(which))
    return x


def resized(at, x, roi=None, scales=None, sizes=None):
    return F.interpolate(x, scale_factor=[float(s) for s in scales[2:]], mode="nearest")


def reshaped(at, x, shape):
    return x.reshape([x.shape[n] if size == 0 else size for n, size in enumerate(ints(shape))])


def padding(at, x, pads, value=None):
    pads, dims = ints(pads), x.dim()
    amounts = [p for d in reversed(range(dims)) for p in (pads[d], pads[d + dims])]
    mode = at.get("mode", b"constant").decode()
    if mode == "constant":
        return F.pad(x, amounts)
    which = [d for d in range(dims) if pads[d] or pads[d + dims]]
    for d in which:
        index = torch.arange(-pads[d], x.shape[d] + pads[d + dims]).abs()
        index = torch.where(index >= x.shape[d], 2 * (x.shape[d] - 1) - index, index)
        x = x.index_select(d, index)
    return x


def axes_of(at, given):
    return tuple(ints(given)) if given is not None else tuple(at.get("axes", ()))


def squeezed(at, x, axes=None):
    return x.squeeze(axes_of(at, axes)) if axes_of(at, axes) else x.squeeze()


def unsqueezed(at, x, axes=None):
    for axis in sorted(axes_of(at, axes)):
        x = x.unsqueeze(axis)
    return x


def reduced(function):
    def call(at, x, axes=None):
        dims = axes_of(at, axes) or tuple(range(x.dim()))
        return function(x, dim=dims, keepdim=bool(at.get("keepdims", 1)))

    return call


def gathered(at, x, indices):
    axis = at.get("axis", 0)
    found = x.index_select(axis, indices.flatten().long() % x.shape[axis])
    return found.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


OPERATORS = {
    "Add": lambda at, a, b: a + b,
    "Sub": lambda at, a, b: a - b,
    "Mul": lambda at, a, b: a * b,
    "Div": lambda at, a, b: a / b if a.is_floating_point() else a // b,
    "Pow": lambda at, a, b: a**b,
    "Neg": lambda at, a: -a,
    "Not": lambda at, a: ~a,
    "Sqrt": lambda at, a: a.sqrt(),
    "Exp": lambda at, a: a.exp(),
    "Log": lambda at, a: a.log(),
    "Tanh": lambda at, a: a.tanh(),
    "Relu": lambda at, a: a.relu(),
    "Sigmoid": lambda at, a: a.sigmoid(),
    "Reciprocal": lambda at, a: a.reciprocal(),
    "Identity": lambda at, a: a,
    "Max": lambda at, a, b: torch.maximum(a, b),
    "Equal": lambda at, a, b: a == b,
    "Where": lambda at, c, a, b: torch.where(c, a, b),
    "MatMul": lambda at, a, b: a @ b,
    "Cast": lambda at, a: a.to(TYPES[at["to"]]),
    "Shape": lambda at, a: torch.tensor(a.shape),
    "Size": lambda at, a: torch.tensor(a.numel()),
    "ConstantOfShape": lambda at, s: torch.full(ints(s), tensor_of(at["value"]).item()),
    "Expand": lambda at, a, s: a + torch.zeros(ints(s), dtype=a.dtype),
    "Transpose": lambda at, a: a.permute(at["perm"]),
    "Concat": lambda at, *a: torch.cat(a, at["axis"]),
    "Softmax": lambda at, a: a.softmax(at["axis"]),
    "Clip": lambda at, a, low, high: a.clamp(low.item(), high.item()),
    "HardSigmoid": lambda at, a: (at.get("alpha", 0.2) * a + at.get("beta", 0.5)).clamp(0, 1),
    "GlobalAveragePool": lambda at, a: a.mean(tuple(range(2, a.dim())), keepdim=True),
    "GlobalMaxPool": lambda at, a: a.amax(tuple(range(2, a.dim())), keepdim=True),
    "AveragePool": lambda at, a: F.avg_pool2d(padded(a, at), at["kernel_shape"], at["strides"]),
    "ReduceMean": reduced(torch.mean),
    "ReduceSum": reduced(torch.sum),
    "ReduceMax": reduced(torch.amax),
    "ReduceMin": reduced(torch.amin),
    "Slice": sliced,
    "Resize": resized,
    "Reshape": reshaped,
    "Pad": padding,
    "Squeeze": squeezed,
    "Unsqueeze": unsqueezed,
    "Gather": gathered,
}
