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

const { min, max, floor, ceil, round, exp, abs, sign, imul, clz32 } = Math;
const big = BigInt;
const bitLength = (n) => 32 - clz32(n);
const clamp = (n, low, high) => max(low, min(high, floor(n)));
const product = (shape) => shape.reduce((a, b) => a * b, 1);
const letter = String.fromCharCode;
const zeros = (length, kind = Uint8Array) => new kind(length);

const check = (ok, why = "not a valid .reef file") => {
  if (!ok) throw Error(why);
};

const little = (bytes, at, length = 4) => {
  let value = 0;
  while (length--) value = value * 256 + (bytes[at + length] | 0);
  return value;
};

const checksum = (bytes) => {
  let crc = -1;
  for (const byte of bytes) {
    crc ^= byte;
    for (let i = 8; i--; ) crc = (crc >>> 1) ^ (-(crc & 1) & 0xedb88320);
  }
  return ~crc >>> 0;
};

// ---- 2: the range decoder ----
// A call of `decode` never yields, so that what it reads from may be the module's.

let stream, at, code, size, budget;
let table; // contexts; those of flags, numbers and names, or those of a tensor
let told; // a text to learn from, whose bits come instead of the stream's
let toldBits;

const begin = (bytes, most) => {
  stream = bytes;
  budget = most;
  table = zeros(3e4, Int32Array);
  size = 2 ** 48;
  code = 0;
  for (at = 0; at < 6; ) code = code * 256 + (stream[at++] | 0);
};

const bit = (p) => {
  if (told) return (told.charCodeAt(toldBits >> 3) >> (~toldBits++ & 7)) & 1;
  const bound = floor(size / 65536) * p;
  const isOne = code < bound;
  if (isOne) size = bound;
  else {
    code -= bound;
    size -= bound;
  }
  for (; size < 2 ** 40; size *= 256) {
    code = code * 256 + (stream[at++] | 0);
    check(stream.length > at - 7);
  }
  return +isOne;
};

const spend = (number) => check((budget -= number) >= 0);

// ---- 3: tables ----
// The integers of the specification are those of 65536 / (1 + exp(-x / 256)), rounded towards one half; none of these
// comes so near to an integer that another library's `exp` could make a difference.

const MOST = 1775;
const SQUASH = []; // of x + MOST
const STRETCH = []; // of p >> 4
for (let x = -MOST; x <= MOST; x++) SQUASH.push((x < 0 ? ceil : floor)(65536 / (1 + exp(-x / 256))));
for (let p = 0, x = 0; p < 4096; ) {
  if (SQUASH[x] < 16 * p + 8) x++;
  else STRETCH[p++] = x - MOST;
}

// ---- 4: prediction ----
// A context is one number: bits seen << 10 | ones among them.

const shrunk = (slot, prior, base) => {
  const context = table[slot];
  const reciprocal = floor(min(2 ** 32 / ((context >> 10) + prior), 2 ** 32 - 1));
  return clamp((((context & 1023) * 65536 + prior * base) * reciprocal) / 2 ** 32, 8, 65528);
};

const stretched = (slot, prior, base) => STRETCH[shrunk(slot, prior, base) >> 4];

const halved = (context) => (context >> 1) & ~512;

const count = (slot, bit) => {
  const context = table[slot];
  table[slot] = (context < 1020 << 10 ? context : halved(context)) + 1024 + bit;
  return bit;
};

const adaptive = (slot, base = 32768, prior = 2) => count(slot, bit(shrunk(slot, prior, base)));

/** A mixed bit. The context `own` counts it too; the base is its probability, unless given. */
const mixed = (own, slots, priors, weights, rate, base = shrunk(own, 2, 32768)) => {
  const votes = [STRETCH[base >> 4]];
  let total = 32768 + votes[0] * weights[0];
  let i = 0;
  for (const slot of slots) {
    const vote = stretched(slot, priors[i++], base) - votes[0];
    total += vote * weights[i];
    votes[i] = vote;
  }
  const p = SQUASH[MOST + clamp(total / 65536, -MOST, MOST)];
  const result = bit(p);
  for (; i >= 0; i--) weights[i] += floor((votes[i] * (result * 65536 - p) * rate) / 2 ** (i ? 18 : 22));
  for (const slot of slots) count(slot, result);
  return count(own, result);
};

// ---- 5: numbers and names ----
// A kind has one in 32 slots for its contexts, which are counted in steps of 32.

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
const GUESS = 25; // three kinds
const STEP = 32;
const NAME = 9999;

const number = (kind) => {
  let length = 0;
  let value = 1;
  while (length < 47 && adaptive(kind + STEP * length)) length++;
  for (let i = 0; i < length; i++)
    value = value * 2 + (i < 2 ? adaptive(kind + STEP * (64 + 3 * length + i + (i && value % 2))) : bit(32768));
  return value - 1;
};

/** One of `size` numbers, at most 2^40 of them. */
const uniform = (size) => {
  let offset = 0;
  for (let half = 2 ** 39; size > 1; ) {
    while (half >= size) half /= 2;
    const upper = (size - half) * 65536; // exact; so is %, and rounding mends what the difference may lose
    if (bit(max(1, round((upper - (upper % size)) / size)))) {
      offset += half;
      size -= half;
    } else size = half;
  }
  return offset;
};

/** The same for a BigInt of any size. */
const uniformBig = (size) => {
  const low = 2n ** 32n;
  const last = size - 1n;
  if (size <= 256n * low) return big(uniform(Number(size)));
  const high = uniformBig(last / low + 1n);
  return high * low + uniformBig(high < last / low ? low : (last % low) + 1n);
};

const ascending = (number, low, high) => {
  if (!number) return [];
  const middle = number >> 1;
  const first = low + big(middle);
  const room = high - big(number - middle) - first + 2n;
  check(room > 0);
  const value = first + uniformBig(room);
  return [...ascending(middle, low, value - 1n), value, ...ascending(number - middle - 1, value + 1n, high)];
};

// What the model of names has read before the first one. What ends in a dot stands for a weight and a bias.
const PRIME =
  "weight bias features.0. classifier.1. model.layers.0.self_attn.q_proj.weight model.layers.0.mlp.up_proj.weight layer1.0.conv1.weight layer1.0.bn1. layer1.0.bn1.running_mean layer1.0.bn1.running_var layer1.0.bn1.num_batches_tracked 0. 2. 4. conv1. conv2. conv3. fc1. fc2. fc3. fc. conv1. conv2. fc1. fc2. "
    .replace(/(\S+\.) /g, "$1weight $1bias ")
    .replace(/ /g, "\0");

let nameWeights, history;

/** The bytes of a name, as characters below 256. */
const readName = () => {
  let name = "";
  for (;;) {
    let node = 1;
    while (node < 256) {
      const slots = [1, 2, 3, 4, 5].map((k) => {
        const order = (history % 256 ** k) % (k < 4 ? 2 ** 24 : 16777211);
        return NAME + 256 + (imul((order * 8 + k) * 1000003 + node, 0x2545f491) >>> 18);
      });
      node = node * 2 + mixed(NAME + node, slots, [2, 1, 1, 1, 1], nameWeights, 24);
    }
    history = (history * 256 + node - 256) % 2 ** 40;
    if (node == 256) return name;
    name += letter(node - 256);
    check(name.length <= 65536);
  }
};

/** UTF-8, with lone surrogates as three bytes and C0 80 for a zero: these are found first, and the rest is the browser's. */
const characters = (name) =>
  name
    .split(/(\xed[\xa0-\xbf][\x80-\xbf]|\xc0\x80)/)
    .map((part, i) =>
      i % 2 ? letter([...part].reduce((a, c) => (a << 6) | (c.charCodeAt() & 63), 0)) : decodeURIComponent(escape(part)),
    )
    .join("");

// ---- 6: the header ----

const NAMES =
  "F32 F16 BF16 F64 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ C64 BOOL U8 I8 U16 I16 U32 I32 U64 I64".split(" ");
const BYTES = [4, 2, 2, 8, 1, 1, 1, 1, 1, 8, 1, 1, 1, 2, 2, 4, 4, 8, 8];
const EXPONENT = [8, 5, 8, 11, 4, 5, 0, 4, 5];
const C64 = 9;
const BOOL = 10;
const I8 = 12;

const readBook = (mostValues) => {
  const type = number(TYPE);
  const length = number(VALUES);
  check(type < 19 && length <= min(65536, mostValues));
  const hasZero = length && adaptive(ZERO, 60000);
  const below = uniform(length - hasZero + 1);
  const exponent = EXPONENT[type];
  const width = 8 * BYTES[type] - 1;
  const signBit = 1n << big(width);
  const flip = type < I8 || type % 2 ? 0n : signBit; // of signed integers
  let low = 0n;
  let high = 2n * signBit - 1n;
  let shift = 0n;
  check(exponent || !below);
  if (exponent) {
    const fraction = width - exponent;
    const folded = number(MOST_EXPONENT);
    const most = 2 ** (exponent - 1) - 2 - (folded % 2 ? -1 - folded : folded) / 2;
    const least = most - number(EXPONENTS);
    const scale = 1n << big(fraction);
    check(least >= 0 && most < 2 ** exponent);
    shift = big(fraction - uniform(fraction + 1));
    low = (big(least) * scale) >> shift;
    high = (big(most + 1) * scale - 1n) >> shift;
  }
  const negative = ascending(below, low, high);
  const positive = ascending(length - hasZero - below, low, high);
  // No -0.0, which the FNUZ types do not have; no zero twice.
  check((type > 5 || negative[0] != 0) && !(hasZero && positive[0] == 0));
  const values = [
    ...negative.reverse().map((m) => (m << shift) | signBit),
    ...(hasZero ? [flip] : []),
    ...positive.map((m) => (m << shift) ^ flip),
  ];
  for (const v of values) check(type == BOOL ? v < 2 : type != C64 || !v || v & 0x7fffffff7fffffffn);
  return { type, values };
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

// What is carried from tensor to tensor of one stream: weights of column flags, masks (3) and magnitudes (3).
let weights, activity, planes;

const beginContent = () => {
  weights = [0, 1, 1, 1, 2, 2, 2].map((k) =>
    [
      [100, 45, 33, 45],
      [100, 46, 50, 45, 45, 40],
      [90, 40, 40, 55],
    ][k].map((w) => floor(w * 655.36)),
  );
  activity = [];
  planes = [];
};

/** The indices of a tied tensor. */
const tied = (shape, book) => {
  const K = book.values.length;
  const length = product(shape);
  const x = zeros(length, Uint16Array);
  const rank = shape.length;
  const rows = rank > 1 ? shape[0] : 1;
  const columns = length / rows;
  check(K || !length);
  if (!length || K < 2) return x;

  // The plan.
  const zero = book.values.indexOf(0n);
  const pivot = zero >= 0 && adaptive(PIVOT_IS_ZERO, 60000) ? zero : uniform(K);
  const numUnits = columns % activity.length ? 0 : activity.length;
  const isMatrix = rows > 1 && columns > 1;
  const byColumn = isMatrix && adaptive(BY_COLUMN);
  const hasMaps = isMatrix && adaptive(MAPS, 60000);
  const inner = byColumn ? rows : columns;
  let grid = 0;
  while (grid < 4 && adaptive(GRID + STEP * (grid + 8 * min(rank, 4)))) grid++;
  let w = 0;
  let plane = 0;
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
  const deep = LINES + min(max(rows, columns), SHARED);
  table = zeros(deep + (K > 64 && 2 ** 18), Int32Array);
  const active = (c) => numUnits && 1 + min(bitLength(activity[floor((c * numUnits) / columns)]), 7);
  /** How far elements are from `zero`; those outside are not. */
  const apart = (list, offset, zero, places) => places.map((c) => (c < 0 ? 0 : list[offset + c] - zero));
  /** Left, up, both corners, behind. What is not read yet is the pivot, and so is c itself, where w or plane is 0. */
  const neighbours = (c) => [c - 1, c - w, w > 1 && c >= w ? c - w + 1 : -1, w ? c - w - 1 : -1, c - plane];
  /** A bit whose base is itself the probability of a context; both count it. */
  const based = (slot, prior, ground, groundPrior, base) =>
    count(ground, adaptive(slot, shrunk(ground, groundPrior, base), prior));

  // The maps.
  const [liveRow, liveColumn] = [rows, columns].map((n) => zeros(n).fill(!hasMaps));
  if (hasMaps) {
    for (let r = 0; r < rows; r++) liveRow[r] = based(ROW_FLAG + 1 + (liveRow[r - 1] | 0), 8, ROW_FLAG, 2, 20000);
    for (let c = 0; c < columns; c++) {
      const [left, up, right, corner, behind] = apart(liveColumn, 0, 0, neighbours(c));
      const known = min(active(c), 2);
      const slots = [
        COLUMN_FLAG + 3 + 4 * known + 2 * left + up,
        COLUMN_FLAG + 15 + left + up + right + corner + 5 * known + 15 * behind,
        COLUMN_FLAG + 45 + active(c),
      ];
      liveColumn[c] = mixed(COLUMN_FLAG + known, slots, [4, 4, 4], weights[0], 24);
    }
  }

  // The elements.
  const sums = [];
  let base;
  x.fill(pivot);
  (book.magnitudes || []).forEach((context, own) => {
    while (context >= 32 << 10) context = halved(context);
    table[MAGNITUDE + own] = context;
  });
  const level = (slot, prior) => min(15, (stretched(slot, prior, base) + 1792) >> 7);
  for (let i = 0; i < length; i++) {
    const b = i % inner;
    const [c, r] = byColumn ? [(i - b) / inner, b] : [b, (i - b) / inner];
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
    let near = 0;
    around.map((d, i) => {
      differ += !!d << i;
      near += i < 4 && !!d;
    });
    let slots = [
      LINE,
      cross,
      NEIGHBOURS + differ,
      LEVELS + 16 * level(cross, 24) + level(LINE, 6),
      active(c) * (plane ? 1 : 4) +
        (plane ? PLACE + 16 * min(c % plane, 63) : NEAR + (differ & 1) + 2 * (r && x[here - columns + c] != pivot)),
    ];
    if (!mixed(ALL_MASKS, slots, [6, 24, 4, 16, 6], weights[1 + min(2, near)], 14, base)) continue;
    spend(1);

    const top = c - 2 * w;
    const ringPlaces = [c - w - 2, c < w ? -1 : c - w + 2, top - 2, top - 1, top, top + 1, top + 2];
    let pair = left + up;
    let pull = 2 * pair + right + corner + behind;
    let ring = 0;
    apart(x, here, pivot, [c - 2, ...(w > 2 ? ringPlaces : [])]).map((d) => (ring += d));
    let upper = +!pivot;
    if (pivot && pivot < K - 1) {
      const strength = min(bitLength(abs(pull)), 7) * (pull < 0 ? -3 : 3);
      upper = based(SIGNED + strength + sign(ring), 4, SIGN_BASE, 4, 32768);
    }
    if (!upper) [pair, pull, ring] = [-pair, -pull, -ring];
    pull += ring >> 1;
    const choices = upper ? K - 1 - pivot : pivot;
    const sum = (sums[r % SHARED] ||= [0, 0]); // of distances, and how many
    const usual = sum[1] && 1 + min(6, floor((sum[0] * 8) / (sum[1] * choices)));
    slots = [
      NEAR_MAGNITUDE + 128 * (pull > 0 ? min(5, 1 + bitLength(pull >> 1)) : 0),
      ROW_MAGNITUDE + 128 * usual,
      PAIR_MAGNITUDE + 128 * (pair < 0 ? (pair < -3 ? 7 : 6) : min(5, bitLength(pair))),
    ];
    const bits = bitLength(choices - 1);
    let node = 1;
    let done = 0;
    for (let j = bits; j--; ) {
      const own = 64 * upper + node;
      const found =
        done + (1 << j) >= choices
          ? 0
          : node < 64
            ? mixed(MAGNITUDE + own, slots.map((slot) => slot + own), [8, 8, 16], weights[3 + min(node, 3)], 20)
            : adaptive(deep + (upper << bits) + node);
      done += found << j;
      node = node * 2 + found;
    }
    sum[0] += done;
    sum[1]++;
    x[here + c] = upper ? pivot + 1 + done : pivot - 1 - done;
  }
  book.magnitudes = table.slice(MAGNITUDE, MAGNITUDE + 128);
  table = flags;
  if (rank > 1) {
    activity = rows > SHARED ? [] : Array(rows).fill(0);
    x.map((index, i) => (activity[floor(i / columns)] += index != pivot));
  }
  return x;
};

// ---- 8: kept tensors ----

/** Rows of bytes, the highest byte first. */
const kept = (length, unit, type) => {
  const place = (own, byte) => imul(own * 256 + byte, 0x2545f491) >>> 17;
  const model = (planes[type] ||= [zeros(67584, Int32Array)]); // contexts, and the weights of each byte
  const predicted = length && uniform(unit + 1);
  const rows = zeros(length * unit);
  const flags = table;
  spend(predicted * length);
  table = model[0];
  rows.map((_, i) => {
    const plane = i % unit;
    const weights = (model[plane + 1] ||= [65536, 26000, 26000]);
    let node = 1;
    while (node < 256) {
      const own = plane * 256 + node;
      const slots = [2048 + place(own, rows[i - unit] | 0), 34816 + place(own, plane && rows[i - 1])];
      node = node * 2 + (plane < predicted ? mixed(own, slots, [4, 4], weights, 8) : bit(32768));
    }
    rows[i] = node;
  });
  table = flags;
  return rows;
};

// ---- 9: fast streams ----

let rest; // what of the stream follows its head, and is not taken yet

const take = (length) => {
  const taken = rest.subarray(0, length);
  check(taken.length == length);
  rest = rest.subarray(length);
  return taken;
};

const symbols = (length, K) => {
  const slots = 2 ** (K > 256 ? 16 : 12);
  const owner = [];
  const start = [0];
  for (let i = 0; i < K; i++) {
    for (let share = number(FREQUENCY); share-- && owner.length <= slots; ) owner.push(i);
    start.push(owner.length);
  }
  const data = take(20 + 2 * number(WORDS));
  const lanes = [0, 5, 10, 15].map((place) => little(data, place, 5));
  let used = 20;
  check(owner.length == slots);
  const found = zeros(length, Uint16Array).map((_, i) => {
    const slot = lanes[i % 4] % slots;
    const symbol = owner[slot];
    let state = (start[symbol + 1] - start[symbol]) * floor(lanes[i % 4] / slots) + slot - start[symbol];
    if (state < 2 ** 24) {
      state = state * 65536 + little(data, used, 2);
      used += 2;
    }
    lanes[i % 4] = state;
    return symbol;
  });
  check(lanes.every((state) => state == 2 ** 24) && used == data.length);
  return found;
};

const fastRows = (length, unit) => {
  const rows = zeros(length * unit);
  for (let plane = 0; plane < unit; plane++)
    (adaptive(TABLE) ? symbols(length, 256) : take(length)).map((byte, i) => (rows[i * unit + plane] = byte));
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
  const start = isIndexed ? length - 8 - little(file, length - 8) : 4;
  check(little(file, 0) % 2 ** 31 == 0x1464552 && length > 7 && start > 3);
  check(checksum([...file.subarray(0, 4), ...file.subarray(start, -4)]) == little(file, length - 4));
  begin(file.subarray(start, -4 - 4 * isIndexed), 2 ** 21 + 16 * length - 128);
  const end = () => check(stream.length > at - 7 && stream.length <= at);

  // The header.
  const numBooks = number(BOOKS);
  const numEntries = number(ENTRIES);
  const numAliases = number(ALIASES);
  check(numBooks + numEntries + numAliases <= 64 + 2 * length && (numEntries || !numAliases));
  const books = [];
  const names = [];
  const entries = [];
  const byEnding = {};
  let mostValues = 65536 + 8 * length;
  while (books.length < numBooks) {
    const book = readBook(mostValues);
    mostValues -= book.values.length;
    books.push(book);
  }
  nameWeights = [65536, 20000, 20000, 20000, 20000, 20000];
  history = toldBits = 0;
  for (told = PRIME; PRIME[toldBits / 8]; ) readName();
  told = 0;
  let outputs;
  let last = -1;
  while (entries.length < numEntries) {
    const raw = readName();
    const ending = raw.slice(raw.lastIndexOf(".") + 1);
    const like = byEnding["." + ending]; // no name that every object has
    let kind = 0;
    for (const c of ending) kind += c.charCodeAt();
    kind = STEP * (kind % 64);
    let type, book;
    if (adaptive(KEPT + kind, 8000)) {
      adaptive(TRAINABLE + kind);
      type = like && !like.book && adaptive(SAME_TYPE + kind, 50000) ? like.type : uniform(19);
    } else {
      if (!adaptive(SAME_BOOK, 50000)) last = adaptive(NEXT_BOOK, 50000) ? last + 1 : uniform(numBooks);
      book = books[last];
      check(book);
      type = book.type;
    }
    const rank = like && adaptive(SAME_RANK, 55000) ? like.shape.length : number(RANK);
    const shape = [];
    check(rank <= 64);
    for (let d = 0; d < rank; d++) {
      const guesses = [outputs, like?.shape[d], shape[d - 1]];
      const place = STEP * (8 * min(rank, 4) + min(d, 3));
      shape[d] =
        guesses.find((n, k) => n >= 0 && guesses.indexOf(n) == k && adaptive(GUESS + k + place)) ?? number(SIZE);
    }
    check(product(shape.map((n) => n || 1)) <= 2 ** 46);
    if (rank > 1) outputs = shape[0];
    limit -= product(shape) * BYTES[type];
    names.push(raw);
    entries.push(
      (byEnding["." + ending] = {
        name: characters(raw),
        type,
        book,
        shape,
        isFast: isIndexed && adaptive(METHOD),
        streamBytes: isIndexed && number(STREAM_BYTES),
        crc: isIndexed && uniform(2 ** 32),
      }),
    );
  }
  const owners = [];
  while (owners.length < numAliases) {
    names.push(readName());
    const owner = uniform(numEntries);
    const { type, shape } = entries[owner];
    limit -= product(shape) * BYTES[type];
    owners.push(owner);
  }
  check(
    limit >= 0 &&
      new Set(names).size == names.length &&
      names.join("").replace(/[\x80-\xbf]/g, "").length <= 2 ** 20 + 64 * length,
  );
  if (isIndexed) end();

  // The tensors.
  let from = isIndexed ? 4 : at - 2; // 4 bytes are in front of a stream, and 6 of it are held in advance
  beginContent();
  const tensors = entries.map(({ name, type, book, shape, isFast, streamBytes, crc }) => {
    const width = BYTES[type];
    const unit = type == C64 ? 4 : width;
    const number = product(shape);
    const start = from;
    let bytes;
    if (isIndexed) {
      const own = file.subarray(from, (from += streamBytes));
      const head = isFast ? 4 + little(own, 0) : own.length;
      check(checksum(own) == crc && head <= own.length);
      beginContent();
      begin(own.subarray(isFast * 4, head), 256 + 16 * own.length);
      rest = own.subarray(head);
      if (book) book.magnitudes = 0;
    }
    if (book) {
      const x = isFast ? symbols(number, book.values.length) : tied(shape, book);
      const values = new Uint8Array(BigUint64Array.from(book.values).buffer);
      bytes = zeros(number * width).map((_, i) => values[8 * x[floor(i / width)] + (i % width)]);
    } else {
      const rows = (isFast ? fastRows : kept)((number * width) / unit, unit, type);
      bytes = rows.map((_, i) => {
        const plane = i % unit;
        const k = i + unit - 1 - 2 * plane;
        const byte = EXPONENT[type] && unit > 1 ? (rows[k] >> 1) | (rows[plane < unit - 1 ? k - 1 : i] << 7) : rows[k];
        return type == BOOL ? byte & 1 : byte;
      });
    }
    if (isIndexed) {
      end();
      check(!rest.length);
    } else from = at - 2;
    return { name, type: NAMES[type], shape, bytes, start, end: from };
  });
  if (isIndexed) check(from == start);
  else end();
  return [...tensors, ...owners.map((owner, i) => ({ ...tensors[owner], name: characters(names[numEntries + i]) }))];
};
