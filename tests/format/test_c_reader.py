"""The reader in C against the decoder of the specification: the same content, the same refusals."""

import random
import re
import shutil
import struct
import subprocess
from importlib import resources
from pathlib import Path

import pytest
from reef_examples import random_file

from format.reference import reference
from format.test_differential import by_the_library, by_the_reference

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.reef"))
HOSTILE = sorted((Path(__file__).parent / "hostile").glob("*.reef"))
RECORDS = sorted((Path(__file__).parents[2] / "experiments" / "records").glob("*/model.reef"))
SOURCE = resources.files("reefknot.export").joinpath("reef.c")
FLAGS = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1", "-g")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
FINE, REFUSED, TOO_MUCH, NO_MEMORY = range(4)
TAGS = list(reference.TYPES)
# Reads files from its input, each into memory of exactly the size that is named.
MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "reef.c"
int main(void)
{
    uint64_t head[3]; /* bytes of the file, bytes of memory, limit */
    while (fread(head, sizeof head, 1, stdin) == 1) {
        uint8_t *data = malloc(head[0] ? head[0] : 1), *memory = malloc(head[1]);
        struct reef_file file;
        uint64_t told[2], i;
        if (fread(data, 1, head[0], stdin) != head[0])
            return 1;
        told[0] = reef_read(data, head[0], memory, head[1], head[2], &file);
        told[1] = file.num_tensors;
        if (file.why)
            fprintf(stderr, "%s\\n", file.why);
        if ((told[0] == REEF_FINE) != (file.why == NULL))
            return 2;
        fwrite(told, sizeof told, 1, stdout);
        for (i = 0; i < file.num_tensors; i++) {
            struct reef_tensor *t = file.tensors + i;
            uint64_t facts[4] = { t->name_bytes, t->type, t->rank, t->bytes };
            fwrite(facts, sizeof facts, 1, stdout);
            fwrite(t->name, 1, t->name_bytes, stdout);
            fwrite(t->shape, sizeof *t->shape, t->rank, stdout);
            fwrite(t->data, 1, t->bytes, stdout);
        }
        fflush(stdout);
        free(data);
        free(memory);
    }
    return 0;
}
"""


class Reader:
    """The compiled reader, which goes on from file to file."""

    def __init__(self, program):
        self.why = program.with_name("why")  # the sentences, one for each refusal
        with self.why.open("w") as why:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": why}
            self.process = subprocess.Popen([program], **pipes)

    def read(self, data, limit=4 << 30, memory=64 << 20):
        """The status, and the tensors as the reference gives them, or None."""
        stdin, take = self.process.stdin, self.process.stdout.read
        stdin.write(struct.pack("<3Q", len(data), memory, limit) + data)
        stdin.flush()
        head = take(16)
        assert len(head) == 16, f"the reader has stopped at {data.hex()[:2000]}"
        status, number = struct.unpack("<2Q", head)
        found = {}
        for _ in range(number):
            name_bytes, kind, rank, size = struct.unpack("<4Q", take(32))
            name = take(name_bytes).decode("utf-8", "surrogatepass")
            shape = struct.unpack(f"<{rank}Q", take(8 * rank))
            found[name] = (TAGS[kind], shape, take(size))
        return status, found if status == FINE else None

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(10) == 0
        self.process.stdout.close()


@pytest.fixture(scope="module", params=["-m64", "-m32"])
def reader(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("reader")
    (folder / "main.c").write_text(MAIN)
    with resources.as_file(SOURCE) as path:
        flags = [*FLAGS, *SANITIZERS, request.param, f"-I{path.parent}"]
        done = subprocess.run(["gcc", *flags, "main.c", "-o", "read"], cwd=folder)
    if done.returncode and request.param == "-m32":
        pytest.skip("gcc cannot compile for 32 bits here; Debian has gcc-multilib")
    assert done.returncode == 0
    made = Reader(folder / "read")
    yield made
    made.close()


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_it_reads_the_golden_files(reader, path):
    data = path.read_bytes()
    assert reader.read(data) == (FINE, by_the_library(data, 4 << 30))


def check_records(reader, paths):
    for path in paths:
        data = path.read_bytes()
        assert reader.read(data) == (FINE, by_the_library(data, 4 << 30)), path


def test_it_reads_the_records_of_the_first_seed_with_a_budget(reader):
    paths = [path for path in RECORDS if re.search(r"sparse_apt-\d{4}_seed0", path.parent.name)]
    assert len(paths) > 2
    check_records(reader, paths)


@pytest.mark.slow
def test_it_reads_every_committed_record(reader):
    assert len(RECORDS) > 40
    check_records(reader, RECORDS)


def test_it_agrees_with_the_library_on_hostile_files(reader):
    for path in HOSTILE:
        data = path.read_bytes()
        expected = by_the_library(data, 1 << 20)
        status, content = reader.read(data, 1 << 20)
        assert content == expected, path
        assert status != NO_MEMORY, path


def test_it_reads_random_files(reader):
    rng = random.Random(5)
    for number in range(30):
        data = random_file(rng, 1 + number % 2)
        assert reader.read(data, 1 << 20) == (FINE, by_the_reference(data, 1 << 20))


def test_the_limit_counts_tensors_and_aliases(reader):
    data = (Path(__file__).parent / "golden" / "v1-lenet-auto.reef").read_bytes()
    size = sum(len(raw) for _, _, raw in by_the_library(data, 4 << 30).values())
    assert reader.read(data, size)[0] == FINE
    assert reader.read(data, size - 1)[0] == TOO_MUCH


@pytest.mark.parametrize("name", ["v1-lenet-auto", "v1-every-type-auto", "v1-every-type-fast"])
def test_too_little_memory_is_told_and_nothing_else_is_touched(reader, name):
    """Sanitizers watch the ends of the memory, whose size goes through all that may be short."""
    data = (Path(__file__).parent / "golden" / f"{name}.reef").read_bytes()
    rng, short = random.Random(1), 0
    for memory in [0, 1, 100, *(rng.randrange(4_000_000) for _ in range(150))]:
        status, _ = reader.read(data, memory=memory)
        assert status in (FINE, NO_MEMORY)
        short += status == NO_MEMORY
    assert short > 5
    assert reader.read(data, memory=32 << 20)[0] == FINE


def test_another_version_is_refused_in_one_sentence(reader):
    data = (Path(__file__).parent / "golden" / "v1-lenet-auto.reef").read_bytes()
    assert reader.read(data[:3] + b"\3" + data[4:]) == (REFUSED, None)
    said = "the file is of another version than 1 and 2"
    assert reader.why.read_text().splitlines()[-1] == said


def test_it_is_one_file_of_under_eleven_hundred_lines_that_allocates_nothing():
    text = SOURCE.read_text()
    assert len(text.splitlines()) < 1100
    assert not {"malloc", "calloc", "realloc", "alloca", "printf"} & set(
        text.replace("(", " ").split()
    )
    sections = [line for line in text.splitlines() if line.startswith("/* ---- ")]
    assert [int(line.split()[2].rstrip(".")) for line in sections] == list(range(1, 11))
