"""Checkpoints: any tree comes back as it was, and nothing but a whole one is read."""

import hashlib
import json
import math
import pickle  # noqa: TID251  to make a file that must be refused
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from reefknot.checkpoint import read_checkpoint, unlike, write_checkpoint
from reefknot.errors import FormatError, ReefknotError

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.uint8,
    torch.bool,
]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    count = math.prod(shape) * dtype.itemsize
    raw = draw(st.binary(min_size=count, max_size=count))
    if dtype == torch.bool:
        raw = bytes(byte & 1 for byte in raw)
    return torch.tensor(list(raw), dtype=torch.uint8).view(dtype).reshape(shape)


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | tensors()
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.integers() | st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal in type and bits all the way down, dicts in the same order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
        )
    if isinstance(one, dict):
        return same(list(one), list(other)) and same(list(one.values()), list(other.values()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        # The sign of zero counts; a NaN of Python has no payload worth keeping.
        return (math.isnan(one) and math.isnan(other)) or repr(one) == repr(other)
    return one == other


@settings(max_examples=100, deadline=None)
@given(tree=trees)
def test_a_tree_comes_back_as_it_was(tmp_path_factory: Any, tree: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "tree.safetensors"
    write_checkpoint(path, tree)
    assert same(read_checkpoint(path), tree)


def test_infinities_and_zeros_keep_their_sign() -> None:
    # That `same` itself sees what the property above relies on it to see.
    assert not same(-0.0, 0.0)
    assert not same({1: 2}, {"1": 2})
    assert not same((1,), [1])
    assert not same(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same(True, 1)


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adadelta", "NAdam"])
def test_the_state_of_an_optimizer_comes_back(tmp_path: Path, name: str) -> None:
    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        more = {"momentum": 0.9} if name == "SGD" else {}
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **more)
        return model, optimizer

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()

    model, optimizer = make()
    step(model, optimizer)
    write_checkpoint(tmp_path / "c", {"m": model.state_dict(), "o": optimizer.state_dict()})
    step(model, optimizer)
    other, again = make()
    saved = read_checkpoint(tmp_path / "c")
    other.load_state_dict(saved["m"])
    again.load_state_dict(saved["o"])
    step(other, again)
    assert same(dict(model.state_dict()), dict(other.state_dict()))


def test_tensors_that_share_memory_and_views_are_written_by_value(tmp_path: Path) -> None:
    base = torch.arange(6.0).reshape(2, 3)
    write_checkpoint(tmp_path / "c", {"a": base, "b": base.T, "c": base[:, 1], "d": base})
    saved = read_checkpoint(tmp_path / "c")
    assert saved["b"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert saved["c"].tolist() == [1, 4]
    assert torch.equal(saved["d"], base)


def test_a_parameter_that_requires_a_gradient_is_written(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", [torch.nn.Parameter(torch.ones(2))])
    assert read_checkpoint(tmp_path / "c")[0].tolist() == [1, 1]


@pytest.mark.parametrize("thing", [{1, 2}, b"bytes", object(), 1j])
def test_what_is_neither_number_nor_tensor_is_refused(tmp_path: Path, thing: Any) -> None:
    with pytest.raises(ReefknotError, match="a checkpoint cannot hold a"):
        write_checkpoint(tmp_path / "c", {"deep": [thing]})
    assert not (tmp_path / "c").exists()


def test_a_key_that_would_not_come_back_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReefknotError, match="a checkpoint cannot hold a"):
        write_checkpoint(tmp_path / "c", {(1, 2): 3})


def test_a_refused_tree_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", {"step": 1})
    with pytest.raises(ReefknotError):
        write_checkpoint(tmp_path / "c", {"step": object()})
    assert read_checkpoint(tmp_path / "c") == {"step": 1}


# -- reading what is no checkpoint ----------------------------------------------------------


def test_a_missing_file_and_a_folder_are_said_in_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "no", tmp_path):
        with pytest.raises(FormatError, match="is not a checkpoint that can be read"):
            read_checkpoint(path)


class _Fires:
    """If anything unpickles this, it fails the test in a way that nothing catches."""

    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('a pickle was read')",))


@pytest.mark.parametrize("writer", ["pickle", "torch.save"])
def test_a_pickle_is_refused_and_not_run(tmp_path: Path, writer: str) -> None:
    path = tmp_path / "checkpoint.safetensors"
    with path.open("wb") as file:
        (pickle.dump if writer == "pickle" else torch.save)(_Fires(), file)
    with pytest.raises(FormatError, match="is not a checkpoint that can be read"):
        read_checkpoint(path)


def test_somebody_elses_safetensors_file_is_refused(tmp_path: Path) -> None:
    save_file({"w": torch.ones(1)}, tmp_path / "c")
    with pytest.raises(FormatError, match="is not a checkpoint that can be read"):
        read_checkpoint(tmp_path / "c")


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    write_checkpoint(path, {"step": 3, "w": torch.arange(5.0)})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError):
            read_checkpoint(path)


def test_a_bit_flipped_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    write_checkpoint(path, {"step": 3, "w": torch.arange(3.0)})
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 3):  # 3 and 8 share no factor: every place of a byte
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(flipped))
        with pytest.raises(FormatError, match="is not a checkpoint that can be read"):
            read_checkpoint(path)


def test_a_checkpoint_without_a_checksum_is_refused(tmp_path: Path) -> None:
    save_file({}, tmp_path / "c", metadata={"reefknot": '{"dict": []}'})
    with pytest.raises(FormatError, match="it has no checksum"):
        read_checkpoint(tmp_path / "c")


def test_a_text_that_looks_like_the_checksum_is_not_taken_for_it(tmp_path: Path) -> None:
    tree = {'"sha256":"' + "0" * 64: '"sha256":"' + "0" * 64}
    write_checkpoint(tmp_path / "c", tree)
    assert read_checkpoint(tmp_path / "c") == tree


@pytest.mark.parametrize(
    "skeleton",
    [
        "{}",
        '{"tensor": "7"}',
        '{"tensor": [1]}',
        '{"dict": [[1]]}',
        '{"dict": 5}',
        '{"dict": [[[1], 2]]}',
        '{"other": []}',
        '{"list": 1, "tuple": 2}',
        "not JSON",
        "[" * 100_000,
    ],
)
def test_a_skeleton_that_makes_no_tree_is_refused(tmp_path: Path, skeleton: str) -> None:
    blank = "0" * 64
    content = save({"0": torch.ones(1)}, {"reefknot": skeleton, "sha256": blank})
    checksum = hashlib.sha256(content).hexdigest()
    (tmp_path / "c").write_bytes(content.replace(blank.encode(), checksum.encode(), 1))
    with pytest.raises(FormatError, match="is not a checkpoint that can be read") as found:
        read_checkpoint(tmp_path / "c")
    assert "checksum" not in str(found.value)


@pytest.mark.parametrize(
    ("found", "expected", "words"),
    [
        (1, True, "is of type int, expected bool"),
        ({"a": 1}, {}, "has an unknown entry 'a'"),
        ({}, {"a": 1}, "has no entry 'a'"),
        ([1], [1, 2], "has 1 entries, expected 2"),
        ((1, 2.0), (1, 2), r"\[1\] is of type float, expected int"),
        (
            {"a": [1, torch.ones(2)]},
            {"a": [1, torch.ones(3)]},
            r"of shape \(2,\), expected float32",
        ),
        (torch.ones(2).double(), torch.ones(2), r"is float64 of shape \(2,\), expected float32"),
        (torch.ones(()), 1.0, "is of type Tensor, expected float"),
    ],
)
def test_a_tree_that_is_unlike_another_one_is_said_where(
    found: Any, expected: Any, words: str
) -> None:
    assert list(unlike(expected, expected, "it")) == []
    (sentence,) = unlike(found, expected, "it")
    assert re.match(r"it(\[.*\])? ", sentence)
    assert re.search(words, sentence)


def test_the_metadata_is_plain_json(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", {"a": (1, None)})
    content = (tmp_path / "c").read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    assert json.loads(header["__metadata__"]["reefknot"]) == {"dict": [["a", {"tuple": [1, None]}]]}
