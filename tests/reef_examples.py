"""States for tests: small, made from fixed seeds, and with every kind of tensor in them.

`random_file` gives any number of small valid `.reef` files, which other decoders can be tried on:

    PYTHONPATH=src:tests python tests/reef_examples.py FOLDER 1000
"""

import io
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest import mock

import numpy as np

from reefknot.codec import tied
from reefknot.dtypes import DTYPES
from reefknot.errors import ReefknotError
from reefknot.format import encode
from reefknot.format.write import IndexedWriter
from reefknot.scales import Scales
from reefknot.state import Codebook, KeptTensor, TiedState, TiedTensor

F32 = DTYPES["F32"]


def codebook(size=17, seed=0, dtype="F32"):
    """Values of either sign, with a zero, as training gives them."""
    kind = DTYPES[dtype]
    rng = np.random.default_rng(seed)
    if kind.is_raw or not kind.is_float:
        bits = rng.choice(1 << min(8 * kind.item_bytes, 15), size=size, replace=False).astype(
            kind.storage
        )
        return Codebook(kind, np.unique(bits))
    values = np.unique(rng.normal(size=size).astype(kind.storage))
    values[np.argmin(np.abs(values))] = 0
    return Codebook(kind, values)


def sparse(shape, book, density=0.05, seed=0):
    """Indices that are mostly zero, with dead rows and columns."""
    rng = np.random.default_rng(seed)
    zero = int(np.argmax(book.zeros))
    rows = shape[0] if len(shape) > 1 else 1
    matrix = rng.random((rows, int(np.prod(shape, dtype=np.int64)) // max(rows, 1)))
    live = matrix < density * 4
    live &= (rng.random(matrix.shape[0]) < 0.5)[:, None] | (rows == 1)
    live &= rng.random(matrix.shape[1]) < 0.5
    values = rng.integers(0, len(book), matrix.shape)
    return np.where(live, values, zero).reshape(shape)


def lenet(seed=0, density=0.05):
    """LeNet-300-100 in miniature."""
    book = codebook(seed=seed)
    shapes = {
        "fc1.weight": (30, 64), "fc1.bias": (30,), "fc2.weight": (10, 30), "fc2.bias": (10,),
        "fc3.weight": (10, 10), "fc3.bias": (10,),
    }  # fmt: skip
    return TiedState(
        (book,),
        tuple(
            TiedTensor(n, 0, sparse(s, book, density, seed + i))
            for i, (n, s) in enumerate(shapes.items())
        ),
    )


def convolutional(seed=3):
    """Convolutions with batch norm: tied weights, kept statistics, a shared tensor, odd names."""
    book, other = codebook(9, seed), codebook(300, seed + 1, "F16")
    rng = np.random.default_rng(seed)
    return TiedState(
        (book, other),
        (
            TiedTensor("conv1.weight", 0, sparse((6, 1, 5, 5), book, 0.2, seed)),
            KeptTensor("bn1.running_mean", F32, rng.normal(size=6).astype("<f4"), trainable=False),
            KeptTensor(
                "bn1.num_batches_tracked", DTYPES["I64"], np.array(1234, "<i8"), trainable=False
            ),
            TiedTensor("conv2.weight", 0, sparse((8, 6, 5, 5), book, 0.05, seed + 1)),
            TiedTensor("fc.weight", 1, rng.integers(0, len(other), (10, 8 * 16))),
            TiedTensor("näme with \0 and \n.weight", 0, np.zeros((0, 3), int)),
            TiedTensor("", 0, np.array(4)),
        ),
        {"tied.weight": "fc.weight", "again": ""},
    )


def every_type(seed=5):
    """One kept and one tied tensor of every element type, with odd bit patterns."""
    rng = np.random.default_rng(seed)
    books, tensors = [], []
    for tag, dtype in DTYPES.items():
        raw = rng.integers(0, 256, 24 * dtype.item_bytes, dtype=np.uint8)
        raw[: 2 * dtype.item_bytes] = np.repeat(np.array([255, 128], np.uint8), dtype.item_bytes)
        data = (raw & 1 if tag == "BOOL" else raw).view(dtype.storage).reshape(2, 3, 4)
        tensors.append(KeptTensor(f"kept.{tag}", dtype, data, bool(rng.integers(2))))
        values = np.unique((raw & 1 if tag == "BOOL" else raw).view(f"u{dtype.item_bytes}")).view(
            dtype.storage
        )
        try:
            books.append(Codebook(dtype, values))
        except Exception:
            books.append(Codebook(dtype, values[:1]))
        tensors.append(
            TiedTensor(f"tied.{tag}", len(books) - 1, rng.integers(0, len(books[-1]), (3, 5)))
        )
    return TiedState(tuple(books), tuple(tensors))


def nothing():
    return TiedState((), ())


def only_kept(seed=7):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(20, 30)).astype("<f4")
    values[0, :4] = [-0.0, np.inf, -np.inf, np.nan]
    return TiedState(
        (), (KeptTensor("w", F32, values), KeptTensor("e", DTYPES["BF16"], np.zeros((2, 0), "<u2")))
    )


HARD_SCALES = (0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 3e38, -1.0, 0.1, 65504.0, 6e-8)


def scaled(seed=11):
    """Integers times scales of every kind: rows, groups, columns, a tensor; scales that are odd."""
    rng = np.random.default_rng(seed)
    small = Codebook(DTYPES["I8"], np.arange(-8, 8).astype("i1"))
    large = Codebook(DTYPES["I16"], np.array([-32768, -300, -127, -1, 0, 1, 2, 127, 32767], "<i2"))
    book = codebook(5, seed)

    def tensor(name, tag, shape, number, values, run):
        indices = rng.integers(0, len((small, large)[number]), shape)
        scales = Scales(DTYPES[tag], np.array(values, "<f4"), run)
        return TiedTensor(name, number, indices, scales)

    def normal(size):
        return np.abs(rng.normal(size=size)) * 0.01

    return TiedState(
        (small, large, book),
        (
            tensor("rows.weight", "F32", (6, 40), 0, normal(6), 40),
            tensor("groups.weight", "F32", (4, 64), 0, np.float16(normal(8)), 32),
            tensor("columns.weight", "BF16", (5, 7), 0, normal(7), 1),
            KeptTensor("rows.bias", F32, rng.normal(size=6).astype("<f4")),
            tensor("whole.weight", "F16", (3, 2, 3, 3), 0, normal(1), 54),
            TiedTensor("tied.weight", 2, rng.integers(0, len(book), (4, 9))),
            TiedTensor("integers", 0, rng.integers(0, 16, (3, 3))),
            *(
                tensor(f"hard.{tag}", tag, (10, 9), 1, HARD_SCALES, 9)
                for tag in ("F32", "F16", "BF16")
            ),
            tensor("short.weight", "F32", (11,), 1, normal(3), 4),
            tensor("none.weight", "F32", (0, 4), 0, [], 4),
        ),
        {"again": "groups.weight"},
    )


EXAMPLES = {
    "lenet": lenet, "convolutional": convolutional, "every-type": every_type, "nothing": nothing,
    "only-kept": only_kept, "scaled": scaled,
}  # fmt: skip


# ---- random files -----------------------------------------------------------------------------

NAMES = ("fc1.weight", "fc1.bias", "conv.weight", "0.weight", "a.b", "a", "", "é", "x\0y", "\ud800")
SHAPES = (
    (), (0,), (1,), (7,), (9,), (12,), (3, 0), (1, 9), (4, 5), (6, 12), (3, 16), (5, 27), (40, 1),
    (2, 3, 4), (2, 1, 3, 3), (3, 2, 2, 2), (2, 3, 1, 1), (1, 1, 2, 1, 3),
)  # fmt: skip


def random_state(rng: Random, version: int = 1) -> TiedState:
    """A few small tensors of any type, tied or kept, with aliases; with scales in version 2."""
    books = tuple(_random_book(rng) for _ in range(rng.choice((0, 1, 1, 1, 2, 3))))
    if version == 2:
        books += (_random_integers(rng),)
    tensors = []
    for name in rng.sample(NAMES, rng.randrange(5)):
        shape = rng.choice(SHAPES)
        number = rng.randrange(len(books) + 1)
        if number < len(books) and (len(books[number]) or 0 in shape):
            tensors.append(TiedTensor(name, number, _random_indices(rng, shape, books[number])))
            if books[number].dtype.tag in ("I8", "I16") and version == 2 and rng.random() < 0.9:
                tensors[-1] = replace(tensors[-1], scales=_random_scales(rng, shape))
        else:
            tensors.append(_random_kept(rng, name, shape))
    owners = [tensor.name for tensor in tensors]
    number = rng.choice((0, 0, 0, 2)) if owners else 0
    aliases = {f"alias {i}": rng.choice(owners) for i in range(number)}
    return TiedState(books, tuple(tensors), aliases)


def _random_bits(rng: Random, dtype, number: int) -> np.ndarray:
    """Raw elements: any bits, or small numbers of one sign and scale, as networks have them."""
    if dtype.tag == "BOOL":
        return np.array([rng.randrange(2) for _ in range(number)], "?")
    if dtype.is_float and not dtype.is_raw and rng.random() < 0.6:
        values = [rng.gauss(0, 1) if rng.random() < 0.7 else 0.0 for _ in range(number)]
        digits = rng.choice((1, 3, 9))
        return np.array([round(value, digits) + 0.0 for value in values], dtype.storage)
    return np.frombuffer(rng.randbytes(number * dtype.item_bytes), dtype.storage)


def _random_book(rng: Random) -> Codebook:
    dtype = DTYPES[rng.choice(("F32", "F32", *DTYPES))]
    number = rng.choice((0, 1, 2, 3, 5, 17, 17, 40, 150, 300))
    bits = _random_bits(rng, dtype, number).view(f"<u{dtype.item_bytes}")
    values = np.unique(bits).view(dtype.storage)
    rng.shuffle(values)
    while True:
        try:
            return Codebook(dtype, values)
        except ReefknotError:  # it holds -0.0
            zero = int(np.argmax(values == 0)) if not dtype.is_raw else rng.randrange(len(values))
            values = np.delete(values, zero)


def _random_indices(rng: Random, shape, book: Codebook) -> np.ndarray:
    size = int(np.prod(shape, dtype=np.int64))
    common, density = rng.randrange(max(len(book), 1)), rng.choice((0.05, 0.3, 1.0))
    if book.zeros.any() and rng.random() < 0.7:
        common = int(np.argmax(book.zeros))
    drawn = (rng.randrange(len(book)) if rng.random() < density else common for _ in range(size))
    return np.array([*drawn], np.int64).reshape(shape)


def _random_integers(rng: Random) -> Codebook:
    if rng.random() < 0.5:
        low = rng.randrange(-128, 1)
        return Codebook(
            DTYPES["I8"], np.arange(low, min(low + rng.randrange(1, 256), 128), 1, "i1")
        )
    drawn = [rng.choice((-32768, 32767, 0, rng.randrange(-300, 300))) for _ in range(40)]
    return Codebook(DTYPES["I16"], np.unique(np.array(drawn, "<i2")))


def _random_scales(rng: Random, shape) -> Scales:
    size = int(np.prod(shape, dtype=np.int64))
    run = rng.choice((1, 2, 3, 4, max(size, 1), max(size // max(shape[0], 1), 1) if shape else 1))
    most = -(-size // run)
    number = rng.choice((most, most, rng.randint(min(most, 1), most)))
    if rng.random() < 0.3:
        values = np.array([rng.choice(HARD_SCALES) for _ in range(number)], "<f4")
    else:
        drawn = [abs(rng.gauss(0, 0.01)) for _ in range(number)]
        values = np.array(drawn, rng.choice(("<f2", "<f4"))).astype("<f4")
    return Scales(DTYPES[rng.choice(("F32", "F16", "BF16"))], values, run)


def _random_kept(rng: Random, name: str, shape) -> KeptTensor:
    dtype = DTYPES[rng.choice(("F32", "F32", *DTYPES))]
    data = _random_bits(rng, dtype, int(np.prod(shape, dtype=np.int64)))
    return KeptTensor(name, dtype, data.reshape(shape), rng.random() < 0.7)


def random_file(rng: Random, version: int = 1) -> bytes:
    """A valid file: solid, or indexed with tensors of either method, in plans of any kind."""
    state = random_state(rng, version)

    all_plans = tied._plans

    def one_plan(*tensor):
        return [rng.choice([*all_plans(*tensor)])]

    with mock.patch.object(tied, "_plans", one_plan):
        if rng.random() < 0.4:
            return encode(state)
        file = io.BytesIO()
        writer = IndexedWriter(file)
        for book in state.codebooks:
            writer.add_codebook(book)
        for tensor in state.tensors:
            writer._effort = rng.choice(("tight", "fast"))
            writer.add(tensor)
        writer.finish(dict(state.aliases))
        return file.getvalue()


if __name__ == "__main__":
    for number in range(int(sys.argv[2])):
        path = Path(sys.argv[1]) / f"{number:06d}.reef"
        path.write_bytes(random_file(Random(number)))
