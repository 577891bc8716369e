/* Reads batches of files with reef.c: a path on each line of the input, and a line when it is done.

   A batch has frames, each the length of a file (4 bytes, little endian) and the file. For each, four numbers
   of 4 bytes go to the path with ".out" after it: status, the sum of each tensor's CRC-32, microseconds, and bytes of
   tensors and names. digests.mjs and soak.py do the same for the other decoders. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "reef.c"

#define MEMORY (8u << 20)

static uint32_t digest_of(const struct reef_file *file, uint32_t *bytes)
{
    uint32_t sum = 0;
    size_t i;
    unsigned k;
    for (i = 0; i < file->num_tensors; i++) {
        const struct reef_tensor *t = file->tensors + i;
        uint8_t head[6];
        uint32_t crc;
        uint64_t j;
        for (k = 0; k < 4; k++) head[k] = (uint8_t)(t->name_bytes >> 8 * k);
        head[4] = (uint8_t)t->type;
        head[5] = (uint8_t)t->rank;
        crc = crc32_of(crc32_of(0, head, 6), (const uint8_t *)t->name, t->name_bytes);
        for (j = 0; j < t->rank; j++) {
            uint8_t size[8];
            for (k = 0; k < 8; k++) size[k] = (uint8_t)(t->shape[j] >> 8 * k);
            crc = crc32_of(crc, size, 8);
        }
        sum += crc32_of(crc, t->data, t->bytes);
        *bytes += (uint32_t)(t->bytes + t->name_bytes + 8 * t->rank);
    }
    return sum;
}

static int read_batch(char *path, uint64_t limit, void *memory)
{
    FILE *in = fopen(path, "rb"), *out;
    uint8_t length[4];
    strcat(path, ".out");
    out = fopen(path, "wb");
    if (!in || !out) return 1;
    while (fread(length, 4, 1, in) == 1) {
        size_t size = four_bytes(length);
        uint8_t *data = malloc(size ? size : 1); /* of exactly this size: sanitizers watch its end */
        struct reef_file file;
        uint32_t told[4] = { 0, 0, 0, 0 };
        clock_t start;
        if (!data || fread(data, 1, size, in) != size) return 1;
        start = clock();
        told[0] = (uint32_t)reef_read(data, size, memory, MEMORY, limit, &file);
        told[2] = (uint32_t)((double)(clock() - start) * 1e6 / CLOCKS_PER_SEC);
        if ((told[0] == REEF_FINE) != (file.why == NULL)) return 2;
        told[1] = digest_of(&file, told + 3);
        fwrite(told, sizeof told, 1, out);
        free(data);
    }
    fclose(in);
    return fclose(out);
}

int main(int number, char **arguments)
{
    static char path[4096];
    void *memory = malloc(MEMORY);
    if (number != 2 || !memory) return 3;
    while (fgets(path, sizeof path - 8, stdin)) {
        int status;
        path[strcspn(path, "\n")] = 0;
        status = read_batch(path, strtoull(arguments[1], NULL, 10), memory);
        if (status) return status;
        puts("done");
        fflush(stdout);
    }
    free(memory);
    return 0;
}
