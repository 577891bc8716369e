"""Golden files: every reader reads them, for ever; the specification shows their bytes."""

import json
import re
import zlib
from pathlib import Path

import pytest
from reef_examples import EXAMPLES

from format.reference import reference
from reefknot.format import decode, encode

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
RECORDS = sorted((HERE.parents[1] / "experiments" / "records").glob("*/model.reef"))
GOLDEN = sorted((HERE / "golden").glob("*.reef"))


def content(rows):
    return {name: [tag, list(shape), zlib.crc32(raw)] for name, tag, shape, raw in rows}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_golden_files_are_read(path):
    state = decode(path.read_bytes(), max_bytes=1 << 28)
    found = content((name, dtype.tag, v.shape, v.tobytes()) for name, dtype, v in state.arrays())
    assert found == json.loads(path.with_suffix(".json").read_text())


@pytest.mark.parametrize("effort", ["auto", "fast"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_golden_files_are_still_written(name, effort):
    """Each example in each version that has written it; files of a new version are made here."""
    state = EXAMPLES[name]()
    data = encode(state, effort)
    path = HERE / "golden" / f"v{data[3] & 0x7F}-{name}-{effort}.reef"
    if not path.exists():
        path.write_bytes(data)
        rows = ((key, dtype.tag, v.shape, v.tobytes()) for key, dtype, v in state.arrays())
        path.with_suffix(".json").write_text(json.dumps(content(rows), indent=1) + "\n")
        pytest.fail(f"{path.name} was new and has been written: commit it, and never change it")
    assert path.read_bytes() == data


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_the_reference_decoder_reads_golden_files(path):
    found = content((name, *row) for name, row in reference.read(path.read_bytes()).items())
    assert found == json.loads(path.with_suffix(".json").read_text())


def test_small_records_are_still_written():
    """What version 1 can hold stays as it is, byte for byte."""
    records = [path for path in RECORDS if path.stat().st_size < 4_000]
    assert len(records) > 10
    for path in records:
        data = path.read_bytes()
        assert data[3] == 1
        assert encode(decode(data, max_bytes=1 << 28)) == data, path


def test_the_reference_decoder_needs_nothing():
    text = (DOCS / "reference_decoder.py").read_text()
    imports = re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)
    assert set(imports) <= {"math", "sys", "zlib", "bisect"}


def test_the_hex_dump_of_the_specification_is_a_real_file():
    text = (DOCS / "format.md").read_text()
    block = re.search(r"```hex v1-lenet-auto.reef\n(.*?)```", text, re.DOTALL).group(1)
    data = bytes.fromhex("".join(line.split("|")[1] for line in block.splitlines() if "|" in line))
    assert data == (HERE / "golden" / "v1-lenet-auto.reef").read_bytes()
