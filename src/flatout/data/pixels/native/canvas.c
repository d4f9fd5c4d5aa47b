/* Where the pixels of an image land: shifted, flipped, as planes. */
#include <string.h>

#include "kernels.h"

/* Rows that no pixel will land on; the margins of the others are theirs to fill. */
void canvas_clear(const canvas *c) {
    size_t size = (size_t)c->size, plane_bytes = size * size;
    size_t margin = size * (size_t)(c->dy < 0 ? -c->dy : c->dy), at = c->dy < 0 ? 0 : plane_bytes - margin;
    for (size_t p = 0; p < 3; p++) memset(c->planes + p * plane_bytes + at, c->fill, margin);
}

/* The margin of a row before its pixels, which may land on what is too much of it: one store is less than a call. */
static inline void fill_margin(uint8_t *row, int size, int count, bool at_left, uint8_t fill) {
    uint64_t word = 0x0101010101010101u * fill;
    int margin = size - count;
    if (margin <= (int)sizeof word && size >= (int)sizeof word)
        memcpy(at_left ? row : row + size - sizeof word, &word, sizeof word);
    else
        memset(at_left ? row : row + count, fill, (size_t)margin);
}

typedef struct {
    uint8_t *planes[3]; /* where the pixels of a row land */
    int first, count;   /* and which of them */
} landing;

/* Also fills the margins. No pixels: count is 0. */
static landing land(const canvas *c, int y) {
    int row = y - c->dy, size = c->size;
    if (row < 0 || row >= size) return (landing){.count = 0};
    int first = c->dx > 0 ? c->dx : 0, end = c->dx < 0 ? size + c->dx : size; /* columns that stay in the picture */
    int count = end > first ? end - first : 0;
    int left = c->flip ? size - (end - c->dx) : first - c->dx;
    if (count == 0) left = size;
    size_t plane_bytes = (size_t)size * (size_t)size;
    uint8_t *to = c->planes + (size_t)row * (size_t)size;
    if (count < size)
        for (size_t p = 0; p < 3; p++) fill_margin(to + p * plane_bytes, size, count, left > 0, c->fill);
    return (landing){{to + left, to + left + plane_bytes, to + left + 2 * plane_bytes}, first, count};
}

void canvas_row(const canvas *c, int y, const uint8_t *pixels, int pixel_bytes) {
    landing l = land(c, y);
    if (l.count) split_pixels(pixels + (size_t)l.first * (size_t)pixel_bytes, pixel_bytes, c->flip, l.planes, l.count);
}

void canvas_planes(const canvas *c, int y, const uint8_t *const planes[3]) {
    landing l = land(c, y);
    const uint8_t *from[3] = {planes[0] + l.first, planes[1] + l.first, planes[2] + l.first};
    if (l.count) copy_planes(from, l.planes, l.count, c->flip);
}
