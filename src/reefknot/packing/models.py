"""`reefknot.pack`: a model or a state dict to a small file, with inputs or without.

Takes     a module or its tensors, a budget, and calibration inputs if there are any.
Gives     a `.reef` file, and `Packed`: what was done, and how the outputs have changed.
Unaware   of training; the model itself is never changed.
"""

import copy
import inspect
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from reefknot.errors import ConfigError, ReefknotError
from reefknot.files import check_place, write_atomically
from reefknot.format.write import Effort
from reefknot.packing.budget import MIN_SIZE, Budget
from reefknot.packing.changes import Change, change_of
from reefknot.packing.clustering import Settings, check_patterns, found_of
from reefknot.packing.inputs import random_batches
from reefknot.packing.network import Packer
from reefknot.packing.outputs import change_of_outputs
from reefknot.packing.pack import ALMOST_ALL, Packed, Writer, pack_tensors, pass_of, require_enough
from reefknot.packing.suspended import no_autocast
from reefknot.progress import doing
from reefknot.tensorfile import open_tensors, reader_of
from reefknot.tensors import dtype_for, to_array, to_tensor
from reefknot.tying.selection import unwrapped

PASSES, SMALL_PASSES, SMALL = 4, 10, 10**6  # at most; at most for networks of up to SMALL elements
CLOSE = 0.97  # a file that fills this much of the budget is good enough
FAR_OFF = 2.0  # times the budget: what errors are worth is measured again, nearer to it
VERY_FEW = 8  # inputs
HELD_BACK = 16  # one batch of so many is held back, to measure the outputs on
FIRST_PRICE = 1 / 60  # relative to theory: inputs are correlated, and errors are compensated


@doing("packing")
def pack(
    model: nn.Module | Mapping[str, Any],
    path: Path | str,
    *,
    size: int | None = None,
    bits: float | None = None,
    error: float | None = None,
    inputs: Iterable[Any] | None = None,
    example_input: Any = None,
    for_inference: bool = False,
    keep: Sequence[str] = (),
    min_size: int = MIN_SIZE,
    effort: Effort = "auto",
) -> Packed:
    """Write a network to a `.reef` file within one budget for the whole of it.

    Args:
        model: a module, or its state dict; neither is changed.
        path: the file, which is replaced if it exists.
        size: bytes of the file.
        bits: the same as bits for each element, everything counted.
        error: relative L2 error: of the outputs with inputs; without, no row of a tensor (what its
            first dimension counts: outputs of a layer, words of an embedding) has a larger one.
        inputs: batches as a DataLoader gives them, without labels: tensors, tuples that begin with
            what the model requires, or dicts of its arguments. Some hundred inputs are enough.
        example_input: one batch; without inputs, random ones like it take their place.
        for_inference: write BatchNorm as scale and shift alone, in few bits: a tenth of the bytes,
            the same outputs; before it is trained further it needs `update_batchnorm`.
        keep: patterns of names (`*.bias`) that stay exact.
        min_size: tensors with fewer elements stay exact, and so do those of one dimension.
        effort: how hard the coder tries: see `save`.

    Without a budget nothing is changed. With inputs each layer is packed for the inputs that it
    receives, so that a file of the same size changes the outputs less.
    """
    check_place(path)
    settings = Settings(keep=tuple(keep), min_size=min_size)
    budget = None if size is bits is error is None else Budget(size, bits, error)
    given = inputs is not None or example_input is not None
    if inputs is not None and example_input is not None:
        raise ConfigError("give inputs or an example_input, not both")
    if isinstance(model, nn.Module):
        model = unwrapped(model)
        if given and isinstance(model, torch.jit.ScriptModule):
            raise ConfigError("a scripted module cannot be packed with inputs; give the original")
        if budget is not None and given:
            batches = _batches(model, inputs, example_input, settings)
            return _pack_for_inputs(
                model, path, settings, budget, batches, effort,
                for_inference=for_inference, random=inputs is None,
            )  # fmt: skip
    elif not isinstance(model, Mapping):
        raise ReefknotError(f"pack takes a module or a state dict, found {type(model).__name__}")
    elif given or for_inference:
        raise ConfigError("inputs, example_input and for_inference need the model, not its tensors")
    if for_inference:
        raise ConfigError("for_inference needs a budget, and inputs or an example_input")
    tensors = model.state_dict() if isinstance(model, nn.Module) else model
    return pack_tensors(found_of(tensors), path, settings, budget, effort)


def _pack_for_inputs(
    model: nn.Module, path: Path | str, settings: Settings, budget: Budget, batches: list[Any],
    effort: Effort, *, for_inference: bool, random: bool,
) -> Packed:  # fmt: skip
    """Write a model whose inputs are known, or made up at random."""
    used, held_back = _split(batches)
    if (whole := _lossless(model, budget, path, effort)) is not None:
        return whole
    if not for_inference:  # which makes the tensors smaller that are otherwise kept
        require_enough(found_of(model.state_dict()), settings, budget, effort)
    # In these modes weights are not used as they are.
    with torch.inference_mode(False), no_autocast():
        packer = Packer(_copied(model).cpu().eval(), used, settings, for_inference, random)
        data, packed = _Search(packer, budget, effort, held_back).run()
    write_atomically(path, data)
    assert packed.outputs is not None
    seen = _examples(held_back) <= _examples(used)
    few = not random and sum(max(_lengths(batch)) for batch in batches) <= VERY_FEW
    return replace(packed, outputs=replace(packed.outputs, random=random, seen=seen, few=few))


def _copied(model: nn.Module) -> nn.Module:
    """A copy in which parameters that share storage are one, and look-ups change no table."""
    try:
        copied = copy.deepcopy(model)
    except Exception as error:
        raise ReefknotError(
            f"the model cannot be copied ({type(error).__name__}: {error}); give one that "
            "copy.deepcopy accepts, or pack without inputs"
        ) from error
    first: dict[Any, nn.Parameter] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owner, _, own = name.rpartition(".")
        mine = copied.get_parameter(name)
        shared = first.setdefault(reader_of(name, parameter)[0], mine)
        if shared is not mine:
            setattr(copied.get_submodule(owner), own, shared)
    for module in copied.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            with torch.no_grad():
                rows = torch.arange(module.num_embeddings, device=module.weight.device)
                torch.embedding_renorm_(module.weight, rows, module.max_norm, module.norm_type)
            module.max_norm = None
    return copied


def _lossless(model: nn.Module, budget: Budget, path: Path | str, effort: Effort) -> Packed | None:
    """The model as it is, where that fits a budget."""
    found = found_of(model.state_dict())
    writer = Writer(found, effort)
    limit = budget.bytes_for(writer.elements)
    if limit is None or limit < ALMOST_ALL * writer.total:
        return None
    file = io.BytesIO()
    changes, size = writer.write_exactly(file)
    if size > limit:
        return None
    write_atomically(path, file.getvalue())
    return writer.packed(changes, size)


def load_checkpoint(model: nn.Module, path: Path | str, key: str | None = None) -> None:
    """Put the tensors of a checkpoint into a model, which gets their float types."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"--model gave a {type(model).__name__}; a torch module was expected")
    tensors = {t.name: to_tensor(t.read(), t.dtype) for t in open_tensors(path, key)}
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} does not fit the model: {reason}") from error
    for name, own in model.state_dict(keep_vars=True).items():
        if own.is_floating_point():
            own.data = own.data.to(tensors[name].dtype)


class _Search:
    """Finds the price at which a network meets its budget, in few passes over it."""

    def __init__(
        self, packer: Packer, budget: Budget, effort: Effort, held_back: list[Any]
    ) -> None:
        self._packer, self._effort, self._held_back = packer, effort, held_back
        floats = [p for p in packer.model.parameters() if p.dtype != torch.float32]
        # Half precision is slow on a CPU, and its rounding would be measured with that of packing.
        self._reference = copy.deepcopy(packer.model).float() if floats else packer.model
        found = found_of(packer.model.state_dict())
        self._elements = sum(math.prod(tensor.shape) for tensor in found if not tensor.same_as)
        self._limit = budget.bytes_for(self._elements)
        self._error = budget.error or 0.0
        # (log2 of price, size or error over its limit)
        self._points: list[tuple[float, float]] = []

    def run(self) -> tuple[bytes, Packed]:
        """The file that comes closest to its size or its error, without exceeding it."""
        price = self._first_price()
        limit = float(self._limit or self._error)
        best: tuple[bytes, Packed] | None = None
        least = math.inf
        most = PASSES if self._elements > SMALL else SMALL_PASSES
        last = None
        self._packer.measure_sensitivity(price)
        for number in range(most):
            with doing(pass_of(number, most, last)):
                data, packed = self._pass(price)
            value = self._measured(packed)
            last = packed.file_bytes, value / limit
            least = min(least, value)
            if value <= limit and (best is None or self._measured(best[1]) < value):
                best = data, packed
            if CLOSE * limit <= value <= limit:
                break
            self._points.append((math.log2(price), value / limit))
            price = self._next_price()
            if number == 0 and not 1 / FAR_OFF < value / limit < FAR_OFF:
                self._packer.measure_sensitivity(price)
                self._points.clear()
        if best is None:
            raise ConfigError(self._not_reached(least))
        return best

    def _not_reached(self, least: float) -> str:
        found = f"{int(least):,} bytes" if self._limit else f"an error of {least:.4g}"
        asked = f"{self._limit:,} bytes are" if self._limit else f"an error of {self._error:.4g} is"
        return (
            f"{asked} not reached: the nearest that was found is {found}; allow more, or tie "
            "tensors that are kept exactly (min_size, keep)"
        )

    def _measured(self, packed: Packed) -> float:
        if self._limit is not None:
            return float(packed.file_bytes)
        assert packed.outputs is not None
        return packed.outputs.relative_error

    def _first_price(self) -> float:
        bits = 8 * self._limit / self._elements if self._limit else -math.log2(self._error)
        layers = sum(1 for p in self._packer.model.parameters() if p.dim() > 1)
        return 2 * math.log(2) * layers * 4.0**-bits * FIRST_PRICE / self._elements

    def _next_price(self) -> float:
        """Interpolated between the nearest points on either side, or extrapolated."""
        aim = (1 + CLOSE) / 2
        over = [point for point in self._points if point[1] > 1]
        under = [point for point in self._points if point[1] <= 1]
        if over and under:
            # A higher price gives a smaller file, and a larger error.
            by_size = self._limit is not None
            (x, y), (u, v) = (max(over), min(under)) if by_size else (min(over), max(under))
            share = min(max((y - aim) / (y - v), 0.05), 0.95)
            if len({point[1] > 1 for point in self._points[-2:]}) == 1:
                share = 0.5  # twice on the same side: the size hardly changes there
            return float(2.0 ** (x + share * (u - x)))
        x, y = self._points[-1]
        apart = math.log2(aim / max(y, 1e-9))
        return float(2.0 ** (x + 1.1 * min(max(apart / self._slope(), -6), 6)))

    def _slope(self) -> float:
        """The derivative of size or error by price, both as logarithms."""
        if self._limit is None:
            return 0.5
        # At high rates four times the price saves one bit per weight; at low rates it saves less.
        bits = 8 * self._limit / self._elements
        expected = -0.5 / (bits + 0.75)
        if len(self._points) > 1:
            (x, y), (u, v) = self._points[-2:]
            if x != u:
                found = math.log2(max(v, 1e-9) / max(y, 1e-9)) / (u - x)
                return min(max(found, 2 * expected), expected / 4)
        return expected

    def _pass(self, price: float) -> tuple[bytes, Packed]:
        model, changes = self._packer.at(price)
        before, after = self._packer.model.state_dict(), model.state_dict()
        tensors = {name: after[name].to(before[name].dtype) for name in before}
        found = found_of(tensors, like=before)
        writer = Writer(found, self._effort)
        file = io.BytesIO()
        plain, size = writer.write_exactly(file)
        told = [changes.get(c.name) or _adjusted(c, before, tensors) for c in plain]
        with doing("measuring the outputs"):
            outputs = change_of_outputs(self._reference, model, self._held_back)
        return file.getvalue(), writer.packed(told, size, outputs)


def _adjusted(change: Change, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Change:
    old, new = before[change.name], after[change.name]
    if torch.equal(old, new):
        return change
    arrays = to_array(old), to_array(new)
    return change_of(change.name, "made to fit the packed weights", *arrays, dtype_for(old.dtype))


def _batches(model: nn.Module, inputs: Any, example: Any, settings: Settings) -> list[Any]:
    """The model's arguments, batch by batch: those given, or random ones like an example."""
    check_patterns(settings.keep, list(model.state_dict()))
    if inputs is None:
        batches = random_batches(model, _arguments(model, example))
    else:
        with doing("reading the inputs"):
            batches = [_arguments(model, batch) for batch in _listed(inputs)]
    batches = [batch for batch in batches if not _is_empty(batch)]
    if not batches:
        raise ConfigError("inputs hold no batch; some hundred inputs are enough")
    return batches


def _listed(inputs: Any) -> list[Any]:
    if isinstance(inputs, Tensor):
        return list(inputs.split(64))
    if isinstance(inputs, Mapping):
        raise ConfigError(
            "inputs is a list or an iterator of batches; put a single batch in a list"
        )
    if not isinstance(inputs, Iterable):
        raise ConfigError(
            f"inputs is a list or an iterator of batches, such as a DataLoader, found a "
            f"{type(inputs).__name__}"
        )
    return list(inputs)


def _arguments(model: nn.Module, batch: Any) -> Any:
    """The model's arguments: as many items of a tuple as it requires, or a dict without labels."""
    if isinstance(batch, Mapping):
        return {k: _plain(v) for k, v in batch.items() if k not in ("labels", "label")}
    if not isinstance(batch, tuple | list):
        return (_plain(batch),)
    kinds = inspect.Parameter
    parameters = inspect.signature(model.forward).parameters.values()
    required = [
        p for p in parameters if p.default is kinds.empty and p.kind is not kinds.VAR_KEYWORD
    ]
    if not any(p.kind is kinds.VAR_POSITIONAL for p in parameters):
        batch = batch[: max(len(required), 1)]
    return tuple(_plain(value) for value in batch)


def _is_empty(batch: Any) -> bool:
    """Whether the first tensor of a batch has no elements."""
    first = next((value for value in tree_leaves(batch) if isinstance(value, Tensor)), None)
    return first is not None and not first.numel()


def _plain(value: Any) -> Any:
    """A tensor as the packer takes it: on the CPU, floats as float32."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu()
    return value.float() if value.is_floating_point() else value


def _split(batches: list[Any]) -> tuple[list[Any], list[Any]]:
    """Batches to pack with, and those that are held back; a single batch is cut in two.

    One that holds a single example, as far as its tensors tell, is used for both.
    """
    if len(batches) > 1:
        held = -(-len(batches) // HELD_BACK)
        return batches[:-held], batches[-held:]
    rows = _rows_of(batches)
    cut = rows - -(-rows // HELD_BACK)
    if cut < 1:
        return batches, batches

    def part(which: slice) -> Any:
        return tree_map(lambda v: v[which] if isinstance(v, Tensor) and v.dim() else v, batches)

    return part(slice(0, cut)), part(slice(cut, rows))


def _examples(batches: list[Any]) -> set[int]:
    """A hash of each example: those of equal inputs are equal."""
    found: set[int] = set()
    for batch in batches:
        rows = max(_rows_of(batch), 1)
        arrays: list[np.ndarray] = []
        others: list[str] = []
        for value in tree_leaves(batch):
            dense = isinstance(value, Tensor) and value.layout is torch.strided
            if dense and value.dim() and not value.is_nested:
                array = np.ascontiguousarray(value.numpy(force=True)).reshape(rows, -1)
                arrays.append(array.view(np.uint8))
            else:
                others.append(repr(value))
        joined = np.hstack(arrays) if arrays else np.zeros((1, 0), np.uint8)
        found |= {hash((row.tobytes(), *others)) for row in joined}
    return found


def _rows_of(batch: Any) -> int:
    """How many examples a batch holds; 1 if its tensors differ in length: which axis is unknown."""
    lengths = set(_lengths(batch))
    return lengths.pop() if len(lengths) == 1 else 1


def _lengths(batch: Any) -> list[int]:
    """Of its tensors; 1 for a batch of numbers alone."""
    return [len(v) for v in tree_leaves(batch) if isinstance(v, Tensor) and v.dim()] or [1]
