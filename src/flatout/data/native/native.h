/* The Python-free half of flatout.data._native: the fuzz harness links it without an interpreter.
 *
 *   slice.c    one slice of a batch: read the file, choose the box, decode, resize, place, normalise
 *   header.c   which JPEGs are ours, decided from the bytes before libjpeg sees them
 *   decode.c   libjpeg-turbo, decoding only the rows and columns of a box
 *   huffman.c  a faster baseline entropy decoder, plugged into libjpeg
 *   resize.c   Pillow's bilinear resize, equal to the byte, fed one row at a time
 *   canvas.c   shift, flip and planes
 *   kernels.c  the inner loops
 *   philox.c   the random numbers that a sample's crop and flip are drawn from
 */
#ifndef FLATOUT_NATIVE_H
#define FLATOUT_NATIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STATUS_DONE 0
#define STATUS_NOT_FOR_ME 1 /* the caller decodes this sample with Pillow; a negative status is -errno */

#define MAX_PIXELS (1 << 26) /* as flatout.data.decode: a larger picture must be refused there, not loaded here */
#define GEOMETRY_COLUMNS 27
#define ROW_PADDING 16 /* bytes that may be read past the last pixel of a row given to resize_push() */

typedef struct {
    uint8_t *bytes;
    size_t capacity;
} buffer;

bool buffer_reserve(buffer *b, size_t bytes); /* grow only; the old contents are lost */
void buffer_free(buffer *b);

typedef struct {
    int width, height, components;
    bool progressive;
} jpeg_header;

bool jpeg_inspect(const uint8_t *data, size_t size, jpeg_header *header); /* the header alone is sound */
bool jpeg_is_ours(const uint8_t *data, size_t size, jpeg_header *header); /* and Pillow would agree on the pixels */

typedef struct {
    int x, y, w, h;
} box;

typedef struct {
    uint8_t *planes; /* [3, size, size] */
    int size, dx, dy;
    bool flip;
    uint8_t fill;
} canvas;

void canvas_row(const canvas *c, int y, const uint8_t *pixels, int pixel_bytes); /* RGB or RGBx pixels */
void canvas_clear(const canvas *c); /* before the first row: what no pixel will land on */
void normalize_plane(const uint8_t *src, float *dst, size_t count, float scale, float bias);

typedef struct {
    int in, out, taps; /* every output pixel has `taps` weights, zero where Pillow has fewer */
    int blocks;        /* of four taps */
    int *start;        /* first input pixel of each output pixel */
    int *offset;       /* the same in bytes of RGB */
    int32_t *weight;
    int16_t *packed;
    buffer memory;
} axis;

typedef struct {
    axis across, down;
    bool resize_across, resize_down, down_first;
    int next_in, next_out;
    size_t row_bytes, ring_stride;
    buffer ring, middle, line; /* rows that the pass down may need, its result, and that of the pass across */
    const canvas *target;
} resizer;

extern bool pillow_may_go_down_first; /* Pillow 13 and later; set once, before the first slice */
bool resize_begin(resizer *r, int width, int height, const canvas *target);
void resize_push(resizer *r, const uint8_t *rgb_row); /* calls canvas_row() for every row that became ready */
void resize_free(resizer *r);

typedef struct decoder decoder;

typedef struct {
    double fetch_seconds, decode_seconds, augment_seconds;
    uint64_t bytes_read;
} slice_times;

decoder *decoder_new(void);
void decoder_free(decoder *d);
bool decode_box(decoder *d, const uint8_t *data, size_t size, const jpeg_header *header, box wanted, resizer *r,
                slice_times *times);
double now_seconds(void);

typedef enum { NOTHING, AT_PATH, IN_FILE, IN_MEMORY } source_kind; /* NOTHING: the sample and its status are left alone */

typedef struct {
    source_kind kind;
    const char *path;    /* AT_PATH: read this file */
    int fd;              /* IN_FILE: read `bytes` at this offset */
    int64_t offset;
    const uint8_t *data; /* IN_MEMORY */
    size_t bytes;
} source;

typedef struct {
    size_t count;
    const source *sources;
    const int32_t *raw_shapes; /* [count, 2] height, width of decoded pixels; (0, 0) or NULL: a JPEG */
    const double *geometry;    /* [count, GEOMETRY_COLUMNS] */
    int size;
    uint8_t fill;
    uint8_t *out; /* [count, 3, size, size] */
    int32_t *status;
} slice;

/* NULL, or why this row of geometry cannot be used. */
const char *geometry_fault(const double *row);
box choose_box(const double *row, int width, int height);
void load_slice(const slice *s, slice_times *times);

/* `each` numbers in [0, 1) for each id. */
void uniforms(uint64_t seed, uint32_t epoch, const int64_t *ids, size_t count, uint32_t stream, size_t each,
              double *out);

#endif
