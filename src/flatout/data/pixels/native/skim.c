/* Where the blocks of a scan begin, found without keeping anything, in 0.6 of the time that one after the other takes.
 *
 * To pass over a code, its length must be known, which is a chain of look-ups that a processor cannot hurry. So several
 * stretches of the scan are passed over in turns, each of whose chains goes on while the others wait. Only the first
 * begins where a block is known to begin. The others guess, and Huffman codes fall into step by themselves, mostly within
 * a few MCUs: a stretch is believed from where it has a block of the same place in its MCU begin at the very bit at which
 * the stretch before it has. From the same bit and place on, all that follows is the same. Where they never meet, the
 * stretch before goes on, so that a guess costs time and never a result. */
#include "huffman_codes.h"

#define LANES 4
#ifndef SEGMENT_BYTES
#define SEGMENT_BYTES 16384 /* of a lane at once; the fuzzer takes fewer, its pictures being small */
#endif
#define LANE_MARKS (2 * SEGMENT_BYTES) /* and steps: nearly all take more than four bits */
#define STEPS_AT_ONCE 32 /* without looking at the ends: at most 27 bits each, and one mark */

/* What is read next: the DC of a block, or what follows it. */
typedef struct phase {
    const uint16_t *skips;
    const struct phase *follow[2]; /* itself, and what comes after it */
    size_t ends_block;
    const huffman_table *table;
} phase;

typedef struct {
    uint64_t at; /* bit of the stream in all but the lowest 8, there the place in the block: a skip adds to both at once */
    const phase *next;
    uint32_t *marks, *marks_end; /* bits at which blocks begin */
    bool failed;
} lane;

typedef struct {
    const uint8_t *stream;
    uint64_t end_bit;
    size_t blocks;
    phase phases[2 * D_MAX_BLOCKS_IN_MCU];
} scan;

#define AT(bit, place) ((uint64_t)(bit) << 8 | (place))
#define BIT(at) ((at) >> 8)
#define PLACE(at) ((unsigned)(at)&255)

static size_t count_marks(const lane *l) { return (size_t)(l->marks_end - l->marks); }

/* A code that the look-up does not know, or the last of a block that has no end code. A guess that turns out to be wrong
 * is made again a bit further on. */
static void step_slowly(const scan *s, lane *l, bool is_guess) {
    bit_reader r = reader_at(s->stream, BIT(l->at));
    const huffman_table *table = l->next->table;
    int difference;
    bool past = BIT(l->at) > s->end_bit;
    if (past || !(l->next->ends_block ? read_ac(&r, table, NULL, (int)PLACE(l->at) - 1) : read_dc(&r, table, &difference))) {
        l->failed = !is_guess || past;
        l->at = AT(past ? s->end_bit + 1 : BIT(l->at) + 1, 1); /* nobody believes what lies past the end */
        l->next = s->phases;
        if (!l->failed) *l->marks = (uint32_t)BIT(l->at), l->marks_end = l->marks + 1;
        return;
    }
    l->at = AT(bit_position(&r, s->stream), 1);
    *l->marks_end = (uint32_t)BIT(l->at);
    l->marks_end += l->next->ends_block;
    l->next = l->next->follow[1];
}

/* The branch is all but never taken: ends of blocks, which nobody can foresee, are arithmetic. */
static inline __attribute__((always_inline)) void step(const scan *s, lane *l, bool is_guess) {
    uint64_t window = load_big64(s->stream + (BIT(l->at) >> 3)) << (BIT(l->at) & 7);
    uint64_t at = l->at + l->next->skips[window >> (64 - SKIP_BITS)];
    if (__builtin_expect(IS_PAST(at), 0)) {
        lane slow = *l;
        step_slowly(s, &slow, is_guess);
        *l = slow;
        return;
    }
    size_t done = PLACE(at) >= FULL;
    l->at = at - (-(uint64_t)done & (PLACE(at) - 1));
    *l->marks_end = (uint32_t)BIT(at);
    l->marks_end += l->next->ends_block & done;
    l->next = l->next->follow[done];
}

/* A guess that has come to the end waits there for the others. */
static inline uint64_t earlier(uint64_t at, const scan *s) { return BIT(at) <= s->end_bit ? at : AT(s->end_bit + 1, 1); }

static inline __attribute__((always_inline)) void run_all(const scan *s, lane lanes[LANES], const uint64_t ends[LANES]) {
    lane a = lanes[0], b = lanes[1], c = lanes[2], d = lanes[3]; /* in registers, as far as there are some */
    for (size_t steps = 0; steps + STEPS_AT_ONCE < LANE_MARKS; steps += STEPS_AT_ONCE) {
        if (a.at >= ends[0] && b.at >= ends[1] && c.at >= ends[2] && d.at >= ends[3]) break;
        for (int i = 0; i < STEPS_AT_ONCE; i++) {
            step(s, &a, false);
            step(s, &b, true);
            step(s, &c, true);
            step(s, &d, true);
        }
        if (a.failed || BIT(a.at) > s->end_bit) break;
        b.at = earlier(b.at, s), c.at = earlier(c.at, s), d.at = earlier(d.at, s);
    }
    lanes[0] = a, lanes[1] = b, lanes[2] = c, lanes[3] = d;
}

static inline __attribute__((always_inline)) void run_one(const scan *s, lane *l) {
    lane a = *l;
    for (int i = 0; i < STEPS_AT_ONCE && !a.failed; i++) step(s, &a, false);
    *l = a;
}

/* Whether both have the same block begin somewhere among their marks from *i and *j on, which then say where. */
static bool meet(const scan *s, const lane *known, const lane *guess, size_t *i, size_t *j) {
    while (*i < count_marks(known) && *j < count_marks(guess)) {
        uint32_t here = known->marks[*i], there = guess->marks[*j];
        if (here == there && *i % s->blocks == *j % s->blocks) return true;
        *i += here <= there;
        *j += there <= here;
    }
    return false;
}

/* What is known goes on as the guess does from where they meet; unchanged, or further, if they never do. */
static inline __attribute__((always_inline)) void join(const scan *s, lane *known, const lane *guess, size_t wanted) {
    size_t i = count_marks(known), j = 0;
    while (i > 0 && known->marks[i - 1] >= guess->marks[0]) i--;
    while (!meet(s, known, guess, &i, &j)) {
        if (j == count_marks(guess) || known->failed || count_marks(known) > wanted) return;
        run_one(s, known);
    }
    size_t more = count_marks(guess) - j;
    memcpy(known->marks + i, guess->marks + j, more * sizeof *guess->marks);
    *known = (lane){guess->at, guess->next, known->marks, known->marks + i + more, guess->failed};
}

static lane lane_at(const scan *s, uint64_t bit, uint32_t *marks) {
    marks[0] = (uint32_t)bit;
    return (lane){.at = AT(bit, 1), .next = s->phases, .marks = marks, .marks_end = marks + 1};
}

/* Marks of the first `wanted` blocks and of the one after them, or as many as there are before something is wrong. */
static inline __attribute__((always_inline)) void skim_lanes(const scan *s, lane *known, size_t wanted,
                                                             uint32_t *scratch) {
    while (count_marks(known) <= wanted && !known->failed && BIT(known->at) <= s->end_bit) {
        uint64_t bytes = (s->end_bit - BIT(known->at)) / 8 / LANES, ends[LANES];
        if (bytes > SEGMENT_BYTES) bytes = SEGMENT_BYTES;
        if (bytes < SEGMENT_BYTES / 16) {
            run_one(s, known);
            continue;
        }
        lane lanes[LANES] = {*known};
        for (unsigned i = 0; i < LANES; i++) {
            ends[i] = AT(BIT(known->at) + (i + 1) * bytes * 8, 0);
            if (i) lanes[i] = lane_at(s, BIT(known->at) + i * bytes * 8, scratch + (i - 1) * LANE_MARKS);
        }
        run_all(s, lanes, ends);
        *known = lanes[0];
        for (unsigned i = 1; i < LANES && count_marks(known) <= wanted && !known->failed; i++)
            join(s, known, &lanes[i], wanted);
    }
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("bmi2"))) static void skim_bmi2(const scan *s, lane *known, size_t wanted, uint32_t *scratch) {
    skim_lanes(s, known, wanted, scratch);
}
#define BMI2_IF_THERE(...) (__builtin_cpu_supports("bmi2") ? skim_bmi2(__VA_ARGS__) : skim_plain(__VA_ARGS__))
#else
#define BMI2_IF_THERE(...) skim_plain(__VA_ARGS__)
#endif
static void skim_plain(const scan *s, lane *known, size_t wanted, uint32_t *scratch) {
    skim_lanes(s, known, wanted, scratch);
}

static void lay_out(scan *s, const huffman_decoder *h, j_decompress_ptr cinfo) {
    s->blocks = (size_t)cinfo->blocks_in_MCU;
    for (size_t i = 0; i < 2 * s->blocks; i++) {
        const jpeg_component_info *component = cinfo->cur_comp_info[cinfo->MCU_membership[i / 2]];
        const huffman_table *table = i % 2 ? &h->ac[component->ac_tbl_no] : &h->dc[component->dc_tbl_no];
        s->phases[i] = (phase){table->skips, {&s->phases[i], &s->phases[(i + 1) % (2 * s->blocks)]}, i % 2, table};
    }
}

bool huffman_skim(huffman_decoder *h, j_decompress_ptr cinfo, size_t mcus, size_t stream_bytes) {
    scan s = {.stream = h->stream.bytes, .end_bit = 8 * (uint64_t)stream_bytes};
    lay_out(&s, h, cinfo);
    size_t wanted = mcus * s.blocks, capacity = wanted + (LANES + 1) * LANE_MARKS;
    if (!buffer_reserve(&h->marks, (capacity + (LANES - 1) * LANE_MARKS) * sizeof(uint32_t))) return false;
    uint32_t *marks = (uint32_t *)(void *)h->marks.bytes;
    lane known = lane_at(&s, 0, marks);
    BMI2_IF_THERE(&s, &known, wanted, marks + capacity);
    return count_marks(&known) > wanted && marks[wanted] <= s.end_bit;
}
