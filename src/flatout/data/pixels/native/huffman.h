/* Baseline Huffman decoding for libjpeg: the part of JPEG decoding that takes most of the time. */
#ifndef FLATOUT_HUFFMAN_H
#define FLATOUT_HUFFMAN_H

#include <setjmp.h>
#include <stdio.h> /* jpeglib.h needs FILE */

#include <jpeglib.h>

#include "native.h"

#define LOOKUP_BITS 11 /* 10 and 12 measure within 2 % of it, 9 is 5 % slower */
#define SKIP_BITS 12

typedef struct {
    uint8_t lengths[17], symbols[256]; /* what the tables below were built from */
    bool built, repeated, has_skips;
    uint32_t lookup[1 << LOOKUP_BITS];
    uint16_t skips[1 << SKIP_BITS];
    uint32_t code_end[17];     /* one past the last code of each length, left-aligned to 16 bits */
    int symbol_offset[17];     /* index of a code's symbol = code + symbol_offset[length] */
} huffman_table;

typedef struct {
    jmp_buf *bail_out; /* taken when the data is not what a sound encoder writes */
    void (*start_scan)(j_decompress_ptr cinfo); /* libjpeg's own */
    huffman_table dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS];
    buffer stream, ends; /* entropy-coded bytes without stuffing; end of each restart interval */
    const uint8_t *next;
    uint64_t bits; /* the next bit is the highest */
    int bit_count;
    size_t interval, intervals;
    unsigned mcus_to_restart;
    int last_dc[MAX_COMPS_IN_SCAN];
    bool dc_only[MAX_COMPS_IN_SCAN], any_dc_only; /* scaled to one pixel a block: nobody reads the other coefficients */
    unsigned column, columns, first_column, last_column; /* coefficients of other MCU columns are not kept */
    buffer marks;            /* uint32_t: the bit at which each block begins, of the first `marked` MCUs and one more */
    size_t mcu, marked;      /* of these, the next one */
} huffman_decoder;

/* From here on, scans that are plain are read by us, others by libjpeg. cinfo->client_data must be `h`. */
void huffman_install(huffman_decoder *h, j_decompress_ptr cinfo);
/* Coefficients of other MCU columns, and of the MCU rows above and below, are not wanted; said after the scan has
 * started, before anything is read. */
void huffman_keep(huffman_decoder *h, j_decompress_ptr cinfo, unsigned first_column, unsigned last_column,
                  unsigned first_row, unsigned last_row);
/* Marks the blocks of so many MCUs; false if there are not as many. All tables in use have skips. */
bool huffman_skim(huffman_decoder *h, j_decompress_ptr cinfo, size_t mcus, size_t stream_bytes);
void huffman_free(huffman_decoder *h);

#endif
