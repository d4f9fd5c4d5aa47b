/* One slice of a batch, sample by sample, with nothing shared between calls. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "native.h"

#define CACHE_LINE 64

enum { KIND, FRACTION, OFFSET_X, OFFSET_Y, SHIFT_X, SHIFT_Y, WIDTHS, HEIGHTS = WIDTHS + 10, FLIP = HEIGHTS + 10 };

bool buffer_reserve(buffer *b, size_t bytes) {
    if (bytes <= b->capacity) return true;
    size_t capacity = bytes + bytes / 4; /* sizes vary from image to image; do not creep up on the largest */
    free(b->bytes);
    b->bytes = malloc(capacity);
    b->capacity = b->bytes ? capacity : 0;
    return b->bytes != NULL;
}

void buffer_free(buffer *b) {
    free(b->bytes);
    *b = (buffer){0};
}

double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool within(double value, double low, double high) { return value >= low && value <= high; } /* NaN: no */

const char *geometry_fault(const double *row) {
    if (row[KIND] != 0 && row[KIND] != 1) return "kind must be 0 or 1";
    if (row[FLIP] != 0 && row[FLIP] != 1) return "flip must be 0 or 1";
    if (!within(row[SHIFT_X], -1e6, 1e6) || !within(row[SHIFT_Y], -1e6, 1e6) ||
        row[SHIFT_X] != floor(row[SHIFT_X]) || row[SHIFT_Y] != floor(row[SHIFT_Y]))
        return "shifts must be whole numbers within 1e6";
    if (row[KIND] == 0) return within(row[FRACTION], 0, 1) ? NULL : "fraction must be between 0 and 1";
    if (!within(row[OFFSET_X], 0, 1) || !within(row[OFFSET_Y], 0, 1)) return "offsets must be between 0 and 1";
    for (int i = WIDTHS; i < FLIP; i++)
        if (!within(row[i], 0, 1e6)) return "relative widths and heights must be between 0 and 1e6";
    return NULL;
}

static int least(int a, int b) { return a < b ? a : b; }

/* Also for NaN: another thread may scribble on the geometry after it was checked. */
static int between(double value, int low, int high) { return (int)fmax(low, fmin(high, value)); }

static box centre_box(int width, int height, int w, int h) {
    return (box){(width - w) / 2, (height - h) / 2, w, h};
}

static box fallback_box(int width, int height) {
    double ratio = (double)width / height;
    if (ratio < 3.0 / 4.0) return centre_box(width, height, width, between(rint(width / 0.75), 1, height));
    if (ratio > 4.0 / 3.0) return centre_box(width, height, between(rint(height * (4.0 / 3.0)), 1, width), height);
    return (box){0, 0, width, height};
}

box choose_box(const double *row, int width, int height) {
    if (row[KIND] == 0) {
        int side = between(rint(least(width, height) * row[FRACTION]), 1, least(width, height));
        return centre_box(width, height, side, side);
    }
    double root = sqrt((double)width * height);
    for (int k = 0; k < 10; k++) {
        double wide = rint(row[WIDTHS + k] * root), high = rint(row[HEIGHTS + k] * root);
        if (!(wide > 0 && wide <= width && high > 0 && high <= height)) continue;
        int w = (int)wide, h = (int)high;
        return (box){between(floor(row[OFFSET_X] * (width - w + 1)), 0, width - w),
                     between(floor(row[OFFSET_Y] * (height - h + 1)), 0, height - h), w, h};
    }
    return fallback_box(width, height);
}

/* The most that leaves the box no smaller than `size` x `size`. As flatout.data.pixels.reference. */
int choose_shrink(box b, int size) {
    int shrink = 1;
    while (shrink < 8 && least(b.w, b.h) / (2 * shrink) >= size) shrink *= 2;
    return shrink;
}

/* Edges at the nearest whole pixel of the smaller picture, whose size libjpeg rounds up: never outside. */
box shrink_box(box b, int shrink) {
    int half = shrink / 2, x = (b.x + half) / shrink, y = (b.y + half) / shrink;
    return (box){x, y, (b.x + b.w + half) / shrink - x, (b.y + b.h + half) / shrink - y};
}

typedef struct {
    const slice *s;
    slice_times *times;
    decoder *jpeg;
    resizer resize;
    plane_rows planes;
    buffer file, last_row, picture;
} worker;

/* 0 and up to `expected` bytes in w->file, or a status. */
static int read_bytes(worker *w, int fd, int64_t offset, size_t expected, size_t *bytes) {
    if (expected > MAX_FILE_BYTES || !buffer_reserve(&w->file, expected + 1)) return STATUS_NOT_FOR_ME;
    for (*bytes = 0; *bytes < expected;) {
        ssize_t got = pread(fd, w->file.bytes + *bytes, expected - *bytes, offset + (int64_t)*bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -errno;
        if (got == 0) break;
        *bytes += (size_t)got;
    }
    return STATUS_DONE;
}

/* The whole file. Pipes and devices are not opened for reading: they could block. */
static int read_descriptor(worker *w, int fd, size_t *bytes) {
    struct stat about;
    if (fstat(fd, &about) != 0) return -errno;
    if (S_ISDIR(about.st_mode)) return -EISDIR;
    if (!S_ISREG(about.st_mode)) return STATUS_NOT_FOR_ME;
    return read_bytes(w, fd, 0, (size_t)about.st_size, bytes);
}

/* A stretch of a file that has become too short is for the caller to name. */
static int read_stretch(worker *w, const source *from, size_t *bytes) {
    int status = read_bytes(w, from->fd, from->offset, from->bytes, bytes);
    return status == STATUS_DONE && *bytes < from->bytes ? STATUS_NOT_FOR_ME : status;
}

/* A file that still has its size is read by one call; whatever else it has become is looked at first. */
static int read_file(worker *w, const source *from, size_t *bytes) {
    int fd = openat(from->fd, from->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return -errno;
    *bytes = from->bytes;
    bool as_known = *bytes > 0 && *bytes <= MAX_FILE_BYTES && buffer_reserve(&w->file, *bytes + 1) &&
                    pread(fd, w->file.bytes, *bytes + 1, 0) == (ssize_t)*bytes;
    int status = as_known ? STATUS_DONE : read_descriptor(w, fd, bytes);
    close(fd);
    return status;
}

/* Rows at the very end are pushed from a copy: the resizer reads a few bytes past a row's end. */
static bool push_raw(worker *w, const uint8_t *pixels, size_t bytes, size_t width, box b) {
    size_t row_bytes = 3 * (size_t)b.w, at = 3 * ((size_t)b.y * width + (size_t)b.x);
    if (!buffer_reserve(&w->last_row, row_bytes + ROW_PADDING)) return false;
    for (int y = 0; y < b.h; y++, at += 3 * width) {
        const uint8_t *row = pixels + at;
        if (bytes - at < row_bytes + ROW_PADDING) row = memcpy(w->last_row.bytes, row, row_bytes);
        resize_push(&w->resize, row);
    }
    return true;
}

/* The next sample lies anywhere in memory: asked for now, line by line, it is there when its turn comes. */
static void ask_for_next(const source *next, size_t *asked, size_t share) {
    size_t last = next && next->kind == IN_MEMORY ? next->bytes : 0;
    for (; *asked < share && *asked < last; *asked += CACHE_LINE) __builtin_prefetch(next->data + *asked);
}

static bool place_raw(const uint8_t *pixels, size_t width, box b, const canvas *c, const source *next) {
    size_t row_bytes = 3 * width, asked = 0;
    for (int y = 0; y < b.h; y++) {
        ask_for_next(next, &asked, (size_t)(y + 1) * row_bytes);
        canvas_row(c, y, pixels + (size_t)(b.y + y) * row_bytes + 3 * (size_t)b.x, 3);
    }
    return true;
}

static bool place_planes(worker *w, const planes *p, box b, const canvas *c, const source *next) {
    size_t asked = 0;
    if (!planes_reserve(&w->planes, b.w, false)) return false;
    for (int y = 0; y < b.h; y += PLANE_ROWS) {
        int count = least(PLANE_ROWS, b.h - y);
        planes_convert(p, &w->planes, (box){b.x, b.y + y, b.w, count});
        for (int i = 0; i < count; i++) {
            const uint8_t *rows[3] = {planes_plane(&w->planes, i, 0), planes_plane(&w->planes, i, 1),
                                      planes_plane(&w->planes, i, 2)};
            ask_for_next(next, &asked, 2 * (size_t)(y + i + 1) * p->stride);
            canvas_planes(c, y + i, rows);
        }
    }
    return true;
}

static bool push_planes(worker *w, const planes *p, box b) {
    if (!planes_reserve(&w->planes, b.w, true)) return false;
    for (int y = 0; y < b.h; y += PLANE_ROWS) {
        int count = least(PLANE_ROWS, b.h - y);
        planes_convert(p, &w->planes, (box){b.x, b.y + y, b.w, count});
        for (int i = 0; i < count; i++) resize_push(&w->resize, planes_rgb(&w->planes, i));
    }
    return true;
}

static bool load_raw(worker *w, const uint8_t *pixels, size_t bytes, const int32_t *shape, const double *row,
                     const canvas *c, const source *next) {
    int height = shape[0], kept_width = shape[1]; /* read once: only these are checked */
    if (height <= 0 || kept_width == 0 || height > MAX_PIXELS || kept_width > MAX_PIXELS || kept_width < -MAX_PIXELS ||
        bytes != kept_bytes(height, kept_width))
        return false;
    double started = now_seconds();
    bool as_planes = kept_width < 0;
    int width = as_planes ? -kept_width : kept_width;
    box b = choose_box(row, width, height);
    planes p = as_planes ? planes_of(pixels, height, width) : (planes){0};
    bool done;
    if (b.w == c->size && b.h == c->size)
        done = as_planes ? place_planes(w, &p, b, c, next) : place_raw(pixels, (size_t)width, b, c, next);
    else
        done = resize_begin(&w->resize, b.w, b.h, c) &&
               (as_planes ? push_planes(w, &p, b) : push_raw(w, pixels, bytes, (size_t)width, b));
    w->times->augment_seconds += now_seconds() - started;
    return done;
}

static bool decode_kept(worker *w, const uint8_t *data, size_t bytes, const jpeg_header *header, uint8_t *to) {
    return (header->planes_420 ? decode_planes : decode_whole)(w->jpeg, data, bytes, header, to, w->times);
}

/* The whole picture, kept from now on where nothing went wrong; NULL where there is none, which says nothing about its
 * parts. */
static const uint8_t *keep_whole(worker *w, const uint8_t *data, size_t bytes, const jpeg_header *header,
                                 int64_t arena_row, const int32_t shape[2]) {
    const arena *a = w->s->keep;
    uint8_t *room = arena_claim(a, arena_row, shape[0], shape[1]), *to = room;
    if (!room) return NULL;
    if (a->fd >= 0) to = buffer_reserve(&w->picture, (size_t)kept_bytes(shape[0], shape[1]) + 1) ? w->picture.bytes + 1 : NULL;
    if (!to || !decode_kept(w, data, bytes, header, to)) {
        arena_give_back(a, arena_row, room, shape[0], shape[1]);
        return NULL;
    }
    arena_keep(a, arena_row, room, to, shape[0], shape[1]);
    return to;
}

static bool load_jpeg(worker *w, const uint8_t *data, size_t bytes, size_t index, const double *row, const canvas *c) {
    jpeg_header header;
    if (!jpeg_is_ours(data, bytes, &header)) return false;
    if (!w->jpeg && !(w->jpeg = decoder_new())) return false;
    int32_t shape[2] = {header.height, header.planes_420 ? -header.width : header.width};
    const uint8_t *kept = w->s->keep ? keep_whole(w, data, bytes, &header, w->s->keep_rows[index], shape) : NULL;
    if (kept) return load_raw(w, kept, (size_t)kept_bytes(shape[0], shape[1]), shape, row, c, NULL);
    box b = choose_box(row, header.width, header.height);
    int shrink = w->s->scaled ? choose_shrink(b, c->size) : 1;
    b = shrink_box(b, shrink);
    bool to_the_end = w->s->status[index] != STATUS_ENDS_WELL;
    return resize_begin(&w->resize, b.w, b.h, c) &&
           decode_box(w->jpeg, data, bytes, &header, shrink, b, to_the_end, &w->resize, w->times);
}

static int load_sample(worker *w, size_t index) {
    const slice *s = w->s;
    const double *row = s->geometry + index * GEOMETRY_COLUMNS;
    const source *from = &s->sources[index];
    const uint8_t *data = from->data;
    size_t bytes = from->bytes;
    if (from->kind != IN_MEMORY) {
        double started = now_seconds();
        int status = from->kind == AT_PATH ? read_file(w, from, &bytes) : read_stretch(w, from, &bytes);
        w->times->fetch_seconds += now_seconds() - started;
        if (status != STATUS_DONE) return status;
        data = w->file.bytes;
    }
    if (s->digests && !digest_agrees(data, bytes, s->digests + index * DIGEST_BYTES)) return STATUS_NOT_FOR_ME;
    canvas c = {.planes = s->out + index * 3 * (size_t)s->size * (size_t)s->size,
                .size = s->size,
                .dx = between(row[SHIFT_X], -s->size, s->size), /* beyond it, the picture is just as gone */
                .dy = between(row[SHIFT_Y], -s->size, s->size),
                .flip = row[FLIP] != 0,
                .fill = s->fill};
    canvas_clear(&c);
    const int32_t *shape = s->raw_shapes ? s->raw_shapes + 2 * index : NULL;
    bool is_raw = shape && (shape[0] || shape[1]);
    const source *next = index + 1 < s->count ? from + 1 : NULL;
    bool done = is_raw ? load_raw(w, data, bytes, shape, row, &c, next) : load_jpeg(w, data, bytes, index, row, &c);
    if (!done) return STATUS_NOT_FOR_ME;
    if (!is_raw) w->times->bytes_read += bytes;
    return STATUS_DONE;
}

void load_slice(const slice *s, slice_times *times) {
    worker w = {.s = s, .times = times};
    for (size_t i = 0; i < s->count; i++)
        if (s->sources[i].kind != NOTHING) s->status[i] = load_sample(&w, i);
    decoder_free(w.jpeg);
    resize_free(&w.resize);
    buffer_free(&w.file);
    buffer_free(&w.last_row);
    buffer_free(&w.picture);
    buffer_free(&w.planes.sums);
    buffer_free(&w.planes.pixels);
}
