"""Files that claim as much as they may for each of their bytes: no decoder takes long for a byte.

Bytes of names and of shapes count as given, like those of elements. The bounds are three to ten
times what a quiet machine takes.
"""

import io

import numpy as np
import pytest

from format.soak import EXPORT, inside, others, write_batch
from reefknot.dtypes import DTYPES
from reefknot.format import encode
from reefknot.format.write import IndexedWriter
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor

LIMIT = 1 << 20
U8, U16 = DTYPES["U8"], DTYPES["U16"]
EMPTY = np.zeros(0, "u1")
LARGE = Codebook(U16, np.arange(1, 65_536, dtype="<u2"))
DECODERS = ("library", "reference", "reef.c", "reef.min.js")


def kept(names, shape=(0,)):
    return TiedState((), tuple(KeptTensor(n, U8, np.zeros(shape, "u1")) for n in names))


def one_element_each(number):
    tensors = (TiedTensor(str(i), 0, np.array([7 * i % 65_535])) for i in range(number))
    return TiedState((LARGE,), tuple(tensors))


def indexed(state, effort):
    file = io.BytesIO()
    writer = IndexedWriter(file, effort)
    for book in state.codebooks:
        writer.add_codebook(book)
    for tensor in state.tensors:
        writer.add(tensor)
    writer.finish({})
    return file.getvalue()


# What makes the file, and the most microseconds that each of DECODERS may take for a byte. The
# reference decoder, which is there to be read, takes about ten for a bit.
FILES = {
    "long names": (lambda: encode(kept(c * 20_000 for c in "abc")), (3, 200, 2, 8)),
    "many names": (lambda: encode(kept(map(str, range(9_000)))), (12, 100, 2, 8)),
    "many dimensions": (
        lambda: encode(kept((f"{i}.w" for i in range(500)), (1,) * 64)), (3, 8, 1, 3),
    ),
    "large codebook": (lambda: encode(one_element_each(4_000)), (20, 100, 3, 15)),
    "large codebook, indexed": (
        lambda: indexed(one_element_each(1_000), "auto"), (40, 100, 3, 30),
    ),
    # Tables of 65,536 numbers each for a single element, in 53 bytes.
    "large tables": (lambda: indexed(one_element_each(100), "fast"), (80, 4_000, 30, 250)),
}  # fmt: skip


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    found = others(tmp_path_factory.mktemp("time"), EXPORT / "web" / "reef.min.js", LIMIT)
    yield found
    for other in found.values():
        other.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_byte_takes_microseconds(name, outside, tmp_path):
    make, bounds = FILES[name]
    data = make()
    write_batch(tmp_path / "batch", [data, data])
    told = {one: tell(data, LIMIT) for one, tell in inside().items()}
    told["library"] = inside()["library"](data, LIMIT)  # once more: the loops are compiled
    told |= {one: other.told(tmp_path / "batch")[1] for one, other in outside.items()}
    for decoder, most in zip(DECODERS, bounds, strict=True):
        if decoder in told:
            assert told[decoder].accepted, decoder
            each = told[decoder].microseconds / (len(data) + told[decoder].size)
            print(f"{name}: {len(data):,} bytes, {decoder} {each:.1f} microseconds a byte")
            assert each < most, decoder
