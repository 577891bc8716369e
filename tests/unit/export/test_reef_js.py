"""The decoder in JavaScript, as written and as minified, against that of the specification."""

import gzip
import hashlib
import importlib.util
import json
import math
import random
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from format.reference import reference
from reef_examples import codebook, random_file

from reefknot.errors import FormatError
from reefknot.format import decode, encode
from reefknot.state import TiedState, TiedTensor

ROOT = Path(__file__).parents[3]
WEB = ROOT / "src" / "reefknot" / "export" / "web"
GOLDEN = sorted((ROOT / "tests" / "format" / "golden").glob("*.reef"))
HOSTILE = sorted((ROOT / "tests" / "format" / "hostile").glob("*.reef"))
RECORDS = sorted((ROOT / "experiments" / "records").glob("*/model.reef"))
DECODERS = ["reef.js", "reef.min.js"]

needs_node = pytest.mark.skipif(
    shutil.which("node") is None, reason="there is no node here, so that no JavaScript is run"
)


def by_javascript(files, limit, decoder="reef.min.js"):
    """What it reads in each file, or None where it refuses: names, types, shapes and digests."""
    frames = b"".join(len(data).to_bytes(4, "little") + data for data in files)
    script = Path(__file__).with_name("decode.mjs")
    done = subprocess.run(
        ["node", script, WEB / decoder, str(limit)], input=frames, capture_output=True, check=True
    )
    found = [json.loads(line) for line in done.stdout.decode().split("\n")]
    return [sorted(content) if isinstance(content, list) else content for content in found]


def rows(tensors):
    """The same for (name, type, shape, bytes); JSON, as both sides tell names in it."""
    found = [[n, t, list(s), hashlib.sha256(raw).hexdigest()] for n, t, s, raw in tensors]
    return sorted(json.loads(json.dumps(found)))


def by_the_reference(data, limit):
    try:
        return rows((name, *content) for name, content in reference.read(data, limit).items())
    except reference.RefusedError:
        return None


def by_the_library(data, limit):
    try:
        state = decode(data, max_bytes=limit)
    except FormatError:
        return None
    return rows((name, dtype.tag, v.shape, v.tobytes()) for name, dtype, v in state.arrays())


def agree(files, limit, expected, decoder="reef.min.js"):
    """How many are valid; both must say the same of each."""
    theirs = [expected(data, limit) for data in files]
    for data, ours, wanted in zip(files, by_javascript(files, limit, decoder), theirs, strict=True):
        assert ours == wanted, data.hex()
    return sum(content is not None for content in theirs)


@needs_node
@pytest.mark.parametrize("decoder", DECODERS)
def test_golden_files_are_read(decoder):
    files = [path.read_bytes() for path in GOLDEN]
    assert agree(files, 1 << 28, by_the_library, decoder) == len(GOLDEN) > 0


@needs_node
def test_small_records_are_read():
    files = [path.read_bytes() for path in RECORDS if path.stat().st_size < 1_200]
    assert agree(files, 1 << 28, by_the_library) == len(files) > 0


@needs_node
@pytest.mark.slow
def test_every_record_is_read():
    for path in RECORDS:
        assert agree([path.read_bytes()], 1 << 28, by_the_library) == 1


@needs_node
@pytest.mark.parametrize("decoder", DECODERS)
def test_random_files_are_read(decoder):
    rng = random.Random(11)
    files = [random_file(rng, 1 + number % 2) for number in range(60)]
    assert agree(files, 1 << 20, by_the_reference, decoder) == 60


@pytest.mark.slow
@needs_node
def test_activity_of_more_rows_than_a_model_remembers_is_forgotten():
    """A matrix of 2^20 + 1 rows, then one whose columns its first three would divide."""
    book = codebook(size=5)
    tall = np.full(((1 << 20) + 1, 1), int(np.argmax(book.zeros)))
    tall[[0, 2]] = 4
    wide = np.arange(60).reshape(5, 12) % 5
    state = TiedState((book,), (TiedTensor("a", 0, tall), TiedTensor("b", 0, wide)))
    data = encode(state)
    assert data[3] == 1  # one stream
    assert agree([data], 1 << 28, by_the_library) == 1


@needs_node
def test_hostile_files_do_no_harm():
    agree([path.read_bytes() for path in HOSTILE], 1 << 20, by_the_library)


@needs_node
def test_the_limit_counts_tensors_and_aliases():
    data = (GOLDEN[0].parent / "v1-convolutional-auto.reef").read_bytes()
    size = sum(len(raw) for _, _, raw in reference.read(data).values())
    assert by_javascript([data], size) != [None]
    assert by_javascript([data], size - 1) == [None]


@needs_node
def test_the_script_of_the_documents_runs(tmp_path):
    text = (ROOT / "docs" / "ship.md").read_text()
    [script] = re.findall(r"^```js\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    stub = 'import { readFileSync } from "node:fs";\n'
    stub += "globalThis.fetch = async (name) => new Response(readFileSync(name));\n"
    (tmp_path / "script.mjs").write_text(stub + script)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(WEB / "reef.min.js", tmp_path)
    shutil.copy(GOLDEN[0].parent / "v1-lenet-auto.reef", tmp_path / "model.reef")
    done = subprocess.run(
        ["node", "script.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[0] == "fc1.weight F32 30x64 1920"
    assert len(done.stdout.splitlines()) == 6


def test_a_foreign_exponential_function_gives_the_same_table():
    """reef.js rounds 65536 / (1 + exp(-x / 256)): none of these is near an integer."""
    values = [65536 / (1 + math.exp(-x / 256)) for x in range(1, 1776)]
    assert min(abs(value - round(value)) for value in values) > 5e-5
    upper = reference.SQUASH[1776:]
    assert [math.floor(value) for value in values] == upper


# -- what is committed -----------------------------------------------------------------------


def make_web():
    path = ROOT / "docs" / "make_web.py"
    spec = importlib.util.spec_from_file_location("make_web", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MADE = ["reef.min.js", "page.min.html"]


@pytest.mark.parametrize("name", MADE)
def test_the_minified_files_are_of_the_present_sources(name):
    first = (WEB / name).read_text().splitlines()[0]
    assert make_web().digest(name) in first, "run make web"


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_the_minified_files_are_what_their_sources_give(name):
    make = make_web()
    try:
        text = make.made(name)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("npx does not bring terser here, so that nothing is minified again")
    assert text == (WEB / name).read_text()


def test_the_decoder_is_small_and_needs_nothing():
    text = (WEB / "reef.min.js").read_text()
    assert len(text.encode()) <= 7_800  # the limit that the documents give
    assert len(gzip.compress(text.encode())) < 4_700  # as servers send it
    assert "import" not in text
    assert "require" not in text
