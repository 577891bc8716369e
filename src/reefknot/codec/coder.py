"""The coder seen from Python: a stream that is written or read by the same calls.

Each method takes the value to write and gives the value that was coded; a reader ignores what it
is given. So the layout of a stream is one function, which cannot write one thing and read another.
"""

from collections.abc import Sequence

import numpy as np

from reefknot.codec.kernels import range_coder as k
from reefknot.codec.kernels.names import TEXT_SLOTS, code_text
from reefknot.codec.kernels.numbers import (
    NUMBER_SLOTS,
    code_flag,
    code_number,
    code_numbers,
    code_uniform,
)
from reefknot.errors import FormatError, ReefknotError

HALF = 32768
UNLIMITED = 1 << 62
SOME_TEXT = 32  # bytes of a name that are coded at a time, so that little is known to be little

# Typical names, so that the first ones in a file are already expected. Part of the format.
_PRIME = (
    "weight\0bias\0features.0.weight\0features.0.bias\0classifier.1.weight\0classifier.1.bias\0"
    "model.layers.0.self_attn.q_proj.weight\0model.layers.0.mlp.up_proj.weight\0"
    "layer1.0.conv1.weight\0layer1.0.bn1.weight\0layer1.0.bn1.bias\0layer1.0.bn1.running_mean\0"
    "layer1.0.bn1.running_var\0layer1.0.bn1.num_batches_tracked\0"
    "0.weight\0000.bias\0002.weight\0002.bias\0004.weight\0004.bias\0"
    "conv1.weight\0conv1.bias\0conv2.weight\0conv2.bias\0conv3.weight\0conv3.bias\0"
    "fc1.weight\0fc1.bias\0fc2.weight\0fc2.bias\0fc3.weight\0fc3.bias\0fc.weight\0fc.bias\0"
    "conv1.weight\0conv1.bias\0conv2.weight\0conv2.bias\0fc1.weight\0fc1.bias\0fc2.weight\0fc2.bias\0"
)
_TEXT_WEIGHTS = (65536, 20000, 20000, 20000, 20000, 20000)


class TextModel:
    """What the name model has learnt; a fresh one has read the typical names."""

    primed: "TextModel | None" = None

    def __init__(self) -> None:
        self.table = np.zeros(TEXT_SLOTS, np.uint32)
        self.weights = np.array(_TEXT_WEIGHTS, np.int64)
        self.history = np.frombuffer(_PRIME.encode(), np.uint8)[-5:].copy()
        self._slots, self._work = np.zeros(8, np.int64), np.zeros(8, np.int64)

    @classmethod
    def fresh(cls) -> "TextModel":
        """A model that has read the typical names."""
        if cls.primed is None:
            model = cls()
            text = np.frombuffer(_PRIME.encode(), np.uint8).copy()
            coder, buffer, at = _writing(), np.zeros(4096, np.uint8), 0
            while at < len(text):
                at = model.code(coder, buffer, text, at)
            cls.primed = model
        model = cls()
        model.table[:] = cls.primed.table
        model.weights[:] = cls.primed.weights
        return model

    def code(self, coder: np.ndarray, buffer: np.ndarray, text: np.ndarray, at: int) -> int:
        """Code text[at] up to and including the next 0; gives the index after it, or -1."""
        learnt = self.table, self.weights, self._slots, self._work
        for begin in range(at, len(text), SOME_TEXT):
            end = int(code_text(coder, buffer, text[: begin + SOME_TEXT], begin, *learnt))
            if end >= 0 or coder[k.POSITION] - len(buffer) > k.LOOKAHEAD:
                return end
        return -1


def _writing() -> np.ndarray:
    return np.array([k.TOP, 0, 0, 1, UNLIMITED, 0], np.int64)


def _reading(stream: np.ndarray) -> np.ndarray:
    head = stream[: k.LOOKAHEAD].tobytes().ljust(k.LOOKAHEAD, b"\0")
    code = int.from_bytes(head, "big")
    return np.array([k.TOP, code, k.LOOKAHEAD, 0, UNLIMITED, 0], np.int64)


class Coder:
    """A range coder with the contexts of one stream."""

    def __init__(self, stream: bytes | np.ndarray | None = None) -> None:
        """A writer, or a reader of `stream`."""
        self.writing = stream is None
        if stream is None:
            self.buffer = np.zeros(1 << 16, np.uint8)
        elif not len(stream):
            self.buffer = np.zeros(1, np.uint8)  # a stream of no bytes reads as zeros
        elif isinstance(stream, np.ndarray):
            self.buffer = stream
        else:
            self.buffer = np.frombuffer(stream, np.uint8).copy()
        self.size = 0 if stream is None else len(stream)
        self.state = _writing() if stream is None else _reading(self.buffer)
        self.slots = np.zeros(8, np.int64)
        self.work = np.zeros(8, np.int64)
        self._numbers: dict[str, np.ndarray] = {}
        self._flags = np.zeros(256, np.uint32)
        self._flag_slots: dict[tuple[str, int], int] = {}
        self._area = np.zeros(0, np.uint8)  # for names
        self._text: TextModel | None = None

    # -- state ------------------------------------------------------------------------------

    def grow(self, room: int) -> None:
        """Make sure that a writer can take `room` bytes more."""
        if self.writing and int(self.state[k.POSITION]) + room > len(self.buffer):
            self.buffer = np.concatenate([self.buffer, np.zeros(len(self.buffer) + room, np.uint8)])

    def allow(self, budget: int) -> None:
        """Limit how many costly elements a reader decodes: see docs/format.md, "Limits"."""
        self.state[k.BUDGET] = budget

    def spend(self, number: int) -> None:
        """Count costly elements: those that are not the pivot, and predicted bytes."""
        self.state[k.BUDGET] -= number
        self.check()

    @property
    def costly(self) -> int:
        """How many costly elements a writer has coded."""
        return UNLIMITED - int(self.state[k.BUDGET])

    def check(self) -> None:
        """Stop if the stream has run out, or claims too much."""
        if self.state[k.BUDGET] < 0:
            raise FormatError(
                f"a stream of {self.size:,} bytes claims more elements than any writer puts there"
            )
        over = int(self.state[k.POSITION]) - len(self.buffer)
        if over > (0 if self.writing else k.LOOKAHEAD):
            if self.writing:
                raise MemoryError("the coder's buffer is full")
            raise FormatError(
                f"a stream of {self.size:,} bytes ends before its content; fetch the file again"
            )

    def mark(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The state of a writer, for `back`; no numbers or names may be written in between."""
        return self.state.copy(), self.buffer[: self.state[k.POSITION]].copy(), self._flags.copy()

    def back(self, mark: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
        """Undo everything that was written since the mark."""
        self.state[:] = mark[0]
        self.buffer[: len(mark[1])] = mark[1]
        self._flags[: len(mark[2])] = mark[2]
        self._flags[len(mark[2]) :] = 0

    def spent(self) -> int:
        """The length of the stream so far in 1/8 bit, fine enough to choose between encodings."""
        return spent_eighths(self.state)

    @property
    def spent_on_values(self) -> int:
        """What a reader has spent on the values of elements that are not the pivot, in 1/8 bit.

        The rest of a tied tensor's cost is for their positions.
        """
        return int(self.state[k.ON_VALUES]) // 32

    def finish(self) -> bytes:
        """The stream: the fewest bytes that decode to the same, since zeros follow the end."""
        self.check()
        low = int(self.state[k.LOW])
        high = low + int(self.state[k.RANGE]) - 1
        position = int(self.state[k.POSITION])
        for kept in range(k.LOOKAHEAD + 1):
            shift = k.TOP_BITS - 8 * kept
            tail = -(-low >> shift) << shift
            if tail <= high:
                break
        head = bytearray(self.buffer[:position].tobytes())
        if tail >= k.TOP:
            tail -= k.TOP
            place = position - 1
            while head[place] == 255:
                head[place] = 0
                place -= 1
            head[place] += 1
        return bytes(head) + tail.to_bytes(k.LOOKAHEAD, "big")[:kept]

    def close(self) -> None:
        """Check that a reader has used exactly its stream."""
        self.check()
        used = int(self.state[k.POSITION])
        if not used - k.LOOKAHEAD <= self.size <= used:
            raise FormatError(
                f"{self.size + k.LOOKAHEAD - used} bytes are left over at the end of a stream"
            )

    # -- values -----------------------------------------------------------------------------

    def number(self, value: int, kind: str) -> int:
        """A number from 0 to 2^48 - 2; small ones, and ones like those before, cost less."""
        if self.writing:
            self.grow(256)
        table = self._numbers.get(kind)
        if table is None:
            table = self._numbers[kind] = np.zeros(NUMBER_SLOTS, np.uint32)
        return int(code_number(self.state, self.buffer, value, table))

    def numbers(self, values: np.ndarray, kind: str) -> np.ndarray:
        """A row of numbers, coded in place."""
        self.grow(256 + 32 * len(values))
        if kind not in self._numbers:
            self._numbers[kind] = np.zeros(NUMBER_SLOTS, np.uint32)
        code_numbers(self.state, self.buffer, values, self._numbers[kind])
        return values

    def flag(self, value: bool | int, kind: str, context: int = 0, base: int = HALF) -> bool:
        """A bit, with a context; `base` is the expected probability of a 1, in 1/65536."""
        if self.writing:
            self.grow(256)
        slot = self._flag_slots.get((kind, context))
        if slot is None:
            slot = self._flag_slots[kind, context] = len(self._flag_slots)
            if slot == len(self._flags):
                self._flags = np.concatenate([self._flags, np.zeros_like(self._flags)])
        return bool(code_flag(self.state, self.buffer, int(value), self._flags, slot, base))

    def uniform(self, value: int, size: int) -> int:
        """A number below `size`, all equally likely."""
        self.grow(256)
        if size <= 1 << 40:
            return int(code_uniform(self.state, self.buffer, value, size))
        last = size - 1
        high = self.uniform(value >> 32, (last >> 32) + 1)
        low = self.uniform(
            value & 0xFFFFFFFF, (last & 0xFFFFFFFF) + 1 if high == last >> 32 else 1 << 32
        )
        return high << 32 | low

    def ascending(self, values: Sequence[int], count: int, low: int, high: int) -> list[int]:
        """`count` different numbers from `low` to `high`, ascending; the middle one first."""
        result = [0] * count
        parts = [(0, count, low, high)]
        while parts:
            begin, end, least, most = parts.pop()
            if begin == end:
                continue
            middle = (begin + end) // 2
            first = least + middle - begin
            room = most - (end - 1 - middle) - first + 1
            if room < 1:
                raise FormatError("a codebook has more values than fit between its bounds")
            offset = values[middle] - first if self.writing else 0
            result[middle] = first + self.uniform(offset, room)
            parts.append((middle + 1, end, result[middle] + 1, most))
            parts.append((begin, middle, least, result[middle] - 1))
        return result

    def text(self, value: str, limit: int) -> str:
        """A name of at most `limit` bytes. UTF-8, except that a zero in it is written as C0 80."""
        if self._text is None:
            self._text = TextModel.fresh()
        model = self._text
        raw = (
            b""
            if not self.writing
            else value.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
        )
        if len(raw) > limit:
            raise ReefknotError(f"a name of {len(raw):,} bytes is too long; {limit:,} is the limit")
        self.grow(16 * len(raw) + 256)
        if len(self._area) != 5 + limit + 1:
            self._area = np.zeros(5 + limit + 1, np.uint8)
        area = self._area  # what the last name left in it is overwritten, or follows the zero
        area[5 + len(raw)] = 0
        area[:5] = model.history
        area[5 : 5 + len(raw)] = np.frombuffer(raw, np.uint8)
        end = model.code(self.state, self.buffer, area, 5)
        self.check()
        if end < 0:
            raise FormatError(f"a name is longer than {limit:,} bytes")
        model.history = area[end - 5 : end].copy()
        try:
            return (
                bytes(area[5 : end - 1])
                .replace(b"\xc0\x80", b"\0")
                .decode("utf-8", "surrogatepass")
            )
        except UnicodeDecodeError as error:
            raise FormatError(f"a name is not UTF-8: {error}") from error


def spent_eighths(state: np.ndarray) -> int:
    """Bits written by a coder's state, in eighths: integers only, since this decides encodings."""
    size = int(state[k.RANGE])
    length = size.bit_length()
    fraction = size << (32 - length) if length < 32 else size >> (length - 32)  # in [2^31, 2^32)
    eighths = 8 * length
    for step in (4, 2, 1):
        fraction = fraction * fraction >> 31
        if fraction >> 32:
            fraction >>= 1
            eighths += step
    return 64 * int(state[k.POSITION]) + 8 * (k.TOP_BITS + 1) - eighths
