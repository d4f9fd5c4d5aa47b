#ifndef FLATOUT_KERNELS_H
#define FLATOUT_KERNELS_H

#include "native.h"

#define PRECISION_BITS (32 - 8 - 2) /* Pillow's fixed point */
#define ROUNDING (1 << (PRECISION_BITS - 1))
#define WEIGHT_BITS 12 /* of a packed weight's lower part */
#define LINE_BYTES 32  /* pass_down() works on whole multiples: its rows are padded to one */

/* One row of RGB to one of RGBx. Reads up to ROW_PADDING bytes past the row, writes whole groups of four pixels. */
void pass_across(const axis *a, const uint8_t *in, uint8_t *out);

/* A weighted sum of rows, byte by byte. */
void pass_down(int taps, const uint8_t *const *rows, const int32_t *weight, size_t bytes, uint8_t *out);

/* Pixels of `stride` 3 or 4 bytes into three planes, mirrored if `flip`. Reads no byte past the last pixel. */
void split_pixels(const uint8_t *pixels, int stride, bool flip, uint8_t *planes[3], int count);

#endif
