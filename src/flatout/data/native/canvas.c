/* Where the pixels of an image land: shifted, flipped, as planes. */
#include <string.h>

#include "kernels.h"

void canvas_clear(const canvas *c) {
    if (c->dx || c->dy) memset(c->planes, c->fill, 3 * (size_t)c->size * (size_t)c->size);
}

void canvas_row(const canvas *c, int y, const uint8_t *pixels, int pixel_bytes) {
    int row = y - c->dy, size = c->size;
    if (row < 0 || row >= size) return;
    int first = c->dx > 0 ? c->dx : 0, end = c->dx < 0 ? size + c->dx : size; /* columns that stay in the picture */
    int count = end > first ? end - first : 0;
    int left = c->flip ? size - (end - c->dx) : first - c->dx;
    if (count == 0) left = size;
    size_t plane_bytes = (size_t)size * (size_t)size;
    uint8_t *to = c->planes + (size_t)row * (size_t)size;
    uint8_t *planes[3] = {to + left, to + left + plane_bytes, to + left + 2 * plane_bytes};
    split_pixels(pixels + (size_t)first * (size_t)pixel_bytes, pixel_bytes, c->flip, planes, count);
}
