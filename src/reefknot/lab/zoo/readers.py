"""The two file layouts that the data sets come in: IDX (MNIST) and CIFAR's binary records.

Takes     the bytes of a file, gzipped or not.
Gives     numpy arrays of bytes; anything unexpected is a `DataError` that names the file.
Unaware   of where files come from, and of pickles: no code in a file is ever run.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from reefknot.errors import DataError

# More than any file read here holds: a small gzip file can promise to unpack to terabytes.
MAX_CONTENT_BYTES = 1 << 29

_CIFAR_IMAGE = (3, 32, 32)
_CIFAR_RECORD_BYTES = 1 + math.prod(_CIFAR_IMAGE)
_IDX_UNSIGNED_BYTE = 0x08


def read_content(path: Path) -> bytes:
    """The content of a file, unpacked if it is gzipped, whatever its name says."""
    try:
        with path.open("rb") as raw:
            gzipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if not gzipped:
                content = raw.read(MAX_CONTENT_BYTES + 1)
            else:
                with gzip.open(raw) as unpacked:
                    content = unpacked.read(MAX_CONTENT_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}: the gzip data is damaged or cut short ({error}); get the file again"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_CONTENT_BYTES:
        raise DataError(f"{path}: unpacks to more than {MAX_CONTENT_BYTES:,} bytes, too many")
    return content


def parse_idx(content: bytes, where: str) -> np.ndarray:
    """The array in an IDX file of unsigned bytes.

    The layout: two zero bytes, the element type (8), the number of dimensions, each dimension as
    a big-endian uint32, then the elements with the last dimension running fastest.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "labels").tolist()
    [7, 9]
    """
    if len(content) < 4 or content[:3] != bytes([0, 0, _IDX_UNSIGNED_BYTE]) or content[3] == 0:
        raise DataError(
            f"{where}: expected an IDX file of bytes, which starts with 00 00 08 and the number of "
            f"dimensions, found {content[:4].hex(' ') or 'nothing'}"
        )
    header_bytes = 4 + 4 * content[3]
    if len(content) < header_bytes:
        raise DataError(f"{where}: the IDX header is cut short; get the file again")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", content[3], 4))
    expected_bytes = header_bytes + math.prod(shape)
    if len(content) != expected_bytes:
        raise DataError(
            f"{where}: expected {expected_bytes:,} bytes for IDX shape {shape}, found "
            f"{len(content):,}; get the file again"
        )
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


def parse_cifar10(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 3, 32, 32) and labels (N,) in a binary CIFAR-10 file, however many it holds.

    The layout: per image one label byte, then its red, green and blue planes, row by row.
    """
    if not content or len(content) % _CIFAR_RECORD_BYTES:
        raise DataError(
            f"{where}: expected CIFAR-10 records of {_CIFAR_RECORD_BYTES:,} bytes, found "
            f"{len(content):,} bytes, {len(content) / _CIFAR_RECORD_BYTES:.2f} records; "
            "get the file again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, _CIFAR_RECORD_BYTES)
    labels = records[:, 0]
    if labels.max() > 9:
        bad = int(np.argmax(labels > 9))
        raise DataError(
            f"{where}: expected labels 0 to 9, found {labels[bad]} in record {bad}; "
            "is this the binary CIFAR-10 (not CIFAR-100)?"
        )
    return records[:, 1:].reshape(-1, *_CIFAR_IMAGE), labels
