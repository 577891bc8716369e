"""States for tests: small, made from fixed seeds, and with every kind of tensor in them."""

import numpy as np

from reefknot.dtypes import DTYPES
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


EXAMPLES = {
    "lenet": lenet, "convolutional": convolutional, "every-type": every_type, "nothing": nothing,
    "only-kept": only_kept,
}  # fmt: skip
