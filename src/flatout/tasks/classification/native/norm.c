/* Batch norm of packed bf16 in fp32, with an addition and a ReLU. */
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#include <math.h>

#include "native.h"
#include "vectors.h"

typedef struct {
    const extent *e;
    const bf16_pair *from, *more, *y;
    bf16_pair *to, *masked;
    const float *mean, *factors;
    float *partial;
    bool relu;
} pass;

static void finish_statistics(const extent *e, const norm *n, const float *partial) {
    double count = (double)e->samples * e->rows * e->columns;
    for (int c = 0; c < e->channels; c++) {
        double sum = 0, square = 0;
        for (int row = 0; row < e->groups * e->rows; row++) {
            sum += partial[(ptrdiff_t)row * 2 * e->channels + c];
            square += partial[((ptrdiff_t)row * 2 + 1) * e->channels + c];
        }
        double mean = sum / count, variance = square / count - mean * mean;
        if (variance < 0) variance = 0; /* by rounding; fmax would make 0 of NaN too */
        n->mean[c] = (float)mean;
        n->inverse[c] = (float)(1 / sqrt(variance + n->epsilon));
        double unbiased = variance * count / fmax(count - 1, 1);
        n->running_mean[c] += (float)(n->momentum * (mean - n->running_mean[c]));
        n->running_variance[c] += (float)(n->momentum * (unbiased - n->running_variance[c]));
    }
}

static void forward_row(const void *context, int number) {
    const pass *p = context;
    int pairs = p->e->channels / 2, group = number / p->e->rows;
    __mmask16 here[2] = {present(p->e->samples, group, 0), present(p->e->samples, group, 1)};
    ptrdiff_t at = (ptrdiff_t)number * p->e->columns * pairs * GROUP;
    const float *scale = p->factors, *shift = p->factors + p->e->channels;
    const __m512 zero = _mm512_setzero_ps();
    for (int column = 0; column < p->e->columns; column++)
        for (int j = 0; j < pairs; j++)
            for (int half = 0; half < 2; half++, at += VECTOR) {
                __m512i z = load(p->from + at);
                __m512 first = _mm512_fmadd_ps(even(z), _mm512_set1_ps(scale[2 * j]), _mm512_set1_ps(shift[2 * j]));
                __m512 second = _mm512_fmadd_ps(odd(z), _mm512_set1_ps(scale[2 * j + 1]), _mm512_set1_ps(shift[2 * j + 1]));
                if (p->more) {
                    __m512i more = load(p->more + at);
                    first = _mm512_add_ps(first, even(more)), second = _mm512_add_ps(second, odd(more));
                }
                if (p->relu) first = _mm512_max_ps(zero, first), second = _mm512_max_ps(zero, second); /* NaN stays */
                store(p->to + at, _mm512_maskz_mov_epi32(here[half], pairs_of(first, second)));
            }
}

void norm_forward(const extent *e, const norm *n, const float *partial, const bf16_pair *z, const bf16_pair *residual,
                  bool relu, float *factors, bf16_pair *y, int threads) {
    if (n->trains) finish_statistics(e, n, partial);
    for (int c = 0; c < e->channels; c++) {
        if (!n->trains) {
            n->mean[c] = n->running_mean[c];
            n->inverse[c] = (float)(1 / sqrt(n->running_variance[c] + n->epsilon));
        }
        factors[c] = n->weight[c] * n->inverse[c];
        factors[e->channels + c] = n->bias[c] - n->mean[c] * factors[c];
    }
    pass p = {.e = e, .from = z, .more = residual, .to = y, .factors = factors, .relu = relu};
    in_threads(threads, e->groups * e->rows, forward_row, &p);
}

/* The gradient before the ReLU. */
INLINE __m512i behind(const pass *p, ptrdiff_t at) {
    __m512i gradient = load(p->from + at);
    if (!p->y) return gradient;
    return _mm512_maskz_mov_epi16(_mm512_cmpgt_epi16_mask(load(p->y + at), _mm512_setzero_si512()), gradient);
}

/* Sums of the gradient, and of its products with how far the input is from the mean. */
static void sums_row(const void *context, int number) {
    const pass *p = context;
    int channels = p->e->channels, pairs = channels / 2;
    float *to = p->partial + (ptrdiff_t)number * 2 * channels;
    for (int j = 0; j < pairs; j++) {
        __m512 mean[2] = {_mm512_set1_ps(p->mean[2 * j]), _mm512_set1_ps(p->mean[2 * j + 1])};
        __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()}, product[2] = {sum[0], sum[0]};
        for (int x = 0; x < 2 * p->e->columns; x++) {
            ptrdiff_t at = (((ptrdiff_t)number * p->e->columns + x / 2) * pairs + j) * GROUP + x % 2 * VECTOR;
            __m512i gradient = behind(p, at), z = load(p->more + at);
            sum[0] = _mm512_add_ps(sum[0], even(gradient));
            sum[1] = _mm512_add_ps(sum[1], odd(gradient));
            product[0] = _mm512_fmadd_ps(even(gradient), _mm512_sub_ps(even(z), mean[0]), product[0]);
            product[1] = _mm512_fmadd_ps(odd(gradient), _mm512_sub_ps(odd(z), mean[1]), product[1]);
        }
        for (int i = 0; i < 2; i++) {
            to[2 * j + i] = _mm512_reduce_add_ps(sum[i]);
            to[channels + 2 * j + i] = _mm512_reduce_add_ps(product[i]);
        }
    }
}

static void backward_row(const void *context, int number) {
    const pass *p = context;
    int channels = p->e->channels, pairs = channels / 2, group = number / p->e->rows;
    __mmask16 here[2] = {present(p->e->samples, group, 0), present(p->e->samples, group, 1)};
    ptrdiff_t at = (ptrdiff_t)number * p->e->columns * pairs * GROUP;
    const float *scale = p->factors, *slope = scale + channels, *shift = slope + channels;
    for (int column = 0; column < p->e->columns; column++)
        for (int j = 0; j < pairs; j++)
            for (int half = 0; half < 2; half++, at += VECTOR) {
                __m512i gradient = behind(p, at), z = load(p->more + at);
                __m512 values[2] = {even(gradient), odd(gradient)}, inputs[2] = {even(z), odd(z)};
                for (int i = 0; i < 2; i++) {
                    int c = 2 * j + i;
                    __m512 rest = _mm512_fmadd_ps(inputs[i], _mm512_set1_ps(slope[c]), _mm512_set1_ps(shift[c]));
                    values[i] = _mm512_fmadd_ps(values[i], _mm512_set1_ps(scale[c]), rest);
                }
                store(p->to + at, _mm512_maskz_mov_epi32(here[half], pairs_of(values[0], values[1])));
                if (p->masked) store(p->masked + at, gradient);
            }
}

void norm_backward(const extent *e, const norm *n, const bf16_pair *gradient, const bf16_pair *y, const bf16_pair *z,
                   float *partial, float *factors, bf16_pair *z_gradient, bf16_pair *masked, float *weight_gradient,
                   float *bias_gradient, int threads) {
    int channels = e->channels;
    pass p = {e, gradient, z, y, z_gradient, masked, n->mean, factors, partial, false};
    in_threads(threads, e->groups * e->rows, sums_row, &p);
    double count = (double)e->samples * e->rows * e->columns;
    for (int c = 0; c < channels; c++) {
        double sum = 0, product = 0;
        for (int row = 0; row < e->groups * e->rows; row++) {
            sum += partial[(ptrdiff_t)row * 2 * channels + c];
            product += partial[((ptrdiff_t)row * 2 + 1) * channels + c];
        }
        double inverse = n->inverse[c], scale = n->weight[c] * inverse;
        weight_gradient[c] = (float)(product * inverse);
        bias_gradient[c] = (float)sum;
        double slope = n->trains ? -scale * inverse * inverse * product / count : 0;
        factors[c] = (float)scale;
        factors[channels + c] = (float)slope;
        factors[2 * channels + c] = (float)(n->trains ? -scale * sum / count - slope * n->mean[c] : 0);
    }
    in_threads(threads, e->groups * e->rows, backward_row, &p);
}
