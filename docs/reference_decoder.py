"""A reader of `.reef` files (versions 1 and 2) in plain Python, with no dependency.

It follows docs/format.md section by section and is slow on purpose: it is there to be read, and to
prove that the specification is complete. It refuses exactly what the specification refuses.

    python reference_decoder.py model.reef          prints every name, type, shape and CRC-32

`read(data)` gives a dict: name -> (type, shape, bytes of the elements in C order, little endian),
or raises `RefusedError`; `limit` is what the tensors may take up once decoded, aliases included.
"""

import math
import sys
import zlib
from bisect import bisect_left

TYPES = {
    "F32": 4, "F16": 2, "BF16": 2, "F64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1, "C64": 8, "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4,
    "U64": 8, "I64": 8,
}  # fmt: skip
TAGS = list(TYPES)
EXPONENT_BITS = {
    "F32": 8, "F16": 5, "BF16": 8, "F64": 11, "F8_E4M3": 4, "F8_E5M2": 5, "F8_E4M3FNUZ": 4, "F8_E5M2FNUZ": 5,
}  # fmt: skip
SCALED = ("F32", "F16", "BF16")
INTEGERS = ("I8", "I16")
PRIME = (
    "weight\0bias\0features.0.weight\0features.0.bias\0classifier.1.weight\0classifier.1.bias\0"
    "model.layers.0.self_attn.q_proj.weight\0model.layers.0.mlp.up_proj.weight\0"
    "layer1.0.conv1.weight\0layer1.0.bn1.weight\0layer1.0.bn1.bias\0layer1.0.bn1.running_mean\0"
    "layer1.0.bn1.running_var\0layer1.0.bn1.num_batches_tracked\0"
    "0.weight\0" "0.bias\0" "2.weight\0" "2.bias\0" "4.weight\0" "4.bias\0"
    "conv1.weight\0conv1.bias\0conv2.weight\0conv2.bias\0conv3.weight\0conv3.bias\0"
    "fc1.weight\0fc1.bias\0fc2.weight\0fc2.bias\0fc3.weight\0fc3.bias\0fc.weight\0fc.bias\0"
    "conv1.weight\0conv1.bias\0conv2.weight\0conv2.bias\0fc1.weight\0fc1.bias\0fc2.weight\0fc2.bias\0"
).encode()  # fmt: skip


class RefusedError(ValueError):
    """The file is not a valid one."""


def require(condition, why):
    if not condition:
        raise RefusedError(why)


# ---- tables (format.md, section 3) -------------------------------------------------------------

STRETCH_MAX = 1775


def _squash_table():
    one = 1 << 64
    factor = term = one
    for n in range(1, 12):
        term //= 256 * n
        factor += term
    power, upper = one, []
    for _ in range(STRETCH_MAX + 1):
        upper.append((power << 16) // (power + one))
        power = power * factor >> 64
    return [min(max(p, 1), 65535) for p in [65536 - p for p in upper[:0:-1]] + upper]


SQUASH = _squash_table()
RECIPROCAL = [min((1 << 32) // max(n, 1), (1 << 32) - 1) for n in range(1085)]
STRETCH = [bisect_left(SQUASH, 16 * p + 8) - STRETCH_MAX for p in range(4096)]


# ---- range decoder and prediction (sections 2 and 4) -------------------------------------------


class Decoder:
    """Bits of one stream. With `told`, it learns from given bits instead (to prime the name model)."""

    def __init__(self, stream, told=None, budget=1 << 62):
        self.stream, self.told, self.budget = stream, told, budget
        self.size, self.at = 1 << 48, 6
        self.code = int.from_bytes(stream[:6].ljust(6, b"\0"), "big")
        self.numbers, self.flags = {}, {}
        self.text = None

    def bit(self, p):
        if self.told is not None:
            return next(self.told)
        bound = (self.size >> 16) * p
        bit = self.code < bound
        if bit:
            self.size = bound
        else:
            self.code -= bound
            self.size -= bound
        while self.size < 1 << 40:
            byte = self.stream[self.at] if self.at < len(self.stream) else 0
            self.at += 1
            self.code = self.code << 8 | byte
            self.size <<= 8
        require(self.at - 6 <= len(self.stream), "a stream ends before its content")
        return int(bit)

    def spend(self, number):
        self.budget -= number
        require(self.budget >= 0, "a stream claims more elements than its size allows")

    def close(self):
        require(self.at - 6 <= len(self.stream) <= self.at, "a stream is not used up exactly")

    def adaptive(self, table, slot, base=32768):
        bit = self.bit(shrunk(table, slot, 2, base))
        count(table, slot, bit)
        return bit

    def mixed(self, base, table, contexts, weights, first, lr):
        """`contexts` are pairs of slot and prior."""
        origin = STRETCH[base >> 4]
        votes = [
            STRETCH[shrunk(table, slot, prior, base) >> 4] - origin for slot, prior in contexts
        ]
        total = weights[first] * origin + sum(w * v for w, v in zip(weights[first + 1 :], votes))
        p = SQUASH[min(max((total + 32768) >> 16, -STRETCH_MAX), STRETCH_MAX) + STRETCH_MAX]
        bit = self.bit(p)
        error = ((bit << 16) - p) * lr
        weights[first] += origin * error >> 22
        for i, (slot, _) in enumerate(contexts):
            weights[first + 1 + i] += votes[i] * error >> 18
            count(table, slot, bit)
        return bit

    # -- section 5: numbers, flags, names

    def number(self, kind):
        table = self.numbers.setdefault(kind, {})
        length = 0
        while length < 47 and self.adaptive(table, length):
            length += 1
        result = 1
        for i in range(length):
            if i < 2:
                bit = self.adaptive(table, 64 + 3 * length + (result & 1 if i else 0) + i)
            else:
                bit = self.bit(32768)
            result = result * 2 + bit
        return result - 1

    def flag(self, kind, context=0, base=32768):
        return self.adaptive(self.flags.setdefault((kind, context), {}), 0, base)

    def uniform(self, size):
        if size > 1 << 40:
            last = size - 1
            high = self.uniform((last >> 32) + 1)
            return high << 32 | self.uniform(
                (last & 0xFFFFFFFF) + 1 if high == last >> 32 else 1 << 32
            )
        offset = 0
        while size > 1:
            half = 1 << ((size - 1).bit_length() - 1)
            if self.bit(min(max(((size - half) << 16) // size, 1), 65535)):
                offset += half
                size -= half
            else:
                size = half
        return offset

    def ascending(self, number, low, high):
        if not number:
            return []
        middle = number // 2
        first = low + middle
        room = high - (number - 1 - middle) - first + 1
        require(room > 0, "a codebook has more values than fit between its bounds")
        value = first + self.uniform(room)
        left = self.ascending(middle, low, value - 1)
        return [*left, value, *self.ascending(number - middle - 1, value + 1, high)]

    def name(self):
        if self.text is None:
            self.text = Names()
        name = self.text.read(self).replace(b"\xc0\x80", b"\0")
        try:
            return name.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise RefusedError("a name is not UTF-8") from error


def shrunk(table, slot, prior, base):
    seen, ones = table.get(slot, (0, 0))
    p = ((ones << 16) + prior * base) * RECIPROCAL[seen + prior] >> 32
    return min(max(p, 8), 65528)


def count(table, slot, bit):
    seen, ones = table.get(slot, (0, 0))
    if seen >= 1020:
        seen, ones = seen >> 1, ones >> 1
    table[slot] = (seen + 1, ones + bit)


class Names:
    """The model of names, which has read the typical ones."""

    primed = None  # what reading them has left, the same for every stream

    def __init__(self):
        self.table, self.weights, self.history = {}, [65536] + [20000] * 5, b"\0" * 5
        if Names.primed is None:
            told = (byte >> shift & 1 for byte in PRIME for shift in range(7, -1, -1))
            primer = Decoder(b"", told)
            for _ in range(PRIME.count(b"\0")):
                self.read(primer)
            Names.primed = self.table, self.weights
        self.table, self.weights = dict(Names.primed[0]), list(Names.primed[1])
        self.history = PRIME[-5:]

    def read(self, decoder):
        name = bytearray()
        while True:
            h = int.from_bytes(self.history, "big")  # the last byte is the lowest
            orders = [
                (h & 0xFF) * 8 + 1, (h & 0xFFFF) * 8 + 2, (h & 0xFFFFFF) * 8 + 3,
                (h & 0xFFFFFFFF) % 0xFFFFFB * 8 + 4, h % 0xFFFFFB * 8 + 5,
            ]  # fmt: skip
            node = 1
            while node < 256:
                slots = [
                    256 + (((c * 1000003 + node) * 0x2545F491 & 0xFFFFFFFF) >> 18) for c in orders
                ]
                base = shrunk(self.table, node, 2, 32768)
                contexts = list(zip(slots, (2, 1, 1, 1, 1)))
                bit = decoder.mixed(base, self.table, contexts, self.weights, 0, 24)
                count(self.table, node, bit)
                node = node * 2 + bit
            self.history = self.history[1:] + bytes([node & 0xFF])
            if node == 256:
                return bytes(name)
            name.append(node & 0xFF)
            require(len(name) <= 65_536, "a name is too long")


# ---- header (section 6) ------------------------------------------------------------------------


def read_header(d, version, indexed, file_bytes):
    num_books, num_entries, num_aliases = (
        d.number("books"),
        d.number("entries"),
        d.number("aliases"),
    )
    parts = num_books + num_entries + num_aliases
    require(parts <= 64 + 2 * file_bytes, "too many codebooks, tensors and aliases")
    books, num_values = [], 0
    for _ in range(num_books):
        books.append(read_book(d, 65_536 + 8 * file_bytes - num_values))
        num_values += len(books[-1][1])
    entries, by_ending, outputs, last, last_run = [], {}, -1, -1, 0
    for _ in range(num_entries):
        name = d.name()
        ending = name.rpartition(".")[2]
        kind = sum(ending.encode("utf-8", "surrogatepass")) % 64
        like = by_ending.get(ending)
        entry = {"name": name, "codebook": -1, "method": 0, "run": 0, "scales": 0}
        scaled = 0
        if d.flag("kept", kind, 8000):
            d.flag("trainable", kind)
            if like and like["codebook"] < 0 and d.flag("same type", kind, 50000):
                entry["type"] = like["type"]
            else:
                entry["type"] = TAGS[d.uniform(len(TAGS))]
        else:
            require(books, "a tied tensor in a file without codebooks")
            if not d.flag("same codebook", 0, 50000):
                last = last + 1 if d.flag("next codebook", 0, 50000) else d.uniform(len(books))
            require(0 <= last < len(books), "a codebook that is not there")
            entry["codebook"], entry["type"] = last, books[last][0]
            if version > 1 and entry["type"] in INTEGERS:
                scaled = d.flag("scaled", 0, 60000)
            if scaled:
                entry["type"] = SCALED[d.uniform(3)]
        if like and d.flag("same rank", 0, 55000):
            rank = len(like["shape"])
        else:
            rank = d.number("rank")
            require(rank <= 64, "too many dimensions")
        shape = []
        for i in range(rank):
            guesses = (
                outputs,
                like["shape"][i] if like and i < len(like["shape"]) else -1,
                shape[-1] if i else -1,
            )
            known = [-1]
            for number, guess in enumerate(guesses):
                if guess not in known:
                    if d.flag(f"guess {number}", 8 * min(rank, 4) + min(i, 3)):
                        shape.append(guess)
                        break
                    known.append(guess)
            else:
                shape.append(d.number("size"))
        require(math.prod(max(size, 1) for size in shape) <= 1 << 46, "a shape beyond any limit")
        entry["shape"] = tuple(shape)
        if scaled:
            if not (last_run and d.flag("same run")):
                last_run = 1 + d.number("run")
            entry["run"] = last_run
            entry["scales"] = every = -(-math.prod(shape) // last_run)
            if not d.flag("every scale", 0, 60000):
                entry["scales"] = d.number("scales")
                require(1 <= entry["scales"] < every, "scales that do not fit")
        outputs = shape[0] if rank > 1 else outputs
        if indexed:
            entry["method"] = d.flag("method")
            entry["bytes"], entry["crc"] = d.number("bytes"), d.uniform(1 << 32)
        by_ending[ending] = entry
        entries.append(entry)
    require(entries or not num_aliases, "an alias in a file without tensors")
    aliases = [(d.name(), d.uniform(num_entries)) for _ in range(num_aliases)]
    names = [entry["name"] for entry in entries] + [name for name, _ in aliases]
    require(len(set(names)) == len(names), "two tensors of one name")
    require(sum(map(len, names)) <= (1 << 20) + 64 * file_bytes, "names that are too long")
    return books, entries, aliases


def read_book(d, most_values):
    """A codebook: its type, the raw bits of its values in order, and which of them is 0, or -1."""
    kind = d.number("type")
    require(kind < len(TAGS), "an unknown element type")
    tag = TAGS[kind]
    width, number = 8 * TYPES[tag], d.number("values")
    require(number <= min(65_536, most_values), "too many values in codebooks")
    has_zero = d.flag("zero", 0, 60000) if number else 0
    below = d.uniform(number - has_zero + 1)
    require(tag in EXPONENT_BITS or not below, "a negative part of a type without sign")
    low, high, shift = 0, (1 << width) - 1, 0
    if tag in EXPONENT_BITS:
        fraction = width - 1 - EXPONENT_BITS[tag]
        folded = d.number("exponent")
        most = (
            (1 << (EXPONENT_BITS[tag] - 1))
            - 2
            - (-(folded + 1 >> 1) if folded & 1 else folded >> 1)
        )
        least = most - d.number("exponents")
        require(least >= 0 and most < 1 << EXPONENT_BITS[tag], "impossible exponents")
        shift = fraction - d.uniform(fraction + 1)
        low, high = (least << fraction) >> shift, (((most + 1) << fraction) - 1) >> shift
    negative = d.ascending(below, low, high)
    positive = d.ascending(number - has_zero - below, low, high)
    sign = 1 << (width - 1)
    flip = sign if tag in ("I8", "I16", "I32", "I64") else 0
    values = [m << shift | sign for m in negative[::-1]]
    values += [flip] * has_zero + [m << shift ^ flip for m in positive]
    require(len(set(values)) == len(values), "the same value twice")
    require(tag != "BOOL" or all(value < 2 for value in values), "a boolean above 1")
    require(not any(is_negative_zero(value, tag) for value in values), "-0.0 in a codebook")
    return tag, values, values.index(0) if 0 in values else -1


def is_negative_zero(bits, tag):
    """Any zero but the one of all bits 0; the FNUZ types, and those without sign, have none."""
    if tag == "C64":
        return bits != 0 and bits & 0x7FFFFFFF_7FFFFFFF == 0
    signed = tag in EXPONENT_BITS and not tag.endswith("FNUZ")
    return signed and bits == 1 << (8 * TYPES[tag] - 1)


# ---- tied tensors (section 7) ------------------------------------------------------------------

FIRST_WEIGHTS = (
    [100, 45, 33, 45] + [100, 46, 50, 45, 45, 40] * 3 + [90, 40, 40, 55] * 3
)  # fmt: skip
SIGN_BASE, ROW_FLAG, COLUMN_FLAG = 0, 1, 8
GRID, NEAR, LEVEL_PAIR, PLACE = 64, 96, 3136, 3392
SIGNED = 132
MAGNITUDE, NEAR_MAGNITUDE, ROW_MAGNITUDE, PAIR_MAGNITUDE = 192, 320, 1088, 2112
LINES, LINE_MASK, LINE = 4416, (1 << 20) - 1, -1


class Content:
    """What is carried from tensor to tensor of one stream."""

    def __init__(self):
        self.weights = [w * 65536 // 100 for w in FIRST_WEIGHTS]
        self.shared, self.activity, self.planes = {}, [], {}

    def tied(self, d, shape, codebook, size, zero):
        """Indices in C order."""
        rows, columns = (
            (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))
        )
        require(size or not rows * columns, "elements of an empty codebook")
        if not rows * columns or size <= 1:
            return [0] * (rows * columns)
        pivot = zero if zero >= 0 and d.flag("pivot is zero", 0, 60000) else d.uniform(size)
        units = self.activity if self.activity and columns % len(self.activity) == 0 else []
        by_column = maps = 0
        if min(rows, columns) > 1:
            by_column, maps = d.flag("by column"), d.flag("maps", 0, 60000)
        grid = 0
        while grid < 4 and d.flag("grid", grid + 8 * min(len(shape), 4)):
            grid += 1
        width, plane = grid_of(grid, shape, columns, len(units))
        group = columns // len(units) if units else 1
        active = [
            1 + min(units[c // group].bit_length(), 7) if units else 0 for c in range(columns)
        ]
        place = [min(c % plane, 63) if plane else 0 for c in range(columns)]
        x = Matrix(self, d, rows, columns, pivot, size, width, plane, active, place)
        if maps:
            x.read_maps()
        for own, (seen, ones) in self.shared.get(codebook, {}).items():
            while seen >= 32:
                seen, ones = seen >> 1, ones >> 1
            x.table[MAGNITUDE + own] = (seen, ones)
        for a in range(columns if by_column else rows):
            x.begin_line()
            for b in range(rows if by_column else columns):
                r, c = (b, a) if by_column else (a, b)
                if x.live_row[r] and x.live_column[c]:
                    x.read_element(r, c, LINES + (b & LINE_MASK))
        self.shared[codebook] = {
            own: x.table[MAGNITUDE + own] for own in range(128) if MAGNITUDE + own in x.table
        }
        if len(shape) > 1:
            self.activity = [sum(i != pivot for i in row) for row in x.x] if rows <= 1 << 20 else []
        return [i for row in x.x for i in row]

    def kept(self, d, number, size, tag):
        """Rows of bytes."""
        table, weights = self.planes.setdefault(tag, ({}, [65536, 26000, 26000, 0] * 8))
        rows, before = [], [0] * size
        predicted = d.uniform(size + 1) if number else 0
        d.spend(predicted * number)
        for _ in range(number):
            row = []
            for plane in range(size):
                node = 1
                while node < 256:
                    if plane >= predicted:
                        node = node * 2 + d.bit(32768)
                        continue
                    own = plane * 256 + node
                    contexts = [(2048 + place_of(own, before[plane]), 4)]
                    contexts.append((2048 + 32768 + place_of(own, row[-1] if row else 0), 4))
                    base = shrunk(table, own, 2, 32768)
                    bit = d.mixed(base, table, contexts, weights, 4 * plane, 8)
                    count(table, own, bit)
                    node = node * 2 + bit
                row.append(node & 0xFF)
            rows.append(row)
            before = row
        return rows


def place_of(own, byte):
    return ((own * 256 + byte) * 0x2545F491 & 0xFFFFFFFF) >> 17


def grid_of(grid, shape, columns, num_units):
    if grid == 0:
        return 0, 0
    if grid == 1:
        require(len(shape) > 3, "a kernel of fewer than four dimensions")
        return shape[-1], shape[-1] * shape[-2]
    channels = (1, 3, num_units)[grid - 2]
    require(channels and not (grid == 4 and channels == columns), "a grid without units")
    width = math.isqrt(columns // channels)
    require(width > 1 and width * width * channels == columns, "a grid that does not fit")
    return width, 0 if channels == 1 else width * width


class Matrix:
    """One matrix of indices while it is read."""

    def __init__(self, content, d, rows, columns, pivot, size, width, plane, active, place):
        self.d, self.weights = d, content.weights
        self.rows, self.columns, self.pivot, self.size = rows, columns, pivot, size
        self.width, self.plane, self.active, self.place = width, plane, active, place
        self.x = [[pivot] * columns for _ in range(rows)]
        self.live_row, self.live_column = [1] * rows, [1] * columns
        self.table, self.deep, self.rank, self.all = {}, {}, {}, {}

    def read_maps(self):
        for r in range(self.rows):
            before = self.live_row[r - 1] if r else 0
            slot = ROW_FLAG + 1 + before
            bit = self.d.bit(shrunk(self.table, slot, 8, shrunk(self.table, ROW_FLAG, 2, 20000)))
            count(self.table, ROW_FLAG, bit)
            count(self.table, slot, bit)
            self.live_row[r] = bit
        live, w = self.live_column, self.width
        for c in range(self.columns):
            left = live[c - 1] if c else 0
            up = live[c - w] if w and c >= w else 0
            corners = (live[c - w + 1] if w > 1 and c >= w else 0) + (
                live[c - w - 1] if w and c > w else 0
            )
            behind = live[c - self.plane] if self.plane and c >= self.plane else 0
            active = self.active[c]
            known = min(active, 2)
            contexts = [
                (COLUMN_FLAG + 3 + 4 * known + 2 * left + up, 4),
                (COLUMN_FLAG + 15 + left + up + corners + 5 * known + 15 * behind, 4),
                (COLUMN_FLAG + 45 + active, 4),
            ]
            base = shrunk(self.table, COLUMN_FLAG + known, 2, 32768)
            live[c] = self.d.mixed(base, self.table, contexts, self.weights, 0, 24)
            count(self.table, COLUMN_FLAG + known, live[c])

    def at(self, r, c):
        return self.x[r][c] if r >= 0 and c >= 0 else self.pivot

    def begin_line(self):
        self.table[LINE] = (0, 0)
        self.base = shrunk(self.all, 0, 4, 6554)

    def read_element(self, r, c, cross):
        w, pivot = self.width, self.pivot
        left = self.at(r, c - 1)
        up = self.at(r, c - w) if w else pivot
        up_right = self.at(r, c - w + 1) if w > 1 and c >= w else pivot
        up_left = self.at(r, c - w - 1) if w else pivot
        behind = self.at(r, c - self.plane) if self.plane else pivot
        has = [int(i != pivot) for i in (left, up, up_right, up_left, behind)]
        if not self.read_differs(r, c, cross, has):
            return
        self.d.spend(1)
        pair = left + up - 2 * pivot
        pull = 2 * pair + up_right + up_left + behind - 3 * pivot
        ring = self.at(r, c - 2) - pivot
        if w > 2:
            places = [c - w - 2] + [c - 2 * w + k for k in range(-2, 3)]
            ring += sum(self.at(r, place) - pivot for place in places)
            ring += self.at(r, c - w + 2) - pivot if c >= w else 0
        upper = self.read_side(pull, ring)
        if not upper:
            pair, pull, ring = -pair, -pull, -ring
        distance = self.read_distance(r, upper, pair, pull + (ring >> 1))
        self.x[r][c] = pivot + 1 + distance if upper else pivot - 1 - distance

    def level(self, slot, prior):
        return min(STRETCH[shrunk(self.table, slot, prior, self.base) >> 4] + 1792 >> 7, 15)

    def read_differs(self, r, c, cross, has):
        """Whether an element is not the pivot."""
        active, above = self.active[c], int(self.at(r - 1, c) != self.pivot)
        if self.plane:
            last = PLACE + 16 * self.place[c] + active
        else:
            last = NEAR + has[0] + 2 * above + 4 * active
        around = GRID + has[0] + 2 * has[1] + 4 * has[2] + 8 * has[3] + 16 * has[4]
        levels = LEVEL_PAIR + 16 * self.level(cross, 24) + self.level(LINE, 6)
        contexts = [(LINE, 6), (cross, 24), (around, 4), (levels, 16), (last, 6)]
        first = 4 + 6 * min(2, sum(has[:4]))
        bit = self.d.mixed(self.base, self.table, contexts, self.weights, first, 14)
        count(self.all, 0, bit)
        return bit

    def read_side(self, pull, ring):
        """Whether it is above the pivot."""
        if self.pivot == 0 or self.pivot == self.size - 1:
            return int(self.pivot == 0)
        strength = min(abs(pull).bit_length(), 7) * (1 if pull >= 0 else -1)
        slot = SIGNED + 22 + 3 * strength + (ring > 0) - (ring < 0)
        bit = self.d.bit(shrunk(self.table, slot, 4, shrunk(self.table, SIGN_BASE, 4, 32768)))
        count(self.table, slot, bit)
        count(self.table, SIGN_BASE, bit)
        return bit

    def read_distance(self, r, upper, pair, pull):
        """How many values lie between it and the pivot."""
        d, table = self.d, self.table
        choices = self.size - 1 - self.pivot if upper else self.pivot
        near = min(5, 1 + (pull >> 1).bit_length()) if pull > 0 else 0
        close = min(5, pair.bit_length()) if pair >= 0 else 6 if pair >= -3 else 7
        total, number = self.rank.get(r & LINE_MASK, (0, 0))
        usual = 1 + min(6, 8 * total // (number * choices)) if number else 0
        bits = (choices - 1).bit_length()
        node, distance = 1, 0
        for j in range(bits - 1, -1, -1):
            if distance + (1 << j) >= choices:
                node *= 2
                continue
            if node >= 64:
                bit = d.adaptive(self.deep, (upper << bits) + node)
            else:
                own = 64 * upper + node
                contexts = [
                    (NEAR_MAGNITUDE + 128 * near + own, 8), (ROW_MAGNITUDE + 128 * usual + own, 8),
                    (PAIR_MAGNITUDE + 128 * close + own, 16),
                ]  # fmt: skip
                base = shrunk(table, MAGNITUDE + own, 2, 32768)
                bit = d.mixed(base, table, contexts, self.weights, 22 + 4 * min(node - 1, 2), 20)
                count(table, MAGNITUDE + own, bit)
            distance += bit << j
            node = node * 2 + bit
        self.rank[r & LINE_MASK] = (total + distance, number + 1)
        return distance


# ---- static tables (section 9) -----------------------------------------------------------------


def read_symbols(d, data, number, size):
    """The symbols, and how many bytes of `data` they took."""
    precision = 12 if size <= 256 else 16
    frequency = [d.number("frequency") for _ in range(size)]
    require(sum(frequency) == 1 << precision, "frequencies that do not fit")
    words = d.number("words")
    require(20 + 2 * words <= len(data), "symbols that end early")
    lanes = [int.from_bytes(data[5 * i : 5 * i + 5], "little") for i in range(4)]
    owner, start = [], []
    for symbol, share in enumerate(frequency):
        start.append(len(owner))
        owner += [symbol] * share
    symbols, at = [], 20
    for i in range(number):
        state = lanes[i % 4]
        slot = state & ((1 << precision) - 1)
        symbol = owner[slot]
        symbols.append(symbol)
        state = frequency[symbol] * (state >> precision) + slot - start[symbol]
        if state < 1 << 24:
            state = state << 16 | int.from_bytes(data[at : at + 2], "little")
            at += 2
        lanes[i % 4] = state
    require(
        lanes == [1 << 24] * 4 and at == 20 + 2 * words, "symbols that do not end as they should"
    )
    return symbols, at


# ---- files (section 1) -------------------------------------------------------------------------


def read(data, limit=4 << 30):
    """Name -> (type, shape, bytes of the elements)."""
    require(data[:3] == b"REF" and len(data) > 3, "not a .reef file")
    version, indexed = data[3] & 0x7F, data[3] >> 7
    require(version in (1, 2), "another version than 1 and 2")
    if not indexed:
        require(len(data) >= 8, "too few bytes")
        require(zlib.crc32(data[:-4]) == int.from_bytes(data[-4:], "little"), "damaged")
        d, content = Decoder(data[4:-4], budget=(1 << 21) + 16 * (len(data) - 8)), Content()
        books, entries, aliases = read_header(d, version, False, len(data))
        weigh(entries, aliases, limit)
        tensors = [read_tight(d, content, books, entry) for entry in entries]
        d.close()
    else:
        length = int.from_bytes(data[-8:-4], "little")
        require(len(data) >= 12 and length <= len(data) - 12, "too few bytes")
        tail = data[len(data) - 8 - length : -4]
        require(zlib.crc32(data[:4] + tail) == int.from_bytes(data[-4:], "little"), "damaged")
        d = Decoder(tail[:length])
        books, entries, aliases = read_header(d, version, True, len(data))
        d.close()
        claimed = sum(entry["bytes"] for entry in entries)
        require(claimed == len(data) - 12 - length, "streams that do not fill the file")
        weigh(entries, aliases, limit)
        tensors, at = [], 4
        for entry in entries:
            stream = data[at : at + entry["bytes"]]
            require(zlib.crc32(stream) == entry["crc"], "damaged")
            if entry["method"]:
                tensors.append(read_fast(stream, books, entry))
            else:
                d = Decoder(stream, budget=256 + 16 * len(stream))
                tensors.append(read_tight(d, Content(), books, entry))
                d.close()
            at += entry["bytes"]
    result = {e["name"]: (e["type"], e["shape"], t) for e, t in zip(entries, tensors)}
    return result | {name: result[entries[owner]["name"]] for name, owner in aliases}


def weigh(entries, aliases, limit):
    """An alias weighs what its tensor does."""
    sizes = [math.prod(e["shape"]) * TYPES[e["type"]] + 4 * e["scales"] for e in entries]
    decoded = sum(sizes) + sum(sizes[owner] for _, owner in aliases)
    require(decoded <= limit, "more than the limit once decoded")


def read_tight(d, content, books, entry):
    number, tag = math.prod(entry["shape"]), entry["type"]
    if entry["codebook"] >= 0:
        _, bits, zero = books[entry["codebook"]]
        indices = content.tied(d, entry["shape"], entry["codebook"], len(bits), zero)
        if entry["run"]:
            rows = content.kept(d, entry["scales"], 4, "scales")
            return scaled_elements(indices, books, entry, from_planes(rows, 4, "F32"))
        return elements(indices, bits, tag)
    unit = 4 if tag == "C64" else TYPES[tag]
    return from_planes(content.kept(d, number * TYPES[tag] // unit, unit, tag), unit, tag)


def read_fast(stream, books, entry):
    length = int.from_bytes(stream[:4], "little")
    require(4 + length <= len(stream), "a head that is longer than its stream")
    d, data = Decoder(stream[4 : 4 + length]), stream[4 + length :]
    number, tag = math.prod(entry["shape"]), entry["type"]
    if entry["codebook"] >= 0:
        bits = books[entry["codebook"]][1]
        indices, used = read_symbols(d, data, number, len(bits))
        data = data[used:]
        if entry["run"]:
            rows, data = read_planes(d, data, entry["scales"], 4)
            result = scaled_elements(indices, books, entry, from_planes(rows, 4, "F32"))
        else:
            result = elements(indices, bits, tag)
    else:
        unit = 4 if tag == "C64" else TYPES[tag]
        rows, data = read_planes(d, data, number * TYPES[tag] // unit, unit)
        result = from_planes(rows, unit, tag)
    d.close()
    require(not data, "bytes left over in a stream")
    return result


def read_planes(d, data, number, unit):
    """So many rows of so many bytes, and the data after them."""
    planes = []
    for _ in range(unit):
        if d.flag("table"):
            plane, used = read_symbols(d, data, number, 256)
        else:
            plane, used = list(data[:number]), number
            require(len(plane) == number, "bytes that end early")
        planes.append(plane)
        data = data[used:]
    return list(zip(*planes)), data


def elements(indices, bits, tag):
    return b"".join(bits[i].to_bytes(TYPES[tag], "little") for i in indices)


# ---- scales (section 10) -----------------------------------------------------------------------

FRACTION_BITS = {"F32": 23, "F16": 10, "BF16": 7}


def scaled_elements(indices, books, entry, scales):
    tag, values, _ = books[entry["codebook"]]
    sign = 1 << (8 * TYPES[tag] - 1)
    scales = [int.from_bytes(scales[i : i + 4], "little") for i in range(0, len(scales), 4)]
    require(all((scale >> 23 & 0xFF) < 0xFF for scale in scales), "a scale that is not finite")
    out, size = bytearray(), TYPES[entry["type"]]
    for i, index in enumerate(indices):
        scale = scales[i // entry["run"] % len(scales)]
        integer = (values[index] ^ sign) - sign
        out += scaled(scale, integer, entry["type"]).to_bytes(size, "little")
    return bytes(out)


def scaled(scale, integer, tag):
    """The bits of scale * integer, rounded once to the nearest, ties to even."""
    fraction, width = FRACTION_BITS[tag], EXPONENT_BITS[tag]
    sign = scale >> 31 ^ (integer < 0)
    exponent = scale >> 23 & 0xFF
    magnitude = scale & 0x7FFFFF | (1 << 23 if exponent else 0)
    magnitude *= 0 if integer == -32768 else abs(integer)
    # The value is magnitude * 2^(exponent - 150); of the result, m * 2^(field - bias - fraction).
    drop = magnitude.bit_length() - fraction - 1
    field = max(exponent, 1) - 150 + drop + fraction + (1 << (width - 1)) - 1
    if field < 1:
        drop, field = drop + 1 - field, 1
    if drop > 0:
        drop = min(drop, 62)
        m, rest, half = magnitude >> drop, magnitude & ((1 << drop) - 1), 1 << (drop - 1)
        m += rest > half or (rest == half and m & 1)
    else:
        m = magnitude << -drop
    infinity = ((1 << width) - 1) << fraction
    bits = min((field << fraction) + m - (1 << fraction), infinity) if magnitude else 0
    return sign << (fraction + width) | bits


def from_planes(rows, unit, tag):
    out = bytearray()
    for row in rows:
        value = int.from_bytes(bytes(row), "big")
        if tag in (*EXPONENT_BITS, "F8_E8M0") and unit > 1:
            value = value >> 1 | (value & 1) << (8 * unit - 1)
        out += (value & 1 if tag == "BOOL" else value).to_bytes(unit, "little")
    return bytes(out)


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        for name, (tag, shape, raw) in read(file.read()).items():
            print(f"{name!r:40} {tag:12} {list(shape)!s:20} {zlib.crc32(raw):08x}")
