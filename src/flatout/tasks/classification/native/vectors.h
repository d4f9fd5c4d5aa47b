/* Vectors of AVX-512 for packed bf16; to be included after the compiler was told to make code for them. */
#ifndef FLATOUT_FUSED_VECTORS_H
#define FLATOUT_FUSED_VECTORS_H

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define VECTOR 16 /* pairs */

INLINE __m512i load(const uint32_t *from) { return _mm512_loadu_si512((const void *)from); }
INLINE void store(uint32_t *to, __m512i value) { _mm512_storeu_si512((void *)to, value); }
INLINE __m512 even(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
INLINE __m512 odd(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

/* Both rounded to the nearest bf16, side by side. */
INLINE __m512i pairs_of(__m512 first, __m512 second) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                           5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

INLINE void transpose(__m512i r[16]) { /* 16x16 numbers of 32 bits */
    __m512i t[16];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 2; k++) {
            r[4 * i + 2 * k] = _mm512_unpacklo_epi64(t[4 * i + k], t[4 * i + 2 + k]);
            r[4 * i + 2 * k + 1] = _mm512_unpackhi_epi64(t[4 * i + k], t[4 * i + 2 + k]);
        }
    }
    for (int half = 0; half < 2; half++)
        for (int k = 0; k < 4; k++) {
            t[8 * half + k] = _mm512_shuffle_i32x4(r[8 * half + k], r[8 * half + 4 + k], 0x88);
            t[8 * half + 4 + k] = _mm512_shuffle_i32x4(r[8 * half + k], r[8 * half + 4 + k], 0xdd);
        }
    for (int k = 0; k < 8; k++) {
        r[k] = _mm512_shuffle_i32x4(t[k], t[8 + k], 0x88);
        r[8 + k] = _mm512_shuffle_i32x4(t[k], t[8 + k], 0xdd);
    }
}

INLINE __mmask16 up_to(int count) {
    return count >= VECTOR ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

/* Which of 16 samples are there: the others fill up the last group, with zeros. */
INLINE __mmask16 present(int samples, int group, int half) { return up_to(samples - GROUP * group - VECTOR * half); }

#endif
