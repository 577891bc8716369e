"""Checkpoints of others that are wrong, or made to do harm: one sentence each, no traceback."""

import io
import json
import os
import random
import subprocess
import sys
import warnings
import zipfile

import numpy as np
import pytest
import torch

from reefknot.errors import FormatError, ReefknotError
from reefknot.format import open_state
from reefknot.inspection import verify
from reefknot.packing.pack import pack
from reefknot.tensorfile import open_tensors

FLOATS = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def safetensors(path, header, data=b"\0" * 8):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def read_all(path):
    return [tensor.read() for tensor in open_tensors(path)]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"data_offsets": [0.0, 4.0]}, "whole numbers"),
        ({"data_offsets": [0]}, "whole numbers"),
        ({"data_offsets": [-4, 0]}, "whole numbers"),
        ({"data_offsets": {"0": 4}}, "whole numbers"),
        ({"shape": [float("inf")]}, "whole numbers"),
        ({"shape": [1.9]}, "whole numbers"),
        ({"shape": ["1"]}, "whole numbers"),
        ({"shape": [True]}, "whole numbers"),
        ({"shape": [0, 2**70], "data_offsets": [0, 0]}, "whole numbers"),
        ({"shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}, "has the shape"),
        ({"shape": [2]}, r"has the shape \[2\] but 4 bytes"),
        ({"shape": [1] * 100}, "100 dimensions; 64 is the limit"),
        ({"shape": [3], "data_offsets": [0, 12]}, "ends inside 'x'"),
        ({"dtype": "F3"}, "'x' has an unknown element type 'F3'"),
        ({"dtype": ["F32"]}, "needs a dtype"),
    ],
)
def test_a_wrong_entry_of_a_safetensors_header_is_refused(tmp_path, change, sentence):
    path = safetensors(tmp_path / "x.safetensors", {"x": {**FLOATS, **change}})
    with pytest.raises(FormatError, match=sentence):
        open_tensors(path)


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (b"[" * 200_000, "not a safetensors file"),
        (b'{"x":' * 200_000, "not a safetensors file"),
        (b"[1]", "header is not a table"),
        (b'{"x":1e999}', "needs a dtype"),
        (b'{"x":{},"x":{}}', "the key 'x' is there twice"),
        (b"\xff\xfe{}", "not a safetensors file"),
        ({"x": FLOATS, "y": FLOATS}, "'x' and 'y' overlap"),
    ],
)
def test_a_wrong_safetensors_header_is_refused(tmp_path, header, sentence):
    with pytest.raises(FormatError, match=sentence):
        open_tensors(safetensors(tmp_path / "x.safetensors", header))


# Short entries cost far more as objects of Python than as text.
BOMBS = {
    "metadata": b'{"__metadata__":{%s}}'
    % b",".join(b'"%x":""' % n for n in range(1_000_000, 2_010_000)),
    "lists": b'{"x":[%s]}' % b",".join([b"[]"] * 1_010_000),
    "dicts": b'{"x":[%s]}' % b",".join([b"{}"] * 1_010_000),
    "one string": b'{"x":"%s"}' % (b"s" * (33 << 20)),
}


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.parametrize("file", ["x.safetensors", "x.safetensors.index.json"])
def test_json_that_would_take_much_memory_is_refused_before_it_is_parsed(tmp_path, kind, file):
    if file.endswith(".json"):
        (tmp_path / file).write_bytes(BOMBS[kind])
    else:
        safetensors(tmp_path / file, BOMBS[kind])
    with pytest.raises(FormatError, match=r"more than [\d,]+ (items|bytes).* the limit"):
        open_tensors(tmp_path / file)


def test_the_largest_header_that_is_read_takes_little_memory(tmp_path):
    pairs = b",".join(b'"%x":""' % n for n in range(1_000_000, 1_990_000))
    path = safetensors(tmp_path / "x.safetensors", b'{"__metadata__":{%s}}' % pairs)
    code = (
        "import sys; from reefknot.tensorfile import open_tensors; open_tensors(sys.argv[1])\n"
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 500_000


@pytest.mark.parametrize("name", ["x.safetensors", "x.pt", "x.safetensors.index.json"])
def test_a_pipe_and_a_device_are_not_read(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ReefknotError, match="is a device, a pipe or a socket"):
        open_tensors(tmp_path / name)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(ReefknotError, match="is a device, a pipe or a socket"):
        open_tensors(tmp_path / name)


def test_booleans_that_are_neither_0_nor_1_are_refused(tmp_path):
    row = {"dtype": "BOOL", "shape": [4], "data_offsets": [0, 4]}
    path = safetensors(tmp_path / "x.safetensors", {"x": row}, b"\0\1\7\1")
    with pytest.raises(FormatError, match="'x' is BOOL and holds the byte 7"):
        pack(path, tmp_path / "x.reef")
    assert not (tmp_path / "x.reef").exists()
    path = safetensors(tmp_path / "x.safetensors", {"x": row}, b"\0\1\0\1")
    assert [array.tolist() for array in read_all(path)] == [[False, True, False, True]]


def test_an_entry_of_64_dimensions_and_one_without_elements_are_read(tmp_path):
    header = {"x": {**FLOATS, "shape": [1] * 64}, "y": {**FLOATS, "shape": [0, 2**40]}}
    header["y"]["data_offsets"] = [4, 4]
    path = safetensors(tmp_path / "x.safetensors", header)
    assert [array.shape for array in read_all(path)] == [(1,) * 64, (0, 2**40)]
    pack(path, tmp_path / "x.reef")
    verify(tmp_path / "x.reef", path)


@pytest.mark.parametrize(
    ("index", "sentence"),
    [
        (b"[" * 200_000, "not the index"),
        (b"[]", "no weight_map"),
        (b'{"weight_map": {}}', "no weight_map"),
        (b'{"weight_map": 5}', "no weight_map"),
        (b'{"weight_map": {"x": 5}}', "names the shard 5, which is not beside it"),
        (b'{"weight_map": {"x": "a\\u0000b"}}', "is not beside it"),
        (b'{"weight_map": {"x": "\\ud800"}}', "is not beside it"),
        (b'{"weight_map": {"x": "no.safetensors"}}', "no.safetensors could not be read: No such"),
        (b'{"weight_map": {"x": ".."}}', "could not be read"),
    ],
)
def test_a_wrong_index_is_refused_and_a_missing_shard_is_named(tmp_path, index, sentence):
    (tmp_path / "m.safetensors.index.json").write_bytes(index)
    with pytest.raises(ReefknotError, match=sentence):
        open_tensors(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    for name in ("a.safetensors", "b.safetensors"):
        safetensors(tmp_path / name, {"x": FLOATS})
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FormatError, match="holds 'x' twice"):
        open_tensors(tmp_path / "m.safetensors.index.json")


def test_shards_of_torch_files_are_read(tmp_path):
    for name in "ab":
        torch.save({name: torch.arange(3.0)}, tmp_path / f"pytorch_model-{name}.bin")
    index = {"weight_map": {name: f"pytorch_model-{name}.bin" for name in "ab"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert [array.tolist() for array in read_all(tmp_path)] == [[0, 1, 2], [0, 1, 2]]


def test_a_reef_file_is_said_to_be_one_already(tmp_path):
    torch.save({"a": torch.ones(5)}, tmp_path / "a.pt")
    pack(tmp_path / "a.pt", tmp_path / "a.reef")
    for again in (pack, verify):
        with pytest.raises(FormatError, match=r"a.reef is a .reef file already"):
            again(tmp_path / "a.reef", tmp_path / ("b.reef" if again is pack else "a.reef"))


def test_conjugate_and_negative_views_come_back_as_themselves(tmp_path):
    a = torch.tensor([1 + 2j, 3 - 4j])
    torch.save({"a": a, "b": a.conj(), "c": a}, tmp_path / "a.pt")
    pack(tmp_path / "a.pt", tmp_path / "a.reef")
    verify(tmp_path / "a.reef", tmp_path / "a.pt")
    state = open_state(tmp_path / "a.reef")
    assert {n: v.tolist() for n, _, v in state.arrays()} == {
        "a": [1 + 2j, 3 - 4j],
        "b": [1 - 2j, 3 + 4j],
        "c": [1 + 2j, 3 - 4j],
    }


def _odd_tensors():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "sparse": torch.eye(3).to_sparse(),
            "csr": torch.eye(3).to_sparse_csr(),
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            "meta": torch.zeros(3, device="meta"),
            "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
            "huge": torch.zeros(1).expand(1 << 45),
            "deep": torch.zeros(1).as_strided([1] * 70, [1] * 70),
            "complex128": torch.zeros(2, dtype=torch.complex128),
        }


@pytest.mark.parametrize("kind", _odd_tensors())
def test_tensors_that_are_not_dense_are_refused(tmp_path, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save({"x": _odd_tensors()[kind]}, tmp_path / "a.pt")
    with pytest.raises(ReefknotError, match=r"a\.pt"):
        pack(tmp_path / "a.pt", tmp_path / "a.reef")
    assert not (tmp_path / "a.reef").exists()


def test_a_pickle_is_refused_without_advice_to_run_it(tmp_path):
    torch.save({"a": random.Random}, tmp_path / "x.pt")
    with pytest.raises(
        FormatError, match=r"it needs random.Random; save model.state_dict"
    ) as found:
        open_tensors(tmp_path / "x.pt")
    assert "weights_only" not in str(found.value) and "\n" not in str(found.value)


def torch_file(path, tensors, *compressed):
    """A torch file in which the storages of these numbers are compressed."""
    torch.save(tensors, path)
    with zipfile.ZipFile(path) as source:
        entries = [(entry.filename, source.read(entry)) for entry in source.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries:
            squeeze = name.endswith(tuple(f"/data/{number}" for number in compressed))
            archive.writestr(name, data, zipfile.ZIP_DEFLATED if squeeze else zipfile.ZIP_STORED)
    return path


@pytest.mark.parametrize("compressed", [(), (0,), (1,), (0, 1)])
def test_a_torch_file_that_was_compressed_later_has_its_own_values(tmp_path, compressed):
    ones, many = torch.ones(1000), torch.arange(5000.0)
    path = torch_file(tmp_path / "x.pt", {"a": ones, "b": many}, *compressed)
    for found, wanted in zip(read_all(path), (ones, many), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_torch_file_that_inflates_to_far_more_is_refused_before_it_does(tmp_path, monkeypatch):
    path = torch_file(tmp_path / "x.pt", {"a": torch.zeros(20 << 20)}, 0)
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was read"))
    words = r"bytes would inflate to 83,886,[\d,]+; save model.state_dict"
    with pytest.raises(FormatError, match=words):
        open_tensors(path)


def test_entries_of_a_torch_file_that_share_bytes_count_each(tmp_path):
    path = torch_file(tmp_path / "x.pt", {"a": torch.ones(100_000)})
    with zipfile.ZipFile(path, "a") as archive:
        archive.filelist += archive.filelist * 300
        archive.writestr("more", b"")
    with pytest.raises(FormatError, match=r"bytes would inflate to 1\d\d,"):
        open_tensors(path)


@pytest.mark.parametrize("old", [False, True])
def test_damaged_torch_files_end_in_a_sentence(tmp_path, old):
    file = io.BytesIO()
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bool)}
    torch.save(tensors, file, _use_new_zipfile_serialization=not old)
    whole, rng = file.getvalue(), np.random.default_rng(0)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(min(len(data), 700))] = rng.integers(256)
        (tmp_path / "x.pt").write_bytes(data)
        try:
            read_all(tmp_path / "x.pt")
        except ReefknotError as error:
            assert "weights_only" not in str(error) and "\n" not in str(error)
