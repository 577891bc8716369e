/**
 * A reader of `.reef` files, versions 1 and 2, in JavaScript, without dependencies.
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
 * All of it is written to be small once minified, apart from the loops that run for each bit, which are written to be fast.
 * `export html` leaves out what is between lines `not in pages` and `in pages`.
 */

const { min, max, floor, exp, imul, clz32 } = Math;
const big = BigInt;
const plain = Number;
const letter = String.fromCharCode;
const codeOf = (character) => character.charCodeAt();

/** Nothing below 1 has bits. */
const bitLength = (n) => n > 0 && 32 - clz32(n);

/** So many things, each of which may look at those before. */
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

let stream, at, budget;
let data, used; // bytes beside the stream, and how many of them are read; more than there are is refused in the end
let learned; // what is carried from tensor to tensor of a stream: contexts of numbers, flags and names first; weights, ...
let table; // contexts by their slots: those of `learned`, or those of a tensor

const ONE = 65536; // of probabilities
const HALF = 32768;
const SIZE_NOW = 0;
const CODE = 1;
const interval = new Float64Array(2); // its size, and the code inside of it

const fill = (least) => {
  for (; interval[SIZE_NOW] < least; interval[SIZE_NOW] *= 256) {
    interval[CODE] = interval[CODE] * 256 + (stream[at++] | 0);
    check(at < stream.length + 7);
  }
};

const begin = (bytes, most, known = [new Uint32Array(HALF)]) => {
  stream = bytes;
  budget = most;
  learned = known;
  table = known[0];
  interval.set([1, 0]);
  at = 0;
  fill(2 ** 48);
};

const bit = (p = HALF) => {
  const bound = floor(interval[SIZE_NOW] / ONE) * p;
  const isOne = +(interval[CODE] < bound);
  if (isOne) interval[SIZE_NOW] = bound;
  else {
    interval[CODE] -= bound;
    interval[SIZE_NOW] -= bound;
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
const SQUASH = list(2 * MOST + 1, (x) => floor(ONE / (1 + exp((MOST - x) / 256))) + (x < MOST));
let lowest = 0;
const STRETCH = list(ONE, (p) => {
  while (SQUASH[lowest] < (p | 15) - 7) lowest++;
  return lowest - MOST;
});

// ---- 4: prediction ----
// A context is one number: bits seen << 10 | ones among them.

const shrunk = (slot, prior = 2, base = HALF) => {
  const context = table[slot];
  const seen = (context >> 10) + prior;
  return max(
    8,
    min(65528, (((context & 1023) * ONE + prior * base) * (floor(2 ** 32 / seen) - (seen < 2))) / 2 ** 32) | 0,
  );
};

/** A context, halved until it is below a limit. */
const aged = (context, limit) => (context < limit ? context : aged((context >> 1) & ~512, limit));

const count = (slot, bit) => {
  table[slot] = aged(table[slot], 1020 << 10) + 1024 + bit;
  return bit;
};

const adaptive = (slot, base, prior) => count(slot, bit(shrunk(slot, prior, base)));

const votes = new Float64Array(6);

/**
 * A mixed bit. The first slot is that of the context whose probability is the base, unless a base is given; it counts the
 * bit too. The setting of a slot is prior * 128 + first weight in percent. The key is that of the weights in `learned`.
 */
const mixed = (slots, key, rate, settings, base = shrunk(slots[0])) => {
  const weights = (learned[key] ||= Float64Array.from(settings, (setting) => floor((setting % 128) * 655.36)));
  const origin = STRETCH[base];
  let total = HALF + weights[0] * origin;
  votes[0] = origin / 16;
  for (let i = 1; i < slots.length; i++)
    total += weights[i] * (votes[i] = STRETCH[shrunk(slots[i], settings[i] >> 7, base)] - origin);
  const p = SQUASH[max(0, min(2 * MOST, floor(total / ONE) + MOST))];
  const result = bit(p);
  for (let i = 0; i < slots.length; i++) {
    weights[i] += floor((votes[i] * (result * ONE - p) * rate) / 2 ** 18);
    count(slots[i], result);
  }
  return result;
};

/** A number below `size`, a power of two, the highest bit first. A function of the bits before, after a one, gives the next. */
const tree = (next, size = 256) => {
  let node = 1;
  while (node < size) node = node * 2 + next(node);
  return node - size;
};

// ---- 5: numbers and names ----
// Where the contexts of each kind begin, and where weights lie in `learned`.

// Flags, some of which have several contexts.
const ZERO = 0;
const SAME_BOOK = 1;
const NEXT_BOOK = 2;
const SAME_RANK = 3;
const METHOD = 4;
const PIVOT_IS_ZERO = 5;
const BY_COLUMN = 6;
const MAPS = 7;
const TABLE = 8;
const SCALED = 9;
const SAME_RUN = 10;
const EVERY_SCALE = 11;
const KEPT = 12;
const TRAINABLE = 76;
const SAME_TYPE = 140;
const GRID = 204;
const GUESS = 244;
// Numbers.
const BOOKS = 400;
const ENTRIES = 610;
const ALIASES = 820;
const TYPE = 1030;
const VALUES = 1240;
const MOST_EXPONENT = 1450;
const EXPONENTS = 1660;
const RANK = 1870;
const SIZE = 2080;
const STREAM_BYTES = 2290;
const FREQUENCY = 2500;
const WORDS = 2710;
const RUN = 2920;
const SCALES = 3130;
const NAME = 4000;
// Weights and other things that are learned: of names, of tied tensors, of each type of kept ones.
const NAME_WEIGHTS = 1;
const TIED_WEIGHTS = 2; // seven
const ACTIVITY = 9;
const PLANES = 10; // of each type nine: contexts, and weights of eight planes
const SHARED_CONTEXTS = 200; // of each codebook

const number = (kind) => {
  let length = 0;
  while (length < 47 && adaptive(kind + length)) length++;
  return tree((node) => (node < 4 ? adaptive(kind + 60 + 3 * length + node) : bit()), 2 ** length) + 2 ** length - 1;
};

/** A number below `size`, which is at most 2^40. */
const uniform = (size) => {
  let offset = 0;
  while (size > 1) {
    let half = 1;
    while (2 * half < size) half *= 2;
    const share = (size - half) * 256; // in two steps, which doubles hold exactly
    if (bit(floor(share / size) * 256 + floor(((share % size) * 256) / size) || 1)) {
      offset += half;
      size -= half;
    } else size = half;
  }
  return offset;
};

/** The same for BigInt of any size. */
const uniformBig = (size, low = 2n ** 32n, high) =>
  size < 1
    ? check()
    : size >> 40n
      ? (high = uniformBig(--size / low + 1n)) * low + uniformBig(high < size / low ? low : (size % low) + 1n)
      : big(uniform(plain(size)));

const ascending = (
  number,
  low,
  high,
  middle = number / 2n,
  value = number && low + middle + uniformBig(high - low - number + 2n),
) =>
  number ? [...ascending(middle, low, value - 1n), value, ...ascending(number - middle - 1n, value + 1n, high)] : [];

const HASH = 0x2545f491;
const NAME_SETTINGS = [100, 286.518, 158.518, 158.518, 158.518, 158.518]; // priors 2, 1, 1, 1, 1; weights 65536, then 20000
let history;
let primed; // what is learned from typical names

/** The bytes of a name, as characters below 256. */
const readName = () => {
  let name = "";
  for (;;) {
    // The remainder makes a difference below the fourth order only after bytes that UTF-8 does not have.
    const orders = list(6, (k) => imul((((history % 256 ** k) % 16777211) * 8 + k) * 1000003, HASH));
    const next = tree((node) => {
      const slots = [NAME + node];
      for (let k = 1; k < 6; k++) slots[k] = NAME + 256 + ((orders[k] + imul(node, HASH)) >>> 18);
      return mixed(slots, NAME_WEIGHTS, 24, NAME_SETTINGS);
    });
    history = (history * 256 + next) % 2 ** 40;
    if (!next) return name;
    name += letter(next);
    check(name.length <= ONE);
    spend(next >> 6 != 2); // a character
  }
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
const ROW_MAGNITUDE = 1216;
const PAIR_MAGNITUDE = 2368;
const LEVELS = 3374;
const PLACE = 3392; // the place in a plane, or what is near
const LINES = 4416;
const SHARED = 2 ** 20; // lines so far apart share contexts
const deep = new Uint32Array(2 * ONE); // contexts of values far from the pivot

/** Sets the distances of indices from the pivot; gives the pivot. */
const tied = (x, shape, zero, K, carried) => {
  // The plan.
  const rank = shape.length;
  const rows = rank > 1 ? shape[0] : 1;
  const columns = x.length / rows;
  const isMatrix = (rows > 1) & (columns > 1);
  const pivot = ~zero && adaptive(PIVOT_IS_ZERO, 60000) ? zero : uniform(K);
  const byColumn = isMatrix && adaptive(BY_COLUMN);
  const hasMaps = isMatrix && adaptive(MAPS, 60000);
  const inner = byColumn ? rows : columns;
  const before = learned[ACTIVITY] || "";
  const numUnits = columns % before.length ? 0 : before.length;
  let grid = 0;
  while (grid < 4 && adaptive(GRID + grid + 8 * min(rank, 4))) grid++;
  const channels = [, , 1, 3, numUnits][grid];
  const w = grid ? (grid < 2 ? shape[rank - 1] : floor((columns / channels) ** 0.5)) : Infinity; // nothing is above
  const plane = grid < 2 ? grid && w * shape[rank - 2] : channels > 1 && w * w;
  check(grid < 2 ? !grid || rank > 3 : w > 1 && w * w * channels == columns);

  // What is shared by the tensors of a codebook: magnitudes.
  const own = (table = new Uint32Array(LINES + min(inner, SHARED)));
  if (K > 64) deep.fill(0);
  table.set(
    (learned[carried] || []).map((context) => aged(context, 32 << 10)),
    MAGNITUDE,
  );
  const active = new Uint8Array(columns).map(
    (_, c) => numUnits && 1 + min(bitLength(before[floor((c * numUnits) / columns)]), 7),
  );

  // The maps.
  const liveRow = list(hasMaps * rows, (r, live) =>
    count(ROW_FLAG, adaptive(ROW_FLAG + 1 + !!live[r - 1], shrunk(ROW_FLAG, 2, 20000), 8)),
  );
  // A place below 0 is none; elements that have not been read are the pivot.
  let cells, here, up, left, above, right, corner, behind;
  const near = (c) => (c < 0 ? 0 : cells[here + c] | 0);
  const look = (c) => {
    up = c - w;
    left = near(c - 1);
    above = near(up);
    right = up < 0 ? 0 : near(up + 1);
    corner = near(up - 1);
    behind = near(c - plane);
  };
  here = 0;
  const liveColumn = list(hasMaps * columns, (c, live) => {
    const known = min(active[c], 2);
    cells = live;
    look(c);
    return mixed(
      [
        COLUMN_FLAG + known,
        COLUMN_FLAG + 3 + 4 * known + 2 * left + above,
        COLUMN_FLAG + 15 + left + above + right + corner + 5 * known + 15 * behind,
        COLUMN_FLAG + 45 + active[c],
      ],
      TIED_WEIGHTS,
      24,
      [100, 4 * 128 + 45, 4 * 128 + 33, 4 * 128 + 45],
    );
  });
  cells = x;

  // The elements.
  const sums = new Float64Array(min(rows, SHARED)); // of each row: distances, and how many
  const numbers = new Uint32Array(min(rows, SHARED));
  let base;
  const level = (slot, prior) => min(1, STRETCH[shrunk(slot, prior, base)] >> 7);
  for (let a = 0; a < x.length / inner; a++) {
    table[LINE] = 0;
    base = shrunk(ALL_MASKS, 4, 6554);
    for (let b = 0; b < inner; b++) {
      const c = byColumn ? a : b;
      const r = byColumn ? b : a;
      if (hasMaps > (liveRow[r] & liveColumn[c])) continue;
      const cross = LINES + (b % SHARED);
      here = r * columns;
      look(c);
      if (
        !mixed(
          [
            ALL_MASKS,
            LINE,
            cross,
            NEIGHBOURS + !!left + 2 * !!above + 4 * !!right + 8 * !!corner + 16 * !!behind,
            LEVELS + 16 * level(cross, 24) + level(LINE, 6),
            PLACE + active[c] + 16 * (plane ? min(c % plane, 63) : !!left + 2 * !!(r && x[here - columns + c])),
          ],
          TIED_WEIGHTS + 1 + min(2, !!left + !!above + !!right + !!corner),
          14,
          [100, 6 * 128 + 46, 24 * 128 + 50, 4 * 128 + 45, 16 * 128 + 45, 6 * 128 + 40],
          base,
        )
      )
        continue;
      spend(1);
      if (w < 3) up = -9;
      let pair = left + above;
      let pull = 2 * pair + right + corner + behind;
      let ring = near(c - 2) + near(up - 2) + (up < 0 ? 0 : near(up + 2));
      for (let k = -3; k++ < 2;) ring += near(up - w + k);
      const upper = pivot
        ? pivot < K - 1
          ? count(
              SIGN_BASE,
              adaptive(
                SIGNED + 3 * (min(bitLength(pull), 7) - min(bitLength(-pull), 7)) + (ring > 0) - (ring < 0),
                shrunk(SIGN_BASE, 4),
                4,
              ),
            )
          : 0
        : 1;
      const side = upper || -1;
      const choices = upper ? K - 1 - pivot : pivot;
      const bits = bitLength(choices - 1);
      const row = r % SHARED;
      pair *= side;
      const close = PAIR_MAGNITUDE + 128 * (min(5, bitLength(pair)) - (pair < 0) - (pair < -3));
      const pulled = NEAR_MAGNITUDE + 128 * min(5, bitLength(pull * side + ((ring * side) >> 1)));
      const usual = ROW_MAGNITUDE + 128 * (min(6, ((sums[row] * 8) / (numbers[row] * choices)) | 0) - !numbers[row]);
      const distance = tree((node) => {
        if ((2 * node + 1) * 2 ** (bits - bitLength(node)) >= choices + 2 ** bits) return 0;
        const context = 64 * upper + node;
        if (node < 64)
          return mixed(
            [MAGNITUDE + context, pulled + context, usual + context, close + context],
            TIED_WEIGHTS + 3 + min(node, 3),
            20,
            [90, 8 * 128 + 40, 8 * 128 + 40, 16 * 128 + 55],
          );
        const slot = (upper << bits) + node;
        table = deep;
        const result = adaptive(slot);
        table = own;
        return result;
      }, 2 ** bits);
      sums[row] += distance;
      numbers[row]++;
      x[here + c] = side * (1 + distance);
    }
  }
  learned[carried] = table.slice(MAGNITUDE, NEAR_MAGNITUDE);
  if (rank > 1) learned[ACTIVITY] = rows <= SHARED && numbers;
  table = learned[0];
  return pivot;
};

// ---- 8 and 9: kept tensors, fast streams ----

// not in pages: fast streams
/** As many symbols as the given memory has elements. */
const symbols = (x, K) => {
  const numSlots = K > 256 ? ONE : 4096;
  const owners = new Uint16Array(numSlots);
  const starts = [0];
  for (let symbol = 0; symbol < K; symbol++) {
    starts[symbol + 1] = starts[symbol] + number(FREQUENCY);
    owners.fill(symbol, starts[symbol], starts[symbol + 1]);
  }
  const stop = used + 20 + 2 * number(WORDS);
  check(starts[K] == numSlots);
  const lanes = [5, 5, 5, 5].map(next);
  x.forEach((_, i) => {
    const state = lanes[i % 4];
    const slot = state % numSlots;
    const symbol = (x[i] = owners[slot]);
    const renewed = (starts[symbol + 1] - starts[symbol]) * floor(state / numSlots) + slot - starts[symbol];
    lanes[i % 4] = renewed < 2 ** 24 ? renewed * ONE + next(2) : renewed;
  });
  check(lanes.every((state) => state == 2 ** 24) && used == stop);
};
// in pages:

/** Bytes of elements, little endian; in the file they are rows, the highest byte first. Of scales, the type is 19. */
const kept = (length, type, isFast) => {
  const unit = type == C64 ? 4 : +BYTES[type];
  const numRows = length / unit;
  const rows = new Uint8Array(length);
  // not in pages: fast streams
  if (isFast)
    list(unit, (plane) => {
      let column = new Uint8Array(numRows);
      if (adaptive(TABLE)) symbols(column, 256);
      else column = data.subarray(used, (used += numRows));
      column.map((byte, i) => (rows[i * unit + plane] = byte));
    });
  else
    // in pages:
    if (length) {
      const predicted = uniform(unit + 1);
      const key = PLANES + 9 * type;
      spend(predicted * numRows);
      table = learned[key] ||= new Uint32Array(2048 + ONE);
      for (let i = 0; i < length; i++) {
        const plane = i % unit;
        const above = rows[i - unit] | 0;
        const left = plane && rows[i - 1];
        rows[i] = tree((node) => {
          const own = plane * 256 + node;
          return plane < predicted
            ? mixed(
                [own, 2048 + (imul(own * 256 + above, HASH) >>> 17), 34816 + (imul(own * 256 + left, HASH) >>> 17)],
                key + 1 + plane,
                8,
                [100, 551.673, 551.673], // priors 4; weights 65536, 26000, 26000
              )
            : bit();
        });
      }
      table = learned[0];
    }
  return rows.map((_, i) => {
    const plane = i % unit;
    const k = i + unit - 1 - 2 * plane;
    return type % 19 < 4 ? (rows[k] >> 1) | (rows[k % unit ? k - 1 : i] << 7) : rows[k] & (type == BOOL || -1);
  });
};

// ---- 10: scales ----

// not in pages: version 2
const float = new Float32Array(1);
const word = new Uint32Array(float.buffer);

/** The bits of a number as F32, F16 or BF16: rounded once to the nearest, ties to even. */
const scaledBits = (exact, type) => {
  // An F16 is an F32 that is 2^112 times smaller, without its lowest bits.
  float[0] = exact *= type == 1 ? 2 ** -112 : 1;
  const sign = word[0] >>> 31;
  word[0] &= 0x7f800000; // what is left is the power of two of the number
  // Adding so much leaves no room for bits below the last.
  const room = 1.5 * 2 ** 52 * max(2 ** -126, min(2 ** 127, float[0])) * 2 ** -[23, 10, 7][type];
  float[0] = min(Math.abs(exact + room - room), type == 1 ? 2 ** -96 : Infinity);
  return (word[0] >> [0, 13, 16][type]) + sign * 2 ** (type ? 15 : 31);
};
// in pages:

// ---- 1 and 6: files and headers ----

const BYTES = "42281111181112244884";
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
  const version = file[3] % 128;
  data = file;
  used = 0;
  check((next(3) == 0x464552) & (version > 0) & (version < 3));
  used = length - 8;
  const header = isIndexed ? used - next(4) : 4;
  used = length;
  // What a register holds after any bytes and their own CRC-32.
  check(header > 3 && checksum(file.slice(header), checksum(file.slice(0, 4))) == ~0x2144df1c);

  // The 42 names that the model reads before the first one, as a stream of that model.
  if (!primed) {
    history = 0;
    begin(
      [
        ...atob`iJix11VEYMKfyOkPV2CfZrsjzmvDNPIFMujdvSrfj7BV8q7juRjKOfgUas04pfG2L/s94hFADEI69oktEzIv40XT5liXwXHcD4Qr+kbbZ29N2tMoopykQPfUwv+ShnjUwe6gIDxE8fUn/LFgi6U++kfXi4dlPCmWyp3B8GnvHvF9uovScZV+LISL7xyKQgE+ppNYyeUMpWyVoofQMWvQmZCCaMQOLnVkMg`,
      ].map(codeOf),
      1e9,
    );
    list(42, readName);
    primed = learned;
  }
  history = 0x6269617300; // "bias" and a zero, with which the 42 names end
  begin(
    file.slice(header, -4 - 4 * isIndexed),
    ONE + 8 * length, // so many values of codebooks
    primed.map((model) => model.slice()),
  );

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
    return [type, new Uint8Array(new BigUint64Array(values).buffer), values.indexOf(0n)];
  });

  // The entries: of each a function, which reads the tensor.
  const names = new Set();
  const sizes = []; // in bytes
  let outputs, from;
  let last = -1;
  let lastRun = 0;
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
    const [itsType, isTied, itsShape] = learned[ending] || [];
    const kind = [...ending].reduce((sum, c) => sum + codeOf(c), 18) % 64; // 18 and the dot are 64
    let type, bookType, values, zero;
    let scaling = 0;
    let numScales = 0;
    if (adaptive(KEPT + kind, 8000)) {
      adaptive(TRAINABLE + kind);
      type = itsShape && !isTied && adaptive(SAME_TYPE + kind, 50000) ? itsType : uniform(19);
    } else {
      if (!adaptive(SAME_BOOK, 50000)) last = adaptive(NEXT_BOOK, 50000) ? last + 1 : uniform(numBooks);
      [type, values, zero] = books[last] || check();
      bookType = type;
      // not in pages: version 2
      if (version > 1 && bookType % 2 == 0 && bookType > 11 && bookType < 15 && adaptive(SCALED, 60000)) {
        scaling = 1;
        type = uniform(3);
      }
      // in pages:
    }
    const carried = SHARED_CONTEXTS + last;
    const rank = itsShape && adaptive(SAME_RANK, 55000) ? itsShape.length : number(RANK);
    check(rank <= 64);
    let numElements = 1;
    let most = 1;
    const shape = list(rank, (d, shape) => {
      const guesses = [outputs, itsShape?.[d], shape[d - 1]];
      const size =
        guesses.find(
          (n, k) => n >= 0 && guesses.indexOf(n) == k && adaptive(GUESS + 40 * k + 8 * min(rank, 4) + min(d, 3)),
        ) ?? number(SIZE);
      numElements *= size;
      most *= size || 1;
      return size;
    });
    check(most <= 2 ** 46);
    // not in pages: version 2
    if (scaling) {
      if (!lastRun || !adaptive(SAME_RUN)) lastRun = 1 + number(RUN);
      scaling = lastRun;
      const every = (numScales = Math.ceil(numElements / scaling));
      if (!adaptive(EVERY_SCALE, 60000)) {
        numScales = number(SCALES);
        check(numScales > 0 && numScales < every);
      }
    }
    // in pages:
    if (rank > 1) outputs = shape[0];
    learned[ending] = [type, values, shape];
    const isFast = isIndexed && adaptive(METHOD);
    const streamBytes = isIndexed && number(STREAM_BYTES);
    const crc = isIndexed && uniform(2 ** 32);
    const width = +BYTES[type];
    const size = numElements * width;
    limit -= sizes[i] = size + 4 * numScales;
    return () => {
      const start = from;
      if (isIndexed) {
        end();
        data = file.slice(from, (from += streamBytes));
        check(checksum(data) == ~crc);
        used = 0;
        used = isFast ? 4 + next(4) : streamBytes;
        begin(data.slice(4 * isFast, used), 256 + 16 * data.length);
      }
      let bytes;
      if (values) {
        const x = new Int32Array(numElements);
        const K = values.length / 8;
        let pivot = 0;
        check(K || !numElements);
        // not in pages: fast streams
        if (isFast) symbols(x, K);
        else
          // in pages:
          if (numElements && K > 1) pivot = tied(x, shape, zero, K, carried);
        bytes = new Uint8Array(size);
        // not in pages: version 2
        if (scaling) {
          const scales = new Float32Array(kept(4 * numScales, 19, isFast).buffer);
          check(scales.every(Number.isFinite));
          bytes = new Uint8Array(
            (type ? Uint16Array : Uint32Array).from(x, (distance, i) => {
              const low = 8 * (distance + pivot);
              const integer =
                bookType < 14 ? (values[low] << 24) >> 24 : ((values[low] | (values[low + 1] << 8)) << 16) >> 16;
              return scaledBits(scales[floor(i / scaling) % numScales] * (integer + 32768 ? integer : -0), type);
            }).buffer,
          );
        } else
          // in pages:
          x.forEach((distance, i) => {
            for (let k = 0; k < width; k++) bytes[i * width + k] = values[8 * (distance + pivot) + k];
          });
      } else bytes = kept(size, type, isFast);
      if (!isIndexed) from = at - 2;
      return {
        type:
          type > BOOL
            ? "IU"[type % 2] + 8 * width
            : "F32 F16 BF16 F64 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ C64 BOOL".split` `[type],
        shape,
        bytes,
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
