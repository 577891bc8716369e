/* ---- weights ------------------------------------------------------------------------------

   `weights` is a bit stream, the lowest bit of a byte first. An output is its bias, then its non-zero
   weights: for each a step from the one before and the number of its value, until a step of 0. Both
   have prefix codes, given as the number of codes of 1, 2, 3, ... bits. A step is coded as its number
   of bits, then the bits below the highest. */

static const uint8_t *next_byte;
static uint8_t bits_left; /* of the last byte read, below a 1 that marks their end */

static uint8_t next_bit(void)
{
    uint8_t bits = bits_left, bit;
    if (bits == 1)
        bits = FLASH_BYTE(next_byte++), bit = bits & 1, bits = bits >> 1 | 0x80;
    else
        bit = bits & 1, bits >>= 1;
    bits_left = bits;
    return bit;
}

static uint8_t symbol(const uint8_t *code)
{
    uint8_t left = 0, passed = 0;
    for (;;) {
        uint8_t here = FLASH_BYTE(code++);
        left = (uint8_t)(2 * left + next_bit());
        if (left < here)
            return (uint8_t)(passed + left);
        left = (uint8_t)(left - here);
        passed = (uint8_t)(passed + here);
    }
}

static place_t next_step(void)
{
    uint8_t bits = FLASH_BYTE(step_bits + symbol(step_code));
    place_t step = bits != 0;
    while (bits > 1) {
        step = (place_t)(2 * step + next_bit());
        bits--;
    }
    return step;
}

static float arena[NET_ARENA_BYTES / sizeof(float)];
static struct stage s; /* the stage that is running */
static uint8_t stage;

static float value(uint8_t number)
{
    return FLASH_FLOAT(values + FIRST_VALUE + number);
}

/* ---- one output ---------------------------------------------------------------------------- */

/* The inputs of each shared value are summed first, then each value is multiplied once. */
static union {
#if NET_BYTES
    int32_t whole; /* of bytes minus their mean, in fixed point with BYTE_SHIFT fraction bits: exact */
#endif
    float real;
} sums[NET_VALUES];

static const void *inputs;

static void clear_sums(void)
{
    uint8_t number;
    for (number = 0; number < VALUES; number++)
        sums[number].real = 0; /* all bits 0: an integer 0 as well */
}

static void add_input(place_t place, uint8_t number)
{
#if NET_BYTES
    if (stage == 0) {
        sums[number].whole += ((int32_t)((const uint8_t *)inputs)[place] << BYTE_SHIFT) - BYTE_MEAN;
        return;
    }
#endif
    sums[number].real += ((const float *)inputs)[place];
}

static float multiply_sums(void)
{
    float y = 0;
    uint8_t number;
    for (number = 0; number < VALUES; number++) {
#if NET_BYTES
        if (stage == 0) {
            y += value(number) * (float)sums[number].whole;
            continue;
        }
#endif
        y += value(number) * sums[number].real;
    }
#if NET_BYTES
    if (stage == 0)
        y *= BYTE_SCALE;
#endif
    return y;
}

#if NET_TABLES
static uint16_t unit; /* outputs of all stages are counted */
#endif

static float scaled(float y, float bias)
{
#if NET_SCALES
    if (TABLED)
        y *= FLASH_FLOAT(scales + unit);
#endif
    return y + bias;
}

static float next_bias(void)
{
#if NET_TABLES
    return TABLED ? FLASH_FLOAT(biases + unit) : 0;
#elif NET_BIASES
    return next_bit() ? value(symbol(value_code)) : 0;
#else
    return 0;
#endif
}

#if !NET_SLIDES
/* A dense network reads each weight once, and uses it at once. */
static float next_output(void)
{
    float bias = next_bias();
    place_t place = -1, step;
    clear_sums();
    while ((step = next_step()) != 0) {
        place = (place_t)(place + step);
        add_input(place, symbol(value_code));
    }
    return activated(BEFORE, scaled(multiply_sums(), bias));
}

static void run_stage(float *out)
{
    place_t row;
    for (row = 0; row < ROWS; row++) {
        out[row] = next_output();
#if NET_TABLES
        unit = (uint16_t)(unit + TABLED);
#endif
    }
}
#else
/* A filter is decoded once, as a list of input offsets, and then applied at every position. */
static struct {
    place_t place;
    uint8_t number;
} taps[NET_TAPS];
static place_t num_taps;

static void read_filter(void)
{
    place_t column = -1, row = 0, place = -DILATION_X, step;
    num_taps = 0;
    while ((step = next_step()) != 0) {
        column = (place_t)(column + step);
        place = (place_t)(place + step * DILATION_X);
        while (column >= KERNEL_WIDTH) {
            column = (place_t)(column - KERNEL_WIDTH);
            place = (place_t)(place + LINE_SKIP);
            if (++row == KERNEL_HEIGHT) {
                row = 0;
                place = (place_t)(place + PLANE_SKIP);
            }
        }
        taps[num_taps].place = place;
        taps[num_taps++].number = symbol(value_code);
    }
}

static float output_at(place_t place, float bias)
{
    place_t tap;
#if NET_DIRECT
    if (num_taps < VALUES && !(NET_BYTES && stage == 0)) { /* then summing first does not pay */
        const float *from = (const float *)inputs + place;
        float y = 0;
        for (tap = 0; tap < num_taps; tap++)
            y += value(taps[tap].number) * from[taps[tap].place];
        return activated(BEFORE, scaled(y, bias));
    }
#endif
    clear_sums();
    for (tap = 0; tap < num_taps; tap++)
        add_input((place_t)(place + taps[tap].place), taps[tap].number);
    return activated(BEFORE, scaled(multiply_sums(), bias));
}

/* The filter's outputs in one window of the pooling: their maximum, or their mean. */
static float pooled(place_t start, place_t top, place_t left, float bias)
{
    float result = POOL_MEAN ? 0 : -FLT_MAX;
    place_t y, x;
    for (y = top; y < top + POOL_HEIGHT; y++)
        for (x = left; x < left + POOL_WIDTH; x++)
            if (y >= 0 && y < HEIGHT && x >= 0 && x < WIDTH) {
                float one = output_at((place_t)(start + y * STRIDE_Y + x * STRIDE_X), bias);
                if (POOL_MEAN)
                    result += one;
                else if (one > result)
                    result = one;
            }
    return POOL_MEAN ? result / (POOL_HEIGHT * POOL_WIDTH) : result;
}

#if NET_JOINS
/* With the element of a second value that is in the same place. */
static float joined(float y, float other)
{
    return JOIN == 0 ? y : JOIN == 1 ? y + other : y * other;
}
#endif

static void run_stage(float *out)
{
    place_t row, y, x;
#if NET_PADS
    for (y = 0; y < OUT_SIZE; y++)
        out[y] = 0;
#endif
    for (row = 0; row < ROWS; row++) {
        float bias = next_bias();
        place_t start = (place_t)(row / GROUP_ROWS * GROUP_STEP);
        float *line = out + row * OUT_PLANE + OUT_START;
        read_filter();
        for (y = 0; y < OUT_HEIGHT; y++, line += OUT_WIDTH)
            for (x = 0; x < OUT_COLUMNS; x++) {
                place_t top = (place_t)(y * POOL_STRIDE_Y - POOL_TOP);
                place_t left = (place_t)(x * POOL_STRIDE_X - POOL_LEFT);
                float result = pooled(start, top, left, bias);
#if NET_JOINS
                result = joined(result, arena[OTHER + row * OTHER_PLANE + y * OTHER_LINE + x * OTHER_STEP]);
#endif
                line[x] = activated(AFTER, result);
            }
#if NET_TABLES
        unit = (uint16_t)(unit + TABLED);
#endif
    }
}
#endif

/* ---- the network --------------------------------------------------------------------------- */

#if NET_COPIES
/* The first layer pads its input, so the input is copied to a place with room around it. */
static void copy_input(const net_input *input, float *out)
{
    place_t plane, y, x;
    for (y = 0; y < COPY_SIZE; y++)
        out[y] = 0;
    for (plane = 0; plane < COPY_PLANES; plane++)
        for (y = 0; y < COPY_HEIGHT; y++)
            for (x = 0; x < COPY_WIDTH; x++)
                out[plane * COPY_PLANE + COPY_START + y * COPY_LINE + x] = COPY_VALUE(*input++);
}
#endif

#if NET_SOFTMAX
static void softmax(float *output)
{
    float most = output[0], sum = 0, log;
    int i;
    for (i = 1; i < NET_OUTPUTS; i++)
        if (output[i] > most)
            most = output[i];
    for (i = 0; i < NET_OUTPUTS; i++)
        sum += expf(output[i] - most);
    log = most + logf(sum);
    for (i = 0; i < NET_OUTPUTS; i++)
        output[i] = NET_SOFTMAX > 1 ? output[i] - log : expf(output[i] - log);
}
#endif

void net_run(const net_input *input, float *output)
{
    next_byte = weights;
    bits_left = 1;
#if NET_TABLES
    unit = 0;
#endif
#if NET_COPIES
    copy_input(input, arena + COPY_TO);
#endif
    for (stage = 0; stage < NET_STAGES; stage++) {
        FLASH_COPY(&s, stages + stage, sizeof s);
#if NET_COPIES
        inputs = arena + IN;
#else
        inputs = stage == 0 ? (const void *)(input + IN) : arena + IN;
#endif
        run_stage(stage == NET_STAGES - 1 ? output : arena + OUT);
    }
#if NET_SOFTMAX
    softmax(output);
#endif
}
