# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False, check_untyped_defs=False
"""The compiled loops: range coder, mixed prediction, and the models of tensors, bytes and names.

Takes     flat integer arrays, all made by the caller.
Gives     the same arrays, coded or decoded: each model is written once and runs both ways.
Unaware   of files, shapes and element types.

Every loop is all integers, allocates nothing, and stays inside its arrays whatever a stream says:
values that are decoded index an array only where their range is limited by construction. All loops
are in this one file because numba notices that a cached loop is stale by its own file only.
docs/format.md describes every step.
"""

from functools import partial

import numpy as np

from reefknot.codec.tables import (
    LENGTH,
    LIMIT,
    LOG_RANGE,
    PAIR_BUCKET,
    PULL_BUCKET,
    RECIPROCAL,
    SQUASH,
    STRENGTH,
    STRETCH,
    STRETCH_MAX,
)
from reefknot.kernels.jit import compiled, inlined

kernel = partial(compiled, allocates=False)

# ---- range coder ------------------------------------------------------------------------------

# The state of a coder, a row of int64. LOW holds the code word when decoding.
RANGE, LOW, POSITION, ENCODING = 0, 1, 2, 3
BUDGET = 4  # elements that may still be coded at length: it bounds the time of a small file
ON_VALUES = 5  # what a decoder has spent on which value an element has, in 1/256 bit
TOP_BITS = 48
TOP = 1 << TOP_BITS
BOTTOM = 1 << (TOP_BITS - 8)
LOOKAHEAD = TOP_BITS // 8  # bytes that a decoder holds beyond those it has used


@inlined
def written(size, low, at, buffer):
    """Carry, and write the bytes that are settled; gives range, low and position."""
    if low >= TOP:
        low -= TOP
        place = min(at, len(buffer)) - 1
        while place >= 0:  # a carry runs back over bytes already written
            buffer[place] += np.uint8(1)
            if buffer[place]:
                break
            place -= 1
    while size < BOTTOM:
        if at < len(buffer):
            buffer[at] = low >> (TOP_BITS - 8)
        at += 1
        low = (low & (BOTTOM - 1)) << 8
        size <<= 8
    return size, low, at


@inlined
def refilled(size, low, at, buffer):
    """Read the bytes that are needed next, zeros after the end; gives range, low and position."""
    while size < BOTTOM:
        byte = np.int64(buffer[np.uint64(at)]) if at < len(buffer) else 0
        at += 1
        low = (low << 8) | byte
        size <<= 8
    return size, low, at


@inlined
def coded(encoding, size, low, at, buffer, bit, probability):
    """Code one bit whose chance to be 1 is `probability` / 65536 (1 to 65535).

    Gives the bit, and range, low and position, which a loop keeps in registers.
    """
    bound = (size >> 16) * probability
    if encoding:
        low += 0 if bit else bound
        size = bound if bit else size - bound
        size, low, at = written(size, low, at, buffer)
    else:
        bit = np.int64(low < bound)
        low -= 0 if bit else bound
        size = bound if bit else size - bound
        size, low, at = refilled(size, low, at, buffer)
    return bit, size, low, at


@inlined
def code_bit(coder, buffer, bit, probability):
    """`coded` with the state of the coder in memory; gives the bit."""
    bit, coder[RANGE], coder[LOW], coder[POSITION] = coded(
        coder[ENCODING], coder[RANGE], coder[LOW], coder[POSITION], buffer, bit, probability
    )
    return bit


# ---- prediction -------------------------------------------------------------------------------


# A context is one number: how many bits it has seen, times 65536, plus how many of them were ones.
SEEN_ONE = 1 << 16


@inlined
def estimate(seen_ones, prior, given):
    """(ones + given) / (seen + prior) in 1/65536, below 65536 if given < 65536·prior."""
    share = np.int64(RECIPROCAL[np.uint64((seen_ones >> 16) + prior)])
    return ((((seen_ones & 0xFFFF) << 16) + given) * share) >> 32


@inlined
def shrunk(table, slot, prior, base):
    """A context's probability, (ones + prior·base) / (seen + prior), away from both ends."""
    p = estimate(np.int64(table[np.uint64(slot)]), prior, prior * base)
    return min(max(p, 8), 65528)


@inlined
def counted(seen_ones, bit):
    """A context that has seen one bit more."""
    if seen_ones >= LIMIT * SEEN_ONE:
        seen_ones = (seen_ones >> 1) & 0x7FFF7FFF
    return seen_ones + SEEN_ONE + bit


@inlined
def count(table, slot, bit):
    """Count one bit in a context."""
    table[np.uint64(slot)] = counted(np.int64(table[np.uint64(slot)]), bit)


@inlined
def code_adaptive(coder, buffer, bit, table, slot, base):
    """Code one bit from a single context."""
    bit = code_bit(coder, buffer, bit, shrunk(table, slot, 2, base))
    count(table, slot, bit)
    return bit


@inlined
def stretched(p):
    """A probability in the logistic domain."""
    return np.int64(STRETCH[np.uint64(p >> 4)])


@inlined
def vote(table, slot, prior, base, origin):
    """How far one context departs from the base, in the logistic domain."""
    seen_ones = np.int64(table[np.uint64(slot)])
    return stretched(estimate(seen_ones, prior, prior * base)) - origin


@inlined
def chance(total):
    """The probability that a weighted sum of votes stands for."""
    x = min(max((total + 32768) >> 16, -STRETCH_MAX), STRETCH_MAX)
    return np.int64(SQUASH[np.uint64(x + STRETCH_MAX)])


@inlined
def code_mixed(coder, buffer, bit, base, table, slots, used, priors, weights, first, rate, work):
    """Code one bit from `base` and the contexts `slots[:used]`, then learn from it.

    Each context speaks by how far it departs from the base in the logistic domain, so one that has
    seen nothing says nothing. `weights[first]` belongs to the base, those after it to the contexts.
    """
    origin = stretched(base)
    total = weights[first] * origin
    for i in range(used):
        away = vote(table, slots[i], priors[i], base, origin)
        work[i] = away
        total += weights[first + 1 + i] * away
    p = chance(total)
    bit = code_bit(coder, buffer, bit, p)
    error = ((bit << 16) - p) * rate
    weights[first] += (origin * error) >> 22
    for i in range(used):
        weights[first + 1 + i] += (work[i] * error) >> 18
        count(table, slots[i], bit)
    return bit


@inlined
def coded_three(
    encoding, size, low, at, buffer, bit, base, table, a, b, c, prior_a, prior_b, prior_c,
    weights, first, rate,
):  # fmt: skip
    """`code_mixed` with three contexts, written out: nothing goes through memory."""
    origin = stretched(base)
    from_a = vote(table, a, prior_a, base, origin)
    from_b = vote(table, b, prior_b, base, origin)
    from_c = vote(table, c, prior_c, base, origin)
    w = np.uint64(first)
    w_a, w_b, w_c = np.uint64(first + 1), np.uint64(first + 2), np.uint64(first + 3)
    p = chance(
        weights[w] * origin + weights[w_a] * from_a + weights[w_b] * from_b + weights[w_c] * from_c
    )
    bit, size, low, at = coded(encoding, size, low, at, buffer, bit, p)
    error = ((bit << 16) - p) * rate
    weights[w] += (origin * error) >> 22
    weights[w_a] += (from_a * error) >> 18
    weights[w_b] += (from_b * error) >> 18
    weights[w_c] += (from_c * error) >> 18
    count(table, a, bit)
    count(table, b, bit)
    count(table, c, bit)
    return bit, size, low, at


@inlined
def bucket(n):
    """The bit length of n, at most 7."""
    return np.int64(LENGTH[min(n, 64)])


# ---- numbers ----------------------------------------------------------------------------------


@kernel("int64(int64[::1], uint8[::1], int64, uint32[::1], int64, int64)")
def code_flag(coder, buffer, bit, table, slot, base):
    """One bit with a context of its own, near `base` at first."""
    return code_adaptive(coder, buffer, bit, table, slot, base)


@kernel("int64(int64[::1], uint8[::1], int64, int64)")
def code_uniform(coder, buffer, value, size):
    """A number below `size` (at most 2^46), all equally likely."""
    offset = np.int64(0)
    while size > 1:
        half = np.int64(1)
        while half * 2 < size:
            half *= 2
        p = min(max(((size - half) << 16) // size, 1), 65535)
        if code_bit(coder, buffer, 1 if value - offset >= half else 0, p):
            offset += half
            size -= half
        else:
            size = half
    return offset


NUMBER_SLOTS = 64 + 3 * 64  # slots of a context for numbers


@inlined
def number(coder, buffer, value, table, slot):
    """A number from 0 to 2^48 - 2, small ones cheaper: bit length, then the other bits."""
    target = value + 1
    length = 0
    while length < 47:
        more = 1 if (target >> (length + 1)) > 0 else 0
        if not code_adaptive(coder, buffer, more, table, slot + length, 32768):
            break
        length += 1
    result = np.int64(1)
    for i in range(length):
        bit = (target >> (length - 1 - i)) & 1
        if i < 2:  # the two highest bits have contexts of their own
            place = slot + 64 + 3 * length + (0 if i == 0 else result & 1) + i
            bit = code_adaptive(coder, buffer, bit, table, place, 32768)
        else:
            bit = code_bit(coder, buffer, bit, 32768)
        result = result * 2 + bit
    return result - 1


@kernel("int64(int64[::1], uint8[::1], int64, uint32[::1])")
def code_number(coder, buffer, value, table):
    """One such number."""
    return number(coder, buffer, value, table, 0)


@kernel("void(int64[::1], uint8[::1], int64[::1], uint32[::1])")
def code_numbers(coder, buffer, values, table):
    """A row of such numbers."""
    for i in range(len(values)):
        values[i] = number(coder, buffer, values[i], table, 0)
        if coder[POSITION] - len(buffer) > LOOKAHEAD:
            return


# ---- names ------------------------------------------------------------------------------------

TEXT_BITS = 14
TEXT_SLOTS = (1 << TEXT_BITS) + 256
TEXT_PRIORS = np.array([2, 1, 1, 1, 1], np.int64)


@inlined
def text_slot(context, node):
    """Where the bits of a byte are counted after the bytes that `context` stands for."""
    mixed = ((context * 1000003 + node) * 0x2545F491) & 0xFFFFFFFF
    return 256 + (mixed >> (32 - TEXT_BITS))


@kernel(
    "int64(int64[::1], uint8[::1], uint8[::1], int64, uint32[::1], "
    "int64[::1], int64[::1], int64[::1])"
)
def code_text(coder, buffer, text, at, table, weights, slots, work):
    """Bytes from text[at] to the next 0, which is included; gives the place after it, or -1."""
    while at < len(text) and coder[POSITION] - len(buffer) <= LOOKAHEAD:
        history = np.int64(0)
        for back in range(1, 6):
            byte = np.int64(text[at - back]) if at >= back else 0
            history |= byte << (8 * (back - 1))
        goal = np.int64(text[at])
        node = np.int64(1)
        for shift in range(7, -1, -1):
            slots[0] = text_slot((history & 0xFF) * 8 + 1, node)
            slots[1] = text_slot((history & 0xFFFF) * 8 + 2, node)
            slots[2] = text_slot((history & 0xFFFFFF) * 8 + 3, node)
            slots[3] = text_slot((history & 0xFFFFFFFF) % 0xFFFFFB * 8 + 4, node)
            slots[4] = text_slot(history % 0xFFFFFB * 8 + 5, node)
            base = shrunk(table, node, 2, 32768)
            bit = code_mixed(
                coder,
                buffer,
                (goal >> shift) & 1,
                base,
                table,
                slots,
                5,
                TEXT_PRIORS,
                weights,
                0,
                24,
                work,
            )
            count(table, node, bit)
            node = node * 2 + bit
        text[at] = node & 0xFF
        at += 1
        if node == 256:
            return at
    return -1


# ---- kept tensors -----------------------------------------------------------------------------

PLANE_BITS = 15
PLANE_SLOTS = 2048 + (2 << PLANE_BITS)
PLANE_PRIORS = np.array([4, 4], np.int64)


@kernel(
    "void(int64[::1], uint8[::1], uint8[:, ::1], int64, uint32[::1], "
    "int64[::1], int64[::1], int64[::1])"
)
def code_planes(coder, buffer, data, predicted, table, weights, slots, work):
    """Elements as rows of at most 8 bytes, the most telling byte first.

    The first `predicted` bytes of each are predicted from the same byte of the element before and
    from the byte before it; the others are taken as random.
    """
    for i in range(data.shape[0]):
        if coder[POSITION] - len(buffer) > LOOKAHEAD:
            return
        for plane in range(data.shape[1]):
            goal = np.int64(data[i, plane])
            if plane >= predicted:
                node = np.int64(0)
                for shift in range(7, -1, -1):
                    node = node * 2 + code_bit(coder, buffer, (goal >> shift) & 1, 32768)
                data[i, plane] = node
                continue
            before = np.int64(data[i - 1, plane]) if i > 0 else 0
            above = np.int64(data[i, plane - 1]) if plane > 0 else 0
            node = np.int64(1)
            for shift in range(7, -1, -1):
                own = plane * 256 + node
                one = (((own * 256 + before) * 0x2545F491) & 0xFFFFFFFF) >> (32 - PLANE_BITS)
                two = (((own * 256 + above) * 0x2545F491) & 0xFFFFFFFF) >> (32 - PLANE_BITS)
                slots[0] = 2048 + one
                slots[1] = 2048 + (1 << PLANE_BITS) + two
                base = shrunk(table, own, 2, 32768)
                bit = code_mixed(
                    coder, buffer, (goal >> shift) & 1, base, table, slots, 2, PLANE_PRIORS,
                    weights, 4 * plane, 8, work,
                )  # fmt: skip
                count(table, own, bit)
                node = node * 2 + bit
            data[i, plane] = node & 0xFF


# ---- tied tensors -----------------------------------------------------------------------------

# Contexts in the table of one tensor; those of the lines across follow from LINES on.
SIGN_BASE, ROW_FLAG, COLUMN_FLAG = 0, 1, 8
GRID, NEAR, LEVEL_PAIR, PLACE = 64, 96, 3136, 3392
SIGNED = 132
MAGNITUDE, NEAR_MAGNITUDE, ROW_MAGNITUDE, PAIR_MAGNITUDE = 192, 320, 1088, 2112
LINES = 4416
LINE_MASK = (1 << 20) - 1  # tensors with more lines than this share contexts

# Mixer weights, and what they are at first (in 1/100).
COLUMN_FLAG_W, MASK_W, MAGNITUDE_W = 0, 4, 22
FIRST_WEIGHTS = [100, 45, 33, 45] + [100, 46, 50, 45, 45, 40] * 3 + [90, 40, 40, 55] * 3
SHARED_LIMIT = 32  # bits of a magnitude that are remembered from tensor to tensor
FLAG_RATE, MASK_RATE, MAGNITUDE_RATE = 24, 14, 20


@inlined
def active_at(about, units, group, c):
    """How active the input of a column is, 0 to 8."""
    if len(about) > 0:
        return np.int64(about[np.uint64(c), 0])
    return 1 + bucket(units[np.uint64(c // group)]) if group > 0 else 0


@inlined
def place_at(about, plane, c):
    """Where in its plane a column is, at most 63."""
    return np.int64(about[np.uint64(c), 1]) if len(about) > 0 else min(c % plane, 63)


@inlined
def spent(size, at):
    """What a stream has taken so far, in 1/256 bit, and a constant."""
    return (at << 11) - np.int64(LOG_RANGE[np.uint64(size >> (TOP_BITS - 12))])


@inlined
def code_maps(
    encoding, coder, buffer, x, pivot, width, plane, about, units, group, weights, table, live
):
    """Which rows and which columns hold anything but the pivot."""
    rows, columns = x.shape
    size, low, at = coder[RANGE], coder[LOW], coder[POSITION]
    last = len(buffer) + LOOKAHEAD
    bit = np.int64(0)
    for r in range(rows):
        if at > last:
            break
        slot = ROW_FLAG + 1 + bit
        bit = np.int64(0)
        if encoding:
            for c in range(columns):
                if x[r, c] != pivot:
                    bit = np.int64(1)
                    break
        p = shrunk(table, slot, 8, shrunk(table, ROW_FLAG, 2, 20000))
        bit, size, low, at = coded(encoding, size, low, at, buffer, bit, p)
        count(table, ROW_FLAG, bit)
        count(table, slot, bit)
        live[r] = bit
    for c in range(columns):
        if at > last:
            break
        bit = np.int64(0)
        if encoding:
            for r in range(rows):
                if x[r, c] != pivot:
                    bit = np.int64(1)
                    break
        here = rows + c
        left = np.int64(live[np.uint64(here - 1)]) if c > 0 else 0
        up, corners, behind = 0, 0, 0
        if width > 0 and c >= width:
            up = np.int64(live[np.uint64(here - width)])
            corners = np.int64(live[np.uint64(here - width + 1)]) if width > 1 else 0
            if c > width:
                corners += np.int64(live[np.uint64(here - width - 1)])
        if plane > 0 and c >= plane:
            behind = np.int64(live[np.uint64(here - plane)])
        active = active_at(about, units, group, c)
        known = min(active, 2)
        bit, size, low, at = coded_three(
            encoding, size, low, at, buffer, bit,
            shrunk(table, COLUMN_FLAG + known, 2, 32768), table,
            COLUMN_FLAG + 3 + known * 4 + left * 2 + up,
            COLUMN_FLAG + 15 + left + up + corners + 5 * known + 15 * behind,
            COLUMN_FLAG + 45 + active,
            4, 4, 4, weights, COLUMN_FLAG_W, FLAG_RATE,
        )  # fmt: skip
        count(table, COLUMN_FLAG + known, bit)
        live[np.uint64(here)] = bit
    coder[RANGE], coder[LOW], coder[POSITION] = size, low, at


_TIED = (
    "void(int64[::1], uint8[::1], {0}[:, ::1], {0}[::1], int64, int64, int64, int64, int64, int64, "
    "int64[::1], uint8[:, ::1], uint32[::1], uint32[::1], int64[::1], uint32[::1], uint8[::1], "
    "int32[::1], int64[:, ::1])"
)


@inlined
def elements(
    encoding, coder, buffer, x, rows, columns, pivot, values, by_column, width, plane, about,
    units, group, shared, deep, weights, table, live, order, rank,
):  # fmt: skip
    """The elements of live lines; `encoding` is a constant, so that each way has its own loop."""
    size, low, at = coder[RANGE], coder[LOW], coder[POSITION]
    outer = columns if by_column else rows
    inner = rows if by_column else columns
    mapped = len(live) > 0
    listed = inner <= len(order)
    if listed:  # the live lines of the other direction, so that dead ones take no time
        inner = 0
        for b in range(rows if by_column else columns):
            if not mapped or live[np.uint64(b if by_column else rows + b)]:
                order[inner] = b
                inner += 1
    last = len(buffer) + LOOKAHEAD
    for k in range(128):  # magnitudes begin with what the codebook's other tensors have shown
        seen_ones = np.int64(shared[k])
        while seen_ones >= SHARED_LIMIT * SEEN_ONE:
            seen_ones = (seen_ones >> 1) & 0x7FFF7FFF
        table[MAGNITUDE + k] = seen_ones
    total = np.int64(0)
    budget = coder[BUDGET]
    on_values = np.int64(0)
    for a in range(outer):
        if at > last or budget < 0:
            break
        if mapped and not live[rows + a if by_column else a]:
            continue
        line = np.int64(0)
        base = min(max(estimate(total, 4, 4 * 6554), 8), 65528)
        origin = stretched(base)
        for i in range(inner):
            if (i & 1023) == 0 and at > last:
                break
            b = np.int64(order[np.uint64(i)]) if listed else i
            if mapped and not listed and not live[np.uint64(b if by_column else rows + b)]:
                continue
            r = b if by_column else a
            c = a if by_column else b
            here = r * columns + c
            # Five neighbours that are known by now, in either order.
            left = np.int64(x[np.uint64(here - 1)]) if c > 0 else pivot
            up, up_right, up_left, behind = pivot, pivot, pivot, pivot
            if width > 0 and c >= width:
                up = np.int64(x[np.uint64(here - width)])
                if width > 1:
                    up_right = np.int64(x[np.uint64(here - width + 1)])
                if c > width:
                    up_left = np.int64(x[np.uint64(here - width - 1)])
            if plane > 0 and c >= plane:
                behind = np.int64(x[np.uint64(here - plane)])
            has_left = np.int64(left != pivot)
            has_up = np.int64(up != pivot)
            has_right = np.int64(up_right != pivot)
            has_corner = np.int64(up_left != pivot)
            active = active_at(about, units, group, c)
            s_cross = np.uint64(LINES + (b & LINE_MASK))
            s_grid = np.uint64(
                GRID + has_left + 2 * has_up + 4 * has_right + 8 * has_corner
                + 16 * np.int64(behind != pivot)
            )  # fmt: skip
            if plane > 0:
                s_place = np.uint64(PLACE + 16 * place_at(about, plane, c) + active)
            else:
                above = np.int64(x[np.uint64(here - columns)]) if r > 0 else pivot
                s_place = np.uint64(NEAR + has_left + 2 * np.int64(above != pivot) + 4 * active)
            n_cross = np.int64(table[s_cross])
            n_grid = np.int64(table[s_grid])
            n_place = np.int64(table[s_place])
            v_line = stretched(estimate(line, 6, 6 * base))
            v_cross = stretched(estimate(n_cross, 24, 24 * base))
            s_level = np.uint64(
                LEVEL_PAIR + 16 * min((v_cross + 1792) >> 7, 15) + min((v_line + 1792) >> 7, 15)
            )
            n_level = np.int64(table[s_level])
            v_line -= origin
            v_cross -= origin
            v_grid = stretched(estimate(n_grid, 4, 4 * base)) - origin
            v_level = stretched(estimate(n_level, 16, 16 * base)) - origin
            v_place = stretched(estimate(n_place, 6, 6 * base)) - origin
            first = MASK_W + 6 * min(2, has_left + has_up + has_right + has_corner)
            w0, w1, w2 = np.uint64(first), np.uint64(first + 1), np.uint64(first + 2)
            w3, w4, w5 = np.uint64(first + 3), np.uint64(first + 4), np.uint64(first + 5)
            p = chance(
                weights[w0] * origin + weights[w1] * v_line + weights[w2] * v_cross
                + weights[w3] * v_grid + weights[w4] * v_level + weights[w5] * v_place
            )  # fmt: skip
            bound = (size >> 16) * p
            bit = x[np.uint64(here)] != pivot if encoding else low < bound
            # Both ways are written out, so that what follows need not wait for the bit.
            if not bit:
                low += bound if encoding else -bound
                size -= bound
                if encoding:
                    size, low, at = written(size, low, at, buffer)
                else:
                    size, low, at = refilled(size, low, at, buffer)
                error = -p * MASK_RATE
                weights[w0] += (origin * error) >> 22
                weights[w1] += (v_line * error) >> 18
                weights[w2] += (v_cross * error) >> 18
                weights[w3] += (v_grid * error) >> 18
                weights[w4] += (v_level * error) >> 18
                weights[w5] += (v_place * error) >> 18
                line = counted(line, 0)
                total = counted(total, 0)
                table[s_cross] = counted(n_cross, 0)
                table[s_grid] = counted(n_grid, 0)
                table[s_level] = counted(n_level, 0)
                table[s_place] = counted(n_place, 0)
                continue
            size = bound
            if encoding:
                size, low, at = written(size, low, at, buffer)
            else:
                size, low, at = refilled(size, low, at, buffer)
            error = (65536 - p) * MASK_RATE
            weights[w0] += (origin * error) >> 22
            weights[w1] += (v_line * error) >> 18
            weights[w2] += (v_cross * error) >> 18
            weights[w3] += (v_grid * error) >> 18
            weights[w4] += (v_level * error) >> 18
            weights[w5] += (v_place * error) >> 18
            line = counted(line, 1)
            total = counted(total, 1)
            table[s_cross] = counted(n_cross, 1)
            table[s_grid] = counted(n_grid, 1)
            table[s_level] = counted(n_level, 1)
            table[s_place] = counted(n_place, 1)

            budget -= 1
            if budget < 0:
                break
            if not encoding:
                on_values -= spent(size, at)

            # How the neighbours add up, near ones more: what the value is likely to continue.
            pair = left + up - 2 * pivot
            pull = 2 * pair + up_right + up_left - 2 * pivot + behind - pivot
            ring = np.int64(0)
            if c > 1:
                ring += np.int64(x[np.uint64(here - 2)]) - pivot
            if width > 2:
                if c >= width + 2:
                    ring += np.int64(x[np.uint64(here - width - 2)]) - pivot
                if c >= width:
                    ring += np.int64(x[np.uint64(here - width + 2)]) - pivot
                for k in range(-2, 3):
                    if c >= 2 * width - k:
                        ring += np.int64(x[np.uint64(here - 2 * width + k)]) - pivot

            upper = np.int64(pivot == 0)
            if pivot > 0 and pivot < values - 1:
                strength = np.int64(STRENGTH[np.uint64(min(max(pull, -64), 64) + 64)])
                slot = SIGNED + 1 + 3 * strength + np.int64(ring > 0) - np.int64(ring < 0)
                q = shrunk(table, slot, 4, shrunk(table, SIGN_BASE, 4, 32768))
                goal_bit = np.int64(x[np.uint64(here)] > pivot)
                upper, size, low, at = coded(encoding, size, low, at, buffer, goal_bit, q)
                count(table, slot, upper)
                count(table, SIGN_BASE, upper)

            choices = values - 1 - pivot if upper else pivot
            goal = np.int64(0)
            if encoding:
                goal = (
                    np.int64(x[np.uint64(here)]) - pivot - 1
                    if upper
                    else pivot - 1 - np.int64(x[np.uint64(here)])
                )
            if not upper:
                pair, pull, ring = -pair, -pull, -ring
            pull += ring >> 1
            near_bucket = np.int64(PULL_BUCKET[np.uint64(min(max(pull, 0), 31))])
            pair_bucket = np.int64(PAIR_BUCKET[np.uint64(min(max(pair, -4), 16) + 4)])
            row = r & LINE_MASK
            row_bucket = np.int64(0)
            if rank[np.uint64(row), 1] > 0:
                step, many = rank[np.uint64(row), 1] * choices, rank[np.uint64(row), 0] * 8
                for k in range(7):
                    row_bucket += np.int64(many >= k * step)
            bits = 0
            while (np.int64(1) << bits) < choices:
                bits += 1
            node, done = np.int64(1), np.int64(0)
            for j in range(bits - 1, -1, -1):
                if done + (np.int64(1) << j) >= choices:  # nothing lies in the upper half
                    node *= 2
                    continue
                goal_bit = (goal >> j) & 1
                if node >= 64:
                    slot = (upper << bits) + node
                    q = shrunk(deep, slot, 2, 32768)
                    one, size, low, at = coded(encoding, size, low, at, buffer, goal_bit, q)
                    count(deep, slot, one)
                else:
                    own = upper * 64 + node
                    guess = shrunk(table, MAGNITUDE + own, 2, 32768)
                    one, size, low, at = coded_three(
                        encoding, size, low, at, buffer, goal_bit, guess, table,
                        NEAR_MAGNITUDE + 128 * near_bucket + own,
                        ROW_MAGNITUDE + 128 * row_bucket + own,
                        PAIR_MAGNITUDE + 128 * pair_bucket + own,
                        8, 8, 16, weights, MAGNITUDE_W + 4 * min(node - 1, 2), MAGNITUDE_RATE,
                    )  # fmt: skip
                    count(table, MAGNITUDE + own, one)
                done += one << j
                node = node * 2 + one
            rank[np.uint64(row), 0] += done
            rank[np.uint64(row), 1] += 1
            x[np.uint64(here)] = pivot + 1 + done if upper else pivot - 1 - done
            if not encoding:
                on_values += spent(size, at)
    for k in range(128):
        shared[k] = table[MAGNITUDE + k]
    coder[BUDGET] = budget
    coder[ON_VALUES] += on_values
    coder[RANGE], coder[LOW], coder[POSITION] = size, low, at


@kernel(_TIED.format("uint8"), _TIED.format("uint16"))
def code_tied(
    coder, buffer, x, flat, pivot, values, by_column, maps, width, plane, units, about,
    shared, deep, weights, table, live, order, rank,
):  # fmt: skip
    """A matrix of indices below `values`, almost all of which are `pivot`.

    When decoding, `x` comes filled with the pivot; `flat` is the same memory. `about` becomes two
    facts on each column: how active its input is (0 to 8, from the `units` that columns belong to)
    and its place in the plane (0 to 63); where it is empty, to save memory, they are computed each
    time. `live` is empty without maps. `rank` becomes the sum of magnitudes, and the number of
    elements, of each row.
    """
    columns = x.shape[1]
    group = columns // len(units) if len(units) > 0 else 0
    for unit in range(len(units) if group > 0 and len(about) > 0 else 0):
        active = 1 + bucket(units[unit])
        for c in range(unit * group, (unit + 1) * group):
            about[c, 0] = active
    place = np.int64(0)
    for c in range(len(about) if plane > 0 else 0):  # memory that is not needed stays untouched
        about[c, 1] = min(place, 63)
        place += 1
        if place >= plane:
            place = 0
    live[:] = 1
    if coder[ENCODING]:
        if maps:
            code_maps(
                True, coder, buffer, x, pivot, width, plane, about, units, group, weights, table,
                live,
            )  # fmt: skip
        elements(
            True, coder, buffer, flat, x.shape[0], columns, pivot, values, by_column, width, plane,
            about, units, group, shared, deep, weights, table, live, order, rank,
        )  # fmt: skip
    else:
        if maps:
            code_maps(
                False, coder, buffer, x, pivot, width, plane, about, units, group, weights, table,
                live,
            )  # fmt: skip
        elements(
            False, coder, buffer, flat, x.shape[0], columns, pivot, values, by_column, width, plane,
            about, units, group, shared, deep, weights, table, live, order, rank,
        )  # fmt: skip


# ---- static tables: rANS for what is dense or huge ----------------------------------------------

LANES = 4
LANE_LOW = 1 << 24  # a lane's state is in [LANE_LOW, LANE_LOW · 65536)


@kernel("int64(uint16[::1], int64[::1], int64[::1], int64, uint16[::1], int64[::1])")
def rans_encode(symbols, frequency, start, precision, words, lanes):
    """Write symbols, and words for a decoder, from last to first; gives the number of words."""
    at = np.int64(0)
    for i in range(len(symbols) - 1, -1, -1):
        symbol = symbols[i]
        share = frequency[symbol]
        state = lanes[i & (LANES - 1)]
        if state >= ((LANE_LOW >> precision) << 16) * share:
            words[at] = state & 0xFFFF
            at += 1
            state >>= 16
        lanes[i & (LANES - 1)] = ((state // share) << precision) + state % share + start[symbol]
    return at


@kernel("int64(uint16[::1], int64[::1], int64, uint16[::1], int64[::1])")
def rans_decode(symbols, entries, precision, words, lanes):
    """Read symbols; `entries` has symbol, frequency - 1 and offset of a slot. Gives words used."""
    at = np.int64(0)
    mask = (np.int64(1) << precision) - 1
    full = len(symbols) & ~(LANES - 1)
    one, two, three, four = lanes[0], lanes[1], lanes[2], lanes[3]
    end = len(words)
    for i in range(0, full, LANES):
        entry = entries[one & mask]
        symbols[i] = entry >> 32
        one = (((entry >> 16) & 0xFFFF) + 1) * (one >> precision) + (entry & 0xFFFF)
        entry = entries[two & mask]
        symbols[i + 1] = entry >> 32
        two = (((entry >> 16) & 0xFFFF) + 1) * (two >> precision) + (entry & 0xFFFF)
        entry = entries[three & mask]
        symbols[i + 2] = entry >> 32
        three = (((entry >> 16) & 0xFFFF) + 1) * (three >> precision) + (entry & 0xFFFF)
        entry = entries[four & mask]
        symbols[i + 3] = entry >> 32
        four = (((entry >> 16) & 0xFFFF) + 1) * (four >> precision) + (entry & 0xFFFF)
        # A damaged stream may ask for more words than there are: it gets none.
        words_left = min(LANES, end - at)
        if one < LANE_LOW and words_left > 0:
            one = (one << 16) | np.int64(words[at])
            at += 1
            words_left -= 1
        if two < LANE_LOW and words_left > 0:
            two = (two << 16) | np.int64(words[at])
            at += 1
            words_left -= 1
        if three < LANE_LOW and words_left > 0:
            three = (three << 16) | np.int64(words[at])
            at += 1
            words_left -= 1
        if four < LANE_LOW and words_left > 0:
            four = (four << 16) | np.int64(words[at])
            at += 1
    lanes[0], lanes[1], lanes[2], lanes[3] = one, two, three, four
    for i in range(full, len(symbols)):
        state = lanes[i & (LANES - 1)]
        entry = entries[state & mask]
        symbols[i] = entry >> 32
        state = (((entry >> 16) & 0xFFFF) + 1) * (state >> precision) + (entry & 0xFFFF)
        if state < LANE_LOW and at < end:
            state = (state << 16) | np.int64(words[at])
            at += 1
        lanes[i & (LANES - 1)] = state
    return at


# ---- compressed sparse rows: not a format of ours, but what the paper counts ---------------------

COLUMN, SKIPPED, ENTRIES = 0, 1, 2  # where a count stands in its row
_ROWS = "int64({}[::1], int64, uint8[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1])"


@kernel(_ROWS.format("uint8"), _ROWS.format("uint16"))
def count_rows(x, columns, stored, zero, values, gaps, state, lengths):
    """Count the symbols of rows in which only elements with `stored` indices have an entry.

    An entry is a value and the number of elements skipped before it; where these are more than
    `gaps` can count, entries of `zero` bridge them. `lengths` becomes the entries of each row that
    ends here, whose number is the result; `state` is kept between parts of a matrix.
    """
    span = len(gaps)
    column, skipped, entries = state[COLUMN], state[SKIPPED], state[ENTRIES]
    ended = np.int64(0)
    for i in range(len(x)):
        value = np.int64(x[i])
        if stored[value]:
            while skipped >= span:
                values[zero] += 1
                gaps[span - 1] += 1
                entries += 1
                skipped -= span
            values[value] += 1
            gaps[skipped] += 1
            entries += 1
            skipped = np.int64(0)
        else:
            skipped += 1
        column += 1
        if column == columns:
            lengths[ended] = entries
            ended += 1
            column, skipped, entries = np.int64(0), np.int64(0), np.int64(0)
    state[COLUMN], state[SKIPPED], state[ENTRIES] = column, skipped, entries
    return ended
