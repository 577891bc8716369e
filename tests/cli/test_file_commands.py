import json
import os
import subprocess
import sys
import zlib
from random import Random

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from reef_examples import EXAMPLES, lenet, random_file
from safetensors.numpy import save_file

from reefknot.cli import main as files
from reefknot.dtypes import DTYPES
from reefknot.errors import CheckError, FormatError, ReefknotError
from reefknot.files import writing_atomically
from reefknot.format import open_state, save
from reefknot.inspection import inspect, verify
from reefknot.loading import load
from reefknot.packing.clustering import Settings
from reefknot.packing.pack import pack
from reefknot.scales import Scales
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor
from reefknot.tensorfile import open_tensors, write_safetensors


def run(*arguments):
    return CliRunner().invoke(files, [str(a) for a in arguments], catch_exceptions=False)


@pytest.mark.parametrize("example", ["lenet", "every-type", "only-kept", "scaled"])
@pytest.mark.parametrize("effort", ["auto", "fast"])
def test_pack_without_settings_is_lossless(tmp_path, example, effort):
    source, packed, back = (
        tmp_path / "a.safetensors",
        tmp_path / "a.reef",
        tmp_path / "b.safetensors",
    )
    write_safetensors(EXAMPLES[example](), source)
    assert run("pack", source, packed, "--effort", effort).exit_code == 0
    assert run("verify", packed, "--against", source).exit_code == 0
    assert run("unpack", packed, back).exit_code == 0
    raw = {t.name: (t.dtype, t.read().tobytes()) for t in open_tensors(source)}
    assert raw == {t.name: (t.dtype, t.read().tobytes()) for t in open_tensors(back)}


def test_a_tied_network_is_found_in_its_dense_checkpoint(tmp_path):
    # The network's one codebook is found again, so packing costs almost nothing over saving.
    write_safetensors(lenet(), tmp_path / "a.safetensors")
    packed = pack(tmp_path / "a.safetensors", tmp_path / "a.reef")
    assert packed.file_bytes < 1.3 * save(lenet(), tmp_path / "b.reef") + 40


def test_pack_with_settings_reports_what_it_did(tmp_path):
    write_safetensors(EXAMPLES["only-kept"](), tmp_path / "a.safetensors")
    arguments = ("pack", tmp_path / "a.safetensors", tmp_path / "a.reef", "--clusters", 4)
    result = CliRunner().invoke(files, [*map(str, arguments), "--min-size", "0", "--json"])
    rows = {row["name"]: row["done"] for row in json.loads(result.stdout)["tensors"]}
    assert rows == {
        "w": "kept exactly: has values that are not finite",
        "e": "kept exactly: too small",
    }


WEIGHTS = np.random.default_rng(0).normal(size=(40, 50)).astype("<f4")


def both_streams(*arguments):
    result = CliRunner().invoke(files, [str(a) for a in arguments], catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def test_a_lossy_table_ends_with_the_network_and_names_what_is_lost_on_stderr(tmp_path):
    source, target = tmp_path / "a.safetensors", tmp_path / "a.reef"
    save_file({"fc.weight": WEIGHTS, "fc.bias": WEIGHTS[0]}, source)
    code, out, err = both_streams("pack", source, target, "--clusters", 32)
    assert code == 0 and not err
    last = [line for line in out.splitlines() if line.strip()][-2]
    assert last.split()[:3] == ["the", "whole", "network"] and "bytes (" in last
    assert "kept exactly: too small" in out
    code, out, err = both_streams("pack", source, target, "-f", "--density", 0.1)
    assert code == 0 and err.startswith("reefknot: warning: 1 of 2 tensors lose more than a tenth")
    assert "'fc.weight' (5" in err
    code, out, err = both_streams("pack", source, target, "-f", "--density", 0.1, "--json")
    found = json.loads(out)
    assert found["warnings"] == [err.strip().removeprefix("reefknot: warning: ")]
    assert 0.5 < found["relative_error"] < 0.9
    code, out, err = both_streams("pack", source, target, "-f", "--clusters", 1)
    assert code == 2 and "with one value nothing of a tensor is left" in err


def test_a_lossless_pack_says_in_two_lines_that_nothing_changed(tmp_path):
    many = {f"layer.{n}": WEIGHTS[n] for n in range(30)} | {"mask": np.ones((9, 9), "<f4")}
    save_file(many, tmp_path / "a.safetensors")
    code, out, err = both_streams("pack", tmp_path / "a.safetensors", tmp_path / "a.reef")
    assert code == 0 and not err
    lines = out.splitlines()
    assert len(lines) == 2 and lines[0] == "31 tensors, 1 of them with few values: nothing changed"


def low_bit_checkpoint(path):
    """Eight bits with a scale for 32 weights, and four bits with one for a row."""
    rng, tensors = np.random.default_rng(0), {}
    for name, run, largest in (("a.weight", 32, 127), ("b.weight", 256, 7)):
        rows = rng.standard_t(5, (40 * 256 // run, run))
        scales = (np.abs(rows).max(1, keepdims=True) / largest).astype("<f2").astype("<f4")
        integers = np.rint(rows / scales).astype("i1")
        tensors[name] = (integers * scales).astype("<f4").reshape(40, 256)
    save_file(tensors, path)


@pytest.mark.parametrize("effort", ["auto", "fast"])
def test_a_low_bit_checkpoint_is_stored_as_integers_and_scales(tmp_path, effort):
    source, target, back = (tmp_path / f"a.{end}" for end in ("safetensors", "reef", "b"))
    low_bit_checkpoint(source)
    result = run("pack", source, target, "--effort", effort)
    said = "2 tensors, 0 of them with few values, 2 as integers and scales (version 2)"
    assert result.output.startswith(f"{said}: nothing changed\n")
    assert target.stat().st_size < 40 * 256 * 1.6  # of 8 + 4 bits a weight, and scales
    assert run("verify", target, "--against", source).exit_code == 0
    assert run("unpack", target, back).exit_code == 0
    assert back.read_bytes() == source.read_bytes()
    output = run("inspect", target).output
    assert [line.split()[6:8] for line in output.splitlines() if ".weight" in line] == [
        ["320", "32"], ["40", "256"],
    ]  # fmt: skip
    rows = json.loads(run("inspect", target, "--json").stdout)["tensors"]
    assert [(row["kind"], row["num_scales"], row["run"]) for row in rows] == [
        ("scaled", 320, 32), ("scaled", 40, 256),
    ]  # fmt: skip
    if effort == "auto":
        assert 320 < rows[0]["scale_bytes"] < 3 * 320


def test_inspect_counts_zeros_of_scales_and_of_integers(tmp_path):
    book = Codebook(DTYPES["I8"], np.array([0, 1], "i1"))
    scales = Scales(DTYPES["F32"], np.array([0.0, 1.0], "<f4"), 3)
    state = TiedState((book,), (TiedTensor("w", 0, np.array([[1, 1, 0], [1, 1, 0]]), scales),))
    save(state, tmp_path / "a.reef")
    assert inspect(tmp_path / "a.reef").tensors[0].density == pytest.approx(2 / 6)
    assert state.density == pytest.approx(2 / 6)


def test_verify_tells_minus_zero_from_zero_where_there_are_scales(tmp_path):
    book = Codebook(DTYPES["I8"], np.array([0, 1], "i1"))
    scales = Scales(DTYPES["F32"], np.array([-1.0], "<f4"), 4)
    save(TiedState((book,), (TiedTensor("w", 0, np.eye(2, dtype=int), scales),)), tmp_path / "a")
    for zero, code in ((-0.0, 0), (0.0, 1)):
        save_file({"w": np.array([[-1, zero], [zero, -1]], "<f4")}, tmp_path / "b.safetensors")
        assert (
            run("verify", tmp_path / "a", "--against", tmp_path / "b.safetensors").exit_code == code
        )


def test_metadata_that_is_not_kept_is_said(tmp_path):
    source = tmp_path / "a.safetensors"
    save_file({"w": WEIGHTS}, source, metadata={"format": "pt", "licence\n": "mine"})
    code, out, err = both_streams("pack", source, tmp_path / "a.reef")
    assert code == 0
    assert "is not kept: " in err and "format" in err and "licence\\n" in err
    assert len(err.splitlines()) == 1
    code, out, err = both_streams("pack", source, tmp_path / "b.reef", "--json")
    assert sorted(json.loads(out)["metadata_left_out"]) == ["format", "licence\n"]


@pytest.mark.parametrize("name", ["out.pt", "out.PTH", "out.bin", "out.ckpt", "out.reef"])
def test_unpack_does_not_write_safetensors_under_the_name_of_another_format(tmp_path, name):
    save(lenet(), tmp_path / "a.reef")
    code, _, err = both_streams("unpack", tmp_path / "a.reef", tmp_path / name)
    assert code == 2 and "name a file that ends in .safetensors" in err
    assert os.listdir(tmp_path) == ["a.reef"]


def test_shards_and_their_index(tmp_path):
    state = lenet()
    names = [t.name for t in state.tensors]
    for number, part in enumerate((names[:2], names[2:])):
        tensors = tuple(t for t in state.tensors if t.name in part)
        write_safetensors(
            type(state)(state.codebooks, tensors), tmp_path / f"m-{number}.safetensors"
        )
    index = {"weight_map": {n: f"m-{int(n not in names[:2])}.safetensors" for n in names}}
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps(index))
    pack(tmp_path / "m.safetensors.index.json", tmp_path / "m.reef")
    assert open_state(tmp_path / "m.reef") == state
    index["weight_map"]["fc1.weight"] = "../m-0.safetensors"
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FormatError, match="not beside it"):
        open_tensors(tmp_path / "m.safetensors.index.json")


def test_torch_files_share_what_they_shared(tmp_path):
    torch = pytest.importorskip("torch")
    weight = torch.arange(12.0).reshape(3, 4).to(torch.bfloat16)
    torch.save({"a": weight, "b": weight, "c": weight.T}, tmp_path / "x.pt")
    pack(tmp_path / "x.pt", tmp_path / "x.reef")
    assert dict(open_state(tmp_path / "x.reef").aliases) == {"b": "a"}
    verify(tmp_path / "x.reef", tmp_path / "x.pt")


def test_pickles_that_run_code_are_refused(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"a": os.system}, tmp_path / "x.pt")
    with pytest.raises(FormatError, match="not a checkpoint of tensors alone"):
        open_tensors(tmp_path / "x.pt")


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 8, b"\2\0\0\0\0\0\0\0{}x", b"\5\0\0\0\0\0\0\0[1,2]"]
)
def test_broken_safetensors_files_are_refused(tmp_path, data):
    (tmp_path / "x.safetensors").write_bytes(data)
    if data == b"\2\0\0\0\0\0\0\0{}x":
        assert open_tensors(tmp_path / "x.safetensors") == []
        return
    with pytest.raises(FormatError):
        open_tensors(tmp_path / "x.safetensors")


def test_existing_files_are_kept_unless_forced(tmp_path):
    write_safetensors(lenet(), tmp_path / "a.safetensors")
    (tmp_path / "a.reef").write_bytes(b"old")
    with pytest.raises(ReefknotError, match="--force"):
        pack(tmp_path / "a.safetensors", tmp_path / "a.reef")
    assert (tmp_path / "a.reef").read_bytes() == b"old"
    pack(tmp_path / "a.safetensors", tmp_path / "a.reef", Settings(), force=True)
    with pytest.raises(ReefknotError, match="is a folder"):
        pack(tmp_path / "a.safetensors", tmp_path, Settings(), force=True)


def test_inspect_accounts_for_every_byte(tmp_path):
    for example, effort in (
        ("convolutional", "auto"),
        ("convolutional", "fast"),
        ("lenet", "auto"),
        ("scaled", "auto"),
        ("scaled", "fast"),
    ):
        size = save(EXAMPLES[example](), tmp_path / "x.reef", effort=effort)
        found = inspect(tmp_path / "x.reef")
        parts = found.header_bytes + found.codebook_bytes + found.tied_bytes + found.kept_bytes
        assert parts == pytest.approx(size) and found.header_bytes > 0
        assert [row.bytes for row in found.tensors] == pytest.approx(
            [row.position_bytes + row.value_bytes + row.scale_bytes for row in found.tensors]
        )
    result = run("inspect", tmp_path / "x.reef", "--json")
    needed = {
        "file_bytes",
        "original_bytes",
        "rate_file",
        "rate_paper",
        "rate_fixed",
        "density",
        "num_clusters",
    }
    assert needed <= set(json.loads(result.output))
    assert "codebooks" in run("inspect", tmp_path / "x.reef").output


def test_verify_finds_a_difference_and_allows_negative_zero(tmp_path):
    state = lenet()
    save(state, tmp_path / "x.reef")
    write_safetensors(state, tmp_path / "x.safetensors")
    data = bytearray((tmp_path / "x.safetensors").read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    values = np.frombuffer(data, "<f4", offset=start)
    zero = start + 4 * int(np.flatnonzero(values == 0)[0])
    data[zero + 3] = 0x80
    (tmp_path / "x.safetensors").write_bytes(data)
    assert verify(tmp_path / "x.reef", tmp_path / "x.safetensors").negative_zeros == 1
    data[zero] = 1
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(CheckError, match=r"differs in 1 of .* first at \["):
        verify(tmp_path / "x.reef", tmp_path / "x.safetensors")


def test_the_old_file_survives_a_failure_and_a_kill(tmp_path):
    target = tmp_path / "x.reef"
    target.write_bytes(b"old")
    with (
        pytest.raises(ReefknotError, match="could not be written"),
        writing_atomically(target) as file,
    ):
        file.write(b"new")
        raise OSError(28, "No space left on device")
    assert target.read_bytes() == b"old" and os.listdir(tmp_path) == ["x.reef"]
    code = (
        "import os, sys; from reefknot.files import writing_atomically\n"
        "with writing_atomically(sys.argv[1]) as f: f.write(b'n' * 99999); "
        "f.flush(); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert (
        subprocess.run(
            [sys.executable, "-c", code, target], env=environment, check=False
        ).returncode
        == -9
    )
    assert target.read_bytes() == b"old"


def named(*names):
    ones = np.ones(3, "<f4")
    return TiedState((), tuple(KeptTensor(name, DTYPES["F32"], ones) for name in names))


@pytest.mark.parametrize("way", ["itself", "a link", "a hard link"])
def test_a_source_is_never_replaced_even_if_forced(tmp_path, way):
    source, target = tmp_path / "q.safetensors", tmp_path / "t"
    write_safetensors(lenet(), source)
    save(lenet(), tmp_path / "q.reef")
    for command, file in (("pack", source), ("unpack", tmp_path / "q.reef")):
        target.unlink(missing_ok=True)
        if way == "a link":
            target.symlink_to(file)
        elif way == "a hard link":
            target.hardlink_to(file)
        before = file.read_bytes()
        result = run(command, "-f", file, file if way == "itself" else target)
        assert result.exit_code == 2 and "name another file to write" in result.output
        assert file.read_bytes() == before


def test_a_shard_and_the_index_of_the_source_are_never_replaced(tmp_path):
    write_safetensors(named("x"), tmp_path / "a.safetensors")
    index = tmp_path / "m.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors"}}))
    for source in (index, tmp_path):
        for target in (tmp_path / "a.safetensors", index):
            before = target.read_bytes()
            result = run("pack", "--force", source, target)
            assert result.exit_code == 2 and "is a file of the source" in result.output
            assert target.read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes with names")
def test_a_pipe_is_refused_before_any_work_even_if_forced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    result = run("pack", "-f", tmp_path / "missing.safetensors", tmp_path / "pipe")
    assert result.exit_code == 2 and "is a device, a pipe or a socket" in result.output
    assert (tmp_path / "pipe").is_fifo()


ODD_NAMES = ["[/x]", "layers[bias]", "a\x1b[31mred", "b\nc", "\ud800", "é", "n" * 300]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_names_are_printed_as_they_are_and_without_control_characters(tmp_path, encoding):
    save(named(*ODD_NAMES), tmp_path / "a.reef")
    torch = pytest.importorskip("torch")
    torch.save({name: torch.ones(3) for name in ODD_NAMES if name != "\ud800"}, tmp_path / "a.pt")
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    packs = ["pack", tmp_path / "a.pt", tmp_path / "b.reef", "--clusters", "2"]
    commands = [["inspect", tmp_path / "a.reef"], packs]
    for arguments in commands[: 2 if encoding == "ascii" else 1]:
        done = subprocess.run(
            [sys.executable, "-m", "reefknot.cli", *arguments],
            env=environment, capture_output=True, check=False,
        )  # fmt: skip
        text = done.stdout.decode(encoding)
        assert done.returncode == 0, done.stderr
        shown = ["[/x] ", "layers[bias] ", "a\\x1b[31mred ", "b\\nc ", "n" * 300]
        shown.append("é " if encoding == "utf-8" else "\\xe9 ")
        shown += ["\\ud800 "] * (arguments[0] == "inspect")
        assert all(name in text for name in shown) and "\x1b" not in text


def test_a_table_does_not_grow_with_its_longest_name_and_json_has_it_whole(tmp_path):
    name = "first" + "n" * 65_000 + "last"
    save(named(name, *(f"t{number}" for number in range(200))), tmp_path / "a.reef")
    shown = run("inspect", tmp_path / "a.reef").output
    assert len(shown) < 250_000
    assert "firstnnn" in shown and "nnnlast " in shown
    found = json.loads(run("inspect", tmp_path / "a.reef", "--json").output)
    assert found["tensors"][0]["name"] == name


def test_max_bytes_is_for_every_command_that_decodes_and_0_means_0(tmp_path):
    save(named("x"), tmp_path / "a.reef")
    for command in (["unpack", tmp_path / "b"], ["inspect"], ["verify"]):
        arguments = [command[0], tmp_path / "a.reef", *command[1:], "--max-bytes"]
        result = run(*arguments, 0)
        assert result.exit_code == 2 and "the limit is 0" in result.output
        assert run(*arguments, 11).exit_code == 2
        assert run(*arguments, 12).exit_code == 0


@pytest.mark.parametrize("name", ["__metadata__", "a\ud800"])
def test_names_that_safetensors_cannot_hold_are_refused(tmp_path, name):
    save(named(name), tmp_path / "a.reef")
    result = run("unpack", tmp_path / "a.reef", tmp_path / "b")
    assert result.exit_code == 2 and "cannot hold a tensor named" in result.output
    assert os.listdir(tmp_path) == ["a.reef"]


def test_a_pattern_to_keep_that_matches_nothing_is_a_mistake(tmp_path):
    write_safetensors(named("fc.bias", "fc.weight"), tmp_path / "a.safetensors")
    arguments = ("pack", tmp_path / "a.safetensors", tmp_path / "a.reef", "--clusters", 2, "--keep")
    result = run(*arguments, "fc.bais")
    assert result.exit_code == 2 and "did you mean 'fc.bias'?" in result.output
    assert not (tmp_path / "a.reef").exists()
    assert run(*arguments, "*.bias").exit_code == 0
    result = run("pack", "-f", *arguments[1:4], 0)
    assert result.exit_code == 2 and "--clusters" in result.output


def test_a_name_that_is_too_long_for_a_file_is_said_in_one_sentence(tmp_path):
    write_safetensors(named("x"), tmp_path / "a.safetensors")
    for paths in (("a.safetensors", "n" * 300), ("n" * 300, "a.reef")):
        result = run("pack", *(tmp_path / path for path in paths))
        assert result.exit_code == 2 and "File name too long" in result.output


def test_inspect_has_no_negative_bytes(tmp_path):
    rng = Random(3)
    for number in range(60):
        path = tmp_path / f"{number}.reef"
        path.write_bytes(random_file(rng))
        found = inspect(path)
        sizes = [found.header_bytes, found.codebook_bytes, found.tied_bytes, found.kept_bytes]
        sizes += [size for row in found.tensors for size in (row.position_bytes, row.value_bytes)]
        assert min(sizes) >= 0
        assert sum(sizes[:4]) == pytest.approx(found.file_bytes)


def test_inspect_tells_positions_from_values(tmp_path):
    # Where one of two values is zero there is nothing to tell but positions; where all of many
    # differ from it, hardly anything but values.
    rng = np.random.default_rng(0)
    few = Codebook(DTYPES["F32"], np.array([0, 1], "<f4"))
    many = Codebook(DTYPES["F32"], np.arange(64, dtype="<f4"))
    state = TiedState(
        (few, many),
        (
            TiedTensor("few", 0, rng.integers(0, 2, (50, 60))),
            TiedTensor("many", 1, rng.integers(1, 64, (50, 60))),
        ),
    )
    save(state, tmp_path / "a.reef")
    first, second = inspect(tmp_path / "a.reef").tensors
    assert first.position_bytes == pytest.approx(3000 / 8, rel=0.02)
    assert first.value_bytes == pytest.approx(0, abs=1)
    assert second.value_bytes == pytest.approx(3000 * np.log2(63) / 8, rel=0.05)
    assert second.position_bytes < 100


def test_inspect_says_where_it_does_not_compare(tmp_path, monkeypatch):
    save(lenet(), tmp_path / "a.reef")
    assert "not tried" not in run("inspect", tmp_path / "a.reef").output
    monkeypatch.setattr("reefknot.inspection.COMPARE_BYTES", 1000)
    output = run("inspect", tmp_path / "a.reef").output
    assert output.count("not tried") == 3
    assert "gzip and xz are not tried above 1,000 bytes" in output


@pytest.mark.parametrize("effort", ["auto", "fast"])
def test_verify_gives_the_checksum_of_the_bytes_that_it_decoded(tmp_path, monkeypatch, effort):
    path, other = tmp_path / "a.reef", tmp_path / "a.safetensors"
    save(lenet(), path, effort=effort)
    write_safetensors(lenet(), other)
    data = path.read_bytes()

    def replaced(against):
        path.write_bytes(b"another file")
        return open_tensors(against)

    monkeypatch.setattr("reefknot.inspection.open_tensors", replaced)
    found = verify(path, other)
    assert found.checksum == f"{zlib.crc32(data):08x}"
    assert found.file_bytes == len(data)


@pytest.mark.parametrize("tied", [True, False])
def test_verify_finds_what_differs_far_inside_a_large_tensor(tmp_path, tied):
    indices = np.zeros((3, 500_000), np.uint8)
    indices[2, 499_998:] = 1
    book = Codebook(DTYPES["F32"], np.array([0, 1], "<f4"))
    dense = KeptTensor("w", DTYPES["F32"], indices.astype("<f4"))
    state = TiedState((book,), (TiedTensor("w", 0, indices) if tied else dense,))
    save(state, tmp_path / "a.reef")
    data = dense.data.copy()
    data[2, 499_997:] = 7
    write_safetensors(
        TiedState((), (KeptTensor("w", DTYPES["F32"], data),)), tmp_path / "a.safetensors"
    )
    with pytest.raises(
        CheckError, match=r"differs in 3 of 1,500,000 elements, first at \[2, 499997\]"
    ):
        verify(tmp_path / "a.reef", tmp_path / "a.safetensors")


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes with names")
def test_pipes_and_devices_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        for command in (["inspect"], ["verify"], ["unpack"], ["pack"]):
            target = [tmp_path / "out"] if command[0] in ("unpack", "pack") else []
            result = run(*command, path, *target)
            assert result.exit_code == 2
            assert f"{path} is a device, a pipe or a socket; name a file" in result.output
    assert os.listdir(tmp_path) == ["pipe"]


def test_running_out_of_memory_is_one_sentence(tmp_path, monkeypatch):
    def inspect_file(*_, **__):
        raise MemoryError("Unable to allocate 4.00 GiB")

    monkeypatch.setattr("reefknot.inspection.inspect", inspect_file)
    result = run("inspect", tmp_path / "a.reef")
    assert result.exit_code == 2
    assert result.output == (
        "reefknot: there is not enough memory for this (Unable to allocate 4.00 GiB)\n"
    )


def test_a_state_dict_inside_a_torch_file_is_chosen_by_its_key(tmp_path):
    net, average = torch.nn.Linear(3, 2).state_dict(), torch.nn.Linear(3, 2).state_dict()
    source, packed = tmp_path / "a.pt", tmp_path / "a.reef"
    torch.save({"epoch": 3, "net": net, "ema": {"model": average}}, source)
    found = run("pack", source, packed)
    assert found.exit_code == 2
    assert "its keys are 'epoch', 'net', 'ema'" in found.output
    assert "--key chooses one with tensors: net, ema.model" in found.output
    for key, expected in (("net", net), ("ema.model", average)):
        assert run("pack", source, packed, "--key", key, "--force").exit_code == 0
        assert torch.equal(load(packed)["weight"], expected["weight"])
    assert (
        "no state dict under the key 'epoch'"
        in run("pack", source, packed, "--key", "epoch", "--force").output
    )


@pytest.mark.parametrize("ending", ["onnx", "npz", "py"])
def test_a_file_of_another_kind_is_named(tmp_path, ending):
    (tmp_path / f"a.{ending}").write_bytes(bytes(100))
    found = run("pack", tmp_path / f"a.{ending}", tmp_path / "a.reef")
    assert found.exit_code == 2
    assert {"onnx": "ONNX model", "npz": "numpy arrays", "py": "Python program"}[
        ending
    ] in found.output
