"""A model as a graph of operations, with the value of each of them for an example.

Takes     a module and an example of its inputs.
Gives     `Trace`: the nodes of torch.fx in order, what kind of operation each is, its value in
          evaluation (float64 where the model can), and what could not be followed, and why.
Unaware   of zeros and of what is dead.

The graph is that of `torch.fx`, which keeps modules whole and names them, so that a smaller network
can be put in the place of the old one. A submodule that fx cannot trace is one node.
"""

import copy
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import Node, map_arg

from reefknot.errors import ConfigError

# Names under which one operation is known as a function, a method and a module, "_" left out.
_SAME = {
    "conv": ("conv1d", "conv2d", "conv3d"),
    "batchnorm": ("batchnorm1d", "batchnorm2d", "batchnorm3d"),
    "add": ("iadd",),
    "sub": ("isub",),
    "mul": ("imul", "multiply"),
    "cat": ("concat", "concatenate"),
    "getitem": ("select", "narrow"),
}
_KIND = {alias: kind for kind, aliases in _SAME.items() for alias in aliases}


@dataclass(frozen=True)
class Unfollowed:
    """A part of the model that could not be analysed, so that all it touches is alive."""

    name: str
    reason: str


@dataclass
class Trace:
    """A model's operations in order, and their values for the example."""

    model: nn.Module  # a copy in evaluation, float64 where it can be
    graph: fx.Graph
    values: dict[Node, Any] = field(default_factory=dict)
    unfollowed: list[Unfollowed] = field(default_factory=list)

    def module(self, node: Node) -> nn.Module | None:
        """The module that a node calls, if it calls one."""
        return self.model.get_submodule(str(node.target)) if node.op == "call_module" else None

    def tensors(self, node: Node) -> dict[str, Tensor]:
        """The parameters and buffers of the module that a node calls, by full name."""
        module = self.module(node)
        own = {} if module is None else module.state_dict(keep_vars=True)
        return {f"{node.target}.{key}": tensor for key, tensor in own.items()}

    def kind(self, node: Node) -> str:
        """The name of a node's operation, the same for module, function and method."""
        if node.op in ("placeholder", "output", "get_attr"):
            return str(node.op)
        module = self.module(node)
        if module is not None:
            if not type(module).__module__.startswith("torch.nn"):
                return "unfollowed"
            name = type(module).__name__.lower()
        else:
            name = str(getattr(node.target, "__name__", node.target)).lower()
        name = name.replace("_", "")
        return _KIND.get(name, name)

    def options(self, node: Node, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a node by name: of its module, or its arguments after the first."""
        module = self.module(node)
        if module is not None:
            return {name: getattr(module, name, value) for name, value in defaults.items()}
        told = dict(zip(defaults, node.args[1:], strict=False)) | dict(node.kwargs)
        return {name: told.get(name, value) for name, value in defaults.items()}

    def call(self, node: Node, values: Mapping[Node, Any], args: Any = None) -> Any:
        """What a node gives for these inputs (or arguments); the inputs stay as they are."""

        def copied(argument: Node) -> Any:
            value = values[argument]
            return value.clone() if isinstance(value, Tensor) else value

        args = map_arg(node.args if args is None else args, copied)
        kwargs = map_arg(node.kwargs, copied)
        module = self.module(node)
        if module is not None:
            return module(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)

    def evaluated(
        self, example_input: Any, call: Callable[[Node, dict[Node, Any]], Any] | None = None
    ) -> Iterator[tuple[Node, Any]]:
        """Every node in order, and its value for an input; `call` computes those of operations."""
        values: dict[Node, Any] = {}
        given = iter(arguments(example_input))
        for node in self.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given, node.args[0] if node.args else None)
            elif node.op == "get_attr":
                values[node] = operator.attrgetter(str(node.target))(self.model)
            elif node.op == "output":
                values[node] = map_arg(node.args[0], values.__getitem__)
            else:
                values[node] = (call or self.call)(node, values)
            yield node, values[node]

    def name(self, node: Node) -> str:
        """The name of a node in messages: its module's name, or its operation."""
        return str(node.target) if node.op == "call_module" else node.name


def trace(model: nn.Module, example_input: Any) -> Trace:
    """Trace a model and run it on the example; the model is not changed."""
    inputs = [
        v.detach().to("cpu") if isinstance(v, Tensor) else v for v in arguments(example_input)
    ]
    plain = copy.deepcopy(model).to("cpu").eval().requires_grad_(False)
    graph, unfollowed = followed(plain)
    own = Trace(plain, graph, unfollowed=unfollowed)
    try:
        own.values = _run(Trace(plain.double(), graph), [_as_double(value) for value in inputs])
    except (RuntimeError, TypeError, ValueError):  # perhaps it makes float32 tensors of its own
        own.model = copy.deepcopy(model).to("cpu").eval().requires_grad_(False)
        try:
            own.values = _run(own, inputs)
        except (RuntimeError, TypeError, ValueError) as error:
            shapes = [tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__ for v in inputs]
            raise ConfigError(
                f"{type(model).__name__} does not take the example input of shape "
                f"{', '.join(map(str, shapes))}: {' '.join(str(error).split())}"
            ) from error
    return own


def followed(model: nn.Module) -> tuple[fx.Graph, list[Unfollowed]]:
    """The graph of a model, and the parts that are single nodes because fx cannot trace them."""
    tracer = _Tracer()
    try:
        return tracer.trace(model), tracer.unfollowed
    except Exception as error:  # fx raises all kinds for code that depends on values
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"{type(model).__name__} cannot be traced by torch.fx: {reason}; "
            "put code that depends on values into a module of its own"
        ) from error


def arguments(example_input: Any) -> tuple[Any, ...]:
    """What a model is called with for an example: a tensor, or a tuple of them."""
    return tuple(example_input) if isinstance(example_input, tuple | list) else (example_input,)


def _as_double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _run(trace: Trace, inputs: list[Any]) -> dict[Node, Any]:
    """The value of every node; nothing is overwritten by operations in place."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's advice on speed
        return dict(trace.evaluated(inputs))


class _Tracer(fx.Tracer):
    """Traces into modules; one that fx cannot trace becomes a single node."""

    def __init__(self) -> None:
        super().__init__()
        self.unfollowed: list[Unfollowed] = []

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        name = self.path_of_module(m)
        if self.is_leaf_module(m, name):
            return self.create_proxy("call_module", name, args, kwargs)
        before = list(self.graph.nodes)[-1] if len(self.graph.nodes) else None
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception as error:  # fx raises all kinds for code that depends on values
            for node in reversed(list(self.graph.nodes)):
                if node is before:
                    break
                self.graph.erase_node(node)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            self.unfollowed.append(Unfollowed(name, f"torch.fx cannot trace it: {reason}"))
            return self.create_proxy("call_module", name, args, kwargs)
