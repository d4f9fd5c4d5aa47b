/* Pictures to the packed layout, and the largest value of a window. */
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#include <string.h>

#include "native.h"
#include "vectors.h"

typedef struct {
    const float *images;
    bf16_pair *to;
    int samples, rows, columns, step, before, elements;
} pictures;

/* Sixteen pixels of 16 samples become 16 vectors of samples. */
static void pack_block(const float *from, ptrdiff_t next, __mmask16 pixels, int samples, __m512i r[16]) {
    for (int s = 0; s < 16; s++)
        r[s] = s < samples ? _mm512_maskz_loadu_epi32(pixels, from + s * next) : _mm512_setzero_si512();
    transpose(r);
}

static void pack_row(const void *context, int number) {
    const pictures *p = context;
    int group = number / p->rows, y = number % p->rows, pairs = p->elements / 2;
    bf16_pair *row = p->to + (ptrdiff_t)number * pairs * GROUP;
    memset(row, 0, sizeof *row * (size_t)(pairs * GROUP));
    ptrdiff_t plane = (ptrdiff_t)p->rows * p->columns;
    for (int c = 0; c < 3; c++)
        for (int x = 0; x < p->columns; x += VECTOR)
            for (int half = 0; half < 2; half++) {
                int first = GROUP * group + VECTOR * half, left = p->columns - x < VECTOR ? p->columns - x : VECTOR;
                const float *from = p->images + ((ptrdiff_t)first * 3 + c) * plane + (ptrdiff_t)y * p->columns + x;
                __m512i r[16];
                pack_block(from, 3 * plane, up_to(left), p->samples - first, r);
                for (int i = 0; i < left; i++) {
                    int e = p->before + p->step * (x + i) + c;
                    __m512i wide = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)r[i]));
                    uint32_t *to = row + e / 2 * GROUP + VECTOR * half;
                    store(to, _mm512_or_si512(load(to), e % 2 ? _mm512_slli_epi32(wide, 16) : wide));
                }
            }
}

void pack_images(const float *images, bf16_pair *to, int samples, int rows, int columns, int step, int before,
                 int elements, int threads) {
    pictures p = {images, to, samples, rows, columns, step, before, elements};
    in_threads(threads, (samples + GROUP - 1) / GROUP * rows, pack_row, &p);
}

typedef struct {
    const bf16_pair *from, *places;
    bf16_pair *to, *taken;
    int rows, columns, out_rows, out_columns, pairs;
} pool;

static void pool_row(const void *context, int number) {
    const pool *p = context;
    int group = number / p->out_rows, y = number % p->out_rows;
    const bf16_pair *x = p->from + (ptrdiff_t)group * p->rows * p->columns * p->pairs * GROUP;
    ptrdiff_t at = (ptrdiff_t)number * p->out_columns * p->pairs * GROUP;
    for (int column = 0; column < p->out_columns; column++)
        for (int j = 0; j < 2 * p->pairs; j++, at += VECTOR) {
            __m512i most = _mm512_set1_epi16(INT16_MIN), place = _mm512_setzero_si512();
            for (int k = 0; k < 9; k++) {
                int in_row = 2 * y + k / 3 - 1, in_column = 2 * column + k % 3 - 1;
                if (in_row < 0 || in_row >= p->rows || in_column < 0 || in_column >= p->columns) continue;
                __m512i value = load(x + ((ptrdiff_t)in_row * p->columns + in_column) * p->pairs * GROUP + j * VECTOR);
                __mmask32 more = _mm512_cmpgt_epi16_mask(value, most); /* as whole numbers, since none is negative */
                most = _mm512_mask_mov_epi16(most, more, value);
                place = _mm512_mask_set1_epi16(place, more, (short)k);
            }
            store(p->to + at, most);
            store(p->taken + at, place);
        }
}

void pool_forward(const bf16_pair *x, bf16_pair *y, bf16_pair *places, int groups, int rows, int columns, int pairs,
                  int threads) {
    pool p = {x, NULL, y, places, rows, columns, (rows + 1) / 2, (columns + 1) / 2, pairs};
    in_threads(threads, groups * p.out_rows, pool_row, &p);
}

static void pool_gradient_row(const void *context, int number) {
    const pool *p = context;
    int group = number / p->rows, y = number % p->rows;
    ptrdiff_t of_group = (ptrdiff_t)group * p->out_rows * p->out_columns * p->pairs * GROUP;
    bf16_pair *to = p->to + (ptrdiff_t)number * p->columns * p->pairs * GROUP;
    for (int column = 0; column < p->columns; column++)
        for (int j = 0; j < 2 * p->pairs; j++, to += VECTOR) {
            __m512 first = _mm512_setzero_ps(), second = first;
            for (int row = y / 2; row <= (y + 1) / 2 && row < p->out_rows; row++)
                for (int at = column / 2; at <= (column + 1) / 2 && at < p->out_columns; at++) {
                    ptrdiff_t from = of_group + ((ptrdiff_t)row * p->out_columns + at) * p->pairs * GROUP + j * VECTOR;
                    short k = (short)(3 * (y + 1 - 2 * row) + column + 1 - 2 * at);
                    __mmask32 mine = _mm512_cmpeq_epi16_mask(load(p->places + from), _mm512_set1_epi16(k));
                    __m512i gradient = _mm512_maskz_mov_epi16(mine, load(p->from + from));
                    first = _mm512_add_ps(first, even(gradient));
                    second = _mm512_add_ps(second, odd(gradient));
                }
            store(to, pairs_of(first, second));
        }
}

void pool_backward(const bf16_pair *gradient, const bf16_pair *places, bf16_pair *x_gradient, int groups, int rows,
                   int columns, int pairs, int threads) {
    pool p = {gradient, places, x_gradient, NULL, rows, columns, (rows + 1) / 2, (columns + 1) / 2, pairs};
    in_threads(threads, groups * rows, pool_gradient_row, &p);
}
