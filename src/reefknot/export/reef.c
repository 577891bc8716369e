/* A reader of .reef files, versions 1 and 2, in one C99 file.

   It follows docs/format.md section by section, refuses exactly what that page refuses, and uses only
   the memory that it is given: its beginning for results, its end for everything else. To use it, copy
   the declarations down to the first line of dashes into your code, or include this file.

       struct reef_file file;
       if (reef_read(data, size, memory, memory_size, limit, &file) != REEF_FINE) puts(file.why);

   `memory` is aligned to 8 bytes. 256 KB plus three times the size of the tensors are enough, except for
   files with thousands of tensors or values; kept tensors take 270 KB more for each of their types. */
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum reef_status {
    REEF_FINE,
    REEF_REFUSED, /* not a valid file */
    REEF_LIMIT, /* its tensors, aliases counted, would take up more than `limit` bytes */
    REEF_MEMORY /* `memory` is too small */
};

enum reef_type {
    REEF_F32, REEF_F16, REEF_BF16, REEF_F64, REEF_F8_E4M3, REEF_F8_E5M2, REEF_F8_E8M0,
    REEF_F8_E4M3FNUZ, REEF_F8_E5M2FNUZ, REEF_C64, REEF_BOOL, REEF_U8, REEF_I8, REEF_U16, REEF_I16,
    REEF_U32, REEF_I32, REEF_U64, REEF_I64, REEF_NUM_TYPES
};

struct reef_tensor {
    const char *name; /* UTF-8, name_bytes long; may contain zeros, and is followed by one */
    size_t name_bytes;
    enum reef_type type;
    unsigned rank;
    const uint64_t *shape;
    uint8_t *data; /* elements in C order, little endian; aliases share them */
    uint64_t bytes;
};

struct reef_file {
    const char *why; /* if the file was refused: one sentence */
    size_t num_tensors; /* aliases last */
    struct reef_tensor *tensors;
};

enum reef_status reef_read(const void *data, size_t size, void *memory, size_t memory_size,
                           uint64_t limit, struct reef_file *file);

/* -------------------------------------------------------------------------------------------- */

struct context { uint16_t seen, ones; };

#define NUMBER_SLOTS 208
#define NAME_SLOTS (256 + (1 << 14))
#define PLANE_SLOTS (2048 + (1 << 16))
#define STRETCH_MAX 1775
#define MAX_UNITS (1u << 20)

enum { /* kinds of numbers, and where the contexts of each kind of flag begin */
    BOOKS, ENTRIES, ALIASES, TYPE, VALUES, EXPONENT, EXPONENTS, RANK, SIZE, BYTES, FREQUENCY, WORDS,
    RUN, SCALES, NUMBER_KINDS
};
enum {
    ZERO, SAME_CODEBOOK, NEXT_CODEBOOK, SAME_RANK, METHOD, PIVOT_IS_ZERO, BY_COLUMN, MAPS, TABLE,
    SCALED, SAME_RUN, EVERY_SCALE, KEPT = 16, TRAINABLE = KEPT + 64, SAME_TYPE = TRAINABLE + 64, GUESS = SAME_TYPE + 64,
    GRID_FLAG = GUESS + 3 * 40, FLAGS = GRID_FLAG + 40
};

struct stream { /* bits, and the models that start with them */
    const uint8_t *data;
    const char *told; /* if not NULL: known bits to learn from, instead of decoded ones */
    uint64_t bytes, at, size, code, budget, told_at;
    struct context numbers[NUMBER_KINDS][NUMBER_SLOTS], flags[FLAGS];
};

struct book { /* values are raw bits; shared are contexts of magnitudes, from tensor to tensor */
    enum reef_type type;
    uint32_t number;
    int64_t zero; /* the index of the value whose bits are all 0, or -1 */
    uint64_t *values;
    struct context *shared;
};

struct entry { /* a tensor, its codebook (NULL if it is kept), and its stream in an indexed file */
    struct reef_tensor *tensor;
    struct book *book;
    uint64_t elements, bytes, run, scales; /* the run is 0 if there are none */
    uint32_t crc, fast;
};

struct names { struct context table[NAME_SLOTS]; int64_t weights[6]; uint64_t history; };
struct planes { struct context table[PLANE_SLOTS]; int64_t weights[32]; }; /* of one type */

struct reader {
    jmp_buf out;
    const char *why;
    unsigned version;
    uint8_t *low, *high; /* memory that is free */
    uint16_t squash[2 * STRETCH_MAX + 1];
    int16_t stretch[4096];
    struct stream stream;
    struct names names;
    struct book *books;
    struct entry *entries;
    uint64_t num_books, num_entries, num_aliases, *owners; /* of aliases */
    struct reef_file *file;
    /* What is carried from tensor to tensor of a stream (7, 8). */
    int64_t weights[34];
    uint8_t *activity; /* of each unit: 1 + the number's bits, up to 7 */
    uint64_t num_units;
    struct planes *planes[REEF_NUM_TYPES + 1]; /* of each type, and of scales */
};

static const uint8_t item_bytes[] = { 4, 2, 2, 8, 1, 1, 1, 1, 1, 8, 1, 1, 1, 2, 2, 4, 4, 8, 8 };
static const uint8_t exponent_bits[] = { 8, 5, 8, 11, 4, 5, 0, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };

static void stop(struct reader *r, enum reef_status status, const char *why) {
    r->why = why; longjmp(r->out, status);
}
static void require(struct reader *r, int condition, const char *why) {
    if (!condition) stop(r, REEF_REFUSED, why);
}

/* The bytes of so many items, rounded up to 8, if there is room for them. */
static size_t room(struct reader *r, uint64_t number, size_t size) {
    uint64_t there = (uint64_t)(r->high - r->low);
    if (number > there / size || (number * size + 7) / 8 * 8 > there)
        stop(r, REEF_MEMORY, "there is not enough memory");
    return (size_t)(number * size + 7) / 8 * 8;
}
/* Zeroed memory for results, and for work, which is freed by setting `high` to what it was. */
static void *result(struct reader *r, uint64_t number, size_t size) {
    size_t bytes = room(r, number, size);
    r->low += bytes;
    return memset(r->low - bytes, 0, bytes);
}
static void *scratch(struct reader *r, uint64_t number, size_t size) {
    size_t bytes = room(r, number, size);
    return memset(r->high -= bytes, 0, bytes);
}
static unsigned bits_of(uint64_t n) { unsigned bits = 0; for (; n; n >>= 1) bits++; return bits; }
static int64_t limited(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

/* ---- 1. Files ------------------------------------------------------------------------------ */

static void make_tables(struct reader *r);
static void begin_stream(struct reader *r, const uint8_t *data, uint64_t bytes, uint64_t budget);
static void end_stream(struct reader *r);
static void begin_content(struct reader *r, const struct entry *entries, uint64_t number);
static void read_header(struct reader *r, int indexed, uint64_t file_bytes);
static void read_tight(struct reader *r, struct entry *entry);
static void read_fast(struct reader *r, struct entry *entry, const uint8_t *data, uint64_t bytes);

static uint32_t crc32_of(uint32_t crc, const uint8_t *data, uint64_t bytes) {
    int bit;
    for (crc = ~crc; bytes--; )
        for (crc ^= *data++, bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
    return ~crc;
}
static uint32_t four_bytes(const uint8_t *data) {
    return data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
}

/* Checks the size of tensors and aliases against the caller's limit, and allocates them. */
static void weigh(struct reader *r, uint64_t limit) {
    uint64_t i, total = 0;
    for (i = 0; i < r->file->num_tensors; i++) {
        struct reef_tensor *tensor = r->file->tensors + i;
        uint64_t owner = i < r->num_entries ? i : r->owners[i - r->num_entries];
        uint64_t bytes = tensor->bytes + 4 * r->entries[owner].scales;
        if (bytes > limit - total) stop(r, REEF_LIMIT, "the tensors would take up more than the limit");
        total += bytes;
    }
    for (i = 0; i < r->num_entries; i++) r->file->tensors[i].data = result(r, r->file->tensors[i].bytes, 1);
    for (i = 0; i < r->num_aliases; i++)
        r->file->tensors[r->num_entries + i].data = r->file->tensors[r->owners[i]].data;
}

static void read_solid(struct reader *r, const uint8_t *data, size_t size, uint64_t limit) {
    uint64_t i;
    require(r, size >= 8, "the file has too few bytes");
    require(r, crc32_of(0, data, size - 4) == four_bytes(data + size - 4), "the file is damaged");
    begin_stream(r, data + 4, size - 8, (1u << 21) + 16 * ((uint64_t)size - 8));
    read_header(r, 0, size); weigh(r, limit);
    begin_content(r, r->entries, r->num_entries);
    for (i = 0; i < r->num_entries; i++) read_tight(r, r->entries + i);
    end_stream(r);
}

static void read_indexed(struct reader *r, const uint8_t *data, size_t size, uint64_t limit) {
    uint64_t i, length, claimed = 0;
    const uint8_t *tail;
    require(r, size >= 12, "the file has too few bytes");
    length = four_bytes(data + size - 8);
    require(r, length <= size - 12, "the file has too few bytes");
    tail = data + size - 8 - length;
    require(r, crc32_of(crc32_of(0, data, 4), tail, length + 4) == four_bytes(data + size - 4),
            "the file is damaged");
    begin_stream(r, tail, length, UINT64_MAX); read_header(r, 1, size); end_stream(r);
    for (i = 0; i < r->num_entries; i++) {
        require(r, r->entries[i].bytes <= size - claimed, "streams are longer than the file");
        claimed += r->entries[i].bytes;
    }
    require(r, claimed == size - 12 - length, "streams do not fill the file");
    weigh(r, limit);
    for (i = 0, data += 4; i < r->num_entries; data += r->entries[i++].bytes) {
        struct entry *entry = r->entries + i;
        uint8_t *high = r->high;
        require(r, crc32_of(0, data, entry->bytes) == entry->crc, "the file is damaged");
        if (entry->fast) read_fast(r, entry, data, entry->bytes);
        else {
            begin_stream(r, data, entry->bytes, 256 + 16 * entry->bytes);
            begin_content(r, entry, 1); read_tight(r, entry); end_stream(r);
        }
        r->high = high;
        if (entry->book) entry->book->shared = NULL;
        r->planes[entry->run ? REEF_NUM_TYPES : entry->tensor->type] = NULL;
    }
}

enum reef_status reef_read(const void *data, size_t size, void *memory, size_t memory_size,
                           uint64_t limit, struct reef_file *file) {
    const uint8_t *bytes = data;
    struct reader *r = memory;
    int status;
    memset(file, 0, sizeof *file);
    file->why = "there is not enough memory";
    if (memory_size < sizeof *r + 64) return REEF_MEMORY;
    memset(r, 0, sizeof *r); r->file = file;
    r->high = (uint8_t *)memory + memory_size / 8 * 8;
    r->low = (uint8_t *)memory + (sizeof *r + 7) / 8 * 8;
    status = setjmp(r->out);
    if (status == 0) {
        require(r, size >= 4 && memcmp(bytes, "REF", 3) == 0, "this is not a .reef file");
        r->version = bytes[3] & 0x7Fu;
        require(r, r->version == 1 || r->version == 2, "the file is of another version than 1 and 2");
        make_tables(r);
        if (bytes[3] < 0x80) read_solid(r, bytes, size, limit);
        else read_indexed(r, bytes, size, limit);
        file->why = NULL;
        return REEF_FINE;
    }
    file->why = r->why; file->num_tensors = 0; file->tensors = NULL;
    return (enum reef_status)status;
}

/* ---- 2. Range decoder ---------------------------------------------------------------------- */

static uint8_t byte_at(const struct stream *d, uint64_t at) { return at < d->bytes ? d->data[at] : 0; }

static void begin_stream(struct reader *r, const uint8_t *data, uint64_t bytes, uint64_t budget) {
    struct stream *d = &r->stream;
    memset(d, 0, sizeof *d); d->data = data; d->bytes = bytes;
    d->budget = budget; d->size = (uint64_t)1 << 48;
    while (d->at < 6) d->code = d->code << 8 | byte_at(d, d->at++);
}
static void end_stream(struct reader *r) {
    struct stream *d = &r->stream;
    require(r, d->at - 6 <= d->bytes && d->bytes <= d->at, "a stream is not used up exactly");
}

static int bit(struct reader *r, uint32_t p) {
    struct stream *d = &r->stream;
    uint64_t bound = (d->size >> 16) * p;
    int one = d->code < bound;
    if (d->told) { uint64_t i = d->told_at++; return d->told[i / 8] >> (7 - i % 8) & 1; }
    if (one) d->size = bound;
    else { d->code -= bound; d->size -= bound; }
    while (d->size < (uint64_t)1 << 40) { d->code = d->code << 8 | byte_at(d, d->at++); d->size <<= 8; }
    require(r, d->at - 6 <= d->bytes, "a stream ends before its content");
    return one;
}

static void spend(struct reader *r, uint64_t number) {
    require(r, number <= r->stream.budget, "a stream claims more elements than its size allows");
    r->stream.budget -= number;
}

/* ---- 3. Tables ----------------------------------------------------------------------------- */

/* a * b, of which `high` is what is above 64 bits. */
static uint64_t product(uint64_t a, uint64_t b, uint64_t *high) {
    uint64_t a0 = a & 0xFFFFFFFF, a1 = a >> 32, b0 = b & 0xFFFFFFFF, b1 = b >> 32;
    uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (middle & 0xFFFFFFFF);
    *high = a1 * b1 + (middle >> 32) + (other >> 32);
    return other << 32 | (a0 * b0 & 0xFFFFFFFF);
}

static void make_tables(struct reader *r) {
    /* e(n) is high * 2^64 + low, f is 2^64 + factor. */
    uint64_t factor = 0, term = (uint64_t)1 << 56, high = 1, low = 0;
    int n, x;
    for (n = 2; n < 13; n++) { factor += term; term /= 256 * (uint64_t)n; }
    for (n = 0; n <= STRETCH_MAX; n++) {
        uint64_t rest_high = high, rest_low = low, more, carry, above;
        int64_t p = 0, i;
        for (i = 0; i < 16; i++) { /* (e << 16) // (e + 2^64), bit by bit */
            rest_high = rest_high << 1 | rest_low >> 63; rest_low <<= 1; p <<= 1;
            if (rest_high > high + 1 || (rest_high == high + 1 && rest_low >= low)) {
                rest_high -= high + 1 + (rest_low < low); rest_low -= low; p |= 1;
            }
        }
        r->squash[STRETCH_MAX + n] = (uint16_t)limited(p, 1, 65535);
        r->squash[STRETCH_MAX - n] = (uint16_t)limited(n ? 65536 - p : p, 1, 65535);
        product(low, factor, &carry); /* e * f >> 64 = e + high * factor + (low * factor >> 64) */
        more = product(high, factor, &above); high += above; low += more;
        high += low < more; low += carry; high += low < carry;
    }
    for (n = 0, x = 0; n < 4096; n++) {
        while (x <= 2 * STRETCH_MAX && r->squash[x] < 16 * n + 8) x++;
        r->stretch[n] = (int16_t)(x - STRETCH_MAX);
    }
}
static int stretch(const struct reader *r, uint32_t p) { return r->stretch[p >> 4]; }

/* ---- 4. Prediction ------------------------------------------------------------------------- */

static void count(struct context *context, int one) {
    if (context->seen >= 1020) { context->seen >>= 1; context->ones >>= 1; }
    context->seen++; context->ones = (uint16_t)(context->ones + one);
}
static uint32_t shrunk(const struct context *context, uint32_t prior, uint32_t base) {
    uint64_t n = context->seen + prior, reciprocal = n > 1 ? ((uint64_t)1 << 32) / n : 0xFFFFFFFF;
    uint64_t p = (((uint64_t)context->ones << 16) + (uint64_t)prior * base) * reciprocal >> 32;
    return (uint32_t)limited((int64_t)p, 8, 65528);
}
static int adaptive(struct reader *r, struct context *context, uint32_t base) {
    int one = bit(r, shrunk(context, 2, base));
    count(context, one);
    return one;
}

struct vote {
    struct context *context;
    uint32_t prior;
};

static int mixed(struct reader *r, uint32_t base, const struct vote *votes, int number,
                 int64_t *weights, int lr) {
    int64_t origin = stretch(r, base), total = weights[0] * origin, error, v[5];
    uint32_t p;
    int i, one;
    for (i = 0; i < number; i++) {
        v[i] = stretch(r, shrunk(votes[i].context, votes[i].prior, base)) - origin;
        total += weights[i + 1] * v[i];
    }
    p = r->squash[limited((total + 32768) >> 16, -STRETCH_MAX, STRETCH_MAX) + STRETCH_MAX];
    one = bit(r, p); error = (((int64_t)one << 16) - p) * lr;
    weights[0] += origin * error >> 22;
    for (i = 0; i < number; i++) { weights[i + 1] += v[i] * error >> 18; count(votes[i].context, one); }
    return one;
}

/* ---- 5. Numbers and names ------------------------------------------------------------------ */

static int flag(struct reader *r, int kind, unsigned context, uint32_t base) {
    return adaptive(r, r->stream.flags + kind + context, base);
}

static uint64_t number(struct reader *r, int kind) {
    struct context *table = r->stream.numbers[kind];
    unsigned length = 0, i, one;
    uint64_t n = 1;
    while (length < 47 && adaptive(r, table + length, 32768)) length++;
    for (i = 0; i < length; i++) {
        if (i < 2) one = (unsigned)adaptive(r, table + 64 + 3 * length + (i ? 1 + (n & 1) : 0), 32768);
        else one = (unsigned)bit(r, 32768);
        n = 2 * n + one;
    }
    return n - 1;
}

/* A number from 0 to `last`. */
static uint64_t uniform(struct reader *r, uint64_t last) {
    uint64_t offset = 0, size, high;
    if (last >= (uint64_t)1 << 40) {
        high = uniform(r, last >> 32);
        return high << 32 | uniform(r, high == last >> 32 ? last & 0xFFFFFFFF : 0xFFFFFFFF);
    }
    for (size = last + 1; size > 1;) {
        uint64_t half = (uint64_t)1 << (bits_of(size - 1) - 1);
        if (bit(r, (uint32_t)limited((int64_t)(((size - half) << 16) / size), 1, 65535))) {
            offset += half; size -= half;
        } else { size = half; }
    }
    return offset;
}

static void ascending(struct reader *r, uint64_t *to, uint64_t n, uint64_t low, uint64_t high) {
    uint64_t middle = n / 2;
    if (n == 0) return;
    require(r, high - low >= n - 1, "a codebook has more values than fit between its bounds");
    to[middle] = low + middle + uniform(r, high - low - (n - 1));
    ascending(r, to, middle, low, to[middle] - 1);
    ascending(r, to + middle + 1, n - middle - 1, to[middle] + 1, high);
}

static const char prime[] =
    "weight\0bias\0features.0.weight\0features.0.bias\0classifier.1.weight\0classifier.1.bias\0"
    "model.layers.0.self_attn.q_proj.weight\0model.layers.0.mlp.up_proj.weight\0"
    "layer1.0.conv1.weight\0layer1.0.bn1.weight\0layer1.0.bn1.bias\0layer1.0.bn1.running_mean\0"
    "layer1.0.bn1.running_var\0layer1.0.bn1.num_batches_tracked\0"
    "0.weight\0" "0.bias\0" "2.weight\0" "2.bias\0" "4.weight\0" "4.bias\0"
    "conv1.weight\0conv1.bias\0conv2.weight\0conv2.bias\0conv3.weight\0conv3.bias\0"
    "fc1.weight\0fc1.bias\0fc2.weight\0fc2.bias\0fc3.weight\0fc3.bias\0fc.weight\0fc.bias\0"
    "conv1.weight\0conv1.bias\0conv2.weight\0conv2.bias\0fc1.weight\0fc1.bias\0fc2.weight\0fc2.bias";

static uint8_t name_byte(struct reader *r) {
    static const uint32_t priors[] = { 2, 1, 1, 1, 1 };
    struct names *m = &r->names;
    uint64_t h = m->history, orders[5];
    uint32_t node = 1;
    int i, one;
    orders[0] = (h & 0xFF) * 8 + 1; orders[1] = (h & 0xFFFF) * 8 + 2;
    orders[2] = (h & 0xFFFFFF) * 8 + 3; orders[3] = (h & 0xFFFFFFFF) % 0xFFFFFB * 8 + 4;
    orders[4] = h % 0xFFFFFB * 8 + 5;
    while (node < 256) {
        struct vote votes[5];
        for (i = 0; i < 5; i++) {
            uint32_t key = (uint32_t)(orders[i] * 1000003 + node) * 0x2545F491u;
            votes[i].context = m->table + 256 + (key >> 18); votes[i].prior = priors[i];
        }
        one = mixed(r, shrunk(m->table + node, 2, 32768), votes, 5, m->weights, 24);
        count(m->table + node, one); node = 2 * node + (uint32_t)one;
    }
    m->history = (h << 8 | (node & 0xFF)) & 0xFFFFFFFFFF;
    return (uint8_t)node;
}

static void begin_names(struct reader *r) {
    static const int64_t weights[] = { 65536, 20000, 20000, 20000, 20000, 20000 };
    memcpy(r->names.weights, weights, sizeof weights); r->stream.told = prime;
    while (r->stream.told_at < 8 * sizeof prime) /* the last 0 ends the string, and the last name */
        name_byte(r);
    r->stream.told = NULL;
}

/* The number of characters; refuses what is not UTF-8, except for lone surrogates. */
static uint64_t characters(struct reader *r, const uint8_t *s, size_t size) {
    static const uint32_t least[] = { 0, 0x80, 0x800, 0x10000 };
    uint64_t number = 0;
    size_t i = 0;
    while (i < size) {
        unsigned c = s[i++], more = c < 0x80 ? 0 : c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3, k;
        uint32_t code = c < 0x80 ? c : c & (0x3F >> more);
        require(r, c < 0x80 || (c >= 0xC0 && c < 0xF8), "a name is not UTF-8");
        for (k = 0; k < more; k++) {
            require(r, i < size && (s[i] & 0xC0) == 0x80, "a name is not UTF-8");
            code = code << 6 | (s[i++] & 0x3F);
        }
        require(r, code >= least[more] && code <= 0x10FFFF, "a name is not UTF-8");
        number++;
    }
    return number;
}

static uint64_t read_name(struct reader *r, struct reef_tensor *tensor) {
    uint8_t *name = r->low, *end = name, byte;
    size_t taken = 0;
    while ((byte = name_byte(r)) != 0) {
        require(r, ++taken <= 65536, "a name is too long");
        if (end + 2 > r->high) stop(r, REEF_MEMORY, "there is not enough memory");
        if (byte == 0x80 && end > name && end[-1] == 0xC0)
            end[-1] = 0; /* C0 80 is a zero inside */
        else *end++ = byte;
    }
    tensor->name = (char *)name; tensor->name_bytes = (size_t)(end - name);
    if (r->high - end < 8) stop(r, REEF_MEMORY, "there is not enough memory");
    *end = 0;
    r->low += (tensor->name_bytes + 8) / 8 * 8;
    return characters(r, name, tensor->name_bytes);
}

/* ---- 6. Header ----------------------------------------------------------------------------- */

/* Strings, each with an index + 1, which is 0 where there is none yet. */
struct strings {
    struct { const char *start; size_t size; uint32_t index; } *slots;
    uint64_t mask;
};

static void make_strings(struct reader *r, struct strings *strings, uint64_t number) {
    strings->mask = ((uint64_t)1 << bits_of(2 * number + 1)) - 1;
    strings->slots = scratch(r, strings->mask + 1, sizeof *strings->slots);
}

static uint32_t *index_of(struct strings *strings, const char *start, size_t size) {
    uint64_t slot = 0xCBF29CE484222325u, i;
    for (i = 0; i < size; i++) slot = (slot ^ (uint8_t)start[i]) * 0x100000001B3u;
    for (slot ^= slot >> 29;; slot++) {
        slot &= strings->mask;
        if (!strings->slots[slot].index) break;
        if (strings->slots[slot].size == size && !memcmp(strings->slots[slot].start, start, size)) break;
    }
    strings->slots[slot].start = start; strings->slots[slot].size = size;
    return &strings->slots[slot].index;
}

static void read_book(struct reader *r, struct book *book, uint64_t most_values) {
    uint64_t kind = number(r, TYPE), n, below, i, low = 0, high, sign, flip;
    unsigned width, e, fraction, shift = 0, has_zero;
    require(r, kind < REEF_NUM_TYPES, "a codebook is of an unknown type");
    book->type = (enum reef_type)kind; width = 8u * item_bytes[kind];
    e = exponent_bits[kind]; n = number(r, VALUES);
    require(r, n <= 65536 && n <= most_values, "there are too many values in codebooks");
    book->number = (uint32_t)n; book->values = scratch(r, n, sizeof *book->values);
    has_zero = n ? (unsigned)flag(r, ZERO, 0, 60000) : 0;
    below = uniform(r, n - has_zero);
    require(r, e || !below, "a codebook without signs has a negative part");
    sign = (uint64_t)1 << (width - 1); high = sign - 1 + sign;
    if (e) {
        uint64_t folded = number(r, EXPONENT);
        int64_t most = ((int64_t)1 << (e - 1)) - 2, least;
        most -= folded & 1 ? -(int64_t)((folded + 1) >> 1) : (int64_t)(folded >> 1);
        least = most - (int64_t)number(r, EXPONENTS);
        require(r, least >= 0 && most < (int64_t)1 << e, "a codebook has impossible exponents");
        fraction = width - 1 - e; shift = fraction - (unsigned)uniform(r, fraction);
        low = ((uint64_t)least << fraction) >> shift;
        high = (((uint64_t)(most + 1) << fraction) - 1) >> shift;
    }
    flip = kind == REEF_I8 || kind == REEF_I16 || kind == REEF_I32 || kind == REEF_I64 ? sign : 0;
    ascending(r, book->values, below, low, high);
    for (i = 0; i < below / 2; i++) { /* the largest magnitude is the lowest value */
        uint64_t other = book->values[below - 1 - i];
        book->values[below - 1 - i] = book->values[i]; book->values[i] = other;
    }
    for (i = 0; i < below; i++) book->values[i] = book->values[i] << shift | sign;
    if (has_zero) book->values[below] = flip;
    below += has_zero; ascending(r, book->values + below, n - below, low, high);
    require(r, !has_zero || below == n || book->values[below], "a codebook has a value twice");
    for (i = below; i < n; i++) book->values[i] = book->values[i] << shift ^ flip;
    for (i = 0, book->zero = -1; i < n; i++) {
        uint64_t v = book->values[i];
        int fnuz = kind == REEF_F8_E4M3FNUZ || kind == REEF_F8_E5M2FNUZ;
        require(r, kind != REEF_BOOL || v < 2, "a boolean is above 1");
        require(r, kind != REEF_C64 || !v || v & 0x7FFFFFFF7FFFFFFFu, "a codebook has -0.0");
        require(r, !e || fnuz || v != sign, "a codebook has -0.0");
        if (!v) book->zero = (int64_t)i;
    }
}

static void read_shape(struct reader *r, struct reef_tensor *tensor, const struct entry *like,
                       int64_t outputs) {
    uint64_t rank, elements = 1, *shape, i;
    rank = like && flag(r, SAME_RANK, 0, 55000) ? like->tensor->rank : number(r, RANK);
    require(r, rank <= 64, "a tensor has too many dimensions");
    tensor->rank = (unsigned)rank; tensor->shape = shape = result(r, rank, sizeof *shape);
    for (i = 0; i < rank; i++) {
        unsigned context = 8 * (unsigned)limited((int64_t)rank, 0, 4) + (i < 3 ? (unsigned)i : 3);
        int64_t guesses[] = { outputs, like && i < like->tensor->rank ? (int64_t)like->tensor->shape[i] : -1,
                              i ? (int64_t)shape[i - 1] : -1 };
        int g, found = 0;
        for (g = 0; g < 3 && !found; g++) {
            int known = guesses[g] == -1 || (g > 0 && guesses[g] == guesses[0])
                || (g > 1 && guesses[g] == guesses[1]);
            if (!known && flag(r, GUESS + 40 * g, context, 32768)) {
                shape[i] = (uint64_t)guesses[g]; found = 1;
            }
        }
        if (!found) shape[i] = number(r, SIZE);
        require(r, !shape[i] || elements <= ((uint64_t)1 << 46) / shape[i], "a shape is beyond any limit");
        elements *= shape[i] ? shape[i] : 1;
    }
}

static void read_entry(struct reader *r, struct entry *entry, const struct entry *like,
                       unsigned kind, int64_t outputs, int64_t *last, uint64_t *last_run) {
    static const enum reef_type scaled_types[] = { REEF_F32, REEF_F16, REEF_BF16 };
    struct reef_tensor *tensor = entry->tensor;
    uint64_t every;
    int scaled = 0;
    unsigned i;
    if (flag(r, KEPT, kind, 8000)) {
        flag(r, TRAINABLE, kind, 32768);
        if (like && !like->book && flag(r, SAME_TYPE, kind, 50000)) tensor->type = like->tensor->type;
        else tensor->type = (enum reef_type)uniform(r, REEF_NUM_TYPES - 1);
    } else {
        require(r, r->num_books > 0, "a tied tensor is in a file without codebooks");
        if (!flag(r, SAME_CODEBOOK, 0, 50000))
            *last = flag(r, NEXT_CODEBOOK, 0, 50000) ? *last + 1 : (int64_t)uniform(r, r->num_books - 1);
        require(r, *last >= 0 && (uint64_t)*last < r->num_books, "a codebook is not there");
        entry->book = r->books + *last; tensor->type = entry->book->type;
        if (r->version > 1 && (tensor->type == REEF_I8 || tensor->type == REEF_I16))
            scaled = flag(r, SCALED, 0, 60000);
        if (scaled) tensor->type = scaled_types[uniform(r, 2)];
    }
    read_shape(r, tensor, like, outputs);
    for (i = 0, entry->elements = 1; i < tensor->rank; i++) entry->elements *= tensor->shape[i];
    tensor->bytes = entry->elements * item_bytes[tensor->type];
    if (!scaled) return;
    if (!*last_run || !flag(r, SAME_RUN, 0, 32768)) *last_run = 1 + number(r, RUN);
    entry->run = *last_run; every = entry->elements / entry->run + (entry->elements % entry->run > 0);
    entry->scales = every;
    if (flag(r, EVERY_SCALE, 0, 60000)) return;
    entry->scales = number(r, SCALES);
    require(r, entry->scales && entry->scales < every, "scales do not fit");
}
static void read_place(struct reader *r, struct entry *entry) {
    entry->fast = (uint32_t)flag(r, METHOD, 0, 32768); entry->bytes = number(r, BYTES);
    entry->crc = (uint32_t)uniform(r, 0xFFFFFFFF);
}

static void read_header(struct reader *r, int indexed, uint64_t file_bytes) {
    uint64_t i, num_values = 0, num_characters = 0, parts, last_run = 0;
    int64_t outputs = -1, last = -1;
    struct strings endings, names;
    unsigned kind;
    uint8_t *high;
    r->num_books = number(r, BOOKS); r->num_entries = number(r, ENTRIES);
    r->num_aliases = number(r, ALIASES);
    parts = r->num_books + r->num_entries + r->num_aliases;
    require(r, parts <= 64 + 2 * file_bytes, "there are too many codebooks, tensors and aliases");
    r->books = scratch(r, r->num_books, sizeof *r->books);
    for (i = 0; i < r->num_books; i++) {
        read_book(r, r->books + i, 65536 + 8 * file_bytes - num_values);
        num_values += r->books[i].number;
    }
    r->file->num_tensors = (size_t)(r->num_entries + r->num_aliases);
    r->file->tensors = result(r, r->file->num_tensors, sizeof *r->file->tensors);
    r->entries = scratch(r, r->num_entries, sizeof *r->entries);
    r->owners = scratch(r, r->num_aliases, sizeof *r->owners); high = r->high;
    make_strings(r, &endings, r->num_entries);
    make_strings(r, &names, r->file->num_tensors); begin_names(r);
    for (i = 0; i < r->file->num_tensors; i++) {
        struct reef_tensor *tensor = r->file->tensors + i;
        uint32_t *index;
        num_characters += read_name(r, tensor);
        require(r, num_characters <= (1u << 20) + 64 * file_bytes, "names are too long");
        index = index_of(&names, tensor->name, tensor->name_bytes);
        require(r, !*index, "two tensors have one name");
        *index = 1;
        if (i < r->num_entries) {
            size_t ending = tensor->name_bytes; /* after the last dot */
            while (ending && tensor->name[ending - 1] != '.') ending--;
            index = index_of(&endings, tensor->name + ending, tensor->name_bytes - ending);
            for (kind = 0; ending < tensor->name_bytes; ending++)
                kind = (kind + (uint8_t)tensor->name[ending]) % 64;
            r->entries[i].tensor = tensor;
            read_entry(r, r->entries + i, *index ? r->entries + *index - 1 : NULL, kind, outputs,
                       &last, &last_run);
            if (indexed) read_place(r, r->entries + i);
            *index = (uint32_t)(i + 1);
            if (tensor->rank > 1) outputs = (int64_t)tensor->shape[0];
        } else { /* the same as its owner, except for the name */
            struct reef_tensor named = *tensor;
            require(r, r->num_entries > 0, "an alias is in a file without tensors");
            r->owners[i - r->num_entries] = uniform(r, r->num_entries - 1);
            *tensor = r->file->tensors[r->owners[i - r->num_entries]];
            tensor->name = named.name; tensor->name_bytes = named.name_bytes;
        }
    }
    r->high = high;
}

/* ---- 7. Tied tensors ----------------------------------------------------------------------- */

enum { /* where contexts of a tensor begin */
    SIGN_BASE = 0, ROW_FLAG = 1, COLUMN_FLAG = 8, GRID = 64, NEAR = 96, SIGNED = 132,
    MAGNITUDE = 192, NEAR_MAGNITUDE = 320, ROW_MAGNITUDE = 1088, PAIR_MAGNITUDE = 2112,
    LEVEL_PAIR = 3136, PLACE = 3392, LINES = 4416
};

struct matrix {
    uint64_t rows, columns, group; /* columns of each unit */
    int64_t pivot, size, width, plane; /* width and plane of the grid, 0 for none */
    uint16_t *x;
    uint8_t *live_row, *live_column;
    struct context *table, *deep, line, all;
    uint64_t *total; /* of the distances in each row, and their number */
    uint32_t *number, base;
};

static uint64_t units_of(const struct reef_tensor *tensor) {
    return tensor->rank > 1 && tensor->shape[0] <= MAX_UNITS ? tensor->shape[0] : 0;
}

static void begin_content(struct reader *r, const struct entry *entries, uint64_t number) {
    static const uint8_t first[] = { 100, 45, 33, 45, 100, 46, 50, 45, 45, 40, 100, 46, 50, 45, 45,
                                     40, 100, 46, 50, 45, 45, 40, 90, 40, 40, 55, 90, 40, 40, 55,
                                     90, 40, 40, 55 };
    uint64_t i, most = 0;
    for (i = 0; i < sizeof first; i++) r->weights[i] = first[i] * 65536 / 100;
    for (i = 0; i < number; i++)
        if (units_of(entries[i].tensor) > most) most = units_of(entries[i].tensor);
    r->activity = scratch(r, most, 1); r->num_units = 0;
}

static int64_t at(const struct matrix *m, uint64_t row, int64_t column) {
    return column < 0 ? m->pivot : m->x[row * m->columns + (uint64_t)column];
}
static unsigned active(const struct reader *r, const struct matrix *m, uint64_t column) {
    return m->group ? r->activity[column / m->group] : 0;
}

static void read_grid(struct reader *r, struct matrix *m, const struct reef_tensor *tensor) {
    unsigned rank = tensor->rank, grid = 0;
    uint64_t channels, width = 0;
    while (grid < 4 && flag(r, GRID_FLAG, grid + 8 * (rank < 4 ? rank : 4), 32768)) grid++;
    if (grid == 1) {
        require(r, rank > 3, "a kernel has fewer than four dimensions");
        m->width = (int64_t)tensor->shape[rank - 1];
        m->plane = m->width * (int64_t)tensor->shape[rank - 2];
    }
    if (grid < 2) return;
    channels = grid == 2 ? 1 : grid == 3 ? 3 : m->group ? r->num_units : 0;
    require(r, channels && !(grid == 4 && channels == m->columns), "a grid has no units");
    while ((width + 1) * (width + 1) <= m->columns / channels) width++;
    require(r, width > 1 && width * width * channels == m->columns, "a grid does not fit");
    m->width = (int64_t)width; m->plane = channels == 1 ? 0 : (int64_t)(width * width);
}

static void read_maps(struct reader *r, struct matrix *m) {
    struct context *table = m->table;
    uint8_t *live = m->live_column;
    uint64_t i, w = (uint64_t)m->width, q = (uint64_t)m->plane;
    for (i = 0; i < m->rows; i++) {
        struct context *own = table + ROW_FLAG + 1 + (i ? m->live_row[i - 1] : 0);
        int one = bit(r, shrunk(own, 8, shrunk(table + ROW_FLAG, 2, 20000)));
        count(table + ROW_FLAG, one); count(own, one); m->live_row[i] = (uint8_t)one;
    }
    for (i = 0; i < m->columns; i++) {
        unsigned left = i ? live[i - 1] : 0, up = w && i >= w ? live[i - w] : 0;
        unsigned corners = w > 1 && i >= w ? live[i - w + 1] + (i > w ? live[i - w - 1] : 0u)
                         : w && i > w ? live[i - w - 1] : 0;
        unsigned behind = q && i >= q ? live[i - q] : 0, units = active(r, m, i);
        unsigned known = units < 2 ? units : 2, around = left + up + corners;
        struct vote votes[] = { { table + COLUMN_FLAG + 3 + 4 * known + 2 * left + up, 4 },
                                { table + COLUMN_FLAG + 15 + around + 5 * known + 15 * behind, 4 },
                                { table + COLUMN_FLAG + 45 + units, 4 } };
        int one = mixed(r, shrunk(table + COLUMN_FLAG + known, 2, 32768), votes, 3, r->weights, 24);
        count(table + COLUMN_FLAG + known, one); live[i] = (uint8_t)one;
    }
}

static unsigned level(const struct reader *r, const struct matrix *m, const struct context *context,
                      uint32_t prior) {
    int level = (stretch(r, shrunk(context, prior, m->base)) + 1792) >> 7;
    return level > 15 ? 15 : (unsigned)level;
}

/* Sums over the neighbours, from which a value is predicted. */
struct pulls { int64_t pair, pull, ring; };

static int read_above(struct reader *r, struct matrix *m, const struct pulls *p) {
    int64_t strength = limited(bits_of((uint64_t)(p->pull < 0 ? -p->pull : p->pull)), 0, 7);
    struct context *own = m->table + SIGNED + 22 + 3 * (p->pull >= 0 ? strength : -strength)
        + (p->ring > 0) - (p->ring < 0);
    int above = bit(r, shrunk(own, 4, shrunk(m->table + SIGN_BASE, 4, 32768)));
    count(own, above); count(m->table + SIGN_BASE, above);
    return above;
}

static int64_t read_distance(struct reader *r, struct matrix *m, uint64_t row, int upper, struct pulls p) {
    int64_t choices = upper ? m->size - 1 - m->pivot : m->pivot, done = 0, sign = upper ? 1 : -1;
    uint64_t slot = row & (MAX_UNITS - 1), node = 1;
    unsigned near = 0, close, usual = 0, bits = bits_of((uint64_t)choices - 1), j;
    p.pair *= sign; p.pull *= sign; p.ring *= sign; p.pull += p.ring >> 1;
    if (p.pull > 0) near = (unsigned)limited(1 + (int64_t)bits_of((uint64_t)p.pull >> 1), 0, 5);
    close = p.pair > 0 ? (unsigned)limited(bits_of((uint64_t)p.pair), 0, 5)
        : p.pair == 0 ? 0 : p.pair < -3 ? 7 : 6;
    if (m->number[slot])
        usual = 1 + (unsigned)limited(
            (int64_t)(m->total[slot] * 8 / ((uint64_t)m->number[slot] * (uint64_t)choices)), 0, 6);
    for (j = bits; j-- > 0;) {
        int one;
        if (done + ((int64_t)1 << j) >= choices) { node *= 2; continue; } /* it must be 0 */
        if (node >= 64) {
            one = adaptive(r, m->deep + ((uint64_t)upper << bits) + node, 32768);
        } else {
            uint64_t own = 64 * (uint64_t)upper + node;
            struct context *base = m->table + MAGNITUDE + own;
            struct vote votes[] = { { m->table + NEAR_MAGNITUDE + 128 * near + own, 8 },
                                    { m->table + ROW_MAGNITUDE + 128 * usual + own, 8 },
                                    { m->table + PAIR_MAGNITUDE + 128 * close + own, 16 } };
            one = mixed(r, shrunk(base, 2, 32768), votes, 3,
                        r->weights + 22 + 4 * (node < 3 ? node - 1 : 2), 20);
            count(base, one);
        }
        done += (int64_t)one << j; node = 2 * node + (uint64_t)one;
    }
    m->total[slot] += (uint64_t)done; m->number[slot]++;
    return done;
}

static void read_cell(struct reader *r, struct matrix *m, uint64_t row, uint64_t column,
                      struct context *cross) {
    int64_t c = (int64_t)column, w = m->width, q = m->plane, pivot = m->pivot, k;
    int64_t left = at(m, row, c - 1), above = row ? at(m, row - 1, c) : pivot;
    int64_t up = w ? at(m, row, c - w) : pivot, up_left = w ? at(m, row, c - w - 1) : pivot;
    int64_t up_right = w > 1 && c >= w ? at(m, row, c - w + 1) : pivot;
    int64_t behind = q ? at(m, row, c - q) : pivot;
    unsigned near = (left != pivot) | (unsigned)(up != pivot) << 1 | (unsigned)(up_right != pivot) << 2
        | (unsigned)(up_left != pivot) << 3 | (unsigned)(behind != pivot) << 4;
    unsigned four = (left != pivot) + (up != pivot) + (up_right != pivot) + (up_left != pivot);
    unsigned units = active(r, m, column);
    unsigned levels = 16 * level(r, m, cross, 24) + level(r, m, &m->line, 6);
    struct context *last = q ? m->table + PLACE + 16 * limited(c % q, 0, 63) + units
                             : m->table + NEAR + (left != pivot) + 2 * (above != pivot) + 4 * units;
    struct vote votes[] = { { &m->line, 6 }, { cross, 24 }, { m->table + GRID + near, 4 },
                            { m->table + LEVEL_PAIR + levels, 16 }, { last, 6 } };
    struct pulls p;
    int one, upper;
    one = mixed(r, m->base, votes, 5, r->weights + 4 + 6 * (four < 2 ? four : 2), 14);
    count(&m->all, one);
    if (!one) return;
    spend(r, 1); p.pair = left + up - 2 * pivot;
    p.pull = 2 * p.pair + up_right + up_left + behind - 3 * pivot;
    p.ring = at(m, row, c - 2) - pivot;
    if (w > 2) {
        p.ring += at(m, row, c - w - 2) - pivot;
        p.ring += (c >= w ? at(m, row, c - w + 2) : pivot) - pivot;
        for (k = -2; k <= 2; k++) p.ring += at(m, row, c - 2 * w + k) - pivot;
    }
    upper = pivot == 0;
    if (0 < pivot && pivot < m->size - 1) upper = read_above(r, m, &p);
    k = read_distance(r, m, row, upper, p);
    m->x[row * m->columns + column] = (uint16_t)(upper ? pivot + 1 + k : pivot - 1 - k);
}

static void read_lines(struct reader *r, struct matrix *m, int by_column) {
    uint64_t a, b, lines = by_column ? m->columns : m->rows, length = by_column ? m->rows : m->columns;
    for (a = 0; a < lines; a++) {
        m->line.seen = m->line.ones = 0; m->base = shrunk(&m->all, 4, 6554);
        for (b = 0; b < length; b++) {
            uint64_t row = by_column ? b : a, column = by_column ? a : b;
            if (m->live_row[row] && m->live_column[column])
                read_cell(r, m, row, column, m->table + LINES + (b & (MAX_UNITS - 1)));
        }
    }
}

static uint64_t scaled(uint32_t scale, int64_t integer, enum reef_type type);

/* Elements from indices (NULL: all 0) and scales, if there are any, of four bytes each. */
static void put_elements(struct reader *r, struct entry *entry, const uint16_t *indices,
                         const uint8_t *scales) {
    unsigned size = item_bytes[entry->tensor->type], k;
    uint8_t *to = entry->tensor->data;
    uint64_t i, value;
    for (i = 0; i < 4 * entry->scales; i += 4)
        require(r, (four_bytes(scales + i) >> 23 & 0xFF) < 0xFF, "a scale is not finite");
    for (i = 0; i < entry->elements; i++) {
        value = entry->book->values[indices ? indices[i] : 0];
        if (entry->run) {
            int64_t sign = entry->book->type == REEF_I8 ? 0x80 : 0x8000;
            value = scaled(four_bytes(scales + 4 * (i / entry->run % entry->scales)),
                           ((int64_t)value ^ sign) - sign, entry->tensor->type);
        }
        for (k = 0; k < size; k++, value >>= 8) *to++ = (uint8_t)value;
    }
}

static void read_matrix(struct reader *r, struct entry *entry, struct matrix *m) {
    const struct reef_tensor *tensor = entry->tensor;
    struct book *book = entry->book;
    uint64_t i, k, lines;
    int by_column = 0, maps = 0;
    m->pivot = book->zero;
    if (m->pivot < 0 || !flag(r, PIVOT_IS_ZERO, 0, 60000)) m->pivot = (int64_t)uniform(r, book->number - 1);
    m->group = r->num_units && m->columns % r->num_units == 0 ? m->columns / r->num_units : 0;
    if (m->rows > 1 && m->columns > 1) {
        by_column = flag(r, BY_COLUMN, 0, 32768); maps = flag(r, MAPS, 0, 60000);
    }
    read_grid(r, m, tensor); lines = by_column ? m->rows : m->columns;
    m->x = scratch(r, entry->elements, sizeof *m->x);
    m->live_row = scratch(r, m->rows, 1); m->live_column = scratch(r, m->columns, 1);
    m->table = scratch(r, LINES + (lines < MAX_UNITS ? lines : MAX_UNITS), sizeof *m->table);
    if (m->size > 64) m->deep = scratch(r, (uint64_t)2 << bits_of((uint64_t)m->size), sizeof *m->deep);
    m->total = scratch(r, m->rows < MAX_UNITS ? m->rows : MAX_UNITS, sizeof *m->total);
    m->number = scratch(r, m->rows < MAX_UNITS ? m->rows : MAX_UNITS, sizeof *m->number);
    memset(m->live_row, 1, (size_t)m->rows);
    memset(m->live_column, 1, (size_t)m->columns);
    for (i = 0; i < entry->elements; i++) m->x[i] = (uint16_t)m->pivot;
    if (maps) read_maps(r, m);
    for (i = 0; i < 128; i++) {
        struct context own = book->shared[i];
        while (own.seen >= 32) { own.seen >>= 1; own.ones >>= 1; }
        m->table[MAGNITUDE + i] = own;
    }
    read_lines(r, m, by_column);
    memcpy(book->shared, m->table + MAGNITUDE, 128 * sizeof *book->shared);
    if (tensor->rank > 1)
        for (i = 0, r->num_units = units_of(tensor); i < r->num_units; i++) {
            uint64_t number = 0;
            for (k = 0; k < m->columns; k++) number += m->x[i * m->columns + k] != m->pivot;
            r->activity[i] = (uint8_t)(1 + limited(bits_of(number), 0, 7));
        }
}

static void *planes_of(struct reader *r, unsigned kind);
static void read_rows(struct reader *r, uint8_t *row, uint64_t bytes, unsigned kind);

static void read_tied(struct reader *r, struct entry *entry) {
    const struct reef_tensor *tensor = entry->tensor;
    struct book *book = entry->book;
    struct matrix m;
    uint8_t *high, *scales = NULL;
    require(r, book->number || !entry->elements, "elements have an empty codebook");
    if (!entry->elements) return;
    if (book->number > 1 && !book->shared) book->shared = scratch(r, 128, sizeof *book->shared);
    if (entry->run) planes_of(r, REEF_NUM_TYPES);
    high = r->high; memset(&m, 0, sizeof m);
    m.rows = tensor->rank > 1 ? tensor->shape[0] : 1;
    m.columns = entry->elements / m.rows;
    m.size = book->number;
    if (m.size > 1) read_matrix(r, entry, &m);
    if (entry->run) {
        scales = scratch(r, entry->scales, 4);
        read_rows(r, scales, 4 * entry->scales, REEF_NUM_TYPES);
    }
    put_elements(r, entry, m.x, scales);
    r->high = high;
}

/* ---- 8. Kept tensors ----------------------------------------------------------------------- */

/* Rows are of a type, or scales. */
static unsigned unit_bytes(unsigned kind) {
    return kind == REEF_C64 || kind == REEF_NUM_TYPES ? 4 : item_bytes[kind];
}

/* Rows of bytes are in place, the highest byte last; undoes the rotation of floats. */
static void finish_rows(uint8_t *row, uint64_t bytes, unsigned kind) {
    unsigned unit = unit_bytes(kind), k;
    uint8_t *end = row + bytes;
    for (; row < end; row += unit) {
        unsigned lowest = row[0] & 1u;
        if (kind == REEF_BOOL) row[0] = (uint8_t)lowest;
        if ((kind < REEF_NUM_TYPES && !exponent_bits[kind]) || unit == 1) continue;
        for (k = 0; k < unit; k++)
            row[k] = (uint8_t)(row[k] >> 1 | (k + 1 < unit ? row[k + 1] & 1u : lowest) << 7);
    }
}
static struct context *hashed(struct planes *m, unsigned first, uint32_t own, uint8_t byte) {
    return m->table + first + ((own * 256 + byte) * 0x2545F491u >> 17);
}

static void *planes_of(struct reader *r, unsigned kind) {
    struct planes *m = r->planes[kind];
    unsigned i;
    if (m) return m;
    m = r->planes[kind] = scratch(r, 1, sizeof *m);
    for (i = 0; i < 32; i++) m->weights[i] = i % 4 == 0 ? 65536 : i % 4 == 3 ? 0 : 26000;
    return m;
}

static void read_rows(struct reader *r, uint8_t *row, uint64_t bytes, unsigned kind) {
    unsigned unit = unit_bytes(kind), i;
    uint64_t number = bytes / unit, predicted, n;
    struct planes *m;
    uint8_t *start = row;
    if (!number) return;
    m = planes_of(r, kind); predicted = uniform(r, unit);
    require(r, !predicted || number <= UINT64_MAX / predicted, "a tensor is too large");
    spend(r, predicted * number);
    for (n = 0; n < number; n++, row += unit)
        for (i = 0; i < unit; i++) {
            uint8_t *byte = row + unit - 1 - i, before = n ? *(byte - unit) : 0;
            uint32_t node = 1;
            while (node < 256) {
                uint32_t own = i * 256 + node;
                struct vote votes[] = { { hashed(m, 2048, own, before), 4 },
                                        { hashed(m, 2048 + 32768, own, i ? byte[1] : 0), 4 } };
                int one;
                if (i >= predicted) { node = 2 * node + (uint32_t)bit(r, 32768); continue; }
                one = mixed(r, shrunk(m->table + own, 2, 32768), votes, 2, m->weights + 4 * i, 8);
                count(m->table + own, one); node = 2 * node + (uint32_t)one;
            }
            *byte = (uint8_t)node;
        }
    finish_rows(start, bytes, kind);
}

static void read_tight(struct reader *r, struct entry *entry) {
    if (entry->book) read_tied(r, entry);
    else read_rows(r, entry->tensor->data, entry->tensor->bytes, entry->tensor->type);
}

/* ---- 9. Fast streams ----------------------------------------------------------------------- */

/* Reads symbols into memory that the caller frees; returns the bytes they took. */
static uint64_t read_symbols(struct reader *r, const uint8_t *data, uint64_t bytes, uint64_t symbols,
                             uint32_t size, uint16_t *to) {
    unsigned precision = size <= 256 ? 12 : 16, lane, k;
    uint64_t total = 0, words, at = 20, i, state[4];
    uint8_t *high = r->high;
    uint32_t *frequency = scratch(r, size, sizeof *frequency), s, slot;
    uint32_t *start = scratch(r, size, sizeof *start);
    uint16_t *owner = scratch(r, (uint64_t)1 << precision, sizeof *owner);
    for (s = 0; s < size; s++) {
        uint64_t share = number(r, FREQUENCY);
        require(r, share <= ((uint64_t)1 << precision) - total, "frequencies do not fit");
        start[s] = (uint32_t)total; frequency[s] = (uint32_t)share;
        for (total += share, slot = start[s]; slot < total; slot++) owner[slot] = (uint16_t)s;
    }
    require(r, total == (uint64_t)1 << precision, "frequencies do not fit");
    words = number(r, WORDS);
    require(r, bytes >= 20 && words <= (bytes - 20) / 2, "symbols end early");
    for (lane = 0; lane < 4; lane++)
        for (state[lane] = 0, k = 5; k-- > 0;) state[lane] = state[lane] << 8 | data[5 * lane + k];
    for (i = 0; i < symbols; i++) {
        lane = i % 4; slot = (uint32_t)(state[lane] & ((1u << precision) - 1));
        s = to[i] = owner[slot];
        state[lane] = frequency[s] * (state[lane] >> precision) + slot - start[s];
        if (state[lane] < 1u << 24) {
            require(r, at + 2 <= 20 + 2 * words, "symbols end early");
            state[lane] = state[lane] << 16 | data[at] | (uint64_t)data[at + 1] << 8;
            at += 2;
        }
    }
    for (lane = 0; lane < 4; lane++) require(r, state[lane] == 1u << 24, "symbols do not end as they should");
    require(r, at == 20 + 2 * words, "symbols do not end as they should");
    r->high = high;
    return at;
}

/* Reads rows; returns the bytes they took. */
static uint64_t read_fast_rows(struct reader *r, const uint8_t *data, uint64_t bytes, uint8_t *rows,
                               uint64_t row_bytes, unsigned kind) {
    unsigned unit = unit_bytes(kind), plane;
    uint64_t number = row_bytes / unit, at = 0, i;
    uint16_t *symbols = scratch(r, number, sizeof *symbols);
    for (plane = unit; plane-- > 0;)
        if (flag(r, TABLE, 0, 32768)) {
            at += read_symbols(r, data + at, bytes - at, number, 256, symbols);
            for (i = 0; i < number; i++) rows[i * unit + plane] = (uint8_t)symbols[i];
        } else {
            require(r, number <= bytes - at, "bytes end early");
            for (i = 0; i < number; i++) rows[i * unit + plane] = data[at++];
        }
    finish_rows(rows, row_bytes, kind);
    return at;
}

static void read_fast(struct reader *r, struct entry *entry, const uint8_t *data, uint64_t bytes) {
    uint8_t start[4] = { 0, 0, 0, 0 }, *scales = NULL;
    const struct reef_tensor *tensor = entry->tensor;
    uint64_t length, at;
    memcpy(start, data, bytes < 4 ? (size_t)bytes : 4); length = four_bytes(start);
    require(r, 4 + length <= bytes, "a head is longer than its stream");
    begin_stream(r, data + 4, length, UINT64_MAX); at = 4 + length;
    if (entry->book) {
        uint16_t *indices = scratch(r, entry->elements, sizeof *indices);
        at += read_symbols(r, data + at, bytes - at, entry->elements, entry->book->number, indices);
        if (entry->run) {
            scales = scratch(r, entry->scales, 4);
            at += read_fast_rows(r, data + at, bytes - at, scales, 4 * entry->scales, REEF_NUM_TYPES);
        }
        put_elements(r, entry, indices, scales);
    } else at += read_fast_rows(r, data + at, bytes - at, tensor->data, tensor->bytes, tensor->type);
    end_stream(r);
    require(r, at == bytes, "bytes are left over in a stream");
}

/* ---- 10. Scales ---------------------------------------------------------------------------- */

/* The bits of a product, rounded once to the nearest, ties to even. */
static uint64_t scaled(uint32_t scale, int64_t integer, enum reef_type type) {
    int fraction = type == REEF_F32 ? 23 : type == REEF_F16 ? 10 : 7, width = exponent_bits[type];
    int exponent = scale >> 23 & 0xFF, drop, field;
    uint64_t sign = (scale >> 31) ^ (integer < 0), infinity, m;
    m = integer == -32768 ? 0 : (uint64_t)(integer < 0 ? -integer : integer);
    m *= (scale & 0x7FFFFF) | (uint32_t)(exponent > 0) << 23;
    drop = (int)bits_of(m) - fraction - 1; /* bits that the result has no room for */
    field = (exponent ? exponent : 1) - 151 + drop + fraction + (1 << (width - 1));
    infinity = (((uint64_t)1 << width) - 1) << fraction;
    sign <<= fraction + width;
    if (!m) return sign;
    if (field < 1) { drop += 1 - field; field = 1; }
    if (drop > 0) {
        uint64_t rest, half;
        drop = drop < 62 ? drop : 62;
        half = (uint64_t)1 << (drop - 1); rest = m & (2 * half - 1);
        m >>= drop; m += rest > half || (rest == half && m & 1);
    } else { m <<= -drop; }
    m += ((uint64_t)field << fraction) - ((uint64_t)1 << fraction);
    return sign | (m < infinity ? m : infinity);
}
