import json
import os
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from reef_examples import EXAMPLES, lenet

from reefknot.cli import main as files
from reefknot.cluster import Settings
from reefknot.errors import CheckError, FormatError, ReefknotError
from reefknot.files import writing_atomically
from reefknot.format import open_state, save
from reefknot.inspection import inspect, verify
from reefknot.packing import pack, unpack
from reefknot.tensorfile import open_tensors, write_safetensors


def run(*arguments):
    return CliRunner().invoke(files, [str(a) for a in arguments], catch_exceptions=False)


@pytest.mark.parametrize("example", ["lenet", "every-type", "only-kept"])
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
    result = run("pack", tmp_path / "a.safetensors", tmp_path / "a.reef", "--clusters", 4, "--json")
    rows = {row["name"]: row["done"] for row in json.loads(result.output)["tensors"]}
    assert rows == {
        "w": "kept exactly: has values that are not finite",
        "e": "kept exactly: too small",
    }


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
        unpack(tmp_path / "a.reef", tmp_path)


def test_inspect_accounts_for_every_byte(tmp_path):
    for example, effort in (
        ("convolutional", "auto"),
        ("convolutional", "fast"),
        ("lenet", "auto"),
    ):
        size = save(EXAMPLES[example](), tmp_path / "x.reef", effort=effort)
        found = inspect(tmp_path / "x.reef")
        parts = found.header_bytes + found.codebook_bytes + found.tied_bytes + found.kept_bytes
        assert parts == pytest.approx(size) and found.header_bytes > 0
        assert all(row.value_bytes >= -0.2 and row.position_bytes >= 0 for row in found.tensors)
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
