/* The inner loops, portable and for AVX2; both give the same bytes. Weights and rounding are Pillow's.
 *
 * Compilers do not vectorise the pass across an interleaved row, nor the split into planes, hence intrinsics. */
#include <string.h>

#include "kernels.h"

static void across_portable(const axis *a, const uint8_t *in, uint8_t *out) {
    const int32_t *weight = a->weight;
    for (int x = 0; x < a->out; x++, weight += a->taps, out += 4) {
        const uint8_t *from = in + a->offset[x];
        int32_t red = ROUNDING, green = ROUNDING, blue = ROUNDING;
        for (int t = 0; t < a->taps; t++, from += 3) {
            red += from[0] * weight[t];
            green += from[1] * weight[t];
            blue += from[2] * weight[t];
        }
        out[0] = (uint8_t)(red >> PRECISION_BITS);
        out[1] = (uint8_t)(green >> PRECISION_BITS);
        out[2] = (uint8_t)(blue >> PRECISION_BITS);
    }
}

static void down_portable(int taps, const uint8_t *const *rows, const int32_t *weight, size_t bytes, uint8_t *out) {
    for (size_t i = 0; i < bytes; i++) {
        int32_t sum = ROUNDING;
        for (int t = 0; t < taps; t++) sum += rows[t][i] * weight[t];
        out[i] = (uint8_t)(sum >> PRECISION_BITS);
    }
}

static void split_portable(const uint8_t *pixels, int stride, bool flip, uint8_t *planes[3], int count) {
    for (int i = 0; i < count; i++, pixels += stride)
        for (int p = 0; p < 3; p++) planes[p][flip ? count - 1 - i : i] = pixels[p];
}

static inline __attribute__((always_inline)) void normalize_any(const uint8_t *restrict src, float *restrict dst,
                                                                size_t count, float scale, float bias) {
    for (size_t i = 0; i < count; i++) dst[i] = (float)src[i] * scale + bias;
}

static void normalize_portable(const uint8_t *src, float *dst, size_t count, float scale, float bias) {
    normalize_any(src, dst, count, scale, bias);
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

AVX2 static inline __m128i load16(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)(const void *)p); }

/* Four taps at once: 12 bytes of RGB are spread over two lanes as pairs of 16-bit samples, multiplied by the weights'
 * lower WEIGHT_BITS and upper rest (32-bit multiplication is slow and weights have 23 bits), and summed exactly. */
AVX2 static inline __m128i across_pixel(const uint8_t *from, const int16_t *packed, int blocks) {
    const __m256i pairs = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, /* taps 0, 1 */
                                           6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1); /* 2, 3 */
    __m256i low = _mm256_setzero_si256(), high = low;
    for (int b = 0; b < blocks; b++, from += 12, packed += 32) {
        __m256i bytes = _mm256_broadcastsi128_si256(load16(from));
        __m256i samples = _mm256_shuffle_epi8(bytes, pairs);
        const __m256i *weight = (const __m256i *)(const void *)packed;
        low = _mm256_add_epi32(low, _mm256_madd_epi16(samples, _mm256_loadu_si256(weight)));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(samples, _mm256_loadu_si256(weight + 1)));
    }
    __m256i sum = _mm256_add_epi32(low, _mm256_slli_epi32(high, WEIGHT_BITS));
    __m128i both = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    return _mm_srai_epi32(_mm_add_epi32(both, _mm_set1_epi32(ROUNDING)), PRECISION_BITS);
}

AVX2 static inline void across_blocks(const axis *a, const int blocks, const uint8_t *in, uint8_t *out) {
    const int16_t *packed = a->packed;
    for (int x = 0; x < a->out; x += 4, packed += 4 * 32 * blocks) {
        __m128i p[4];
        for (int i = 0; i < 4; i++) p[i] = across_pixel(in + a->offset[x + i], packed + i * 32 * blocks, blocks);
        __m128i four = _mm_packus_epi16(_mm_packus_epi32(p[0], p[1]), _mm_packus_epi32(p[2], p[3]));
        _mm_storeu_si128((__m128i *)(void *)(out + 4 * (size_t)x), four);
    }
}

AVX2 static void across_avx2(const axis *a, const uint8_t *in, uint8_t *out) {
    if (a->blocks == 1)
        across_blocks(a, 1, in, out);
    else if (a->blocks == 2)
        across_blocks(a, 2, in, out);
    else
        across_blocks(a, a->blocks, in, out);
}

AVX2 static inline __m256i widen(const uint8_t *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

AVX2 static void down_avx2(int taps, const uint8_t *const *rows, const int32_t *weight, size_t bytes, uint8_t *out) {
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* undoes the lanes of packus */
    for (size_t i = 0; i < bytes; i += 32) {
        __m256i s0 = _mm256_set1_epi32(ROUNDING), s1 = s0, s2 = s0, s3 = s0;
        for (int t = 0; t < taps; t++) {
            const uint8_t *from = rows[t] + i;
            __m256i w = _mm256_set1_epi32(weight[t]);
            s0 = _mm256_add_epi32(s0, _mm256_mullo_epi32(widen(from), w));
            s1 = _mm256_add_epi32(s1, _mm256_mullo_epi32(widen(from + 8), w));
            s2 = _mm256_add_epi32(s2, _mm256_mullo_epi32(widen(from + 16), w));
            s3 = _mm256_add_epi32(s3, _mm256_mullo_epi32(widen(from + 24), w));
        }
        __m256i a = _mm256_packus_epi32(_mm256_srai_epi32(s0, PRECISION_BITS), _mm256_srai_epi32(s1, PRECISION_BITS));
        __m256i b = _mm256_packus_epi32(_mm256_srai_epi32(s2, PRECISION_BITS), _mm256_srai_epi32(s3, PRECISION_BITS));
        __m256i all = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), in_order);
        _mm256_storeu_si256((__m256i *)(void *)(out + i), all);
    }
}

AVX2 static inline __m256i two_groups(const uint8_t *lower, const uint8_t *upper) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(lower)), load16(upper), 1);
}

/* 16 pixels a lane: four groups of four, each shuffled to RRRR GGGG BBBB and transposed. Reads exactly these pixels. */
AVX2 static inline void split_lanes(const uint8_t *lower, const uint8_t *upper, int stride, bool flip, __m256i to[3]) {
    const __m256i order = _mm256_set1_epi32(flip ? 0x00010203 : 0x03020100);
    const __m256i plane = _mm256_set1_epi64x(0x0202020202020202);
    __m256i shuffle = stride == 3 ? _mm256_add_epi8(_mm256_add_epi8(order, order), order) : _mm256_slli_epi16(order, 2);
    shuffle = _mm256_add_epi8(shuffle, _mm256_unpacklo_epi64(_mm256_set1_epi64x(0x0101010100000000), plane));
    __m256i g[4];
    for (int i = 0; i < 3; i++)
        g[flip ? 3 - i : i] = _mm256_shuffle_epi8(two_groups(lower + 4 * stride * i, upper + 4 * stride * i), shuffle);
    int last = stride == 3 ? 12 * stride - 4 : 12 * stride; /* from 4 bytes earlier, not to touch what follows */
    shuffle = _mm256_add_epi8(shuffle, _mm256_set1_epi8((char)(12 * stride - last)));
    g[flip ? 0 : 3] = _mm256_shuffle_epi8(two_groups(lower + last, upper + last), shuffle);
    __m256i rg01 = _mm256_unpacklo_epi32(g[0], g[1]), rg23 = _mm256_unpacklo_epi32(g[2], g[3]);
    __m256i b01 = _mm256_unpackhi_epi32(g[0], g[1]), b23 = _mm256_unpackhi_epi32(g[2], g[3]);
    to[0] = _mm256_unpacklo_epi64(rg01, rg23);
    to[1] = _mm256_unpackhi_epi64(rg01, rg23);
    to[2] = _mm256_unpacklo_epi64(b01, b23);
}

AVX2 static inline void split_blocks(const uint8_t *pixels, const int stride, const bool flip, uint8_t *planes[3],
                                     int count) {
    __m256i split[3];
    if (count < 32) { /* two halves that overlap */
        const uint8_t *end = pixels + (size_t)stride * (size_t)(count - 16);
        split_lanes(flip ? end : pixels, flip ? pixels : end, stride, flip, split);
        for (int p = 0; p < 3; p++) {
            _mm_storeu_si128((__m128i *)(void *)planes[p], _mm256_castsi256_si128(split[p]));
            _mm_storeu_si128((__m128i *)(void *)(planes[p] + count - 16), _mm256_extracti128_si256(split[p], 1));
        }
        return;
    }
    for (int i = 0; i < count; i += 32) {
        if (i > count - 32) i = count - 32; /* the last block overlaps the one before */
        int to = flip ? count - 32 - i : i;
        const uint8_t *from = pixels + (size_t)stride * (size_t)i, *half = from + 16 * stride;
        split_lanes(flip ? half : from, flip ? from : half, stride, flip, split);
        for (int p = 0; p < 3; p++) _mm256_storeu_si256((__m256i *)(void *)(planes[p] + to), split[p]);
    }
}

AVX2 static void split_avx2(const uint8_t *pixels, int stride, bool flip, uint8_t *planes[3], int count) {
    if (count < 16)
        split_portable(pixels, stride, flip, planes, count);
    else if (stride == 3 && flip)
        split_blocks(pixels, 3, true, planes, count);
    else if (stride == 3)
        split_blocks(pixels, 3, false, planes, count);
    else if (flip)
        split_blocks(pixels, 4, true, planes, count);
    else
        split_blocks(pixels, 4, false, planes, count);
}

/* Past the caches: floats of a batch do not fit them, and a line that is written whole need not be read first. */
AVX2 static void normalize_avx2(const uint8_t *src, float *dst, size_t count, float scale, float bias) {
    size_t i = (32 - ((uintptr_t)dst & 31)) / sizeof(float) & 7;
    if (i > count || (uintptr_t)dst % sizeof(float)) i = count;
    normalize_any(src, dst, i, scale, bias);
    __m256 s = _mm256_set1_ps(scale), b = _mm256_set1_ps(bias);
    for (; i + 8 <= count; i += 8)
        _mm256_stream_ps(dst + i, _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(widen(src + i)), s), b));
    normalize_any(src + i, dst + i, count - i, scale, bias);
    _mm_sfence();
}

#define DISPATCH(name, ...) (__builtin_cpu_supports("avx2") ? name##_avx2(__VA_ARGS__) : name##_portable(__VA_ARGS__))
#else
#define DISPATCH(name, ...) name##_portable(__VA_ARGS__)
#endif

void pass_across(const axis *a, const uint8_t *in, uint8_t *out) { DISPATCH(across, a, in, out); }

void pass_down(int taps, const uint8_t *const *rows, const int32_t *weight, size_t bytes, uint8_t *out) {
    DISPATCH(down, taps, rows, weight, bytes, out);
}

void split_pixels(const uint8_t *pixels, int stride, bool flip, uint8_t *planes[3], int count) {
    DISPATCH(split, pixels, stride, flip, planes, count);
}

void normalize_plane(const uint8_t *src, float *dst, size_t count, float scale, float bias) {
    DISPATCH(normalize, src, dst, count, scale, bias);
}
