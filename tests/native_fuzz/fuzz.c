/* Mutates JPEGs and feeds them to the loader, with the sanitizers watching; what the loader accepts must equal a
 * plain, whole-picture decode by libjpeg. No Python in here: run.py builds and starts it.
 *
 *   fuzz COUNT SEED FILE...
 */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "../../src/flatout/data/pixels/native/native.h"

#define MAX_COMPARED_SIDE 160

static uint64_t state;
static unsigned long scaled_tally[3]; /* declined, accepted, and equal to a whole decode at the same scale */

static unsigned draw(unsigned below) { /* xorshift: the same mutations for a seed on every machine */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? (unsigned)(state >> 33) % below : 0;
}

typedef struct {
    uint8_t *bytes;
    size_t size;
} blob;

static blob read_blob(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) exit((perror(path), 2));
    fseek(file, 0, SEEK_END);
    blob b = {.size = (size_t)ftell(file)};
    b.bytes = malloc(b.size);
    rewind(file);
    if (fread(b.bytes, 1, b.size, file) != b.size) exit((perror(path), 2));
    fclose(file);
    return b;
}

static size_t header_bytes(blob b) { return b.size < 700 ? b.size : 700; }

static void mutate_once(blob *b, blob other) {
    size_t at = draw(3) ? draw((unsigned)b->size) : draw((unsigned)header_bytes(*b));
    switch (draw(8)) {
        case 0: b->bytes[at] ^= (uint8_t)(1 << draw(8)); break;
        case 1: b->bytes[at] = (uint8_t)draw(256); break;
        case 2: b->bytes[at] = draw(2) ? 0xFF : 0; break;
        case 3: /* a marker where none belongs */
            b->bytes[at] = 0xFF;
            if (at + 1 < b->size) b->bytes[at + 1] = (uint8_t)(0xC0 + draw(64));
            break;
        case 4: /* a piece of another file */
            for (size_t i = 0, n = draw(64); i < n && at + i < b->size && at + i < other.size; i++)
                b->bytes[at + i] = other.bytes[at + i];
            break;
        case 5: /* drop some bytes */ {
            size_t n = draw(16);
            if (n > b->size - at) n = b->size - at;
            memmove(b->bytes + at, b->bytes + at + n, b->size - at - n);
            b->size -= n;
            break;
        }
        case 6: /* cut short, mostly with an end marker pasted on */
            if (draw(4) || b->size < 4) break;
            b->size = 2 + draw((unsigned)b->size - 2);
            if (draw(4)) memcpy(b->bytes + b->size - 2, "\xFF\xD9", 2);
            break;
        default: b->bytes[draw((unsigned)header_bytes(*b))] = (uint8_t)draw(256);
    }
}

/* In a block of exactly its size, so that a read past the end is seen. */
static blob mutate(blob original, blob other) {
    blob scratch = {malloc(original.size + 1), original.size};
    memcpy(scratch.bytes, original.bytes, original.size);
    for (unsigned n = draw(4); n-- && scratch.size;) mutate_once(&scratch, other);
    blob exact = {malloc(scratch.size ? scratch.size : 1), scratch.size};
    memcpy(exact.bytes, scratch.bytes, scratch.size);
    free(scratch.bytes);
    return exact;
}

static jmp_buf failed;
static void on_error(j_common_ptr cinfo) { (void)cinfo, longjmp(failed, 1); }
static void silent(j_common_ptr cinfo) { (void)cinfo; }

/* The whole picture as RGB at 1 / shrink, warnings ignored as Pillow ignores them; NULL on an error. */
static uint8_t *plain_decode(blob b, int shrink, int *width, int *height) {
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr errors;
    uint8_t *volatile pixels = NULL;
    cinfo.err = jpeg_std_error(&errors);
    errors.error_exit = on_error;
    errors.output_message = silent;
    jpeg_create_decompress(&cinfo);
    if (setjmp(failed)) {
        jpeg_destroy_decompress(&cinfo);
        free(pixels);
        return NULL;
    }
    jpeg_mem_src(&cinfo, b.bytes, b.size);
    jpeg_read_header(&cinfo, TRUE);
    cinfo.out_color_space = JCS_RGB;
    cinfo.scale_denom = (unsigned)shrink;
    jpeg_start_decompress(&cinfo);
    *width = (int)cinfo.output_width;
    *height = (int)cinfo.output_height;
    pixels = malloc((size_t)*width * (size_t)*height * 3);
    while (cinfo.output_scanline < cinfo.output_height) {
        JSAMPROW row = pixels + (size_t)cinfo.output_scanline * (size_t)*width * 3;
        jpeg_read_scanlines(&cinfo, &row, 1);
    }
    jpeg_destroy_decompress(&cinfo);
    return pixels;
}

static void random_geometry(double *row, int side, double root) {
    memset(row, 0, GEOMETRY_COLUMNS * sizeof *row);
    row[0] = 1;
    row[2] = draw(1000) / 1000.0;
    row[3] = draw(1000) / 1000.0;
    for (int i = 6; i < 26; i++) row[i] = side / root; /* a box of side x side: no resizing */
}

static bool equals(const uint8_t *planes, int size, const uint8_t *pixels, int width, box b) {
    for (int p = 0; p < 3; p++)
        for (int y = 0; y < size; y++)
            for (int x = 0; x < size; x++)
                if (planes[(p * size + y) * size + x] != pixels[((b.y + y) * width + b.x + x) * 3 + p]) return false;
    return true;
}

/* Whether what an arena kept is the whole picture. */
static bool is_kept_whole(const uint8_t *kept, const arena_row *row, const uint8_t *whole, int width, int height) {
    if (row->height != height || abs(row->width) != width) return false;
    if (row->width > 0) return !memcmp(whole, kept, 3 * (size_t)width * (size_t)height);
    planes p = planes_of(kept, height, width);
    plane_rows rows = {0};
    bool same = planes_reserve(&rows, width, true);
    for (int y = 0; same && y < height; y++) {
        planes_convert(&p, &rows, (box){0, y, width, 1});
        same = !memcmp(planes_rgb(&rows, 0), whole + 3 * (size_t)y * (size_t)width, 3 * (size_t)width);
    }
    buffer_free(&rows.sums);
    buffer_free(&rows.pixels);
    return same;
}

/* Crops of what was kept are those of the file. */
static bool same_from_arena(const slice *s, const arena *a, const arena_row *row, const uint8_t *expected, size_t bytes) {
    size_t picture = (size_t)kept_bytes(row->height, row->width);
    uint8_t *exact = malloc(picture), *out = malloc(bytes); /* of exactly its size: a read past the end is seen */
    memcpy(exact, a->pixels + row->end - picture, picture);
    source from[2] = {{.kind = IN_MEMORY, .data = exact, .bytes = picture}, {.kind = IN_MEMORY, .data = exact, .bytes = picture}};
    int32_t shapes[4] = {row->height, row->width, row->height, row->width}, status[2] = {99, 99};
    slice again = *s;
    again.sources = from, again.raw_shapes = shapes, again.out = out, again.status = status;
    slice_times times = {0};
    load_slice(&again, &times);
    bool same = status[0] == STATUS_DONE && status[1] == STATUS_DONE && !memcmp(out, expected, bytes);
    free(exact);
    free(out);
    return same;
}

/* The same slice with an arena that has room for none, one or both pictures: the same planes, and the whole picture
 * where it says so. */
static bool same_when_kept(const slice *s, blob b, const uint8_t *planes, const jpeg_header *header) {
    size_t bytes = 2 * 3 * (size_t)s->size * (size_t)s->size, picture = 3 * (size_t)header->width * (size_t)header->height;
    if (picture > 1 << 20) return true;
    arena_row index[3] = {0};
    int64_t used = 0, small_stretches = 0, rows[2] = {2, draw(2) ? 2 : 0}, capacity = (int64_t)(picture * draw(3) + draw(100));
    arena a = {.pixels = malloc((size_t)capacity + 1), .capacity = capacity, .rows = 3, .index = index,
               .used = &used, .small_stretches = &small_stretches, .fd = -1};
    int32_t status[2] = {99, 99};
    slice kept = *s;
    kept.out = malloc(bytes), kept.status = status, kept.keep = &a, kept.keep_rows = rows;
    slice_times times = {0};
    load_slice(&kept, &times);
    bool same = status[0] == s->status[0] && status[1] == s->status[1] && used <= capacity;
    if (same && status[0] == STATUS_DONE) same = !memcmp(kept.out, planes, bytes);
    for (int i = 0; same && i < 3; i++) {
        if (index[i].end == 0) continue;
        int width, height;
        uint8_t *whole = plain_decode(b, 1, &width, &height);
        size_t kept_size = (size_t)kept_bytes(index[i].height, index[i].width);
        same = whole && index[i].end <= used &&
               is_kept_whole(a.pixels + index[i].end - kept_size, &index[i], whole, width, height);
        if (same && status[0] == STATUS_DONE) same = same_from_arena(s, &a, &index[i], planes, bytes);
        free(whole);
    }
    free(kept.out);
    free(a.pixels);
    return same;
}

/* Scaled to a size for which the box needs no resizing: as a whole decode at that scale. 0, 1, 2, -1 as one_round(). */
static int scaled_round(blob b, const jpeg_header *header, uint8_t *planes) {
    int least = header->width < header->height ? header->width : header->height, wanted = 1 << draw(4);
    int side = least / wanted ? 1 + (int)draw((unsigned)(least / wanted)) : 1;
    if (side > MAX_COMPARED_SIDE) side = MAX_COMPARED_SIDE;
    double row[GEOMETRY_COLUMNS];
    random_geometry(row, side * wanted, __builtin_sqrt((double)header->width * header->height));
    source from = {.kind = IN_MEMORY, .data = b.bytes, .bytes = b.size};
    int32_t status = 99;
    slice s = {.count = 1, .sources = &from, .geometry = row, .out = planes, .status = &status, .size = side,
               .scaled = true};
    slice_times times = {0};
    load_slice(&s, &times);
    if (status != STATUS_DONE) return 0;
    box chosen = choose_box(row, header->width, header->height);
    int shrink = choose_shrink(chosen, side), width, height;
    chosen = shrink_box(chosen, shrink);
    if (chosen.w != side || chosen.h != side) return 1;
    uint8_t *pixels = plain_decode(b, shrink, &width, &height);
    bool right = pixels && chosen.x + side <= width && chosen.y + side <= height &&
                 equals(planes, side, pixels, width, chosen);
    int result = right ? 2 : pixels ? -1 : 1;
    free(pixels);
    return result;
}

/* 0: declined, 1: accepted, 2: accepted and compared; -1: a wrong picture. Twice in one slice: tables that repeat are
 * read by a way of their own. */
static int one_round(blob b, uint8_t *planes) {
    jpeg_header header;
    bool sound = jpeg_inspect(b.bytes, b.size, &header);
    if (sound) {
        int scaled = scaled_round(b, &header, planes);
        if (scaled < 0) return -1;
        scaled_tally[scaled]++;
    }
    if (!sound) header = (jpeg_header){.width = 50, .height = 50};
    int least = header.width < header.height ? header.width : header.height;
    int side = 1 + (int)draw((unsigned)(least < MAX_COMPARED_SIDE ? least : MAX_COMPARED_SIDE));
    bool resize = draw(4) == 0;
    double row[2 * GEOMETRY_COLUMNS];
    random_geometry(row, side, __builtin_sqrt((double)header.width * header.height));
    memcpy(row + GEOMETRY_COLUMNS, row, GEOMETRY_COLUMNS * sizeof *row);
    source from = {.kind = IN_MEMORY, .data = b.bytes, .bytes = b.size}, twice[2] = {from, from};
    int32_t status[2] = {99, 99};
    slice s = {.count = 2, .sources = twice, .geometry = row, .out = planes, .status = status,
               .size = resize ? 1 + (int)draw(MAX_COMPARED_SIDE) : side};
    slice_times times = {0};
    load_slice(&s, &times);
    size_t bytes = 3 * (size_t)s.size * (size_t)s.size;
    if (status[0] != status[1]) return -1;
    if (status[0] == STATUS_DONE && memcmp(planes, planes + bytes, bytes)) return -1;
    if (sound && !same_when_kept(&s, b, planes, &header)) return -1;
    if (status[0] != STATUS_DONE || resize || !sound) return status[0] == STATUS_DONE;
    int width, height;
    uint8_t *pixels = plain_decode(b, 1, &width, &height);
    box chosen = choose_box(row, header.width, header.height);
    bool right = pixels && chosen.w == side && chosen.h == side && equals(planes, side, pixels, width, chosen);
    int result = right ? 2 : pixels ? -1 : 1; /* an error further down than the box is not ours to find */
    free(pixels);
    return result;
}

/* Decoded pixels in a block of exactly their size, any box, any size: the vector code must not read past them. */
static void raw_round(uint8_t *planes) {
    int32_t shape[2] = {1 + (int)draw(40), 1 + (int)draw(40)}, status = 99;
    size_t bytes = 3 * (size_t)shape[0] * (size_t)shape[1];
    uint8_t *pixels = malloc(bytes);
    memset(pixels, 200, bytes);
    double row[GEOMETRY_COLUMNS];
    random_geometry(row, 1 + (int)draw(40), __builtin_sqrt((double)shape[0] * shape[1]));
    row[4] = (double)draw(9) - 4;
    row[26] = draw(2);
    source from = {.kind = IN_MEMORY, .data = pixels, .bytes = bytes};
    slice s = {.count = 1, .sources = &from, .raw_shapes = shape, .geometry = row, .out = planes, .status = &status,
               .size = 1 + (int)draw(40), .fill = 200};
    slice_times times = {0};
    size_t written = 3 * (size_t)s.size * (size_t)s.size;
    load_slice(&s, &times);
    if (status != STATUS_DONE) exit((fprintf(stderr, "raw pixels declined\n"), 1));
    while (written--)
        if (planes[written] != 200) exit((fprintf(stderr, "raw pixels: a wrong picture\n"), 1));
    free(pixels);
}

int main(int count, char **arguments) {
    if (count < 4) return fprintf(stderr, "fuzz COUNT SEED FILE...\n"), 2;
    unsigned long rounds = strtoul(arguments[1], NULL, 10), tally[3] = {0};
    state = strtoull(arguments[2], NULL, 10) * UINT64_C(0x9E3779B97F4A7C15) + 1;
    unsigned files = (unsigned)count - 3;
    blob *corpus = calloc(files, sizeof *corpus);
    for (unsigned i = 0; i < files; i++) corpus[i] = read_blob(arguments[3 + i]);
    uint8_t *planes = malloc(2 * 3 * MAX_COMPARED_SIDE * MAX_COMPARED_SIDE);
    for (unsigned long i = 0; i < rounds; i++) {
        blob mutated = mutate(corpus[draw(files)], corpus[draw(files)]);
        int result = one_round(mutated, planes);
        if (result < 0) {
            FILE *file = fopen("fuzz-failure.jpg", "wb");
            if (file) fwrite(mutated.bytes, 1, mutated.size, file), fclose(file);
            return fprintf(stderr, "round %lu: a wrong picture, kept as fuzz-failure.jpg\n", i), 1;
        }
        tally[result]++;
        raw_round(planes);
        free(mutated.bytes);
    }
    printf("%lu rounds: %lu declined, %lu accepted, %lu accepted and equal to a whole decode\n", rounds, tally[0],
           tally[1], tally[2]);
    printf("scaled: %lu declined, %lu accepted, %lu accepted and equal to a whole decode at that scale\n",
           scaled_tally[0], scaled_tally[1], scaled_tally[2]);
    for (unsigned i = 0; i < files; i++) free(corpus[i].bytes);
    free(corpus);
    free(planes);
    return 0;
}
