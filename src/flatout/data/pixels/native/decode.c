/* libjpeg-turbo, asked only for the rows and columns of a box. */
#include <stdlib.h>
#include <string.h>

#include <jerror.h>

#include "huffman.h"

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2001000
#error "libjpeg-turbo 2.1 or later is needed: earlier ones cannot decode a part, or upsample 4:4:0 otherwise"
#endif

#define CHUNK_ROWS 16
#define MIN_CROP_WIDTH 64 /* libjpeg changes its upsampler for very narrow crops */

struct decoder {
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    jmp_buf bail_out;
    huffman_decoder huffman;
    buffer rows;
};

/* Errors and warnings alike: a file that libjpeg has doubts about is Pillow's to judge. */
static void bail_out(j_common_ptr cinfo) {
    huffman_decoder *h = cinfo->client_data;
    longjmp(*h->bail_out, 1);
}

static void on_message(j_common_ptr cinfo, int level) {
    if (level < 0) bail_out(cinfo);
}

/* A progressive file can name any number of scans of the whole picture. */
static void on_progress(j_common_ptr common) {
    j_decompress_ptr cinfo = (j_decompress_ptr)common;
    uint64_t scans = (uint64_t)cinfo->input_scan_number, pixels = (uint64_t)cinfo->image_width * cinfo->image_height;
    if (scans > MAX_SCANS || scans * pixels > MAX_SCAN_PIXELS) bail_out(common);
}

static void silent(j_common_ptr cinfo) { (void)cinfo; }
static void nothing(j_decompress_ptr cinfo) { (void)cinfo; }

static boolean no_more_input(j_decompress_ptr cinfo) {
    bail_out((j_common_ptr)cinfo);
    return FALSE;
}

static void skip_input(j_decompress_ptr cinfo, long bytes) {
    if (bytes <= 0) return;
    if ((size_t)bytes > cinfo->src->bytes_in_buffer) bail_out((j_common_ptr)cinfo);
    cinfo->src->next_input_byte += bytes;
    cinfo->src->bytes_in_buffer -= (size_t)bytes;
}

decoder *decoder_new(void) {
    decoder *volatile d = calloc(1, sizeof *d); /* survives the longjmp */
    if (!d) return NULL;
    d->cinfo.err = jpeg_std_error(&d->errors);
    d->errors.error_exit = bail_out;
    d->errors.emit_message = on_message;
    d->errors.output_message = silent;
    d->cinfo.client_data = &d->huffman; /* jpeg_create_decompress() keeps err and client_data */
    d->huffman.bail_out = &d->bail_out;
    if (setjmp(d->bail_out)) { /* no memory, or a libjpeg other than the header's */
        free(d);
        return NULL;
    }
    jpeg_create_decompress(&d->cinfo);
    huffman_install(&d->huffman, &d->cinfo);
    d->source = (struct jpeg_source_mgr){.init_source = nothing,
                                         .fill_input_buffer = no_more_input,
                                         .skip_input_data = skip_input,
                                         .resync_to_restart = jpeg_resync_to_restart,
                                         .term_source = nothing};
    d->progress.progress_monitor = on_progress;
    d->cinfo.src = &d->source;
    d->cinfo.progress = &d->progress;
    return d;
}

void decoder_free(decoder *d) {
    if (!d) return;
    jpeg_destroy_decompress(&d->cinfo);
    huffman_free(&d->huffman);
    buffer_free(&d->rows);
    free(d);
}

static bool begin(decoder *d, const uint8_t *data, size_t size, const jpeg_header *header, int shrink, bool raw) {
    j_decompress_ptr cinfo = &d->cinfo;
    d->source.next_input_byte = data;
    d->source.bytes_in_buffer = size;
    jpeg_read_header(cinfo, TRUE);
    bool expected = (int)cinfo->image_width == header->width && (int)cinfo->image_height == header->height &&
                    cinfo->num_components == header->components;
    if (!expected || (cinfo->jpeg_color_space != JCS_GRAYSCALE && cinfo->jpeg_color_space != JCS_YCbCr &&
                      cinfo->jpeg_color_space != JCS_RGB))
        return false;
    cinfo->out_color_space = JCS_RGB;
    cinfo->dct_method = JDCT_ISLOW;
    cinfo->do_fancy_upsampling = TRUE;
    cinfo->raw_data_out = raw;
    cinfo->scale_num = 1;
    cinfo->scale_denom = (unsigned)shrink;
    jpeg_start_decompress(cinfo);
    return true;
}

/* False when libjpeg would smooth over coefficients that no scan has refined: its versions differ in how. */
static bool coefficients_complete(j_decompress_ptr cinfo) {
    for (int c = 0; cinfo->progressive_mode && c < cinfo->num_components; c++)
        for (int i = 0; i < DCTSIZE2; i++)
            if (cinfo->coef_bits[c][i] != 0) return false;
    return true;
}

/* Restricts decoding to the box's columns and returns the column at which rows now begin. Fancy upsampling treats
 * the first and last column specially, hence one chroma sample of margin on either side. */
static int crop_columns(decoder *d, box wanted, int shrink) {
    j_decompress_ptr cinfo = &d->cinfo;
    int width = (int)cinfo->output_width, margin = cinfo->max_h_samp_factor;
    int first = wanted.x - margin, last = wanted.x + wanted.w + margin;
    if (last - first < MIN_CROP_WIDTH) last = first + MIN_CROP_WIDTH;
    if (last > width) last = width;
    if (last - first < MIN_CROP_WIDTH) first = last - MIN_CROP_WIDTH;
    if (first < 0) first = 0;
    JDIMENSION x = (JDIMENSION)first, w = (JDIMENSION)(last - first);
    jpeg_crop_scanline(cinfo, &x, &w); /* moves x down to an MCU */
    bool one = cinfo->num_components == 1;
    unsigned mcu_width = (unsigned)(DCTSIZE / shrink * (one ? 1 : cinfo->max_h_samp_factor));
    unsigned mcu_height = (unsigned)(DCTSIZE / shrink * (one ? 1 : cinfo->max_v_samp_factor));
    huffman_keep(&d->huffman, cinfo, x / mcu_width, (x + w - 1) / mcu_width, (unsigned)wanted.y / mcu_height,
                 (unsigned)(wanted.y + wanted.h - 1) / mcu_height);
    return (int)x;
}

static void read_rows(decoder *d, JSAMPROW *rows, unsigned count) {
    for (unsigned done = 0; done < count;) {
        unsigned got = jpeg_read_scanlines(&d->cinfo, rows + done, count - done);
        if (got == 0) bail_out((j_common_ptr)&d->cinfo);
        done += got;
    }
}

/* In chunks that stay in the nearer caches between decoding and resizing. Rows start at an odd address: into aligned
 * ones libjpeg's colour conversion writes past the caches, which cost 64x64 pictures a third of their time. */
static void stream_rows(decoder *d, box wanted, size_t stride, int offset, resizer *r, slice_times *times) {
    JSAMPROW rows[CHUNK_ROWS];
    for (int i = 0; i < CHUNK_ROWS; i++) rows[i] = d->rows.bytes + (size_t)i * stride + 1;
    for (int done = 0; done < wanted.h; done += CHUNK_ROWS) {
        int count = wanted.h - done < CHUNK_ROWS ? wanted.h - done : CHUNK_ROWS;
        read_rows(d, rows, (unsigned)count);
        double decoded = now_seconds();
        for (int i = 0; i < count; i++) resize_push(r, rows[i] + 3 * (size_t)offset);
        times->augment_seconds += now_seconds() - decoded;
    }
}

/* Whether a picture ends before its time must not depend on which rows a crop asks for: what is below the box is parsed
 * too (not transformed), up to the last row, because libjpeg does not look at rows that are skipped up to the bottom. */
static void read_to_the_end(decoder *d) {
    j_decompress_ptr cinfo = &d->cinfo;
    JSAMPROW row = d->rows.bytes + 1;
    if (jpeg_has_multiple_scans(cinfo) || cinfo->output_scanline == cinfo->output_height) return;
    jpeg_skip_scanlines(cinfo, cinfo->output_height - cinfo->output_scanline - 1);
    read_rows(d, &row, 1);
}

static bool decode_guarded(decoder *d, const uint8_t *data, size_t size, const jpeg_header *header, int shrink,
                           box wanted, bool to_the_end, resizer *r, slice_times *times) {
    j_decompress_ptr cinfo = &d->cinfo;
    if (setjmp(d->bail_out)) return false;
    if (!begin(d, data, size, header, shrink, false) || !coefficients_complete(cinfo)) return false;
    int first = jpeg_has_multiple_scans(cinfo) ? 0 : crop_columns(d, wanted, shrink);
    size_t stride = (3 * (size_t)cinfo->output_width + ROW_PADDING + 63) / 64 * 64;
    if (!buffer_reserve(&d->rows, CHUNK_ROWS * stride + 1)) return false;
    if (wanted.y > 0) jpeg_skip_scanlines(cinfo, (JDIMENSION)wanted.y);
    stream_rows(d, wanted, stride, wanted.x - first, r, times);
    if (to_the_end) read_to_the_end(d);
    return true;
}

/* Straight to where the picture stays: the caller's rows begin at odd addresses, see stream_rows(). */
static bool whole_guarded(decoder *d, const uint8_t *data, size_t size, const jpeg_header *header, uint8_t *to) {
    JSAMPROW rows[CHUNK_ROWS];
    if (setjmp(d->bail_out)) return false;
    if (!begin(d, data, size, header, 1, false) || !coefficients_complete(&d->cinfo)) return false;
    size_t stride = 3 * (size_t)header->width;
    for (int done = 0; done < header->height; done += CHUNK_ROWS) {
        int count = header->height - done < CHUNK_ROWS ? header->height - done : CHUNK_ROWS;
        for (int i = 0; i < count; i++) rows[i] = to + (size_t)(done + i) * stride;
        read_rows(d, rows, (unsigned)count);
    }
    return true;
}

/* The library must agree with header.c on what is in the planes, and with kept_bytes() on how much. */
static bool has_planes(j_decompress_ptr cinfo, const planes *p) {
    for (int c = 0; c < 3; c++) {
        const jpeg_component_info *component = &cinfo->comp_info[c];
        int samples = c ? 1 : 2, columns = c ? p->half_width : p->width, rows = c ? p->half_height : p->height;
        if (component->h_samp_factor != samples || component->v_samp_factor != samples) return false;
        if (component->width_in_blocks != ((unsigned)columns + DCTSIZE - 1) / DCTSIZE) return false;
        if (component->height_in_blocks != ((unsigned)rows + DCTSIZE - 1) / DCTSIZE) return false;
    }
    return cinfo->jpeg_color_space == JCS_YCbCr;
}

/* Rows of an MCU that lie below the last block are nobody's. */
static void point_at_rows(JSAMPROW *rows, int count, uint8_t *plane, size_t stride, unsigned first, unsigned end,
                          uint8_t *nobodys) {
    for (int i = 0; i < count; i++)
        rows[i] = first + (unsigned)i < end ? plane + (first + (unsigned)i) * stride : nobodys;
}

static bool planes_guarded(decoder *d, const uint8_t *data, size_t size, const jpeg_header *header, uint8_t *to) {
    j_decompress_ptr cinfo = &d->cinfo;
    planes p = planes_of(to, header->height, header->width);
    JSAMPROW rows[3][2 * DCTSIZE];
    JSAMPARRAY all[3] = {rows[0], rows[1], rows[2]};
    if (setjmp(d->bail_out)) return false;
    if (!begin(d, data, size, header, 1, true) || !coefficients_complete(cinfo) || !has_planes(cinfo, &p)) return false;
    if (!buffer_reserve(&d->rows, p.stride)) return false;
    uint8_t *chroma = to + (p.chroma[0] - p.luma);
    size_t chroma_bytes = (size_t)(p.chroma[1] - p.chroma[0]);
    while (cinfo->output_scanline < cinfo->output_height) {
        unsigned y = cinfo->output_scanline;
        point_at_rows(rows[0], 2 * DCTSIZE, to, p.stride, y, DCTSIZE * cinfo->comp_info[0].height_in_blocks, d->rows.bytes);
        for (int c = 1; c < 3; c++)
            point_at_rows(rows[c], DCTSIZE, chroma + (size_t)(c - 1) * chroma_bytes, p.half_stride, y / 2,
                          DCTSIZE * cinfo->comp_info[c].height_in_blocks, d->rows.bytes);
        if (jpeg_read_raw_data(cinfo, all, 2 * DCTSIZE) == 0) return false;
    }
    return true;
}

bool decode_planes(decoder *d, const uint8_t *data, size_t size, const jpeg_header *header, uint8_t *to,
                   slice_times *times) {
    double started = now_seconds();
    bool done = planes_guarded(d, data, size, header, to);
    jpeg_abort_decompress(&d->cinfo);
    times->decode_seconds += now_seconds() - started;
    return done;
}

bool decode_whole(decoder *d, const uint8_t *data, size_t size, const jpeg_header *header, uint8_t *to,
                  slice_times *times) {
    double started = now_seconds();
    bool done = whole_guarded(d, data, size, header, to);
    jpeg_abort_decompress(&d->cinfo);
    times->decode_seconds += now_seconds() - started;
    return done;
}

bool decode_box(decoder *d, const uint8_t *data, size_t size, const jpeg_header *header, int shrink, box wanted,
                bool to_the_end, resizer *r, slice_times *times) {
    double started = now_seconds(), augment_before = times->augment_seconds;
    bool done = decode_guarded(d, data, size, header, shrink, wanted, to_the_end, r, times);
    jpeg_abort_decompress(&d->cinfo);
    times->decode_seconds += now_seconds() - started - (times->augment_seconds - augment_before);
    return done;
}
