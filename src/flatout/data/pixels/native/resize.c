/* Pillow's Image.resize(BILINEAR), equal to the byte: the same weights in the same fixed point, the same rounding
 * to 8 bits between the passes, the same order of the passes, the same skipping of a pass that changes nothing.
 * Rows are pushed one at a time, so a decoded row is resized while it is still in the first-level cache. */
#include <math.h>
#include <string.h>

#include "kernels.h"

#define MAX_TAPS 4096 /* beyond this, rounding errors of the weights could add up to a clipped pixel */

static double triangle(double x) {
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

typedef struct {
    int first, end;
    double centre;
} window;

/* The input pixels that Pillow weighs for one output pixel. */
static window pillow_window(int in, int index, double scale, double support) {
    double centre = (index + 0.5) * scale;
    int first = (int)(centre - support + 0.5), end = (int)(centre + support + 0.5);
    return (window){first < 0 ? 0 : first, end > in ? in : end, centre};
}

static void pillow_weights(window w, double support, int32_t *to) {
    double weights[MAX_TAPS], sum = 0.0, inverse = 1.0 / support;
    for (int i = w.first; i < w.end; i++) sum += weights[i - w.first] = triangle((i - w.centre + 0.5) * inverse);
    for (int i = 0; i < w.end - w.first; i++) to[i] = (int32_t)(0.5 + weights[i] / sum * (1 << PRECISION_BITS));
}

static bool axis_allocate(axis *a, int out, int taps) {
    size_t padded = ((size_t)out + 3) / 4 * 4;
    *a = (axis){.taps = taps, .blocks = (taps + 3) / 4, .memory = a->memory};
    size_t packed_bytes = padded * (size_t)a->blocks * 32 * sizeof(int16_t);
    size_t weight_bytes = (size_t)out * (size_t)taps * sizeof(int32_t), start_bytes = padded * sizeof(int);
    if (!buffer_reserve(&a->memory, packed_bytes + weight_bytes + 2 * start_bytes)) return false;
    memset(a->memory.bytes, 0, packed_bytes + weight_bytes + 2 * start_bytes);
    a->packed = (int16_t *)(void *)a->memory.bytes;
    a->weight = (int32_t *)(void *)(a->memory.bytes + packed_bytes);
    a->start = (int *)(void *)(a->memory.bytes + packed_bytes + weight_bytes);
    a->offset = a->start + padded;
    return true;
}

/* The layout that pass_across() multiplies by: per four taps, lower parts then upper parts, each pair of taps four
 * times over for R, G, B and nothing. */
static void pack_weights(const axis *a, int index) {
    const int32_t *weight = a->weight + (size_t)index * (size_t)a->taps;
    int16_t *packed = a->packed + (size_t)index * (size_t)a->blocks * 32;
    for (int t = 0; t < a->taps; t++) {
        int16_t *to = packed + t / 4 * 32 + t % 4 / 2 * 8 + t % 2;
        for (int c = 0; c < 8; c += 2) {
            to[c] = (int16_t)(weight[t] & ((1 << WEIGHT_BITS) - 1));
            to[c + 16] = (int16_t)(weight[t] >> WEIGHT_BITS);
        }
    }
}

static bool axis_prepare(axis *a, int in, int out) {
    if (a->in == in && a->out == out) return true;
    double scale = (double)in / out, support = scale < 1.0 ? 1.0 : scale;
    if (2 * ceil(support) + 1 > MAX_TAPS) return false;
    int taps = 1;
    for (int i = 0; i < out; i++) {
        window w = pillow_window(in, i, scale, support);
        if (w.end - w.first > taps) taps = w.end - w.first;
    }
    if (!axis_allocate(a, out, taps)) return false;
    for (int i = 0; i < out; i++) {
        window w = pillow_window(in, i, scale, support);
        a->start[i] = w.first + taps > in ? in - taps : w.first; /* all windows have `taps` pixels inside the row */
        a->offset[i] = 3 * a->start[i];
        pillow_weights(w, support, a->weight + (size_t)i * (size_t)taps + (w.first - a->start[i]));
        pack_weights(a, i);
    }
    a->in = in;
    a->out = out;
    return true;
}

bool pillow_may_go_down_first = true;

/* The order of the passes shows in the last bit. Pillow 13 goes down first where that saves work; 12.2 and 12.3 do
 * so for shapes too extreme to be worth telling apart here. */
static bool choose_order(resizer *r, int width, int height) {
    int size = r->target->size;
    r->down_first = r->resize_across && r->resize_down && pillow_may_go_down_first && height > size &&
                    height - size > 2 * (width - size);
    return pillow_may_go_down_first || height / 100 < width;
}

bool resize_begin(resizer *r, int width, int height, const canvas *target) {
    r->target = target;
    r->next_in = r->next_out = 0;
    r->resize_across = width != target->size;
    r->resize_down = height != target->size;
    if (!choose_order(r, width, height)) return false;
    if (r->resize_across && !axis_prepare(&r->across, width, target->size)) return false;
    if (r->resize_down && !axis_prepare(&r->down, height, target->size)) return false;
    bool across_first = r->resize_across && !r->down_first;
    r->row_bytes = across_first ? 4 * (size_t)target->size : 3 * (size_t)width;
    r->ring_stride = (r->row_bytes / LINE_BYTES + 1) * LINE_BYTES;
    size_t ring_rows = r->resize_down ? (size_t)r->down.taps : 1;
    return buffer_reserve(&r->ring, ring_rows * r->ring_stride) &&
           buffer_reserve(&r->middle, r->ring_stride + ROW_PADDING) &&
           buffer_reserve(&r->line, 4 * (size_t)(target->size + 3));
}

static uint8_t *ring_row(const resizer *r, int index) {
    return r->ring.bytes + (size_t)(index % r->down.taps) * r->ring_stride;
}

static void emit(resizer *r, int index, const uint8_t *row, bool across) {
    if (across) pass_across(&r->across, row, r->line.bytes);
    canvas_row(r->target, index, across ? r->line.bytes : row, r->resize_across ? 4 : 3);
}

static void emit_ready_rows(resizer *r) {
    const axis *a = &r->down;
    const uint8_t *rows[MAX_TAPS];
    for (; r->next_out < a->out && a->start[r->next_out] + a->taps <= r->next_in; r->next_out++) {
        for (int t = 0; t < a->taps; t++) rows[t] = ring_row(r, a->start[r->next_out] + t);
        const int32_t *weight = a->weight + (size_t)r->next_out * (size_t)a->taps;
        pass_down(a->taps, rows, weight, r->row_bytes, r->middle.bytes);
        emit(r, r->next_out, r->middle.bytes, r->down_first);
    }
}

void resize_push(resizer *r, const uint8_t *rgb_row) {
    int index = r->next_in++;
    if (!r->resize_down) {
        emit(r, index, rgb_row, r->resize_across);
        return;
    }
    if (r->resize_across && !r->down_first)
        pass_across(&r->across, rgb_row, ring_row(r, index));
    else
        memcpy(ring_row(r, index), rgb_row, r->row_bytes);
    emit_ready_rows(r);
}

void resize_free(resizer *r) {
    buffer *all[] = {&r->across.memory, &r->down.memory, &r->ring, &r->middle, &r->line};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) buffer_free(all[i]);
}
