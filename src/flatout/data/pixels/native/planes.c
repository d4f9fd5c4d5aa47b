/* Pictures kept as libjpeg's 4:2:0 planes: half the bytes of RGB, and what lies outside of a crop is never converted.
 * Upsampling and colours are libjpeg's, equal to the bit: chroma as 3/4 of the nearer and 1/4 of the further sample in
 * both directions (edges repeat), rounded as jdsample.c does, and the constants of jdcolor.c. */
#include <string.h>

#include "kernels.h"

#define BLOCK 32   /* pixels at once */
#define HALF_BLOCK 16 /* and their chroma samples */
#define RED_BY_CR 91881 /* 1.402 in 16 bits of fraction, and so on */
#define BLUE_BY_CB 116130
#define GREEN_BY_CB 22554
#define GREEN_BY_CR 46802

static uint64_t whole_blocks(int samples) { return ((uint64_t)samples + 7) / 8 * 8; }

uint64_t kept_bytes(int height, int width) {
    if (width > 0) return 3 * (uint64_t)height * (uint64_t)width;
    int half_width = (1 - width) / 2, half_height = (height + 1) / 2;
    return whole_blocks(height) * whole_blocks(-width) + 2 * whole_blocks(half_height) * whole_blocks(half_width);
}

planes planes_of(const uint8_t *kept, int height, int width) {
    planes p = {.width = width, .height = height, .half_width = (width + 1) / 2, .half_height = (height + 1) / 2};
    p.stride = whole_blocks(width), p.half_stride = whole_blocks(p.half_width);
    p.luma = kept;
    p.chroma[0] = kept + whole_blocks(height) * p.stride;
    p.chroma[1] = p.chroma[0] + whole_blocks(p.half_height) * p.half_stride;
    return p;
}

static int least(int a, int b) { return a < b ? a : b; }
static uint8_t clamped(int value) { return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value); }

static void sums_portable(const uint8_t *near, const uint8_t *far, int16_t *to, int count) {
    for (int i = 0; i < count; i++) to[i] = (int16_t)(3 * near[i] + far[i]);
}

/* `sums` are four times the chroma; those before the first and after the last are there. */
static void colours_portable(const uint8_t *luma, const int16_t *const sums[2], int count, uint8_t *const to[3], int step) {
    for (int i = 0; i < count; i++) {
        int chroma[2];
        for (int c = 0; c < 2; c++) {
            const int16_t *at = sums[c] + i / 2;
            chroma[c] = (i % 2 ? 3 * at[0] + at[1] + 7 : 3 * at[0] + at[-1] + 8) / 16 - 128;
        }
        int cb = chroma[0], cr = chroma[1];
        to[0][i * step] = clamped(luma[i] + ((RED_BY_CR * cr + 32768) >> 16));
        to[1][i * step] = clamped(luma[i] + ((-GREEN_BY_CB * cb - GREEN_BY_CR * cr + 32768) >> 16));
        to[2][i * step] = clamped(luma[i] + ((BLUE_BY_CB * cb + 32768) >> 16));
    }
}

static void copy_portable(const uint8_t *const from[3], uint8_t *const to[3], int count, bool mirrored) {
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < count; i++) to[p][mirrored ? count - 1 - i : i] = from[p][i];
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

AVX2 static inline __m256i load32(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
AVX2 static inline void store32(void *p, __m256i v) { _mm256_storeu_si256((__m256i *)p, v); }
AVX2 static inline __m256i widen(const uint8_t *p) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
}

AVX2 static void sums_avx2(const uint8_t *near, const uint8_t *far, int16_t *to, int count) {
    if (count < HALF_BLOCK) {
        sums_portable(near, far, to, count);
        return;
    }
    for (int i = 0; i < count; i += HALF_BLOCK) {
        if (i > count - HALF_BLOCK) i = count - HALF_BLOCK; /* the last block overlaps the one before */
        __m256i a = widen(near + i);
        store32(to + i, _mm256_add_epi16(_mm256_add_epi16(a, a), _mm256_add_epi16(a, widen(far + i))));
    }
}

/* 16 chroma samples, less 128, of every other pixel from the first (or second) on. */
AVX2 static inline __m256i chroma16(const int16_t *sums, int neighbour) {
    __m256i here = load32(sums), there = load32(sums + neighbour);
    __m256i sum = _mm256_add_epi16(_mm256_add_epi16(here, here), _mm256_add_epi16(here, there));
    sum = _mm256_add_epi16(sum, _mm256_set1_epi16((neighbour < 0 ? 8 : 7) - 128 * 16)); /* whole sixteenths */
    return _mm256_srai_epi16(sum, 4);
}

/* (factor * x + 32768) >> 16 of a factor that fits 16 bits. */
AVX2 static inline __m256i scaled(__m256i x, int factor) {
    __m256i twice = _mm256_mulhi_epi16(_mm256_add_epi16(x, x), _mm256_set1_epi16((int16_t)factor));
    return _mm256_srai_epi16(_mm256_add_epi16(twice, _mm256_set1_epi16(1)), 1);
}

typedef struct {
    __m256i red, green, blue;
} colours;

/* What is to be added to the luma; whole parts of the factors are taken out so that the rest fits 16 bits. */
AVX2 static inline colours differences(__m256i cb, __m256i cr) {
    const __m256i factors = _mm256_set1_epi32((int)((uint32_t)(65536 - GREEN_BY_CR) << 16 | (uint16_t)-GREEN_BY_CB));
    const __m256i half = _mm256_set1_epi32(32768);
    __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi16(cb, cr), factors);
    __m256i high = _mm256_madd_epi16(_mm256_unpackhi_epi16(cb, cr), factors);
    low = _mm256_srai_epi32(_mm256_add_epi32(low, half), 16);
    high = _mm256_srai_epi32(_mm256_add_epi32(high, half), 16);
    return (colours){_mm256_add_epi16(cr, scaled(cr, RED_BY_CR - 65536)),
                     _mm256_sub_epi16(_mm256_packs_epi32(low, high), cr),
                     _mm256_add_epi16(_mm256_add_epi16(cb, cb), scaled(cb, BLUE_BY_CB - 2 * 65536))};
}

AVX2 static inline __m256i add_luma(__m256i luma, __m256i even, __m256i odd) {
    const __m256i in_turn = _mm256_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15, /* both lanes */
                                             0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    even = _mm256_add_epi16(even, _mm256_and_si256(luma, _mm256_set1_epi16(255)));
    odd = _mm256_add_epi16(odd, _mm256_srli_epi16(luma, 8));
    return _mm256_shuffle_epi8(_mm256_packus_epi16(even, odd), in_turn);
}

AVX2 static inline colours colours_of_block(const uint8_t *luma, const int16_t *cb, const int16_t *cr) {
    colours even = differences(chroma16(cb, -1), chroma16(cr, -1)), odd = differences(chroma16(cb, 1), chroma16(cr, 1));
    __m256i y = load32(luma);
    return (colours){add_luma(y, even.red, odd.red), add_luma(y, even.green, odd.green), add_luma(y, even.blue, odd.blue)};
}

/* 16 of the 48 bytes that 16 pixels of each lane become: `third` 0, 1 or 2. */
AVX2 static inline __m256i third_of_rgb(colours c, int third) {
    __m256i planes[3] = {c.red, c.green, c.blue}, all = _mm256_setzero_si256();
    for (int p = 0; p < 3; p++) {
        int8_t from[16];
        for (int i = 0; i < 16; i++) from[i] = (int8_t)((16 * third + i) % 3 == p ? (16 * third + i) / 3 : -1);
        __m128i order;
        memcpy(&order, from, sizeof order); /* a constant, once the loops are unrolled */
        all = _mm256_or_si256(all, _mm256_shuffle_epi8(planes[p], _mm256_broadcastsi128_si256(order)));
    }
    return all;
}

AVX2 static inline void store_rgb(colours c, uint8_t *to) {
#pragma GCC unroll 3
    for (int third = 0; third < 3; third++) {
        __m256i both = third_of_rgb(c, third);
        _mm_storeu_si128((__m128i *)(void *)(to + 16 * third), _mm256_castsi256_si128(both));
        _mm_storeu_si128((__m128i *)(void *)(to + 48 + 16 * third), _mm256_extracti128_si256(both, 1));
    }
}

AVX2 static void colours_avx2(const uint8_t *luma, const int16_t *const sums[2], int count, uint8_t *const to[3], int step) {
    if (count < BLOCK) {
        colours_portable(luma, sums, count, to, step);
        return;
    }
    for (int i = 0; i < count; i += BLOCK) {
        if (i > count - BLOCK) i = count - BLOCK; /* overlaps; even, as the count is */
        colours c = colours_of_block(luma + i, sums[0] + i / 2, sums[1] + i / 2);
        if (step == 3) {
            store_rgb(c, to[0] + 3 * (size_t)i);
            continue;
        }
        store32(to[0] + i, c.red);
        store32(to[1] + i, c.green);
        store32(to[2] + i, c.blue);
    }
}

AVX2 static inline void copy_blocks(const uint8_t *const from[3], uint8_t *const to[3], int count, const bool mirrored) {
    const __m256i backwards = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
    for (int i = 0; i < count; i += BLOCK) {
        if (i > count - BLOCK) i = count - BLOCK;
        for (int p = 0; p < 3; p++) {
            __m256i block = load32(from[p] + i);
            if (mirrored) block = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(block, backwards), 0x4E);
            store32(to[p] + (mirrored ? count - BLOCK - i : i), block);
        }
    }
}

AVX2 static void copy_avx2(const uint8_t *const from[3], uint8_t *const to[3], int count, bool mirrored) {
    if (count < BLOCK)
        copy_portable(from, to, count, mirrored);
    else if (mirrored)
        copy_blocks(from, to, count, true);
    else
        copy_blocks(from, to, count, false);
}

#define DISPATCH(name, ...) (__builtin_cpu_supports("avx2") ? name##_avx2(__VA_ARGS__) : name##_portable(__VA_ARGS__))
#else
#define DISPATCH(name, ...) name##_portable(__VA_ARGS__)
#endif

void copy_planes(const uint8_t *const from[3], uint8_t *const to[3], int count, bool mirrored) {
    DISPATCH(copy, from, to, count, mirrored);
}

bool planes_reserve(plane_rows *r, int width, bool interleaved) {
    r->interleaved = interleaved;
    r->sums_count = ((size_t)width + 2) / 2 + 2; /* of one plane, with the one before and the one after */
    r->plane_bytes = ((size_t)width + 2 + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    return buffer_reserve(&r->sums, PLANE_ROWS * 2 * r->sums_count * sizeof(int16_t)) &&
           buffer_reserve(&r->pixels, PLANE_ROWS * 3 * r->plane_bytes + ROW_PADDING);
}

typedef void sum_function(const uint8_t *near, const uint8_t *far, int16_t *to, int count);
typedef void colour_function(const uint8_t *luma, const int16_t *const sums[2], int count, uint8_t *const to[3], int step);

/* Chroma of the columns, with the one before and after them, weighed with the row above or below. */
static inline __attribute__((always_inline)) void sum_row(const planes *p, int y, int first, int count,
                                                          int16_t *const sums[2], sum_function *sum) {
    int near = y / 2, far = least(p->half_height - 1, y % 2 ? near + 1 : near ? near - 1 : 0);
    int low = first ? first - 1 : 0, end = least(p->half_width, first + count + 1);
    for (int c = 0; c < 2; c++) {
        const uint8_t *plane = p->chroma[c] + low;
        sum(plane + (size_t)near * p->half_stride, plane + (size_t)far * p->half_stride, sums[c] - (first - low), end - low);
        if (low == first) sums[c][-1] = sums[c][0];
        if (end < first + count + 1) sums[c][count] = sums[c][count - 1];
    }
}

/* All sums before the first of them is read: a load of what was stored just now, at another offset, waits for it. */
static inline __attribute__((always_inline)) void convert_rows(const planes *p, plane_rows *r, box b, sum_function *sum,
                                                               colour_function *colour) {
    int first = b.x / 2, count = (b.x + b.w + 1) / 2 - first; /* of chroma */
    int16_t *sums[PLANE_ROWS][2];
    for (int i = 0; i < b.h; i++) {
        for (size_t c = 0; c < 2; c++)
            sums[i][c] = (int16_t *)(void *)r->sums.bytes + (2 * (size_t)i + c) * r->sums_count + 1;
        sum_row(p, b.y + i, first, count, sums[i], sum);
    }
    for (int i = 0; i < b.h; i++) {
        uint8_t *to = r->pixels.bytes + 3 * (size_t)i * r->plane_bytes;
        size_t next = r->interleaved ? 1 : r->plane_bytes;
        const int16_t *const from[2] = {sums[i][0], sums[i][1]};
        colour(p->luma + (size_t)(b.y + i) * p->stride + 2 * (size_t)first, from, 2 * count,
               (uint8_t *const[3]){to, to + next, to + 2 * next}, r->interleaved ? 3 : 1);
    }
}

#ifdef AVX2
AVX2 static void rows_avx2(const planes *p, plane_rows *r, box b) { convert_rows(p, r, b, sums_avx2, colours_avx2); }
#endif
static void rows_portable(const planes *p, plane_rows *r, box b) {
    convert_rows(p, r, b, sums_portable, colours_portable);
}

void planes_convert(const planes *p, plane_rows *r, box b) {
    r->shift = (size_t)b.x % 2;
    DISPATCH(rows, p, r, b);
}
