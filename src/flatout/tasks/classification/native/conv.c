/* Convolutions of packed bf16, summed in fp32: forward, back to the inputs, back to the weights. */
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#include <string.h>

#include "native.h"
#include "vectors.h"

#define MOST_TAPS 64
#define WIDE 12 /* channels of a block: 24 sums, and vectors enough for what is multiplied */
#define NARROW 8
#define PLACES 16 /* whose products are summed before they are added to a gradient in memory */

typedef struct {
    int count;
    ptrdiff_t x[MOST_TAPS]; /* in pairs, from the group's first */
    int number[MOST_TAPS];
} taps;

static int block_of(int channels) { return channels % WIDE ? NARROW : WIDE; }

/* Two times 16 samples of `block` channels, of the taps that lie inside the picture. */
INLINE void dot(const taps *t, const bf16_pair *x, const bf16_pair *weights, int pairs, const int block,
                __m512 sum[2][WIDE]) {
    for (int o = 0; o < block; o++) sum[0][o] = sum[1][o] = _mm512_setzero_ps();
    for (int k = 0; k < t->count; k++) {
        const bf16_pair *from = x + t->x[k], *w = weights + (ptrdiff_t)t->number[k] * pairs * block;
        for (int j = 0; j < pairs; j++, from += GROUP, w += block) {
            __m512bh first = (__m512bh)load(from), second = (__m512bh)load(from + VECTOR);
#pragma GCC unroll 12
            for (int o = 0; o < block; o++) {
                __m512bh weight = (__m512bh)_mm512_set1_epi32((int)w[o]);
                sum[0][o] = _mm512_dpbf16_ps(sum[0][o], first, weight);
                sum[1][o] = _mm512_dpbf16_ps(sum[1][o], second, weight);
            }
        }
    }
}

INLINE void dot_and_store(const taps *t, const bf16_pair *x, const bf16_pair *weights, int pairs, const int block,
                          bf16_pair *to) {
    __m512 sum[2][WIDE];
    dot(t, x, weights, pairs, block, sum);
#pragma GCC unroll 6
    for (int o = 0; o < block; o += 2, to += GROUP)
        for (int half = 0; half < 2; half++) store(to + VECTOR * half, pairs_of(sum[half][o], sum[half][o + 1]));
}

static void all_blocks(const taps *t, const bf16_pair *x, const bf16_pair *weights, int pairs, int all_taps,
                       int channels, bf16_pair *to) {
    int block = block_of(channels);
    for (int o = 0; o < channels; o += block, to += block / 2 * GROUP, weights += (ptrdiff_t)all_taps * pairs * block) {
        if (block == WIDE)
            dot_and_store(t, x, weights, pairs, WIDE, to);
        else
            dot_and_store(t, x, weights, pairs, NARROW, to);
    }
}

typedef struct {
    const geometry *g;
    const float *weights;
    bf16_pair *to;
} packing;

/* Of one block: [outputs][taps][inputs] -> [block][tap][pair of inputs][outputs of the block][2]. */
static void pack_forward(const void *context, int number) {
    const packing *p = context;
    int inputs = p->g->inputs, all = p->g->kernel_rows * p->g->kernel_columns, block = block_of(p->g->outputs);
    ptrdiff_t next = (ptrdiff_t)all * inputs;
    bf16_pair *to = p->to + number * next / 2 * block;
    for (int k = 0; k < all; k++)
        for (int i = 0; i < inputs; i += 2 * VECTOR) {
            __mmask16 low = up_to(inputs - i), high = up_to(inputs - i - VECTOR);
            __m512i r[16];
            for (int o = 0; o < 16; o++) {
                const float *from = p->weights + (number * block + o) * next + k * inputs + i;
                __m512 first = _mm512_maskz_loadu_ps(o < block ? low : 0, from);
                r[o] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(o < block ? high : 0, from + VECTOR), first);
            }
            transpose(r);
            for (int j = 0; j < VECTOR && i + 2 * j < inputs; j++, to += block)
                _mm512_mask_storeu_epi32(to, up_to(block), r[j]);
        }
}

/* Of one block: [outputs][taps][inputs] -> [block][tap][pair of outputs][inputs of the block][2]. */
static void pack_backward(const void *context, int number) {
    const packing *p = context;
    int inputs = p->g->inputs, all = p->g->kernel_rows * p->g->kernel_columns, block = block_of(inputs);
    ptrdiff_t next = (ptrdiff_t)all * inputs;
    bf16_pair *to = p->to + (ptrdiff_t)number * all * (p->g->outputs / 2) * block;
    for (int k = 0; k < all; k++)
        for (int o = 0; o < p->g->outputs; o += 2, to += block) {
            const float *from = p->weights + o * next + (ptrdiff_t)k * inputs + number * block;
            __m512 first = _mm512_maskz_loadu_ps(up_to(block), from);
            _mm512_mask_storeu_epi32(to, up_to(block), pairs_of(first, _mm512_maskz_loadu_ps(up_to(block), from + next)));
        }
}

typedef struct {
    const geometry *g;
    const bf16_pair *x, *weights;
    bf16_pair *to;
    float *partial;
} conv;

static ptrdiff_t pairs_of_group(const geometry *g) { return (ptrdiff_t)g->in_rows * g->row_pairs * GROUP; }

/* Sums and sums of squares of each channel of a row. */
static void row_sums(const bf16_pair *row, int columns, int channels, float *to) {
    for (int c = 0; c < channels; c += 2, row += GROUP) {
        __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()}, square[2] = {sum[0], sum[0]};
        for (int x = 0; x < 2 * columns; x++) {
            __m512i z = load(row + (ptrdiff_t)(x / 2) * (channels / 2) * GROUP + x % 2 * VECTOR);
            sum[0] = _mm512_add_ps(sum[0], even(z));
            sum[1] = _mm512_add_ps(sum[1], odd(z));
            square[0] = _mm512_fmadd_ps(even(z), even(z), square[0]);
            square[1] = _mm512_fmadd_ps(odd(z), odd(z), square[1]);
        }
        for (int i = 0; i < 2; i++) {
            to[c + i] = _mm512_reduce_add_ps(sum[i]);
            to[channels + c + i] = _mm512_reduce_add_ps(square[i]);
        }
    }
}

static void forward_row(const void *context, int number) {
    const conv *c = context;
    const geometry *g = c->g;
    int y = number % g->out_rows, all = g->kernel_rows * g->kernel_columns;
    const bf16_pair *x = c->x + number / g->out_rows * pairs_of_group(g);
    bf16_pair *row = c->to + (ptrdiff_t)number * g->out_columns * (g->outputs / 2) * GROUP, *to = row;
    for (int column = 0; column < g->out_columns; column++, to += g->outputs / 2 * GROUP) {
        taps t;
        t.count = 0;
        for (int k = 0; k < all; k++) {
            int in_row = y * g->stride_rows + k / g->kernel_columns - g->padding_rows;
            int in_column = column * g->stride_columns + k % g->kernel_columns - g->padding_columns;
            if (in_row < 0 || in_row >= g->in_rows || in_column < 0 || in_column >= g->in_columns) continue;
            t.x[t.count] = ((ptrdiff_t)in_row * g->row_pairs + in_column * g->column_pairs) * GROUP;
            t.number[t.count++] = k;
        }
        all_blocks(&t, x, c->weights, g->inputs / 2, all, g->outputs, to);
    }
    if (c->partial) row_sums(row, g->out_columns, g->outputs, c->partial + (ptrdiff_t)number * 2 * g->outputs);
}

void conv_forward(const geometry *g, const bf16_pair *x, const float *weights, bf16_pair *packed, bf16_pair *z,
                  float *partial, int threads) {
    packing p = {g, weights, packed};
    in_threads(threads, g->outputs / block_of(g->outputs), pack_forward, &p);
    conv c = {g, x, packed, z, partial};
    in_threads(threads, g->groups * g->out_rows, forward_row, &c);
}

static void backward_row(const void *context, int number) {
    const conv *c = context;
    const geometry *g = c->g;
    int y = number % g->in_rows, all = g->kernel_rows * g->kernel_columns, pairs = g->outputs / 2;
    const bf16_pair *from = c->x + (ptrdiff_t)(number / g->in_rows) * g->out_rows * g->out_columns * pairs * GROUP;
    bf16_pair *to = c->to + (ptrdiff_t)number * g->row_pairs * GROUP;
    for (int column = 0; column < g->in_columns; column++, to += g->inputs / 2 * GROUP) {
        taps t;
        t.count = 0;
        for (int k = 0; k < all; k++) {
            int row = y + g->padding_rows - k / g->kernel_columns, at = column + g->padding_columns - k % g->kernel_columns;
            if (row < 0 || at < 0 || row % g->stride_rows || at % g->stride_columns) continue;
            row /= g->stride_rows, at /= g->stride_columns;
            if (row >= g->out_rows || at >= g->out_columns) continue;
            t.x[t.count] = ((ptrdiff_t)row * g->out_columns + at) * pairs * GROUP;
            t.number[t.count++] = k;
        }
        all_blocks(&t, from, c->weights, pairs, all, g->inputs, to);
    }
}

void conv_to_inputs(const geometry *g, const bf16_pair *gradient, const float *weights, bf16_pair *packed,
                    bf16_pair *x_gradient, int threads) {
    packing p = {g, weights, packed};
    in_threads(threads, g->inputs / block_of(g->inputs), pack_backward, &p);
    conv c = {g, gradient, packed, x_gradient, NULL};
    in_threads(threads, g->groups * g->in_rows, backward_row, &c);
}

/* The gradient of a weight is a sum over samples, which therefore become the pairs:
 * [pair of channels][32 samples][2 channels] -> [pair of samples][channel][2 samples], a place at a time; first those of
 * the gradient, then those of the input. */
typedef struct {
    const bf16_pair *from[2];
    bf16_pair *to[2];
    int places, channels[2];
} transposition;

static void transpose_place(const void *context, int number) {
    const transposition *p = context;
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5,
                                         36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    int which = number >= p->places, channels = p->channels[which];
    ptrdiff_t at = (ptrdiff_t)(number - which * p->places) * channels / 2 * GROUP;
    const bf16_pair *from = p->from[which] + at;
    bf16_pair *to = p->to[which] + at;
    for (int c = 0; c < channels; c += 2 * VECTOR)
        for (int half = 0; half < 2; half++) {
            int left = channels - c < 2 * VECTOR ? channels - c : 2 * VECTOR;
            __m512i r[16];
            for (int j = 0; j < 16; j++)
                r[j] = 2 * j < left ? load(from + (c / 2 + j) * GROUP + VECTOR * half) : _mm512_setzero_si512();
            transpose(r); /* now a sample each, with 32 channels */
            __mmask16 first = up_to(left), second = up_to(left - VECTOR);
            for (int m = 0; m < 8; m++) {
                bf16_pair *row = to + (ptrdiff_t)(8 * half + m) * channels + c;
                _mm512_mask_storeu_epi32(row, first, _mm512_permutex2var_epi16(r[2 * m], low, r[2 * m + 1]));
                _mm512_mask_storeu_epi32(row + 16, second, _mm512_permutex2var_epi16(r[2 * m], high, r[2 * m + 1]));
            }
        }
}

typedef struct {
    const geometry *g;
    const bf16_pair *x, *gradient; /* transposed */
    float *to;
    int groups;
    int blocks_out, blocks_in, parts; /* of the channels, of the taps */
    ptrdiff_t x_group, x_row, x_column, x_pair; /* from one to the next */
} weights_gradient;

/* `outputs` channels times `vectors` vectors of inputs, over places of rows from `low` to `high`, added to memory. */
INLINE void multiply(const weights_gradient *w, int group, int k, int o, int i, int low, int high, const int outputs,
                     const int vectors) {
    const geometry *g = w->g;
    int tap_row = k / g->kernel_columns, tap_column = k % g->kernel_columns, pairs = GROUP / 2;
    __m512 sum[WIDE][2];
    for (int r = 0; r < outputs; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int y = low; y < high; y++) {
        int in_row = y * g->stride_rows + tap_row - g->padding_rows;
        if (in_row < 0 || in_row >= g->in_rows) continue;
        for (int column = 0; column < g->out_columns; column++) {
            int in_column = column * g->stride_columns + tap_column - g->padding_columns;
            if (in_column < 0 || in_column >= g->in_columns) continue;
            const bf16_pair *x = w->x + group * w->x_group + in_row * w->x_row + in_column * w->x_column + i;
            const bf16_pair *from = w->gradient + (((ptrdiff_t)group * g->out_rows + y) * g->out_columns + column) * pairs * g->outputs + o;
            for (int m = 0; m < pairs; m++, x += w->x_pair, from += g->outputs) {
                __m512bh v[2] = {(__m512bh)load(x), (__m512bh)_mm512_setzero_si512()};
                if (vectors > 1) v[1] = (__m512bh)load(x + VECTOR);
#pragma GCC unroll 12
                for (int r = 0; r < outputs; r++) {
                    __m512bh factor = (__m512bh)_mm512_set1_epi32((int)from[r]);
                    sum[r][0] = _mm512_dpbf16_ps(sum[r][0], v[0], factor);
                    if (vectors > 1) sum[r][1] = _mm512_dpbf16_ps(sum[r][1], v[1], factor);
                }
            }
        }
    }
    ptrdiff_t next = (ptrdiff_t)g->kernel_rows * g->kernel_columns * g->inputs;
    for (int r = 0; r < outputs; r++)
        for (int v = 0; v < vectors; v++) {
            __mmask16 inside = up_to(g->inputs - i - VECTOR * v);
            float *to = w->to + (o + r) * next + (ptrdiff_t)k * g->inputs + i + VECTOR * v;
            _mm512_mask_storeu_ps(to, inside, _mm512_add_ps(_mm512_maskz_loadu_ps(inside, to), sum[r][v]));
        }
}

static void weights_block(const void *context, int number) {
    const weights_gradient *w = context;
    const geometry *g = w->g;
    int i = number % w->blocks_in * 2 * VECTOR, block = block_of(g->outputs);
    int o = number / w->blocks_in % w->blocks_out * block, part = number / w->blocks_in / w->blocks_out;
    int taps_of_part = g->kernel_rows * g->kernel_columns / w->parts;
    int rows = g->out_columns >= PLACES ? 1 : PLACES / g->out_columns, vectors = g->inputs - i > VECTOR ? 2 : 1;
    for (int group = 0; group < w->groups; group++)
        for (int low = 0; low < g->out_rows; low += rows) {
            int high = low + rows < g->out_rows ? low + rows : g->out_rows;
            for (int k = part * taps_of_part; k < (part + 1) * taps_of_part; k++) {
                if (block == WIDE && vectors == 2)
                    multiply(w, group, k, o, i, low, high, WIDE, 2);
                else if (block == WIDE)
                    multiply(w, group, k, o, i, low, high, WIDE, 1);
                else if (vectors == 2)
                    multiply(w, group, k, o, i, low, high, NARROW, 2);
                else
                    multiply(w, group, k, o, i, low, high, NARROW, 1);
            }
        }
}

static ptrdiff_t gradient_pairs(const geometry *g) { /* of a group */
    return (ptrdiff_t)g->out_rows * g->out_columns * g->outputs / 2 * GROUP;
}

static int groups_at_once(const geometry *g, int threads) { /* as many as stay in the caches of the cores */
    ptrdiff_t most = ((ptrdiff_t)threads << 18) / (pairs_of_group(g) + gradient_pairs(g));
    return most < 1 ? 1 : most < g->groups ? (int)most : g->groups;
}

size_t transposed_pairs(const geometry *g, int threads) { /* what is loaded beyond the last is thrown away */
    return (size_t)(groups_at_once(g, threads) * (pairs_of_group(g) + gradient_pairs(g)) + 2 * VECTOR);
}

void conv_to_weights(const geometry *g, const bf16_pair *x, const bf16_pair *gradient, bf16_pair *scratch,
                     float *weight_gradient, int threads) {
    bool by_row = g->column_pairs * 2 != g->inputs || g->row_pairs != g->in_columns * g->column_pairs;
    int channels = by_row ? 2 * g->row_pairs : g->inputs, columns = by_row ? 1 : g->in_columns; /* which may overlap */
    int blocks_out = g->outputs / block_of(g->outputs), blocks_in = (g->inputs + 2 * VECTOR - 1) / (2 * VECTOR);
    int parts = blocks_out * blocks_in < threads ? g->kernel_rows : 1, most = groups_at_once(g, threads);
    bf16_pair *x_scratch = scratch + most * gradient_pairs(g);
    ptrdiff_t place = (ptrdiff_t)channels * GROUP / 2;
    memset(weight_gradient, 0, sizeof(float) * (size_t)(g->outputs * g->kernel_rows * g->kernel_columns * g->inputs));
    for (int done = 0; done < g->groups; done += most) { /* neither groups at once nor parts change the order of a sum */
        int groups = g->groups - done < most ? g->groups - done : most, places = groups * g->out_rows * g->out_columns;
        transposition t = {{gradient + done * gradient_pairs(g), x + done * pairs_of_group(g)},
                           {scratch, x_scratch}, places, {g->outputs, channels}};
        in_threads(threads, places + groups * g->in_rows * columns, transpose_place, &t);
        weights_gradient w = {g, x_scratch, scratch, weight_gradient, groups, blocks_out, blocks_in, parts,
                              pairs_of_group(g), place * columns, by_row ? 2 * g->column_pairs : place, channels};
        in_threads(threads, parts * blocks_out * blocks_in, weights_block, &w);
    }
}
