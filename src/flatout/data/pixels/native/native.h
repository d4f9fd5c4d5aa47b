/* The Python-free half of flatout.data.pixels._native: the fuzz harness links it without an interpreter.
 *
 *   slice.c    one slice of a batch: read the file, choose the box, decode, resize, place, normalise
 *   header.c   which JPEGs are ours, decided from the bytes before libjpeg sees them
 *   decode.c   libjpeg-turbo, decoding only the rows and columns of a box
 *   huffman.c  a faster baseline entropy decoder, plugged into libjpeg
 *   skim.c     which passes over large parts of a scan, several stretches at once
 *   resize.c   Pillow's bilinear resize, equal to the byte, fed one row at a time
 *   canvas.c   shift, flip and planes
 *   planes.c   pictures kept as 4:2:0 planes, converted where a crop shows them
 *   arena.c    decoded pictures that are kept, filled by several threads
 *   identity.c digests of what is read, and of what the file system says of a file
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

#define STATUS_ENDS_WELL 2 /* given by the caller: this file was read to its end before */

#define MAX_PIXELS (1 << 26) /* as flatout.data.pixels.picture_limits: a larger picture must be refused there, not loaded here */
#define MAX_FILE_BYTES (1 << 28) /* a larger file is not read */
#define SMALL_PIXELS (1 << 22)
#define MAX_EXPANSION 256    /* bytes of pixels that a byte of a file larger than SMALL_PIXELS may become */
#define MAX_SCANS 100        /* and more pixels in all of them than the next: as flatout.data.pixels.picture_limits */
#define MAX_SCAN_PIXELS (UINT64_C(1) << 30)
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
    bool progressive, planes_420; /* YCbCr whose chroma has half the columns and half the rows */
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
void canvas_planes(const canvas *c, int y, const uint8_t *const planes[3]); /* the same, of a row of each */
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

/* Bytes of a kept picture: RGB, or, where the width is below 0, planes of 4:2:0 (-width columns) in whole blocks. */
uint64_t kept_bytes(int height, int width);

typedef struct {
    const uint8_t *luma, *chroma[2];
    size_t stride, half_stride;
    int width, height, half_width, half_height;
} planes;

#define PLANE_ROWS 8 /* converted at once: enough for stores to be done before they are read, and few for the caches */
typedef struct {
    buffer sums, pixels;
    size_t sums_count, plane_bytes, shift;
    bool interleaved;
} plane_rows;

planes planes_of(const uint8_t *kept, int height, int width);
bool planes_reserve(plane_rows *r, int width, bool interleaved); /* for boxes that are so wide */
/* The pixels of a box of at most PLANE_ROWS rows; then each row as RGB that may be given to resize_push(), or, not
 * interleaved, of each plane. */
void planes_convert(const planes *p, plane_rows *r, box b);
static inline const uint8_t *planes_rgb(const plane_rows *r, int row) {
    return r->pixels.bytes + 3 * ((size_t)row * r->plane_bytes + r->shift);
}
static inline const uint8_t *planes_plane(const plane_rows *r, int row, int plane) {
    return r->pixels.bytes + (3 * (size_t)row + (size_t)plane) * r->plane_bytes + r->shift;
}
void copy_planes(const uint8_t *const from[3], uint8_t *const to[3], int count, bool mirrored);

typedef struct decoder decoder;

typedef struct {
    double fetch_seconds, decode_seconds, augment_seconds;
    uint64_t bytes_read;
} slice_times;

/* Whether huffman.c may replace libjpeg's decoder; true if it does, which is known once a picture was decoded. */
bool huffman_allow(bool allow);
decoder *decoder_new(void);
void decoder_free(decoder *d);
/* `to_the_end`: rows below the box are parsed too, a twentieth of the work, so that a file that ends early is noticed.
 * `shrink` is 1, 2, 4 or 8: libjpeg's DCT scaling by 1 / shrink, and `wanted` a box of the smaller picture. */
bool decode_box(decoder *d, const uint8_t *data, size_t size, const jpeg_header *header, int shrink, box wanted,
                bool to_the_end, resizer *r, slice_times *times);
/* The whole picture as rows of RGB, 3 * width * height bytes. */
bool decode_whole(decoder *d, const uint8_t *data, size_t size, const jpeg_header *header, uint8_t *to,
                  slice_times *times);
/* The same as planes, kept_bytes(height, -width) of them, of a header that has planes_420. */
bool decode_planes(decoder *d, const uint8_t *data, size_t size, const jpeg_header *header, uint8_t *to,
                   slice_times *times);
double now_seconds(void);

typedef enum { NOTHING, AT_PATH, IN_FILE, IN_MEMORY } source_kind; /* NOTHING: the sample and its status are left alone */

typedef struct {
    source_kind kind;
    const char *path;    /* AT_PATH: read this file, of probably `bytes`, 0 if nobody knows */
    int fd;              /* AT_PATH: the folder it is relative to; IN_FILE: read `bytes` at this offset */
    int64_t offset;
    const uint8_t *data; /* IN_MEMORY */
    size_t bytes;
} source;

typedef struct {
    int64_t end; /* of the picture's pixels in the arena; 0: not there, below: being written */
    int32_t height, width; /* width below 0: as planes, see kept_bytes() */
} arena_row;

typedef struct {
    uint8_t *pixels;
    int64_t capacity, rows;
    arena_row *index;
    int64_t *used; /* bytes of the pixels that are taken */
    int64_t *small_stretches; /* of 2 MiB, before a huge page is tried again */
    int fd;        /* of the file that the pixels are a mapping of, through which they are written; -1: memory */
} arena;

/* Room for a picture that nobody else keeps or is about to, to be kept or given back; NULL if there is none. */
uint8_t *arena_claim(const arena *a, int64_t row, int height, int width);
/* From now on the row has the picture, which is in its room, or anywhere where the arena is a file. */
bool arena_keep(const arena *a, int64_t row, uint8_t *room, const uint8_t *pixels, int height, int width);
void arena_give_back(const arena *a, int64_t row, const uint8_t *room, int height, int width);
bool arena_put(const arena *a, int64_t row, const uint8_t *pixels, int height, int width);

typedef struct {
    size_t count;
    const source *sources;
    const int32_t *raw_shapes; /* [count, 2] height, width of decoded pixels, as in an arena; (0, 0) or NULL: a JPEG */
    const double *geometry;    /* [count, GEOMETRY_COLUMNS] */
    int size;
    uint8_t fill;
    uint8_t *out; /* [count, 3, size, size] */
    int32_t *status;
    bool scaled;              /* JPEGs are decoded no larger than their crop needs; never with `keep` */
    const arena *keep;        /* NULL, or where whole pictures are kept */
    const int64_t *keep_rows; /* [count] of the arena; below 0: this one is not kept */
    uint8_t *digests;         /* NULL, or [count, DIGEST_BYTES]: see digest_agrees() */
} slice;

/* NULL, or why this row of geometry cannot be used. */
const char *geometry_fault(const double *row);
box choose_box(const double *row, int width, int height);
int choose_shrink(box b, int size);
box shrink_box(box b, int shrink);
void load_slice(const slice *s, slice_times *times);

#define DIGEST_BYTES 16
extern const bool can_digest; /* false where the machine that compiled this had no xxhash.h: nothing is ever digested */
/* `digest` is filled with the XXH3-128 of the bytes where it is all zeros, left alone where it is all ones, and else
 * says what the bytes must have: false, with what they do have, where they differ. */
bool digest_agrees(const uint8_t *data, size_t bytes, uint8_t digest[DIGEST_BYTES]);
/* Of a file: its size, times of change (contents, then inode) and inode. */
struct stat;
void locate(const struct stat *about, uint8_t locator[DIGEST_BYTES]);

typedef struct {
    uint8_t *bytes;
    size_t used, capacity;
} text;

/* In the order of their bytes. Names end in a zero byte; those of files begin with the prefix that was given. */
typedef struct {
    text names, sizes /* int64 */, locators /* DIGEST_BYTES each */;
    text folders, links; /* links to folders */
} folder_listing;

/* 0, or the errno that ended it. What it gathered is for listing_free(). */
int list_folder(const char *path, const char *prefix, folder_listing *to);
void listing_free(folder_listing *l);

/* `each` numbers in [0, 1) for each id. */
void uniforms(uint64_t seed, uint32_t epoch, const int64_t *ids, size_t count, uint32_t stream, size_t each,
              double *out);

#endif
