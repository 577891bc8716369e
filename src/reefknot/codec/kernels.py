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

from reefknot.codec.tables import LENGTH, LEVEL, LIMIT, RECIPROCAL, SQUASH, STRETCH, STRETCH_MAX
from reefknot.kernels.jit import compiled, inlined

kernel = partial(compiled, allocates=False)

# ---- range coder ------------------------------------------------------------------------------

# The state of a coder, a row of int64. LOW holds the code word when decoding.
RANGE, LOW, POSITION, ENCODING, OVERRUN = 0, 1, 2, 3, 4
TOP_BITS = 48
TOP = 1 << TOP_BITS
BOTTOM = 1 << (TOP_BITS - 8)
LOOKAHEAD = TOP_BITS // 8  # bytes that a decoder holds beyond those it has used


@inlined
def code_bit(coder, buffer, bit, probability):
    """Code one bit whose chance to be 1 is `probability` / 65536 (1 to 65535); gives the bit."""
    size, low = coder[RANGE], coder[LOW]
    bound = (size >> 16) * probability
    if coder[ENCODING]:
        low += 0 if bit else bound
        size = bound if bit else size - bound
        if low >= TOP:
            low -= TOP
            place = min(coder[POSITION], len(buffer)) - 1
            while place >= 0:  # a carry runs back over bytes already written
                buffer[place] += np.uint8(1)
                if buffer[place]:
                    break
                place -= 1
        while size < BOTTOM:
            if coder[POSITION] < len(buffer):
                buffer[coder[POSITION]] = low >> (TOP_BITS - 8)
            else:
                coder[OVERRUN] += 1
            coder[POSITION] += 1
            low = (low & (BOTTOM - 1)) << 8
            size <<= 8
    else:
        bit = np.int64(low < bound)
        low -= 0 if bit else bound
        size = bound if bit else size - bound
        while size < BOTTOM:
            byte = 0
            if coder[POSITION] < len(buffer):
                byte = np.int64(buffer[coder[POSITION]])
            else:
                coder[OVERRUN] += 1
            coder[POSITION] += 1
            low = (low << 8) | byte
            size <<= 8
    coder[RANGE], coder[LOW] = size, low
    return bit


# ---- prediction -------------------------------------------------------------------------------


# A context is one number: how many bits it has seen, times 65536, plus how many of them were ones.
SEEN_ONE = 1 << 16


@inlined
def shrunk(table, slot, prior, base):
    """A context's probability, (ones + prior·base) / (seen + prior), away from both ends."""
    seen_ones = np.int64(table[slot])
    share = np.int64(RECIPROCAL[(seen_ones >> 16) + prior])
    p = (((seen_ones & 0xFFFF) << 16) + prior * base) * share
    return min(max(p >> 32, 8), 65528)


@inlined
def count(table, slot, bit):
    """Count one bit in a context."""
    seen_ones = np.int64(table[slot])
    if seen_ones >= LIMIT * SEEN_ONE:
        seen_ones = (seen_ones >> 1) & 0x7FFF7FFF
    table[slot] = seen_ones + SEEN_ONE + bit


@inlined
def code_adaptive(coder, buffer, bit, table, slot, base):
    """Code one bit from a single context."""
    bit = code_bit(coder, buffer, bit, shrunk(table, slot, 2, base))
    count(table, slot, bit)
    return bit


@inlined
def vote(table, slot, prior, base, origin):
    """How far one context departs from the base, in the logistic domain."""
    return np.int64(STRETCH[shrunk(table, slot, prior, base) >> 4]) - origin


@inlined
def chance(total):
    """The probability that a weighted sum of votes stands for."""
    return np.int64(
        SQUASH[min(max((total + 32768) >> 16, -STRETCH_MAX), STRETCH_MAX) + STRETCH_MAX]
    )


@inlined
def code_mixed(coder, buffer, bit, base, table, slots, used, priors, weights, first, rate, work):
    """Code one bit from `base` and the contexts `slots[:used]`, then learn from it.

    Each context speaks by how far it departs from the base in the logistic domain, so one that has
    seen nothing says nothing. `weights[first]` belongs to the base, those after it to the contexts.
    """
    origin = np.int64(STRETCH[base >> 4])
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
def code_three(
    coder, buffer, bit, base, table, a, b, c, prior_a, prior_b, prior_c, weights, first, rate
):
    """`code_mixed` with three contexts, written out: nothing goes through memory."""
    origin = np.int64(STRETCH[base >> 4])
    from_a = vote(table, a, prior_a, base, origin)
    from_b = vote(table, b, prior_b, base, origin)
    from_c = vote(table, c, prior_c, base, origin)
    p = chance(
        weights[first] * origin
        + weights[first + 1] * from_a
        + weights[first + 2] * from_b
        + weights[first + 3] * from_c
    )
    bit = code_bit(coder, buffer, bit, p)
    error = ((bit << 16) - p) * rate
    weights[first] += (origin * error) >> 22
    weights[first + 1] += (from_a * error) >> 18
    weights[first + 2] += (from_b * error) >> 18
    weights[first + 3] += (from_c * error) >> 18
    count(table, a, bit)
    count(table, b, bit)
    count(table, c, bit)
    return bit


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


@kernel("void(int64[::1], uint8[::1], int64[::1], uint32[::1])")
def code_numbers(coder, buffer, values, table):
    """A row of such numbers."""
    for i in range(len(values)):
        values[i] = number(coder, buffer, values[i], table, 0)
        if coder[OVERRUN] > LOOKAHEAD:
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
    while at < len(text) and coder[OVERRUN] <= LOOKAHEAD:
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
        if coder[OVERRUN] > LOOKAHEAD:
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

# Contexts in the table of one tensor; those of rows and columns follow from LINES on.
MASK_BASE, SIGN_BASE, ROW_FLAG, COLUMN_FLAG = 0, 1, 2, 8
GRID, PLACE, ACTIVE, LEVEL_PAIR, NEAR = 80, 112, 176, 188, 270
SIGNS, BALANCE, SIGNED = 306, 333, 342
MAGNITUDE, NEAR_MAGNITUDE, ROW_MAGNITUDE, PAIR_MAGNITUDE = 392, 520, 1288, 2312
LINES = 3336
LINE_MASK = (1 << 20) - 1  # tensors with more lines than this share contexts

# Mixer weights, and what they are at first (in 1/100).
ROW_FLAG_W, COLUMN_FLAG_W, MASK_W, SIGN_W, MAGNITUDE_W = 0, 3, 8, 29, 33
FIRST_WEIGHTS = (
    [100, 75, 25]
    + [100, 10, 45, 33, 45]
    + [100, 46, 50, 45, 45, 35, 20] * 3
    + [90, 55, 45, 35]
    + [90, 40, 40, 55] * 3
)
ROW_FLAG_PRIORS = np.array([2, 8], np.int64)
COLUMN_FLAG_PRIORS = np.array([2, 4, 4, 4], np.int64)
FLAG_RATE, MASK_RATE, SIGN_RATE, MAGNITUDE_RATE = 24, 14, 20, 20


@inlined
def side(index, pivot):
    """0 for the pivot, 1 below, 2 above."""
    return 0 if index == pivot else (1 if index < pivot else 2)


@inlined
def level_of(table, slot):
    """1 to 8 for the density that a line has shown so far, 0 for none."""
    seen, ones = np.int64(table[slot]) >> 16, np.int64(table[slot]) & 0xFFFF
    if seen == 0:
        return 0
    density = ((2 * ones + 1) << 9) * np.int64(RECIPROCAL[seen + 4]) >> 32
    return 1 + np.int64(LEVEL[min(density, 1024)])


@inlined
def code_maps(coder, buffer, x, pivot, width, plane, about, weights, table, live, slots, work):
    """Which rows and which columns hold anything but the pivot."""
    rows, columns = x.shape
    encoding = coder[ENCODING]
    for r in range(rows):
        if coder[OVERRUN] > LOOKAHEAD:
            return
        bit = 0
        if encoding:
            for c in range(columns):
                if x[r, c] != pivot:
                    bit = 1
                    break
        slots[0] = ROW_FLAG
        slots[1] = ROW_FLAG + 1 + (np.int64(live[r - 1]) if r > 0 else 0)
        bit = code_mixed(
            coder,
            buffer,
            bit,
            20000,
            table,
            slots,
            2,
            ROW_FLAG_PRIORS,
            weights,
            ROW_FLAG_W,
            FLAG_RATE,
            work,
        )
        live[r] = bit
    for c in range(columns):
        if coder[OVERRUN] > LOOKAHEAD:
            return
        bit = 0
        if encoding:
            for r in range(rows):
                if x[r, c] != pivot:
                    bit = 1
                    break
        here = rows + c
        left = np.int64(live[here - 1]) if c > 0 else 0
        up, corners, behind = 0, 0, 0
        if width > 0 and c >= width:
            up = np.int64(live[here - width])
            corners = np.int64(live[here - width + 1]) if width > 1 else 0
            if c > width:
                corners += np.int64(live[here - width - 1])
        if plane > 0 and c >= plane:
            behind = np.int64(live[here - plane])
        active = np.int64(about[c, 0])
        known = min(active, 2)
        slots[0] = COLUMN_FLAG + known
        slots[1] = COLUMN_FLAG + 3 + known * 4 + left * 2 + up
        slots[2] = COLUMN_FLAG + 15 + left + up + corners + 5 * known + 15 * behind
        slots[3] = COLUMN_FLAG + 45 + active
        bit = code_mixed(
            coder,
            buffer,
            bit,
            32768,
            table,
            slots,
            4,
            COLUMN_FLAG_PRIORS,
            weights,
            COLUMN_FLAG_W,
            FLAG_RATE,
            work,
        )
        live[here] = bit


_TIED = (
    "void(int64[::1], uint8[::1], {}[:, ::1], int64, int64, int64, int64, int64, int64, "
    "uint8[:, ::1], uint32[::1], uint32[::1], int64[::1], uint32[::1], uint8[::1], int32[::1], "
    "uint8[::1], int64[:, ::1], int64[::1], int64[::1])"
)


@kernel(_TIED.format("uint8"), _TIED.format("uint16"))
def code_tied(
    coder, buffer, x, pivot, size, by_column, maps, width, plane, about,
    shared, deep, weights, table, live, order, level, rank, slots, work,
):  # fmt: skip
    """A matrix of indices below `size`, almost all of which are `pivot`.

    When decoding, `x` comes filled with the pivot. `live` comes filled with ones. `about` has two
    facts on each column: how active its input is (0 to 8), and its place in the plane (0 to 63).
    """
    rows, columns = x.shape
    if maps:
        code_maps(coder, buffer, x, pivot, width, plane, about, weights, table, live, slots, work)
    row_slots = min(rows, LINE_MASK + 1)
    encoding = coder[ENCODING]
    outer = columns if by_column else rows
    inner = rows if by_column else columns
    listed = inner <= len(order)
    if listed:  # the live lines of the other direction, so that dead ones take no time
        inner = 0
        for b in range(rows if by_column else columns):
            if live[b if by_column else rows + b]:
                order[inner] = b
                inner += 1
    for a in range(outer):
        if coder[OVERRUN] > LOOKAHEAD:
            return
        if not live[rows + a if by_column else a]:
            continue
        for i in range(inner):
            b = np.int64(order[i]) if listed else i
            if not listed and not live[b if by_column else rows + b]:
                continue
            r = b if by_column else a
            c = a if by_column else b
            row = r & LINE_MASK
            column = row_slots + (c & LINE_MASK)
            # Five neighbours that are known by now, in either order.
            left = np.int64(x[r, c - 1]) if c > 0 else pivot
            above = np.int64(x[r - 1, c]) if r > 0 else pivot
            up, up_right, up_left, behind = pivot, pivot, pivot, pivot
            if width > 0 and c >= width:
                up = np.int64(x[r, c - width])
                if width > 1:
                    up_right = np.int64(x[r, c - width + 1])
                if c > width:
                    up_left = np.int64(x[r, c - width - 1])
            if plane > 0 and c >= plane:
                behind = np.int64(x[r, c - plane])
            has_left = np.int64(left != pivot)
            has_up = np.int64(up != pivot)
            has_right = np.int64(up_right != pivot)
            has_corner = np.int64(up_left != pivot)
            active = np.int64(about[c, 0])
            s_row = LINES + row
            s_column = LINES + column
            s_grid = (
                GRID
                + has_left
                + 2 * has_up
                + 4 * has_right
                + 8 * has_corner
                + 16 * np.int64(behind != pivot)
            )
            s_level = LEVEL_PAIR + 9 * np.int64(level[column]) + np.int64(level[row])
            s_active = ACTIVE + active
            if plane > 0:
                s_place = PLACE + np.int64(about[c, 1])
            else:
                s_place = NEAR + has_left + 2 * np.int64(above != pivot) + 4 * active
            base = shrunk(table, MASK_BASE, 4, 6554)
            first = MASK_W + 7 * min(2, has_left + has_up + has_right + has_corner)
            origin = np.int64(STRETCH[base >> 4])
            v_row = vote(table, s_row, 6, base, origin)
            v_column = vote(table, s_column, 24, base, origin)
            v_grid = vote(table, s_grid, 4, base, origin)
            v_level = vote(table, s_level, 16, base, origin)
            v_active = vote(table, s_active, 4, base, origin)
            v_place = vote(table, s_place, 6, base, origin)
            p = chance(
                weights[first] * origin + weights[first + 1] * v_row + weights[first + 2] * v_column
                + weights[first + 3] * v_grid + weights[first + 4] * v_level
                + weights[first + 5] * v_active + weights[first + 6] * v_place
            )  # fmt: skip
            bit = code_bit(coder, buffer, np.int64(x[r, c] != pivot), p)
            error = ((bit << 16) - p) * MASK_RATE
            weights[first] += (origin * error) >> 22
            weights[first + 1] += (v_row * error) >> 18
            weights[first + 2] += (v_column * error) >> 18
            weights[first + 3] += (v_grid * error) >> 18
            weights[first + 4] += (v_level * error) >> 18
            weights[first + 5] += (v_active * error) >> 18
            weights[first + 6] += (v_place * error) >> 18
            count(table, s_row, bit)
            count(table, s_column, bit)
            count(table, s_grid, bit)
            count(table, s_level, bit)
            count(table, s_active, bit)
            count(table, s_place, bit)
            count(table, MASK_BASE, bit)
            level[row] = level_of(table, LINES + row)
            level[column] = level_of(table, LINES + column)
            if not bit:
                continue

            # How the neighbours add up, near ones more: what the value is likely to continue.
            pair = left + up - 2 * pivot
            pull = 2 * pair + up_right + up_left - 2 * pivot + behind - pivot
            ring = np.int64(0)
            if c > 1:
                ring += np.int64(x[r, c - 2]) - pivot
            if width > 2:
                if c >= width + 2:
                    ring += np.int64(x[r, c - width - 2]) - pivot
                if c >= width:
                    ring += np.int64(x[r, c - width + 2]) - pivot
                for k in range(-2, 3):
                    if c >= 2 * width - k:
                        ring += np.int64(x[r, c - 2 * width + k]) - pivot

            upper = 1 if pivot == 0 else 0
            if pivot > 0 and pivot < size - 1:
                s_left, s_up = side(left, pivot), side(up, pivot)
                s_right, s_corner = side(up_right, pivot), side(up_left, pivot)
                balance = (
                    np.int64(s_left == 2)
                    - np.int64(s_left == 1)
                    + np.int64(s_up == 2)
                    - np.int64(s_up == 1)
                )
                balance += np.int64(s_right == 2) - np.int64(s_right == 1)
                balance += np.int64(s_corner == 2) - np.int64(s_corner == 1)
                strength = bucket(pull) if pull >= 0 else -bucket(-pull)
                base = shrunk(table, SIGN_BASE, 4, 32768)
                upper = code_three(
                    coder, buffer, np.int64(x[r, c] > pivot), base, table,
                    SIGNS + s_left + 3 * s_up + 9 * side(behind, pivot),
                    BALANCE + 4 + balance,
                    SIGNED + 22 + 3 * strength + np.int64(ring > 0) - np.int64(ring < 0),
                    2, 3, 4, weights, SIGN_W, SIGN_RATE,
                )  # fmt: skip
                count(table, SIGN_BASE, upper)

            choices = size - 1 - pivot if upper else pivot
            goal = np.int64(0)
            if encoding:
                goal = np.int64(x[r, c]) - pivot - 1 if upper else pivot - 1 - np.int64(x[r, c])
            if not upper:
                pair, pull, ring = -pair, -pull, -ring
            pull += ring >> 1
            near_bucket = min(5, 1 + bucket(pull >> 1)) if pull > 0 else 0
            pair_bucket = (
                min(5, bucket(pair)) if pair > 0 else (0 if pair == 0 else (7 if pair < -3 else 6))
            )
            row_bucket = np.int64(0)
            if rank[row, 1] > 0:
                row_bucket = 1 + min(6, rank[row, 0] * 8 // (rank[row, 1] * choices))
            bits = 0
            while (np.int64(1) << bits) < choices:
                bits += 1
            node, done = np.int64(1), np.int64(0)
            for j in range(bits - 1, -1, -1):
                if done + (np.int64(1) << j) >= choices:  # nothing lies in the upper half
                    node *= 2
                    continue
                if node >= 64:
                    bit = code_adaptive(
                        coder, buffer, (goal >> j) & 1, deep, (upper << bits) + node, 32768
                    )
                else:
                    own = upper * 64 + node
                    base = shrunk(shared, own, 2, 32768)
                    base = shrunk(table, MAGNITUDE + own, 8, base)
                    bit = code_three(
                        coder, buffer, (goal >> j) & 1, base, table,
                        NEAR_MAGNITUDE + 128 * near_bucket + own,
                        ROW_MAGNITUDE + 128 * row_bucket + own,
                        PAIR_MAGNITUDE + 128 * pair_bucket + own,
                        8, 8, 16, weights, MAGNITUDE_W + 4 * min(node - 1, 2), MAGNITUDE_RATE,
                    )  # fmt: skip
                    count(table, MAGNITUDE + own, bit)
                    count(shared, own, bit)
                done += bit << j
                node = node * 2 + bit
            rank[row, 0] += done
            rank[row, 1] += 1
            x[r, c] = pivot + 1 + done if upper else pivot - 1 - done


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
