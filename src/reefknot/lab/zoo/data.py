"""The interface of a data set: one frozen value with training, validation and test examples.

Takes     tensors of examples and their labels, of any numeric type.
Gives     `Data`: float32 inputs, int64 labels, normalised, with a validation part that is the same
          for every run.
Paper     section 4: 10 % of the training set is held out, and models are selected on it.
Unaware   of files, of networks and of the seed of a run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from reefknot.errors import DataError

Augment = Callable[[Tensor, torch.Generator], Tensor]

# Elements converted to float64 at a time: statistics of a large set need little extra memory.
_CHUNK = 1 << 16


class Split(NamedTuple):
    """Examples and their labels: inputs (N, ...) float32, labels (N,) int64 from 0 on."""

    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class Data:
    """A data set, checked when it is made; `split` is the usual way to make one.

    `augment` changes a batch of training inputs, drawing only from the generator it is given.
    """

    name: str
    train: Split
    validation: Split
    test: Split | None
    augment: Augment | None = None

    def __post_init__(self) -> None:
        """Check every part; a plain pair is welcome too, and gets its named fields."""
        for part in ("train", "validation", "test"):
            examples = getattr(self, part)
            if examples is None and part == "test":
                continue
            where = f"data {self.name!r}, {part} part"
            if not isinstance(examples, tuple) or len(examples) != 2:
                raise DataError(
                    f"{where}: expected a Split(inputs, labels), found {_kind(examples)}"
                )
            object.__setattr__(self, part, Split(*examples))
            _check(*examples, where)
            inputs, labels = examples
            if inputs.dtype != torch.float32 or labels.dtype != torch.int64:
                raise DataError(
                    f"{where}: expected float32 inputs and int64 labels, found {inputs.dtype} and "
                    f"{labels.dtype}; reefknot.lab.zoo.split converts them"
                )
            if inputs.shape[1:] != self.train.inputs.shape[1:]:
                raise DataError(
                    f"{where}: expected examples of shape {tuple(self.train.inputs.shape[1:])} as "
                    f"in the training part, found {tuple(inputs.shape[1:])}"
                )


def split(
    train_inputs: Tensor | np.ndarray,
    train_labels: Tensor | np.ndarray,
    test_inputs: Tensor | np.ndarray | None = None,
    test_labels: Tensor | np.ndarray | None = None,
    *,
    name: str,
    validation_fraction: float = 0.1,
    seed: int = 0,
    normalise: bool = True,
    augment: Augment | None = None,
) -> Data:
    """Hold out a validation part, and bring all parts to mean 0 and standard deviation 1.

    The shuffle depends on `seed` and the number of examples only, never on the seed of a run or
    on the global random state: every run, and every machine, validates on the same examples. Both
    statistics are scalars, taken from the training part that is left.

    >>> data = split(torch.arange(20.0).reshape(10, 2), torch.arange(10) % 2, name="tiny")
    >>> data.train.inputs.shape, data.validation.inputs.shape
    (torch.Size([9, 2]), torch.Size([1, 2]))
    """
    where = f"data {name!r}, training set"
    inputs, labels = _tensor(train_inputs, where), _tensor(train_labels, where)
    _check(inputs, labels, where)
    test = None
    if test_inputs is not None and test_labels is not None:
        test_where = f"data {name!r}, test set"
        test = Split(_tensor(test_inputs, test_where), _tensor(test_labels, test_where))
        _check(*test, test_where)
        test = Split(_float32(test.inputs), test.labels.to(torch.int64))
    elif test_inputs is not None or test_labels is not None:
        raise DataError(f"data {name!r}: give both test inputs and test labels, or neither")

    num_validation = _num_validation(len(inputs), validation_fraction, where)
    order = torch.from_numpy(shuffled(len(inputs), seed))
    held_out, rest = order[:num_validation], order[num_validation:]
    # Indexing before converting: pixels are moved as bytes, a quarter of the memory.
    train = Split(_float32(inputs[rest]), labels[rest].to(torch.int64))
    validation = Split(_float32(inputs[held_out]), labels[held_out].to(torch.int64))

    if normalise:
        mean, deviation = _statistics(train.inputs, where)
        for part in (train, validation, *([test] if test else [])):
            part.inputs.sub_(mean).div_(deviation)
    return Data(name, train, validation, test, augment)


def as_data(value: object, name: str) -> Data:
    """What a user's own data function may return, as `Data`.

    Args:
        value: a `Data`, or a tuple of 2 or 4 tensors, the arguments of `split` in their order.
        name: what messages and records call the data, unless `value` has a name already.
    """
    if isinstance(value, Data):
        return value
    if (
        isinstance(value, tuple | list)
        and len(value) in (2, 4)
        and all(isinstance(item, Tensor | np.ndarray) for item in value)
    ):
        return split(*value, name=name)
    raise DataError(
        f"data {name!r}: expected a reefknot.lab.zoo.Data, or a tuple of tensors (train_inputs, "
        f"train_labels) or (train_inputs, train_labels, test_inputs, test_labels), "
        f"found {_kind(value)}"
    )


def shuffled(count: int, seed: int) -> np.ndarray:
    """The numbers 0 to count - 1 in a random order that no numpy release may change.

    numpy promises that a bit generator's raw stream stays as it is, but not `permutation`.
    """
    keys = np.atleast_1d(np.random.PCG64(seed).random_raw(count))
    return np.argsort(keys, kind="stable")


def _num_validation(count: int, fraction: float, where: str) -> int:
    if not 0 < fraction < 1:
        raise DataError(f"{where}: validation_fraction must be between 0 and 1, found {fraction}")
    number = max(1, round(count * fraction))
    if number >= count:
        raise DataError(
            f"{where}: {count} examples cannot give {fraction:.0%} to validation and keep one; "
            "give more examples or a smaller validation_fraction"
        )
    return number


def _statistics(inputs: Tensor, where: str) -> tuple[float, float]:
    """Mean and (population) standard deviation of all elements, summed in float64."""
    values = inputs.numpy().reshape(-1)
    mean = float(values.sum(dtype=np.float64)) / values.size
    squares = 0.0
    for start in range(0, values.size, _CHUNK):
        squares += float(np.square(values[start : start + _CHUNK] - np.float64(mean)).sum())
    deviation = (squares / values.size) ** 0.5
    if not 0 < deviation < float("inf"):
        raise DataError(
            f"{where}: cannot normalise inputs with mean {mean:g} and standard deviation "
            f"{deviation:g}; check the inputs, or pass normalise=False"
        )
    return mean, deviation


def _check(inputs: Tensor, labels: Tensor, where: str) -> None:
    """Raise a `DataError` unless these are finite examples with one integer label each."""
    if not isinstance(inputs, Tensor) or not isinstance(labels, Tensor):
        raise DataError(f"{where}: expected tensors, found {_kind(inputs)} and {_kind(labels)}")
    if inputs.ndim < 2 or inputs.numel() == 0:
        raise DataError(
            f"{where}: expected inputs of shape (examples, features) or (examples, channels, "
            f"height, width), none of them 0, found {tuple(inputs.shape)}"
        )
    if labels.ndim != 1 or len(labels) != len(inputs):
        raise DataError(
            f"{where}: expected one label for each of the {len(inputs):,} inputs, shape "
            f"({len(inputs)},), found labels of shape {tuple(labels.shape)}"
        )
    if inputs.is_complex() or inputs.dtype == torch.bool:
        raise DataError(f"{where}: expected inputs that are numbers, found {inputs.dtype}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise DataError(
            f"{where}: expected integer labels, found {labels.dtype}; "
            "class numbers convert with labels.long()"
        )
    if int(labels.min()) < 0:
        raise DataError(f"{where}: labels count from 0, found {int(labels.min())}")
    # The extremes of a tensor with NaN are NaN, so two numbers tell about all of them.
    largest = torch.finfo(torch.float32).max
    if not all(abs(float(extreme)) <= largest for extreme in torch.aminmax(inputs)):
        bad = next(i for i, example in enumerate(inputs) if not (example.abs() <= largest).all())
        raise DataError(
            f"{where}: found NaN, infinity or a number beyond float32, first in example {bad}; "
            "clean the inputs"
        )


def _tensor(value: object, where: str) -> Tensor:
    if isinstance(value, Tensor):
        # torch stores the wide unsigned types but does not compute with them.
        wide = value.dtype in (torch.uint16, torch.uint32, torch.uint64)
        return value.detach().cpu().to(torch.int64 if wide else value.dtype)
    if isinstance(value, np.ndarray):
        # torch cannot express a read-only tensor and warns about such arrays.
        writable = value if value.flags.writeable else value.copy()
        try:
            return _tensor(torch.from_numpy(writable), where)
        except TypeError:
            raise DataError(f"{where}: expected numbers, found an array of {value.dtype}") from None
    raise DataError(f"{where}: expected a tensor or a numpy array, found {_kind(value)}")


def _float32(inputs: Tensor) -> Tensor:
    """A copy that may be changed in place."""
    return inputs.to(torch.float32, copy=True)


def _kind(value: object) -> str:
    """What a message calls a value: its type, and how many items it has."""
    many = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"a {type(value).__name__}{many}"
