"""Prints the annotated hex dump for section 11 of format.md from the golden file."""

import sys
from pathlib import Path

from reefknot.codec.coder import Coder
from reefknot.codec.kernels import range_coder as k
from reefknot.format import layout
from reefknot.format.content import SolidContent
from reefknot.format.read import _read_tight


def marks(data: bytes) -> list[tuple[int, str]]:
    """Where each part begins, as far as a decoder can tell."""
    coder = Coder(data[4:-4])

    def here() -> int:
        return 4 + max(0, int(coder.state[k.POSITION]) - k.LOOKAHEAD)

    header = layout.code_header(coder, layout.Header(), indexed=False, file_bytes=len(data))
    found, content = (
        [(0, "REF, version 1, solid"), (4, "header: codebook, names, shapes")],
        SolidContent(),
    )
    for entry in header.entries:
        found.append((here(), entry.name))
        _read_tight(coder, content, entry, header)
    return [*found, (len(data) - 4, "CRC-32")]


def dump(data: bytes) -> str:
    """Lines of offset, bytes, meaning."""
    parts, lines = marks(data), []
    for (begin, what), (end, _) in zip(parts, [*parts[1:], (len(data), "")], strict=True):
        if begin == end:  # a tensor so cheap that it ends inside the byte before
            lines.append(f"{begin:04x} |  | {what}")
        for at in range(begin, end, 16):
            label = what if at == begin else ""
            lines.append(
                f"{at:04x} | {data[at : min(at + 16, end)].hex(' ')} | {label}".rstrip(" ")
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(dump(Path(sys.argv[1]).read_bytes()))
