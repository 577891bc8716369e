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
 * bits only, so wider numbers are divided and rounded down. All of it is written to be small once minified.
 */

const { min, max, floor, exp, abs, sign, imul, clz32 } = Math;
const big = BigInt;
const bitLength = (n) => 32 - clz32(n);
const product = (shape) => shape.reduce((a, b) => a * b, 1);
const letter = String.fromCharCode;
const codeOf = (character) => character.charCodeAt();
const zeros = (length, kind = Uint8Array) => new kind(length);

/** So many things, each of which may look at those before; into memory that is given where they may be many. */
const list = (length, make, made = []) => {
  for (let i = 0; i < length; i++) made[i] = make(i, made);
  return made;
};

const check = (ok, why = "not a valid .reef file") => {
  if (!ok) throw Error(why);
};

const little = (bytes, at, length = 4) => {
  let value = 0;
  while (length--) value = value * 256 + (bytes[at + length] | 0);
  return value;
};

/** The register of CRC-32, not yet inverted. */
const checksum = (bytes) => {
  let crc = -1;
  for (const byte of bytes) {
    crc ^= byte;
    for (let i = 8; i--; ) crc = (crc >>> 1) ^ (-(crc & 1) & 0xedb88320);
  }
  return crc;
};

// ---- 2: the range decoder ----
// A call of `decode` never yields, so that what it reads from may be the module's.

let stream, at, code, size, budget;
let table; // contexts of flags, numbers and names by their keys, or those of a tensor
let learned; // what is carried from tensor to tensor of a stream: weights, contexts, activity

const begin = (bytes, most, known = []) => {
  stream = bytes;
  budget = most;
  table = known;
  size = 2 ** 48;
  code = 0;
  for (at = 0; at < 6; ) code = code * 256 + (stream[at++] | 0);
};

const bit = (p = 32768) => {
  const bound = floor(size / 65536) * p;
  const isOne = code < bound;
  if (isOne) size = bound;
  else {
    code -= bound;
    size -= bound;
  }
  for (; size < 2 ** 40; size *= 256) {
    code = code * 256 + (stream[at++] | 0);
    check(at - 7 in stream);
  }
  return isOne;
};

const spend = (number) => check((budget -= number) >= 0);

/** A stream is used up; that it did not end too early is what `bit` checks. */
const end = () => check(!(at in stream));

// ---- 3: tables ----
// The integers of the specification are those of 65536 / (1 + exp(-x / 256)), rounded towards one half; none of these
// comes so near to an integer that another library's `exp` could make a difference.

const MOST = 1775;
const squash = (x) => floor(65536 / (1 + exp(-x / 256))) + (x < 0);
const STRETCH = []; // of p >> 4
for (let p = 0, x = -MOST; p < 4096; ) {
  if (x <= MOST && squash(x) < 16 * p + 8) x++;
  else STRETCH[p++] = x;
}

// ---- 4: prediction ----
// A context is one number: bits seen << 10 | ones among them.

const shrunk = (slot, prior = 2, base = 32768) => {
  const context = table[slot] | 0;
  const seen = (context >> 10) + prior;
  const reciprocal = floor(2 ** 32 / seen) - (seen < 2);
  return max(8, min(65528, (((context & 1023) * 65536 + prior * base) * reciprocal) / 2 ** 32) | 0);
};

const stretched = (slot, prior, base) => STRETCH[shrunk(slot, prior, base) >> 4];

const halved = (context) => (context >> 1) & ~512;

const count = (slot, bit) => {
  const context = table[slot] | 0;
  table[slot] = (context < 1020 << 10 ? context : halved(context)) + 1024 + bit;
  return bit;
};

const adaptive = (slot, base, prior) => count(slot, bit(shrunk(slot, prior, base)));

/** A bit whose base is itself the probability of a context; both count it. */
const based = (slot, prior, ground, groundPrior, base) =>
  count(ground, adaptive(slot, shrunk(ground, groundPrior, base), prior));

/**
 * A mixed bit. The context `own` counts it too; its probability is the base, unless that is given.
 * Its weights are those that were learned under a key, or the first ones.
 */
const mixed = (own, base, slots, priors, rate, key, ...first) => {
  base ||= shrunk(own);
  const origin = STRETCH[base >> 4];
  const weights = (learned[key] ||= first);
  const votes = [origin, ...slots.map((slot, i) => stretched(slot, priors[i], base) - origin)];
  let total = 32768;
  votes.map((vote, i) => (total += vote * weights[i]));
  const p = squash(max(-MOST, min(MOST, floor(total / 65536))));
  const result = bit(p);
  votes.map((vote, i) => (weights[i] += floor((vote * (result * 65536 - p) * rate) / 2 ** (i ? 18 : 22))));
  slots.map((slot) => count(slot, result));
  return count(own, result);
};

/** A byte, the highest bit first, whose bits come from a function of those before. */
const byte = (next) => {
  let node = 1;
  while (node < 256) node = node * 2 + next(node);
  return node - 256;
};

// ---- 5: numbers and names ----
// The context of a flag has the number of its kind for a key, and more numbers where a kind has several.

const BOOKS = 0;
const ENTRIES = 1;
const ALIASES = 2;
const TYPE = 3;
const VALUES = 4;
const ZERO = 5;
const MOST_EXPONENT = 6;
const EXPONENTS = 7;
const KEPT = 8;
const TRAINABLE = 9;
const SAME_TYPE = 10;
const SAME_BOOK = 11;
const NEXT_BOOK = 12;
const SAME_RANK = 13;
const RANK = 14;
const SIZE = 15;
const METHOD = 16;
const STREAM_BYTES = 17;
const PIVOT_IS_ZERO = 18;
const BY_COLUMN = 19;
const MAPS = 20;
const GRID = 21;
const TABLE = 22;
const FREQUENCY = 23;
const WORDS = 24;
const GUESS = 25;
const NAME = 99; // and all after it

const number = (kind) => {
  let length = 0;
  let value = 1;
  while (length < 47 && adaptive([kind, length])) length++;
  for (let i = 0; i < length; i++) value = value * 2 + (i < 2 ? adaptive([kind, length, value]) : bit());
  return value - 1;
};

/** One of `size` numbers, all of them BigInt. */
const uniformBig = (size) => {
  const low = 2n ** 32n;
  const last = size - 1n;
  let offset = 0n;
  check(size > 0);
  if (size > 256n * low) {
    const high = uniformBig(last / low + 1n);
    return high * low + uniformBig(high < last / low ? low : (last % low) + 1n);
  }
  for (let half = 128n * low; size > 1; ) {
    while (half >= size) half /= 2n;
    if (bit(Number(((size - half) * 65536n) / size) || 1)) {
      offset += half;
      size -= half;
    } else size = half;
  }
  return offset;
};

const uniform = (size) => Number(uniformBig(big(size)));

const ascending = (number, low, high) => {
  if (!number) return [];
  const middle = number / 2n;
  const value = low + middle + uniformBig(high - low - number + 2n);
  return [...ascending(middle, low, value - 1n), value, ...ascending(number - middle - 1n, value + 1n, high)];
};

// The 42 names that the model reads before the first one, as a stream of that model.
const PRIME = Uint8Array.from(
  atob(
    "iJix11VEYMKfyOkPV2CfZrsjzmvDNPIFMujdvSrfj7BV8q7juRjKOfgUas04pfG2L/s94hFADEI69oktEzIv40XT5liXwXHcD4Qr+kbbZ29N2tMoopykQPfUwv+ShnjUwe6gIDxE8fUn/LFgi6U++kfXi4dlPCmWyp3B8GnvHvF9uovScZV+LISL7xyKQgE+ppNYyeUMpWyVoofQMWvQmZCCaMQOLnVkMg",
  ),
  codeOf,
);

let history;

const HASH = 0x2545f491;

/** The bytes of a name, as characters below 256. */
const readName = () => {
  let name = "";
  for (;;) {
    const next = byte((node) =>
      mixed(
        NAME + node,
        0,
        // The remainder makes a difference below the fourth order only after bytes that UTF-8 does not have.
        [1, 2, 3, 4, 5].map(
          (k) => NAME + 256 + (imul((((history % 256 ** k) % 16777211) * 8 + k) * 1000003 + node, HASH) >>> 18),
        ),
        [2, 1, 1, 1, 1],
        24,
        NAME,
        65536,
        20000,
        20000,
        20000,
        20000,
        20000,
      ),
    );
    history = (history * 256 + next) % 2 ** 40;
    if (!next) return name;
    name += letter(next);
    check(name.length <= 65536);
  }
};

/** UTF-8, with lone surrogates as three bytes and C0 80 for a zero: these are found first, and the rest is the browser's. */
const characters = (name) =>
  decodeURIComponent(
    escape(name).replace(/%ED%[AB].%[89AB].|%C0%80/g, (bytes) =>
      letter([...unescape(bytes)].reduce((a, c) => (a << 6) | (codeOf(c) & 63), 0)),
    ),
  );

// ---- 6: the header ----

const NAMES =
  "F32 F16 BF16 F64 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ C64 BOOL U8 I8 U16 I16 U32 I32 U64 I64".split(" ");
const BYTES = [..."4228111118111224488"];
const EXPONENT = [8, 5, 8, 11, 4, 5, 0, 4, 5];
const C64 = 9;
const BOOL = 10;
const I8 = 12;

/** A codebook: its type, and its values as the bits of 64-bit numbers. */
const readBook = () => {
  const type = number(TYPE);
  const length = number(VALUES);
  check(type < 19 && length <= 65536);
  spend(length);
  const hasZero = length && adaptive(ZERO, 60000);
  const others = big(length - hasZero);
  const below = uniformBig(others + 1n);
  const exponent = EXPONENT[type] | 0;
  const width = 8 * BYTES[type] - 1;
  const signBit = 1n << big(width);
  const flip = type < I8 || type % 2 ? 0n : signBit; // of signed integers
  const fraction = big(width + !exponent - exponent);
  let most = 0;
  let least = 0;
  let shift = 0n;
  check(exponent || !below);
  if (exponent) {
    const folded = number(MOST_EXPONENT);
    most = 2 ** (exponent - 1) - 2 - (folded % 2 ? -1 - folded : folded) / 2;
    least = most - number(EXPONENTS);
    check(least >= 0 && most < 2 ** exponent);
    shift = fraction - uniformBig(fraction + 1n);
  }
  const [negative, positive] = [below, others - below].map((number) =>
    ascending(number, (big(least) << fraction) >> shift, ((big(most + 1) << fraction) - 1n) >> shift),
  );
  // No -0.0, which the FNUZ types do not have; no zero twice.
  check((type > 5 || negative[0] != 0) && !(hasZero && positive[0] == 0));
  if (hasZero) positive.unshift(0n);
  const values = [
    ...negative.reverse().map((m) => (m << shift) | signBit),
    ...positive.map((m) => (m << shift) ^ flip),
  ];
  for (const v of values) check(type == BOOL ? v < 2 : type != C64 || !v || v & 0x7fffffff7fffffffn);
  return { _type: type, _values: values };
};

// ---- 7: tied tensors ----
// Where the contexts of a tensor lie in its table.

const SIGN_BASE = 0;
const ROW_FLAG = 1;
const ALL_MASKS = 4;
const LINE = 5;
const COLUMN_FLAG = 8;
const NEIGHBOURS = 64;
const NEAR = 96;
const SIGNED = 154;
const MAGNITUDE = 192;
const NEAR_MAGNITUDE = 320;
const ROW_MAGNITUDE = 1088;
const PAIR_MAGNITUDE = 2112;
const LEVELS = 3136;
const PLACE = 3392;
const LINES = 4416;
const SHARED = 2 ** 20; // lines so far apart share contexts
const DEEP = 1.2e6;

/** The indices of a tied tensor. */
const tied = (shape, values, carried) => {
  const K = values.length;
  const length = product(shape);
  const x = zeros(length, Uint16Array);
  const rank = shape.length;
  const rows = rank > 1 ? shape[0] : 1;
  const columns = length / rows;
  check(K || !length);
  if (!length || K < 2) return x;

  // The plan.
  const zero = values.indexOf(0n);
  const pivot = zero + 1 && adaptive(PIVOT_IS_ZERO, 60000) ? zero : uniform(K);
  const before = (learned._activity ||= []);
  const numUnits = columns % before.length ? 0 : before.length;
  const isMatrix = rows > 1 && columns > 1;
  const byColumn = isMatrix && adaptive(BY_COLUMN);
  const hasMaps = isMatrix && adaptive(MAPS, 60000);
  const inner = byColumn ? rows : columns;
  let grid = 0;
  while (grid < 4 && adaptive([GRID, grid, min(rank, 4)])) grid++;
  let w = Infinity;
  let plane = w; // nothing is above or behind
  if (grid == 1) {
    check(rank > 3);
    w = shape[rank - 1];
    plane = w * shape[rank - 2];
  } else if (grid) {
    const channels = [1, 3, numUnits][grid - 2];
    w = floor((columns / channels) ** 0.5);
    check(w > 1 && w * w * channels == columns);
    if (channels > 1) plane = w * w;
  }

  const flags = table;
  table = [];
  const active = (c) => numUnits && 1 + min(bitLength(before[floor((c * numUnits) / columns)]?.[1]), 7);
  /** How far elements are from `zero`; those outside, and those not read yet, are not. */
  const apart = (list, offset, zero, places) => places.map((c) => (c < 0 ? 0 : list[offset + c] - zero || 0));
  /** Left, up, both corners, behind. */
  const neighbours = (c) => [c - 1, c - w, c < w ? -1 : c - w + 1, c - w - 1, c - plane];

  // The maps.
  const liveRow = list(
    rows,
    (r, live) => !hasMaps || based(ROW_FLAG + 1 + (live[r - 1] | 0), 8, ROW_FLAG, 2, 20000),
    zeros(rows),
  );
  const liveColumn = list(
    columns,
    (c, live) => {
      const [left, up, right, corner, behind] = apart(live, 0, 0, neighbours(c));
      const known = min(active(c), 2);
      const slots = [
        COLUMN_FLAG + 3 + 4 * known + 2 * left + up,
        COLUMN_FLAG + 15 + left + up + right + corner + 5 * known + 15 * behind,
        COLUMN_FLAG + 45 + active(c),
      ];
      return !hasMaps || mixed(COLUMN_FLAG + known, 0, slots, [4, 4, 4], 24, 0, 65536, 29491, 21626, 29491);
    },
    zeros(columns),
  );

  // The elements.
  const sums = rows > SHARED ? [] : Array(rows); // of each row: distances, and how many
  let base;
  x.fill(pivot);
  learned[carried]?.map((context, own) => {
    while (context >= 32 << 10) context = halved(context);
    table[MAGNITUDE + own] = context;
  });
  const level = (slot, prior) => min(15, (stretched(slot, prior, base) + 1792) >> 7);
  for (let i = 0; i < length; i++) {
    const b = i % inner;
    const a = (i - b) / inner;
    const [c, r] = byColumn ? [a, b] : [b, a];
    if (!b) {
      table[LINE] = 0;
      base = shrunk(ALL_MASKS, 4, 6554);
    }
    if (!liveRow[r] || !liveColumn[c]) continue;
    const here = r * columns;
    const cross = LINES + (b % SHARED);
    const around = apart(x, here, pivot, neighbours(c));
    const [left, up, right, corner, behind] = around;
    let differ = 0;
    let near = 1;
    around.map((d, i) => {
      differ += !!d << i;
      near += i < 4 && !!d;
    });
    const isOther = mixed(
      ALL_MASKS,
      base,
      [
        LINE,
        cross,
        NEIGHBOURS + differ,
        LEVELS + 16 * level(cross, 24) + level(LINE, 6),
        plane < Infinity
          ? PLACE + 16 * min(c % plane, 63) + active(c)
          : NEAR + (differ & 1) + 2 * (r && x[here - columns + c] != pivot) + 4 * active(c),
      ],
      [6, 24, 4, 16, 6],
      14,
      min(3, near),
      65536,
      30146,
      32768,
      29491,
      29491,
      26214,
    );
    if (!isOther) continue;
    spend(1);

    const top = c - 2 * w;
    let pair = left + up;
    let pull = 2 * pair + right + corner + behind;
    let ring = 0;
    const far = w > 2 ? [c - w - 2, c < w ? -1 : c - w + 2, top - 2, top - 1, top, top + 1, top + 2] : [];
    apart(x, here, pivot, [c - 2, ...far]).map((d) => (ring += d));
    const upper =
      !pivot ||
      (pivot < K - 1 && based(SIGNED + 3 * min(bitLength(abs(pull)), 7) * sign(pull) + sign(ring), 4, SIGN_BASE, 4));
    if (!upper) {
      pair = -pair;
      pull = -pull;
      ring = -ring;
    }
    pull += ring >> 1;
    const choices = upper ? K - 1 - pivot : pivot;
    const sum = (sums[r % SHARED] ||= [0, 0]);
    const slots = [
      NEAR_MAGNITUDE + 128 * min(5, pull > 0 && bitLength(pull)),
      ROW_MAGNITUDE + 128 * (sum[1] && 1 + min(6, floor((sum[0] * 8) / (sum[1] * choices)))),
      PAIR_MAGNITUDE + 128 * (pair < 0 ? 6 + (pair < -3) : min(5, bitLength(pair))),
    ];
    const bits = bitLength(choices - 1);
    let node = 1;
    let distance = 0;
    for (let j = bits; j--; ) {
      const own = 64 * upper + node;
      const found =
        distance + (1 << j) < choices &&
        (node < 64
          ? mixed(MAGNITUDE + own, 0, slots.map((slot) => slot + own), [8, 8, 16], 20, 3 + min(node, 3), 58982, 26214, 26214, 36044)
          : adaptive(DEEP + (upper << bits) + node));
      distance += found << j;
      node = node * 2 + found;
    }
    sum[0] += distance;
    sum[1]++;
    x[here + c] = pivot + (upper ? 1 + distance : ~distance);
  }
  learned[carried] = table.slice(MAGNITUDE, MAGNITUDE + 128);
  table = flags;
  if (rank > 1) learned._activity = sums;
  return x;
};

// ---- 8: kept tensors ----

/** Rows of bytes, the highest byte first. */
const kept = (length, unit, type) => {
  const predicted = length && uniform(unit + 1);
  const flags = table;
  spend(predicted * length);
  table = learned["t" + type] ||= [];
  const rows = list(
    length * unit,
    (i, rows) => {
      const plane = i % unit;
      return byte((node) => {
        const own = plane * 256 + node;
        const place = (byte) => imul(own * 256 + byte, HASH) >>> 17;
        const slots = [2048 + place(rows[i - unit] | 0), 34816 + place(plane && rows[i - 1])];
        return plane < predicted ? mixed(own, 0, slots, [4, 4], 8, 100 + 8 * type + plane, 65536, 26000, 26000) : bit();
      });
    },
    zeros(length * unit),
  );
  table = flags;
  return rows;
};

// ---- 9: fast streams ----

let data, used; // what of the stream follows its head, and how much of it is read; too much is refused in the end

const next = (length) => little(data, (used += length) - length, length);

const symbols = (length, K) => {
  const numSlots = 2 ** (K > 256 ? 16 : 12);
  const slots = []; // of each: its symbol, how many the symbol has, and which of them it is
  list(K, (symbol) => {
    const share = number(FREQUENCY);
    for (let j = 0; j < share && slots.length <= numSlots; ) slots.push([symbol, share, j++]);
  });
  const stop = used + 20 + 2 * number(WORDS);
  const lanes = [5, 5, 5, 5].map(next);
  check(slots.length == numSlots);
  const found = zeros(length, Uint16Array).map((_, i) => {
    const [symbol, share, offset] = slots[lanes[i % 4] % numSlots];
    const state = share * floor(lanes[i % 4] / numSlots) + offset;
    lanes[i % 4] = state < 2 ** 24 ? state * 65536 + next(2) : state;
    return symbol;
  });
  check(lanes.every((state) => state == 2 ** 24) && used == stop);
  return found;
};

const fastRows = (length, unit) => {
  const rows = zeros(length * unit);
  list(unit, (plane) =>
    (adaptive(TABLE) ? symbols(length, 256) : data.subarray(used, (used += length))).map(
      (byte, i) => (rows[i * unit + plane] = byte),
    ),
  );
  return rows;
};

// ---- 1 and 6: files ----

/**
 * All tensors of a file.
 * @param {Uint8Array} file its bytes
 * @param {number} limit bytes that its tensors, aliases included, may take up once decoded
 */
export const decode = (file, limit = 2 ** 28) => {
  const length = file.length;
  const isIndexed = file[3] >> 7;
  check(file[3] % 128 != 2, "a .reef of version 2: use reefknot unpack");
  const header = isIndexed ? length - 8 - little(file, length - 8) : 4;
  check(little(file, 0) % 2 ** 31 == 0x1464552 && length > 7 && header > 3);
  // What a register holds after any bytes and their own CRC-32.
  check(checksum([...file.subarray(0, 4), ...file.subarray(header)]) == ~0x2144df1c);

  learned = {};
  history = 0;
  begin(PRIME);
  list(42, readName);
  begin(file.subarray(header, -4 - 4 * isIndexed), 65536 + 8 * length, table); // so many values of codebooks

  // The header.
  const numBooks = number(BOOKS);
  const numEntries = number(ENTRIES);
  const numAliases = number(ALIASES);
  check(numBooks + numEntries + numAliases <= 64 + 2 * length);
  const books = list(numBooks, readBook);
  const names = [];
  const sizes = []; // in bytes
  const byEnding = {};
  let outputs, from;
  let last = -1;
  /** Of each entry a function, which reads the tensor. */
  const entries = list(numEntries, () => {
    const name = readName();
    const ending = "." + name.split(".").pop(); // with the dot, no name that every object has
    const like = byEnding[ending];
    let kind = 18; // and the dot are 64
    for (const c of ending) kind += codeOf(c);
    kind %= 64;
    let type, book;
    if (adaptive([KEPT, kind], 8000)) {
      adaptive([TRAINABLE, kind]);
      type = like && !like._book && adaptive([SAME_TYPE, kind], 50000) ? like._type : uniform(19);
    } else {
      if (!adaptive(SAME_BOOK, 50000)) last = adaptive(NEXT_BOOK, 50000) ? last + 1 : uniform(numBooks);
      check((book = books[last]));
      type = book._type;
    }
    const values = book?._values;
    const carried = "b" + last;
    const rank = like && adaptive(SAME_RANK, 55000) ? like._shape.length : number(RANK);
    check(rank <= 64);
    const shape = list(rank, (d, shape) => {
      const guesses = [outputs, like?._shape[d], shape[d - 1]];
      const guess = (n, k) => n >= 0 && guesses.indexOf(n) == k && adaptive([GUESS, k, min(rank, 4), min(d, 3)]);
      return guesses.find(guess) ?? number(SIZE);
    });
    check(product(shape.map((n) => n || 1)) <= 2 ** 46);
    if (rank > 1) outputs = shape[0];
    byEnding[ending] = { _type: type, _book: book, _shape: shape };
    const isFast = isIndexed && adaptive(METHOD);
    const streamBytes = isIndexed && number(STREAM_BYTES);
    const crc = isIndexed && uniform(2 ** 32);
    const width = +BYTES[type];
    const unit = type == C64 ? 4 : width;
    const numElements = product(shape);
    const size = numElements * width;
    names.push(name);
    sizes.push(size);
    return () => {
      const start = from;
      let bytes;
      if (isIndexed) {
        const own = file.subarray(from, (from += streamBytes));
        const head = isFast ? 4 + little(own, 0) : own.length;
        check(checksum(own) == ~crc && head <= own.length);
        learned = {};
        begin(own.subarray(isFast * 4, head), 256 + 16 * own.length);
        data = own.subarray(head);
        used = 0;
      }
      if (book) {
        const x = isFast ? symbols(numElements, values.length) : tied(shape, values, carried);
        const raw = new Uint8Array(BigUint64Array.from(values).buffer);
        bytes = zeros(size).map((_, i) => raw[8 * x[floor(i / width)] + (i % width)]);
      } else {
        const rows = (isFast ? fastRows : kept)(size / unit, unit, type);
        bytes = rows.map((_, i) => {
          const plane = i % unit;
          const k = i + unit - 1 - 2 * plane;
          return (type < 4 ? (rows[k] >> 1) | (rows[plane < unit - 1 ? k - 1 : i] << 7) : rows[k]) & (type == BOOL || 255);
        });
      }
      if (isIndexed) {
        end();
        check(used == data.length);
      } else from = at - 2;
      return { name: characters(name), type: NAMES[type], shape, bytes, start, end: from };
    };
  });
  const owners = list(numAliases, () => {
    names.push(readName());
    const owner = uniform(numEntries);
    sizes.push(sizes[owner]);
    return owner;
  });
  check(
    sizes.every((size) => (limit -= size) >= 0) &&
      new Set(names).size == names.length &&
      names.join("").replace(/[\x80-\xbf]/g, "").length <= 2 ** 20 + 64 * length,
  );
  if (isIndexed) end();

  // The tensors.
  budget = 2 ** 21 + 16 * length - 128;
  from = isIndexed ? 4 : at - 2; // 4 bytes are in front of a stream, and 6 of it are held in advance
  const tensors = entries.map((read) => read());
  if (isIndexed) check(from == header);
  else end();
  return [...tensors, ...owners.map((owner, i) => ({ ...tensors[owner], name: characters(names[numEntries + i]) }))];
};
