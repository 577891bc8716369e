/* Runs a network on a chip, an ATmega or a Cortex-M, and prints its outputs, time and stack.

   With BARE nothing is printed: the size of that firmware is the network, what runs it, and the
   startup code. Otherwise there is a line for each input of images.h (or one of zeros, without
   IMAGES): ticks of a timer around net_run, then each output, as eight hex digits each. The last line
   is the deepest stack in bytes. */
#include "net.h"

static net_input input[NET_INPUTS];
static float output[NET_OUTPUTS];

#ifndef __AVR__
/* An ATmega has its startup code in a library; a Cortex-M needs a few lines. */
extern uint32_t values_of_data[], start_of_data[], end_of_data[], start_of_bss[];
extern uint32_t end_of_variables[], top_of_stack[];
int main(void);
void reset(void);

void reset(void)
{
    uint32_t *from = values_of_data, *to;
    for (to = start_of_data; to < end_of_data;)
        *to++ = *from++;
    for (to = start_of_bss; to < end_of_variables;)
        *to++ = 0;
    main();
}

__attribute__((section(".vectors"), used)) static const void *const vectors[] = {
    top_of_stack,
    (const void *)reset,
};
#endif

#ifdef BARE
int main(void)
{
    net_run(input, output);
    for (;;)
        ;
}
#else
#ifdef __AVR__
#include <avr/io.h>
#include <avr/pgmspace.h>
#include <avr/sleep.h>
#define TABLE PROGMEM
#define COPY(to, from, size) memcpy_P(to, from, size)

extern uint8_t __heap_start;
#define END_OF_VARIABLES (&__heap_start)

static void put(char c)
{
    while (!(UCSR0A & (1 << UDRE0)))
        ;
    UDR0 = (uint8_t)c;
}

static void begin(void)
{
    UCSR0B = 1 << TXEN0;
    TCCR1B = 1 << CS12 | 1 << CS10; /* a tick is 1,024 cycles */
}

static uint16_t ticks(void)
{
    return TCNT1;
}

static void end(void)
{
    put('\n');
    sleep_enable();
    sleep_cpu(); /* with interrupts off, which ends the simulation */
}
#else
#include <string.h>
#define TABLE
#define COPY(to, from, size) memcpy(to, from, size)
#define END_OF_VARIABLES ((uint8_t *)end_of_variables)
#define SYSTICK ((volatile uint32_t *)0xE000E010)

static void semihosting(uint32_t operation, const void *argument)
{
    register uint32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
}

static void put(char c)
{
    semihosting(3, &c); /* SYS_WRITEC */
}

static void begin(void)
{
    SYSTICK[1] = 0xFFFFFF;
    SYSTICK[2] = 0;
    SYSTICK[0] = 5; /* runs, on the processor's clock */
}

static uint32_t ticks(void)
{
    return 0xFFFFFF - SYSTICK[2];
}

static void end(void)
{
    put('\n');
    semihosting(0x18, (void *)0x20026); /* SYS_EXIT: all went well */
}
#endif

#ifdef IMAGES
static const net_input images[IMAGES][NET_INPUTS] TABLE = {
#include "images.h"
};
#define LOAD(image) COPY(input, images[image], sizeof input)
#else
#define IMAGES 1
#define LOAD(image) ((void)(image))
#endif

static void put_hex(uint32_t number)
{
    int8_t shift;
    for (shift = 28; shift >= 0; shift -= 4)
        put("0123456789abcdef"[number >> shift & 15]);
}

int main(void)
{
    uint8_t *p, *top = (uint8_t *)__builtin_frame_address(0);
    uint16_t image, i;
    begin();
    for (p = END_OF_VARIABLES; p < top - 64; p++) /* main's own variables lie above that */
        *(volatile uint8_t *)p = 0xA5;
    for (image = 0; image < IMAGES; image++) {
        uint32_t before, after;
        LOAD(image);
        before = ticks();
        net_run(input, output);
        after = ticks();
        put_hex((after - before) & (sizeof ticks() == 2 ? 0xFFFF : 0xFFFFFF));
        for (i = 0; i < NET_OUTPUTS; i++) {
            uint32_t bits;
            __builtin_memcpy(&bits, &output[i], sizeof bits);
            put(' ');
            put_hex(bits);
        }
        put('\n');
    }
    for (p = END_OF_VARIABLES; *p == 0xA5; p++)
        ;
    put_hex((uint32_t)(top - p));
    end();
    for (;;)
        ;
}
#endif
