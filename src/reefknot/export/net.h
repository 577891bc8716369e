/* Written by reefknot. */
#ifndef NET_H
#define NET_H

#include <stdint.h>

#define NET_INPUTS $inputs /* $shape $what */
#define NET_OUTPUTS $outputs
#define NET_ARENA_BYTES $arena /* of RAM, beside input and output */
#define NET_TABLE_BYTES $table /* of flash, beside code */

typedef $type net_input;

/* Reads NET_INPUTS values and writes NET_OUTPUTS; one call at a time. */
void net_run(const $type *input, float *output);

#endif
