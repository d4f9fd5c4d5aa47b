/* Decides from the bytes alone whether a JPEG takes the fast path. Anything unusual is left to Pillow: a false
 * "no" costs a millisecond, a false "yes" costs a wrong picture. */
#include <string.h>

#include "native.h"

static unsigned big16(const uint8_t *p) { return (unsigned)p[0] << 8 | p[1]; }

static unsigned tiff16(const uint8_t *p, bool big) { return big ? big16(p) : (unsigned)p[1] << 8 | p[0]; }

static uint32_t tiff32(const uint8_t *p, bool big) {
    return big ? (uint32_t)big16(p) << 16 | big16(p + 2) : (uint32_t)tiff16(p + 2, false) << 16 | tiff16(p, false);
}

/* True when the first directory of this Exif block is readable and has no orientation, or orientation 1. */
static bool exif_is_upright(const uint8_t *tiff, size_t size) {
    if (size < 8) return false;
    bool big = tiff[0] == 'M';
    if (memcmp(tiff, big ? "MM\0*" : "II*\0", 4) != 0) return false;
    uint32_t offset = tiff32(tiff + 4, big);
    if (offset > size - 2) return false;
    unsigned entries = tiff16(tiff + offset, big);
    if (entries * 12u > size - 2 - offset) return false;
    for (const uint8_t *entry = tiff + offset + 2; entries--; entry += 12) {
        if (tiff16(entry, big) != 0x0112) continue;
        bool one_short = tiff16(entry + 2, big) == 3 && tiff32(entry + 4, big) == 1;
        if (!one_short || tiff16(entry + 8, big) != 1) return false;
    }
    return true;
}

/* Pillow also honours an orientation in XMP. */
static bool xmp_is_upright(const uint8_t *text, size_t size) {
    static const char tag[] = "tiff:Orientation";
    const size_t length = sizeof tag - 1;
    for (size_t i = 0; i + length <= size; i++) {
        if (text[i] != 't' || memcmp(text + i, tag, length) != 0) continue;
        const uint8_t *value = text + i + length;
        if (size - i - length < 3 || (memcmp(value, "=\"1", 3) != 0 && memcmp(value, ">1", 2) != 0)) return false;
    }
    return true;
}

static bool read_frame(const uint8_t *body, size_t size, jpeg_header *header) {
    if (size < 6 || body[0] != 8) return false;
    header->height = (int)big16(body + 1);
    header->width = (int)big16(body + 3);
    header->components = body[5];
    static const uint8_t halved[9] = {1, 0x22, 0, 2, 0x11, 0, 3, 0x11, 0}; /* component, its samples, table */
    header->planes_420 = header->components == 3 && size == 15 && header->width > 4; /* libjpeg repeats narrower chroma */
    for (int i = 0; header->planes_420 && i < 9; i++) header->planes_420 = i % 3 == 2 || body[6 + i] == halved[i];
    return header->width > 0 && header->height > 0 && size == 6 + 3u * (unsigned)header->components;
}

typedef struct {
    bool frame_seen, exif_seen, upright, rgb_or_odd;
    size_t scan_at; /* where the data of the first scan begins */
} walk;

static bool read_segment(int marker, const uint8_t *body, size_t size, jpeg_header *header, walk *w) {
    if (marker == 0xC0 || marker == 0xC1 || marker == 0xC2) {
        if (w->frame_seen || !read_frame(body, size, header)) return false;
        header->progressive = marker == 0xC2;
        w->frame_seen = true;
    } else if (marker == 0xE1 && size >= 6 && memcmp(body, "Exif\0\0", 6) == 0) {
        w->upright = w->upright && !w->exif_seen && exif_is_upright(body + 6, size - 6); /* Pillow joins several */
        w->exif_seen = true;
    } else if (marker == 0xEE && size >= 12 && memcmp(body, "Adobe", 5) == 0) {
        w->rgb_or_odd |= body[11] != 1;
    } else if (marker == 0xE1) {
        w->upright = w->upright && xmp_is_upright(body, size);
    }
    /* tables, comments, application data; not other frames, hierarchical modes or arithmetic coding */
    return marker <= 0xC2 || marker == 0xC4 || marker == 0xDA || marker == 0xDB || marker == 0xDD || marker >= 0xE0;
}

/* Planes are of whole blocks: of a few pixels they are more. */
static bool saves_room(const jpeg_header *header) {
    return kept_bytes(header->height, -header->width) < kept_bytes(header->height, header->width);
}

/* Walks the segments up to the first scan; libjpeg skips garbage between them, we do not. */
static bool walk_header(const uint8_t *data, size_t size, jpeg_header *header, walk *w) {
    if (size < 4 || data[0] != 0xFF || data[1] != 0xD8) return false;
    size_t at = 2;
    while (size - at >= 4) {
        if (data[at] != 0xFF) return false;
        int marker = data[at + 1];
        if (marker == 0xFF) { /* fill byte */
            at++;
            continue;
        }
        size_t length = big16(data + at + 2);
        if (marker < 0xC0 || length < 2 || length > size - at - 2) return false;
        if (!read_segment(marker, data + at + 4, length - 2, header, w)) return false;
        if (marker == 0xDA) {
            w->scan_at = at + 2 + length;
            if (w->frame_seen) header->planes_420 = header->planes_420 && !w->rgb_or_odd && saves_room(header);
            return w->frame_seen;
        }
        at += 2 + length;
    }
    return false;
}

static bool ends_in_eoi(const uint8_t *data, size_t size) {
    while (size > 2 && memchr("\0\t\n\r ", data[size - 1], 5)) size--;
    return size >= 4 && data[size - 2] == 0xFF && data[size - 1] == 0xD9;
}

/* Of one scan, rows below the box are never read: a marker among them that ends whole pictures in an error must not be
 * noticed by some crops only. Of several scans all are read, whatever the box. */
static bool scan_is_plain(const uint8_t *data, size_t size) {
    for (const uint8_t *at = data, *end = data + size; (at = memchr(at, 0xFF, (size_t)(end - at)));) {
        while (at < end && *at == 0xFF) at++; /* fill bytes */
        if (at == end || *at == 0xD9) return true;
        if (*at != 0 && (*at < 0xD0 || *at > 0xD7)) return false;
    }
    return true;
}

bool jpeg_inspect(const uint8_t *data, size_t size, jpeg_header *header) {
    walk w = {.upright = true};
    return walk_header(data, size, header, &w);
}

bool jpeg_is_ours(const uint8_t *data, size_t size, jpeg_header *header) {
    walk w = {.upright = true};
    if (!walk_header(data, size, header, &w) || !w.upright || !ends_in_eoi(data, size)) return false;
    if (header->components != 1 && header->components != 3) return false;
    if (!header->progressive && !scan_is_plain(data + w.scan_at, size - w.scan_at)) return false;
    /* every 8x8 block costs at least one bit, so a header that promises more pixels than this is lying,
     * and is not worth its memory */
    uint64_t pixels = (uint64_t)header->width * (uint64_t)header->height;
    if (pixels > SMALL_PIXELS && pixels * (uint64_t)header->components > MAX_EXPANSION * (uint64_t)size) return false;
    return pixels <= MAX_PIXELS && pixels <= 512 * (uint64_t)size;
}
