/* Written by reefknot: a network and the code that runs it. C99, no allocation. */

#include "net.h"

#include <float.h>
#include <string.h>

/* Tables are in flash, which an AVR reads with other instructions than RAM. */
#ifdef __AVR__
#include <avr/pgmspace.h>
#define FLASH PROGMEM
#define FLASH_BYTE(address) pgm_read_byte(address)
#define FLASH_FLOAT(address) pgm_read_float(address)
#define FLASH_COPY(to, from, size) memcpy_P(to, from, size)
#else
#define FLASH
#define FLASH_BYTE(address) (*(address))
#define FLASH_FLOAT(address) (*(address))
#define FLASH_COPY(to, from, size) memcpy(to, from, size)
#endif
