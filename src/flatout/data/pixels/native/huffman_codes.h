/* Huffman codes of a baseline scan: how tables are laid out, and how one block is read. */
#ifndef FLATOUT_HUFFMAN_CODES_H
#define FLATOUT_HUFFMAN_CODES_H

#include <string.h>

#include "huffman.h"

/* longest possible MCU: 10 blocks x 64 symbols x (16 + 15) bits, read past the end before we notice */
#define STREAM_PADDING 2560

static const uint8_t natural_order[64 + 16] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,
    6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31,
    39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
    63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63 /* a run past the end of a corrupt block */
};

/* A look-up entry says how to take a coefficient apart without a branch:
 *   bits 0-5 length of code and value together, 8-13 length of the code, 16-21 64 - length of the value, 24-31 step
 * SPECIAL entries have the symbol in bits 24-31: codes longer than the look-up (code length 0), end of block, runs
 * of 16 zeros, and differences of 0. */
#define SPECIAL 0x80
#define TOTAL_LENGTH(entry) ((int)((entry) & 63))
#define CODE_LENGTH(entry) ((int)((entry) >> 8 & 63))
#define VALUE_SHIFT(entry) ((int)((entry) >> 16 & 63))
#define STEP(entry) ((int)((entry) >> 24))

/* Coefficients that nobody wants are passed over several at once, since their values need not be looked at: as many as
 * have their codes within the look-up, and the end of the block if it comes next.
 *   bits 8-12 length of all, 0-7 what to add to the place in the block
 * The place is 1 after the DC and FULL after the last coefficient; an end code adds so much that any place from FULL on
 * says that the block is over, unless IS_PAST: then some of the codes were not of this block, or not to be looked up. */
#define FULL 64
#define END_OF_BLOCK 129
#define NO_SKIP FULL
#define SKIP_LENGTH(skip) ((skip) >> 8)
#define SKIP_ADDS(skip) ((skip) & 255)
#define IS_PAST(place) (((place) & 127) > FULL)

static inline uint64_t load_big64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

typedef struct {
    const uint8_t *next;
    uint64_t bits;
    int count;
} bit_reader;

/* At least 56 bits afterwards. */
static inline void refill(bit_reader *r) {
    r->bits |= load_big64(r->next) >> r->count;
    r->next += (63 - r->count) >> 3;
    r->count |= 56;
}

static inline void drop(bit_reader *r, int bits) {
    r->bits <<= bits;
    r->count -= bits;
}

static inline bit_reader reader_at(const uint8_t *stream, uint64_t bit) {
    bit_reader r = {.next = stream + (bit >> 3)};
    refill(&r);
    drop(&r, (int)(bit & 7));
    return r;
}

static inline uint64_t bit_position(const bit_reader *r, const uint8_t *stream) {
    return (uint64_t)(r->next - stream) * 8 - (uint64_t)r->count;
}

/* JPEG's signed numbers: a leading 0 marks a negative, stored as its one's complement. */
static inline int signed_value(uint64_t bits, int shift) {
    uint64_t negative = ~(uint64_t)((int64_t)bits >> 63);
    return (int)(((bits ^ negative) >> shift ^ negative) - negative);
}

/* The symbol of a SPECIAL entry, its code dropped; -1 when no code matches. */
static inline int special_symbol(bit_reader *r, const huffman_table *t, uint32_t entry) {
    int length = CODE_LENGTH(entry);
    if (length) {
        drop(r, length);
        return STEP(entry);
    }
    uint32_t look = (uint32_t)(r->bits >> 48);
    for (length = LOOKUP_BITS + 1; length <= 16; length++) {
        if (look >= t->code_end[length]) continue;
        drop(r, length);
        return t->symbols[((int)(look >> (16 - length)) + t->symbol_offset[length]) & 255];
    }
    return -1;
}

static inline int take_value(bit_reader *r, int size) {
    int value = signed_value(r->bits, 64 - size);
    drop(r, size);
    return value;
}

/* Of a reader that has 31 bits: the longest code and the longest value. */
static inline bool take_dc(bit_reader *r, const huffman_table *t, int *difference) {
    uint32_t entry = t->lookup[r->bits >> (64 - LOOKUP_BITS)];
    if (!(entry & SPECIAL)) {
        *difference = signed_value(r->bits << CODE_LENGTH(entry), VALUE_SHIFT(entry));
        drop(r, TOTAL_LENGTH(entry));
        return true;
    }
    int size = special_symbol(r, t, entry);
    if (size < 0) return false;
    *difference = size ? take_value(r, size) : 0;
    return true;
}

static inline bool read_dc(bit_reader *r, const huffman_table *t, int *difference) {
    refill(r);
    return take_dc(r, t, difference);
}

/* From the coefficient after `k` on; `block` is zeroed, or NULL to parse without keeping. */
static inline __attribute__((always_inline)) bool read_ac(bit_reader *r, const huffman_table *t, JCOEF *block, int k) {
    while (k < 63) {
        uint32_t entry = 0;
        refill(r);
        for (int i = 0; i < 2; i++) { /* a look-up takes at most 27 of the 56 bits, a special code 16 */
            if (!block) {
                unsigned skip = t->skips[r->bits >> (64 - SKIP_BITS)];
                unsigned place = (unsigned)k + 1 + SKIP_ADDS(skip);
                if (skip && !IS_PAST(place)) {
                    drop(r, (int)SKIP_LENGTH(skip));
                    if (place >= FULL) return true;
                    k = (int)place - 1;
                    continue;
                }
            }
            entry = t->lookup[r->bits >> (64 - LOOKUP_BITS)];
            if (entry & SPECIAL) break;
            k += STEP(entry);
            if (block)
                block[natural_order[k]] = (JCOEF)signed_value(r->bits << CODE_LENGTH(entry), VALUE_SHIFT(entry));
            drop(r, TOTAL_LENGTH(entry));
            if (k >= 63) return k == 63;
        }
        if (!(entry & SPECIAL)) continue;
        int symbol = special_symbol(r, t, entry);
        if (symbol < 0) return false;
        if ((symbol & 15) == 0) {
            if (symbol != 0xF0) return true; /* end of block */
            k += 16;
            continue;
        }
        k += (symbol >> 4) + 1;
        refill(r);
        int value = take_value(r, symbol & 15);
        if (block) block[natural_order[k]] = (JCOEF)value;
    }
    return k == 63;
}

#endif
