/* The Python-free half of flatout.tasks.classification._fused: a ResNet's convolutions with their norms in bf16, for
 * processors with AVX512_BF16.
 *
 *   threads.c  loops over the cores that torch computes with
 *   packed.c   to and from the layout below; the largest of a window
 *   conv.c     convolutions forward, and back to their inputs and weights
 *   norm.c     batch norm with an addition and a ReLU, forward and backward
 *
 * Activations are *packed*: [groups of 32 samples][row][column][pair of channels][32 samples][2 channels], as bf16. A
 * vector register holds two channels of 16 samples, so that every number of channels and every size of picture fills
 * it, places beyond an edge are left out and not computed, and a weight is one broadcast. Samples that fill up the last
 * group are zeros. No result depends on the number of threads.
 */
#ifndef FLATOUT_FUSED_H
#define FLATOUT_FUSED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GROUP 32 /* samples */

typedef uint32_t bf16_pair;

typedef struct {
    int samples, groups;
    int in_rows, in_columns, out_rows, out_columns;
    int kernel_rows, kernel_columns, stride_rows, stride_columns, padding_rows, padding_columns;
    int inputs, outputs; /* channels; inputs of one tap, an even number */
    int row_pairs, column_pairs; /* from one row or column of the input to the next */
} geometry;

/* Calls task(context, 0), ..., task(context, count - 1), each once, in `threads` threads. */
void in_threads(int threads, int count, void (*task)(const void *context, int number), const void *context);

/* images [samples][3][rows][columns] -> rows of bf16 [groups][row][elements / 2][32][2]: the channels of a pixel and
 * zeros up to `step`, after `before` zeros, and zeros up to `elements`. */
void pack_images(const float *images, bf16_pair *to, int samples, int rows, int columns, int step, int before,
                 int elements, int threads);

/* 3x3 with stride 2 and padding 1, of values that are not negative; `places` is which of the nine was taken. */
void pool_forward(const bf16_pair *x, bf16_pair *y, bf16_pair *places, int groups, int rows, int columns, int pairs,
                  int threads);
void pool_backward(const bf16_pair *gradient, const bf16_pair *places, bf16_pair *x_gradient, int groups, int rows,
                   int columns, int pairs, int threads);

/* weights [outputs][taps][inputs]; `packed` has room for as many bf16. `partial`: NULL, or sums and sums of squares
 * [groups * out_rows][2][outputs]. */
void conv_forward(const geometry *g, const bf16_pair *x, const float *weights, bf16_pair *packed, bf16_pair *z,
                  float *partial, int threads);
void conv_to_inputs(const geometry *g, const bf16_pair *gradient, const float *weights, bf16_pair *packed,
                    bf16_pair *x_gradient, int threads);
/* `scratch` has room for transposed_pairs(). */
void conv_to_weights(const geometry *g, const bf16_pair *x, const bf16_pair *gradient, bf16_pair *scratch,
                     float *weight_gradient, int threads);
size_t transposed_pairs(const geometry *g, int threads);

typedef struct {
    int samples, groups, rows, columns, channels;
} extent;

typedef struct {
    const float *weight, *bias; /* of the norm */
    float *mean, *inverse;      /* of this batch where it trains: written by forward, read by backward */
    float *running_mean, *running_variance;
    double epsilon, momentum;
    bool trains; /* with the statistics of the batch, else with the running ones */
} norm;

void norm_forward(const extent *e, const norm *n, const float *partial, const bf16_pair *z, const bf16_pair *residual,
                  bool relu, float *factors, bf16_pair *y, int threads);
/* y: NULL without a ReLU. `partial`: [groups * rows][2][channels], `factors`: [3][channels]. `masked`: NULL, or where
 * the gradient behind the ReLU goes. */
void norm_backward(const extent *e, const norm *n, const bf16_pair *gradient, const bf16_pair *y, const bf16_pair *z,
                   float *partial, float *factors, bf16_pair *z_gradient, bf16_pair *masked, float *weight_gradient,
                   float *bias_gradient, int threads);

#endif
