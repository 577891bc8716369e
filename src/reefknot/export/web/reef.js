/**
 * A reader of `.reef` files (version 1; it refuses version 2) in JavaScript, without dependencies.
 *
 * Takes     the bytes of a file (Uint8Array), and how much its tensors may take up once decoded.
 * Gives     `decode`: a list of {name, type, shape, bytes, start, end}, aliases last; or an Error for what the format refuses.
 *           `bytes` are the elements in C order, little endian; `start` and `end` tell where in the file they came from.
 * Unaware   of networks and pages.
 *
 * It follows docs/format.md, whose sections are named below, and refuses what docs/reference_decoder.py refuses. Numbers
 * are integers below 2^53, which doubles hold exactly, and BigInt where a codebook has 64 bits. `>>`, `<<` and `&` see 32
 * bits only, so wider numbers are divided and rounded down.
 *
 * All of it is written to be small once minified. What a function computes first is often the default of a parameter
 * after its arguments, which takes neither `let` nor `return`; defaults are computed in their order.
 */

const { min, max, floor, exp, imul } = Math;
const big = BigInt;
const plain = Number;
const letter = String.fromCharCode;
const codeOf = (character) => character.charCodeAt();

/** Nothing below 1 has bits. */
const bitLength = (n) => n > 0 && 1 + bitLength(n >> 1);

/** So many things, each of which may look at those before; into memory that is given where they may be many. */
const list = (length, make, made = [], i = 0) => {
  while (i < length) made[i] = make(i++, made);
  return made;
};

const check = (ok, why = "not a valid .reef file") => {
  if (!ok) throw Error(why);
};

/** The register of CRC-32, not yet inverted, after more bytes. A tree has eight steps, here without a choice. */
const checksum = (bytes, register = -1) =>
  bytes.reduce((crc, byte) => {
    crc ^= byte;
    tree(() => 0 * (crc = (crc >>> 1) ^ ((crc & 1) * 0xedb88320)));
    return crc;
  }, register);

// ---- 2: the range decoder ----
// A call of `decode` never yields, so that what it reads from may be the module's.

let stream, at, code, size, budget;
let data, used; // bytes beside the stream, and how many of them are read; more than there are is refused in the end
let learned; // what is carried from tensor to tensor of a stream: contexts of numbers, flags and names, weights, ...; by keys
let table; // contexts by their slots: those of `learned`, or those of a tensor

const ONE = 65536; // of probabilities
const HALF = 32768;

const fill = (least) => {
  for (; size < least; size *= 256) {
    code = code * 256 + (stream[at++] | 0);
    check(at < stream.length + 7);
  }
};

const begin = (bytes, most, known = []) => {
  stream = bytes;
  budget = most;
  learned = table = known;
  size = 1;
  code = at = 0;
  fill(2 ** 48);
};

const bit = (p = HALF, bound = floor(size / ONE) * p, isOne = code < bound) => {
  if (isOne) size = bound;
  else {
    code -= bound;
    size -= bound;
  }
  fill(2 ** 40);
  return isOne;
};

const spend = (number) => check((budget -= number) >= 0);

/** All is used up; that a stream did not end too early is what `fill` checks. */
const end = () => check(!(at in stream) && used == data.length);

/** The next number of so many bytes of `data`, little endian. */
const next = (length) => length && (data[used++] | 0) + 256 * next(length - 1);

// ---- 3: tables ----
// The integers of the specification are those of 65536 / (1 + exp(-x / 256)), rounded towards one half; none of these
// comes so near to an integer that another library's `exp` could make a difference.

const MOST = 1775;
const squash = (x) => floor(ONE / (1 + exp(-x / 256))) + (x < 0);
let lowest = -MOST;
const STRETCH = list(ONE, (p) => {
  while (lowest < MOST + 1 && squash(lowest) < (p | 15) - 7) lowest++;
  return lowest;
});

// ---- 4: prediction ----
// A context is one number: bits seen << 10 | ones among them.

const shrunk = (slot, prior = 2, base = HALF, context = table[slot], seen = (context >> 10) + prior) =>
  max(8, min(65528, (((context & 1023) * ONE + prior * base) * (floor(2 ** 32 / seen) - (seen < 2))) / 2 ** 32) | 0);

/** A context, halved until it is below a limit. */
const aged = (context, limit) => (context < limit ? context : aged((context >> 1) & ~512, limit));

const count = (slot, bit) => {
  table[slot] = aged(table[slot], 1020 << 10) + 1024 + bit;
  return bit;
};

const adaptive = (slot, base, prior) => count(slot, bit(shrunk(slot, prior, base)));

/**
 * A mixed bit. The first slot is that of the context whose probability is the base, unless a base is given; it counts the
 * bit too. The setting of a slot is prior * 128 + first weight in percent; where it is left out, it is that of names.
 * The key is that of the weights in `learned`.
 */
const mixed = (
  slots,
  key,
  rate,
  settings,
  base = shrunk(slots[0]),
  origin = STRETCH[base],
  weights = (learned[key] ||= []),
  total = HALF,
  votes = slots.map((slot, i, vote, setting = settings[i] || 128 + 30.518) => {
    total +=
      (vote = i ? STRETCH[shrunk(slot, setting >> 7, base)] - origin : origin) *
      (weights[i] ??= floor((setting % 128) * 655.36));
    return vote;
  }),
  p = squash(max(-MOST, min(MOST, floor(total / ONE)))),
  result = bit(p),
) => {
  slots.map((slot, i) => {
    weights[i] += floor((votes[i] * (result * ONE - p) * rate) / 2 ** (i ? 18 : 22));
    count(slot, result);
  });
  return result;
};

/** A number below `size`, a power of two, the highest bit first. A function of the bits before, after a one, gives the next. */
const tree = (next, size = 256, node = 1) => (node < size ? tree(next, size, node * 2 + next(node)) : node - size);

// ---- 5: numbers and names ----
// The key of a context is the number of its kind, and more numbers where a kind has several contexts.

// Numbers.
const BOOKS = 0;
const ENTRIES = 1;
const ALIASES = 2;
const TYPE = 3;
const VALUES = 4;
const MOST_EXPONENT = 5;
const EXPONENTS = 6;
const RANK = 7;
const SIZE = 8;
const STREAM_BYTES = 9;
const FREQUENCY = 10;
const WORDS = 11;
// Flags with a key of two numbers, of three, and of four.
const KEPT = 12;
const TRAINABLE = 13;
const SAME_TYPE = 14;
const GRID = 12;
const GUESS = 0;
// Flags with a key of one number; those below are keys of weights.
const ZERO = 7;
const SAME_BOOK = 8;
const NEXT_BOOK = 9;
const SAME_RANK = 10;
const METHOD = 11;
const PIVOT_IS_ZERO = 12;
const BY_COLUMN = 13;
const MAPS = 14;
const TABLE = 15;
const NAME_WEIGHTS = 98;
const NAME = 99; // and all after it

const number = (kind, length = 0) =>
  length < 47 && adaptive([kind, length])
    ? number(kind, length + 1)
    : tree((node) => (node < 4 ? adaptive([kind, length, node]) : bit()), 2 ** length) + 2 ** length - 1;

/** One of `size` numbers, all of them BigInt. */
const uniformBig = (size, half = 2n ** 39n, low = 2n ** 32n) =>
  size < 1
    ? check()
    : size >> 40n
      ? (half = uniformBig(--size / low + 1n)) * low + uniformBig(half < size / low ? low : (size % low) + 1n)
      : size < 2
        ? 0n
        : half >= size
          ? uniformBig(size, half / 2n)
          : bit(plain(((size - half) * 65536n) / size) || 1)
            ? half + uniformBig(size - half, half)
            : uniformBig(half, half);

const uniform = (size) => plain(uniformBig(big(size)));

const ascending = (
  number,
  low,
  high,
  middle = number / 2n,
  value = number && low + middle + uniformBig(high - low - number + 2n),
) =>
  number ? [...ascending(middle, low, value - 1n), value, ...ascending(number - middle - 1n, value + 1n, high)] : [];

const HASH = 0x2545f491;
let history;

/** The bytes of a name, as characters below 256. */
const readName = () => {
  let next;
  let name = "";
  // As long as the next byte, which is remembered, is not 0.
  while (
    ((next = tree((node) =>
      mixed(
        // The remainder makes a difference below the fourth order only after bytes that UTF-8 does not have.
        list(6, (k) =>
          k
            ? NAME + 256 + (imul((((history % 256 ** k) % 16777211) * 8 + k) * 1000003 + node, HASH) >>> 18)
            : NAME + node,
        ),
        NAME_WEIGHTS,
        24,
        [100, 286.518], // priors 2, 1, 1, 1, 1; weights 65536, then 20000
      ),
    )),
    (history = (history * 256 + next) % 2 ** 40),
    next)
  ) {
    name += letter(next);
    check(!name[ONE]);
    spend(next >> 6 != 2); // a character
  }
  return name;
};

// ---- 7: tied tensors ----
// Where the contexts of a tensor lie in its table.

const SIGN_BASE = 0;
const ROW_FLAG = 1;
const ALL_MASKS = 4;
const LINE = 5;
const COLUMN_FLAG = 8;
const NEIGHBOURS = 64;
const SIGNED = 154;
const MAGNITUDE = 192;
const NEAR_MAGNITUDE = 320; // 128 after the other
const ROW_MAGNITUDE = 2000;
const PAIR_MAGNITUDE = 4000;
const LEVELS = 6000;
const PLACE = 7000; // the place in a plane, or what is near
const LINES = 10000;
const SHARED = 2 ** 20; // lines so far apart share contexts
const DEEP = 2e6;

/** Sets the distances of indices from the pivot; gives the pivot. */
const tied = (x, shape, rank, length, zero, K, carried) => {
  // The plan.
  const rows = rank > 1 ? shape[0] : 1;
  const columns = length / rows;
  const isMatrix = (rows > 1) & (columns > 1);
  const pivot = ~zero && adaptive(PIVOT_IS_ZERO, 60000) ? zero : uniform(K);
  const byColumn = isMatrix && adaptive(BY_COLUMN);
  const hasMaps = isMatrix && adaptive(MAPS, 60000);
  const inner = byColumn ? rows : columns;
  const sums = []; // of each row: distances, and how many
  let base;
  let grid = 0;
  const [before, numBefore] = learned._activity || [];
  const numUnits = columns % numBefore ? 0 : numBefore | 0;
  while (grid < 4 && adaptive([GRID, grid, min(rank, 4)])) grid++;
  const channels = [, , 1, 3, numUnits][grid];
  const w = grid ? (grid < 2 ? shape[rank - 1] : floor((columns / channels) ** 0.5)) : Infinity; // nothing is above
  const plane = grid < 2 ? grid && w * shape[rank - 2] : channels > 1 && w * w;
  check(grid < 2 ? !grid || rank > 3 : w > 1 && w * w * channels == columns);

  // What is shared by the tensors of a codebook: magnitudes.
  table = learned[carried] = list(NEAR_MAGNITUDE, (slot) =>
    slot < MAGNITUDE ? 0 : aged(learned[carried]?.[slot], 32 << 10),
  );
  const active = (c) => numUnits && 1 + min(bitLength(before[floor((c * numUnits) / columns)]?.[1]), 7);
  /** Left, up, both corners, behind. A place below 0 is none; elements that have not been read are the pivot. */
  const neighbours = (c, up = c - w) => [c - 1, up, up < 0 ? up : up + 1, up - 1, c - plane];

  // The maps.
  const liveRow = list(hasMaps * rows, (r, live) =>
    count(ROW_FLAG, adaptive(ROW_FLAG + 1 + !!live[r - 1], shrunk(ROW_FLAG, 2, 20000), 8)),
  );
  const liveColumn = list(
    hasMaps * columns,
    (c, live, [left, up, right, corner, behind] = neighbours(c).map((c) => live[c] || 0), known = min(active(c), 2)) =>
      mixed(
        [
          COLUMN_FLAG + known,
          COLUMN_FLAG + 3 + 4 * known + 2 * left + up,
          COLUMN_FLAG + 15 + left + up + right + corner + 5 * known + 15 * behind,
          COLUMN_FLAG + 45 + active(c),
        ],
        0,
        24,
        [100, 4 * 128 + 45, 4 * 128 + 33, 4 * 128 + 45],
      ),
  );

  // The elements.
  const level = (slot, prior) => min(1, STRETCH[shrunk(slot, prior, base)] >> 7);
  x.map((_, i) => {
    const b = i % inner;
    const a = (i - b) / inner;
    const c = byColumn ? a : b;
    const r = byColumn ? b : a;
    const here = r * columns;
    const cross = LINES + (b % SHARED);
    const apart = (places) => places.map((c) => (c < 0 ? 0 : x[here + c] || 0));
    const around = apart(neighbours(c));
    const up = w > 2 ? c - w : -9;
    const top = up - w;
    let differ = 0;
    let near = 1;
    let pull = 0;
    let ring = 0;
    if (!b) {
      table[LINE] = 0;
      base = shrunk(ALL_MASKS, 4, 6554);
    }
    around.map((d, i) => d && ((differ += 1 << i), (near += i < 4), (pull += d)));
    if (
      hasMaps <= (liveRow[r] & liveColumn[c]) &&
      mixed(
        [
          ALL_MASKS,
          LINE,
          cross,
          NEIGHBOURS + differ,
          LEVELS + 16 * level(cross, 24) + level(LINE, 6),
          PLACE + active(c) + 16 * (plane ? min(c % plane, 63) : (differ & 1) + 2 * !!x[here - columns + c]),
        ],
        min(3, near),
        14,
        [100, 6 * 128 + 46, 24 * 128 + 50, 4 * 128 + 45, 16 * 128 + 45, 6 * 128 + 40],
        base,
      )
    ) {
      spend(1);
      let pair = around[0] + around[1];
      pull += pair;
      apart([c - 2, up - 2, up < 0 ? up : up + 2, top - 2, top - 1, top, top + 1, top + 2]).map((d) => (ring += d));
      const upper =
        !pivot ||
        (pivot < K - 1 &&
          count(
            SIGN_BASE,
            adaptive(
              SIGNED + 3 * (min(bitLength(pull), 7) - min(bitLength(-pull), 7)) + (ring > 0) - (ring < 0),
              shrunk(SIGN_BASE, 4),
              4,
            ),
          ));
      const side = upper || -1;
      const choices = upper ? K - 1 - pivot : pivot;
      const [sum, number] = sums[r % SHARED] || [0, 0];
      const bits = bitLength(choices - 1);
      pair *= side;
      const distance = tree(
        (node) =>
          (2 * node + 1) << (bits - bitLength(node)) < choices + 2 ** bits &&
          (node < 64
            ? mixed(
                [
                  MAGNITUDE,
                  NEAR_MAGNITUDE + 128 * min(5, bitLength(pull * side + ((ring * side) >> 1))),
                  ROW_MAGNITUDE + 128 * (min(6, ((sum * 8) / (number * choices)) | 0) - !number),
                  PAIR_MAGNITUDE + 128 * (min(5, bitLength(pair)) - (pair < 0) - (pair < -3)),
                ].map((slot) => slot + 64 * upper + node),
                3 + min(node, 3),
                20,
                [90, 8 * 128 + 40, 8 * 128 + 40, 16 * 128 + 55],
              )
            : adaptive(DEEP + (upper << bits) + node)),
        2 ** bits,
      );
      sums[r % SHARED] = [sum + distance, number + 1];
      x[here + c] = side * (1 + distance);
    }
  });
  if (rank > 1) learned._activity = [sums, rows > SHARED ? 0 : rows];
  return pivot;
};

// ---- 8: kept tensors ----

/** Reads rows of bytes, the highest byte first. */
const kept = (rows, length, unit, type, predicted = length && uniform(unit + 1)) => {
  spend(predicted * length);
  table = learned[type + 0.5] ||= [];
  list(
    length * unit,
    (i, _, plane = i % unit) =>
      tree((node, own = plane * 256 + node, place = (byte) => imul(own * 256 + byte, HASH) >>> 17) =>
        plane < predicted
          ? mixed(
              [own, 2048 + place(rows[i - unit] | 0), 34816 + place(plane && rows[i - 1])],
              plane - 8 * type - 8,
              8,
              [100, 551.673, 551.673], // priors 4; weights 65536, 26000, 26000
            )
          : bit(),
      ),
    rows,
  );
};

// ---- 9: fast streams ----

/** As many symbols as the given memory has elements. */
const symbols = (
  x,
  K,
  numSlots = 2 ** (K > 256 ? 16 : 12),
  left = numSlots,
  slots = [], // of each: its symbol, how many the symbol has, and which of them it is
  frequencies = list(K, (symbol, _, share = number(FREQUENCY)) => {
    list(min(share, left), (j) => slots.push([symbol, share, j]));
    left -= share;
  }),
  stop = used + 20 + 2 * number(WORDS),
  lanes = [5, 5, 5, 5].map(next),
) => {
  check(!left);
  x = x.map((_, i, all, state = lanes.shift(), [symbol, share, offset] = slots[state % numSlots]) => {
    state = share * floor(state / numSlots) + offset;
    lanes.push(state < 2 ** 24 ? state * ONE + next(2) : state);
    return symbol;
  });
  check(lanes.every((state) => state == 2 ** 24) && used == stop);
  return x;
};

// ---- 1 and 6: files and headers ----

const BYTES = "4228111118111224488";
const C64 = 9;
const BOOL = 10;
const I8 = 12;

/**
 * All tensors of a file.
 * @param {Uint8Array} file its bytes
 * @param {number} limit bytes that its tensors, aliases included, may take up once decoded
 */
export const decode = (file, limit = 2 ** 28) => {
  const length = file.length;
  const isIndexed = file[3] >> 7;
  check(file[3] % 128 != 2, "a .reef of version 2: use reefknot unpack");
  data = file;
  used = 0;
  check(next(4) % 2 ** 31 == 0x1464552);
  used = length - 8;
  const header = isIndexed ? used - next(4) : 4;
  used = length;
  // What a register holds after any bytes and their own CRC-32.
  check(header > 3 && checksum(file.slice(header), checksum(file.slice(0, 4))) == ~0x2144df1c);

  // The 42 names that the model reads before the first one, as a stream of that model.
  history = 0;
  begin(
    [
      ...atob`iJix11VEYMKfyOkPV2CfZrsjzmvDNPIFMujdvSrfj7BV8q7juRjKOfgUas04pfG2L/s94hFADEI69oktEzIv40XT5liXwXHcD4Qr+kbbZ29N2tMoopykQPfUwv+ShnjUwe6gIDxE8fUn/LFgi6U++kfXi4dlPCmWyp3B8GnvHvF9uovScZV+LISL7xyKQgE+ppNYyeUMpWyVoofQMWvQmZCCaMQOLnVkMg`,
    ].map(codeOf),
    1e9,
  );
  list(42, readName);
  begin(file.slice(header, -4 - 4 * isIndexed), ONE + 8 * length, table); // so many values of codebooks

  // The codebooks: a type, and values as the bits of 64-bit numbers.
  const numBooks = number(BOOKS);
  const numEntries = number(ENTRIES);
  const numNames = numEntries + number(ALIASES);
  check(numBooks + numNames <= 64 + 2 * length);
  const books = list(numBooks, () => {
    const type = number(TYPE);
    const length = number(VALUES);
    check(type < 19 && length <= ONE);
    spend(length);
    const hasZero = length && adaptive(ZERO, 60000);
    const others = big(length - hasZero);
    const below = uniformBig(others + 1n);
    const exponent = ("0x" + "858b45045"[type]) | 0;
    const width = 8 * BYTES[type] - 1;
    const signBit = 1n << big(width);
    const flip = type < I8 || type % 2 ? 0n : signBit; // of signed integers
    const fraction = big(width + !exponent - exponent);
    let most = 0;
    let least = 0;
    let shift = 0n;
    if (exponent) {
      most = number(MOST_EXPONENT);
      most = 2 ** (exponent - 1) - 2 - (most % 2 ? -1 - most : most) / 2;
      least = most - number(EXPONENTS);
      check(least >= 0 && most < 2 ** exponent);
      shift = fraction - uniformBig(fraction + 1n);
    } else check(!below);
    const part = (number, mask) =>
      ascending(number, (big(least) << fraction) >> shift, ((big(most + 1) << fraction) - 1n) >> shift).map(
        (m) => (m << shift) ^ mask,
      );
    const values = [...part(below, signBit).reverse(), ...(hasZero ? [flip] : []), ...part(others - below, flip)];
    // No zero twice; no boolean above 1; no -0.0, unless of another type than F32 ... F8_E5M2 and C64.
    check(!hasZero || values[below + 1n] != flip);
    values.map((v) =>
      check(type - BOOL ? !v || v & (type - C64 ? (type < 6 ? ~signBit : v) : ~(signBit | (2n ** 31n))) : v < 2),
    );
    return [type, values];
  });

  // The entries: of each a function, which reads the tensor.
  const names = new Set();
  const sizes = []; // in bytes
  let outputs, from;
  let last = -1;
  budget = 2 ** 20 + 64 * length; // so many characters
  const entries = list(numNames, (i) => {
    const name = readName();
    names.add(name);
    if (i >= numEntries) {
      const owner = uniform(numEntries);
      limit -= sizes[owner];
      return () => entries[owner];
    }
    const ending = "." + name.split`.`.pop(); // with the dot, no name that every object has
    const [itsType, itsValues, itsShape] = learned[ending] || [];
    const kind = [...ending].reduce((sum, c) => sum + codeOf(c), 18) % 64; // 18 and the dot are 64
    let type, values;
    if (adaptive([KEPT, kind], 8000)) {
      adaptive([TRAINABLE, kind]);
      type = itsShape && !itsValues && adaptive([SAME_TYPE, kind], 50000) ? itsType : uniform(19);
    } else {
      if (!adaptive(SAME_BOOK, 50000)) last = adaptive(NEXT_BOOK, 50000) ? last + 1 : uniform(numBooks);
      [type, values] = books[last] || check();
    }
    const carried = last + 0.1;
    const rank = itsShape && adaptive(SAME_RANK, 55000) ? itsShape.length : number(RANK);
    check(rank <= 64);
    let numElements = 1;
    let most = 1;
    const shape = list(
      rank,
      (
        d,
        shape,
        guesses = [outputs, itsShape?.[d], shape[d - 1]],
        size = guesses.find(
          (n, k) => n >= 0 && guesses.indexOf(n) == k && adaptive([GUESS, k, min(rank, 4), min(d, 3)]),
        ) ?? number(SIZE),
      ) => {
        numElements *= size;
        most *= size || 1;
        return size;
      },
    );
    check(most <= 2 ** 46);
    if (rank > 1) outputs = shape[0];
    learned[ending] = [type, values, shape];
    const isFast = isIndexed && adaptive(METHOD);
    const streamBytes = isIndexed && number(STREAM_BYTES);
    const crc = isIndexed && uniform(2 ** 32);
    const width = +BYTES[type];
    const unit = values || type - C64 ? width : 4;
    const size = numElements * width;
    limit -= sizes[i] = size;
    return (
      start = from,
      rows = new Uint8Array(size),
      numRows = size / unit,
      K = values?.length,
      x = values && new Int32Array(numElements),
      pivot = 0,
    ) => {
      if (isIndexed) {
        end();
        data = file.slice(from, (from += streamBytes));
        check(checksum(data) == ~crc);
        used = 0;
        used = isFast ? 4 + next(4) : streamBytes;
        begin(data.slice(4 * isFast, used), 256 + 16 * data.length);
      }
      if (isFast) {
        if (values) x = symbols(x, K);
        else
          list(unit, (plane) =>
            (adaptive(TABLE) ? symbols(rows.slice(0, numRows), 256) : data.slice(used, (used += numRows))).map(
              (byte, i) => (rows[i * unit + plane] = byte),
            ),
          );
      } else if (!values) kept(rows, numRows, unit, type);
      else if (numElements && K - 1) {
        check(K);
        pivot = tied(x, shape, rank, numElements, values.indexOf(0n), K, carried);
      }
      table = learned;
      if (!isIndexed) from = at - 2;
      return {
        type:
          type > BOOL
            ? "IU"[type % 2] + 8 * width
            : "F32 F16 BF16 F64 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ C64 BOOL".split` `[type],
        shape,
        bytes: rows.map((_, i, rows, plane = i % unit, k = i + unit - 1 - 2 * plane) =>
          values
            ? plain((values[x[(i - plane) / unit] + pivot] >> big(8 * plane)) & 255n)
            : type < 4
              ? (rows[k] >> 1) | (rows[k % unit ? k - 1 : i] << 7)
              : rows[k] & (type == BOOL || -1),
        ),
        start,
        end: from,
      };
    };
  });
  check(limit >= 0 && names.size == numNames);

  // The tensors.
  budget = 2 ** 21 + 16 * length - 128;
  from = isIndexed ? 4 : at - 2; // 4 bytes are in front of a stream, and 6 of it are held in advance
  [...names].map(
    (name, i) =>
      (entries[i] = {
        ...entries[i](),
        // UTF-8, with lone surrogates as three bytes and C0 80 for a zero: these are found first, and the rest is the browser's.
        name: decodeURIComponent(
          escape(name).replace(/%ED(%[89AB].){2}|%C0%80/g, (bytes) =>
            letter(bytes.split`%`.reduce((sum, byte) => (sum << 6) | (("0x" + byte) & 63))),
          ),
        ),
      }),
  );
  end();
  if (isIndexed) check(from == header);
  return entries;
};
