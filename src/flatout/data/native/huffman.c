/* libjpeg-turbo spends most of a decode in its Huffman decoder. This one is half as fast again: stuffed bytes are
 * removed beforehand, so that the bit buffer refills without a branch; one look-up says how to take a coefficient
 * apart, whatever its value; blocks outside the wanted columns are passed over, several coefficients at once.
 *
 * Contract with libjpeg: where a scan is plain and its tables are sound, entropy->decode_mcu is replaced when the scan
 * starts, and libjpeg's own tables are not built (a twentieth of decoding a small picture); the rest of libjpeg never
 * notices. Where a corrupt stream would make libjpeg warn, we bail out.
 * The header that names these members is libjpeg's internal one, so the library in use is asked whether it agrees:
 * unless what we take for its methods lies in its own code, its decoder stays. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "huffman.h"

#if __has_include(<jpegint.h>)
#include <jpegint.h>

#if JPEG_LIB_VERSION >= 70
#define SCALED_BLOCK_SIDE(component) ((component)->DCT_h_scaled_size)
#else
#define SCALED_BLOCK_SIDE(component) ((component)->DCT_scaled_size)
#endif

/* longest possible MCU: 10 blocks x 64 symbols x (16 + 15) bits, read past the end before we notice */
#define STREAM_PADDING 2560

static const uint8_t natural_order[64 + 16] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,
    6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31,
    39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
    63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63 /* a run past the end of a corrupt block */
};

/* A look-up entry says how to take a coefficient apart without a branch:
 *   bits 0-5 length of code and value together, 8-13 length of the code, 16-21 64 - length of the value, 24-31 step
 * SPECIAL entries have the symbol in bits 24-31: codes longer than the look-up (code length 0), end of block, runs
 * of 16 zeros, and differences of 0. */
#define SPECIAL 0x80
#define TOTAL_LENGTH(entry) ((int)((entry) & 63))
#define CODE_LENGTH(entry) ((int)((entry) >> 8 & 63))
#define VALUE_SHIFT(entry) ((int)((entry) >> 16 & 63))
#define STEP(entry) ((int)((entry) >> 24))

static uint32_t table_entry(unsigned length, unsigned symbol, bool is_dc) {
    unsigned size = symbol & 15, step = is_dc ? 1 : (symbol >> 4) + 1;
    if (size == 0) return SPECIAL | length << 8 | symbol << 24;
    return (length + size) | length << 8 | (64 - size) << 16 | step << 24;
}

/* Coefficients that nobody wants are passed over several at once, since their values need not be looked at: as many as
 * have their codes within the look-up, and the end of the block if it comes next.
 *   bits 0-4 length of all, 5-10 steps, 15 the block ends; 0: to be looked at one by one */
#define SKIP_LENGTH(skip) ((skip) & 31)
#define SKIP_STEPS(skip) ((skip) >> 5 & 63)
#define SKIP_ENDS(skip) ((skip) >> 15)

static uint16_t skip_entry(const huffman_table *t, unsigned bits) {
    int length = 0, steps = 0, ends = 0;
    while (length < SKIP_BITS) {
        uint32_t entry = t->lookup[(bits << length & ((1 << SKIP_BITS) - 1)) >> (SKIP_BITS - LOOKUP_BITS)];
        int code = CODE_LENGTH(entry);
        if (code == 0 || length + code > SKIP_BITS) break;
        if (entry & SPECIAL) {
            ends = STEP(entry) == 0;
            length += ends ? code : 0;
            break;
        }
        if (steps + STEP(entry) > 63) break;
        length += TOTAL_LENGTH(entry);
        steps += STEP(entry);
    }
    return (uint16_t)(length | steps << 5 | ends << 15);
}

static void build_skips(huffman_table *t) {
    for (unsigned i = 0; i < 1 << SKIP_BITS; i++) t->skips[i] = skip_entry(t, i);
    t->has_skips = true;
}

/* What libjpeg asks of a table: at most 256 codes, none of them all ones, and differences of at most 15 bits. */
static bool is_sound(const JHUFF_TBL *table, bool is_dc) {
    unsigned code = 0, index = 0;
    for (unsigned length = 1; length <= 16; length++, code <<= 1) {
        code += table->bits[length];
        index += table->bits[length];
        if (index > 256 || (table->bits[length] && code >= 1u << length)) return false;
    }
    for (unsigned i = 0; is_dc && i < index; i++)
        if (table->huffval[i] > 15) return false;
    return true;
}

static bool build_table(huffman_table *t, const JHUFF_TBL *from, bool is_dc) {
    if (!from) return false;
    if (t->built && !memcmp(t->lengths, from->bits, 17) && !memcmp(t->symbols, from->huffval, 256))
        return t->repeated = true;
    if (!is_sound(from, is_dc)) return false;
    t->repeated = t->has_skips = false;
    memset(t->skips, 0, sizeof t->skips);
    memcpy(t->lengths, from->bits, 17);
    memcpy(t->symbols, from->huffval, 256);
    for (unsigned i = 0; i < 1 << LOOKUP_BITS; i++) t->lookup[i] = SPECIAL;
    unsigned code = 0, index = 0;
    for (unsigned length = 1; length <= 16; length++, code <<= 1) {
        t->symbol_offset[length] = (int)index - (int)code;
        for (unsigned i = 0; i < from->bits[length]; i++, code++, index++) {
            if (length > LOOKUP_BITS) continue;
            unsigned spare = LOOKUP_BITS - length;
            uint32_t entry = table_entry(length, from->huffval[index], is_dc);
            for (unsigned look = code << spare; look < (code + 1) << spare; look++) t->lookup[look] = entry;
        }
        t->code_end[length] = code << (16 - length);
    }
    return t->built = true;
}

/* Copies the scan without stuffed zeros and restart markers; false unless it runs to an EOI marker. */
static bool unstuff(huffman_decoder *h, const uint8_t *from, size_t size, bool restarts) {
    size_t most_intervals = restarts ? size / 2 + 1 : 1;
    if (!buffer_reserve(&h->stream, size + STREAM_PADDING)) return false;
    if (!buffer_reserve(&h->ends, most_intervals * sizeof(size_t))) return false;
    size_t *ends = (size_t *)(void *)h->ends.bytes;
    const uint8_t *end = from + size, *ff;
    uint8_t *to = h->stream.bytes;
    h->intervals = 0;
    for (; (ff = memchr(from, 0xFF, (size_t)(end - from))) && end - ff >= 2; from = ff + 2) {
        size_t run = (size_t)(ff - from);
        memcpy(to, from, run + 1);
        to += run;
        if (ff[1] == 0) {
            to++;
            continue;
        }
        ends[h->intervals++] = (size_t)(to - h->stream.bytes);
        if (ff[1] == 0xD9) {
            memset(to, 0, STREAM_PADDING);
            return true;
        }
        if (!restarts || ff[1] != 0xD0 + (h->intervals - 1) % 8) return false;
    }
    return false;
}

static inline uint64_t load_big64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

typedef struct {
    const uint8_t *next;
    uint64_t bits;
    int count;
} bit_reader;

/* At least 56 bits afterwards. */
static inline void refill(bit_reader *r) {
    r->bits |= load_big64(r->next) >> r->count;
    r->next += (63 - r->count) >> 3;
    r->count |= 56;
}

static inline void drop(bit_reader *r, int bits) {
    r->bits <<= bits;
    r->count -= bits;
}

/* JPEG's signed numbers: a leading 0 marks a negative, stored as its one's complement. */
static inline int signed_value(uint64_t bits, int shift) {
    uint64_t negative = ~(uint64_t)((int64_t)bits >> 63);
    return (int)(((bits ^ negative) >> shift ^ negative) - negative);
}

/* The symbol of a SPECIAL entry, its code dropped; -1 when no code matches. */
static inline int special_symbol(bit_reader *r, const huffman_table *t, uint32_t entry) {
    int length = CODE_LENGTH(entry);
    if (length) {
        drop(r, length);
        return STEP(entry);
    }
    uint32_t look = (uint32_t)(r->bits >> 48);
    for (length = LOOKUP_BITS + 1; length <= 16; length++) {
        if (look >= t->code_end[length]) continue;
        drop(r, length);
        return t->symbols[((int)(look >> (16 - length)) + t->symbol_offset[length]) & 255];
    }
    return -1;
}

static inline int take_value(bit_reader *r, int size) {
    int value = signed_value(r->bits, 64 - size);
    drop(r, size);
    return value;
}

static inline bool read_dc(bit_reader *r, const huffman_table *t, int *difference) {
    refill(r);
    uint32_t entry = t->lookup[r->bits >> (64 - LOOKUP_BITS)];
    if (!(entry & SPECIAL)) {
        *difference = signed_value(r->bits << CODE_LENGTH(entry), VALUE_SHIFT(entry));
        drop(r, TOTAL_LENGTH(entry));
        return true;
    }
    int size = special_symbol(r, t, entry);
    if (size < 0) return false;
    *difference = size ? take_value(r, size) : 0;
    return true;
}

/* `block` is zeroed, or NULL to parse without keeping. */
static inline __attribute__((always_inline)) bool read_ac(bit_reader *r, const huffman_table *t, JCOEF *block) {
    int k = 0;
    while (k < 63) {
        uint32_t entry = 0;
        refill(r);
        for (int i = 0; i < 2; i++) { /* a look-up takes at most 27 of the 56 bits, a special code 16 */
            if (!block) {
                unsigned skip = t->skips[r->bits >> (64 - SKIP_BITS)];
                int after = k + (int)SKIP_STEPS(skip);
                if (skip && after + (int)SKIP_ENDS(skip) <= 63) { /* else the last of these are the next block's */
                    drop(r, (int)SKIP_LENGTH(skip));
                    k = after;
                    if (SKIP_ENDS(skip) || k == 63) return true;
                    continue;
                }
            }
            entry = t->lookup[r->bits >> (64 - LOOKUP_BITS)];
            if (entry & SPECIAL) break;
            k += STEP(entry);
            if (block)
                block[natural_order[k]] = (JCOEF)signed_value(r->bits << CODE_LENGTH(entry), VALUE_SHIFT(entry));
            drop(r, TOTAL_LENGTH(entry));
            if (k >= 63) return k == 63;
        }
        if (!(entry & SPECIAL)) continue;
        int symbol = special_symbol(r, t, entry);
        if (symbol < 0) return false;
        if ((symbol & 15) == 0) {
            if (symbol != 0xF0) return true; /* end of block */
            k += 16;
            continue;
        }
        k += (symbol >> 4) + 1;
        refill(r);
        int value = take_value(r, symbol & 15);
        if (block) block[natural_order[k]] = (JCOEF)value;
    }
    return k == 63;
}

/* The interval must have been read to its last byte: anything else makes libjpeg warn. */
static bool next_interval(huffman_decoder *h, bit_reader *r, unsigned restart_interval) {
    const size_t *ends = (const size_t *)(const void *)h->ends.bytes;
    const uint8_t *end = h->stream.bytes + ends[h->interval];
    if (((end - r->next) * 8) + r->count >= 8 || ++h->interval >= h->intervals) return false;
    *r = (bit_reader){.next = end};
    memset(h->last_dc, 0, sizeof h->last_dc);
    h->mcus_to_restart = restart_interval;
    return true;
}

static inline __attribute__((always_inline)) bool read_mcu(huffman_decoder *h, j_decompress_ptr cinfo,
                                                           JBLOCKROW *blocks) {
    bit_reader r = {h->next, h->bits, h->bit_count};
    if (cinfo->restart_interval && h->mcus_to_restart-- == 0) {
        if (!next_interval(h, &r, cinfo->restart_interval)) return false;
        h->mcus_to_restart--;
    }
    bool keep = blocks && h->column >= h->first_column && h->column <= h->last_column;
    if (++h->column == h->columns) h->column = 0;
    for (int b = 0; b < cinfo->blocks_in_MCU; b++) {
        int member = cinfo->MCU_membership[b], difference;
        const jpeg_component_info *component = cinfo->cur_comp_info[member];
        if (!read_dc(&r, &h->dc[component->dc_tbl_no], &difference)) return false;
        h->last_dc[member] = (int)((unsigned)h->last_dc[member] + (unsigned)difference);
        if (keep) blocks[b][0][0] = (JCOEF)h->last_dc[member];
        const huffman_table *ac = &h->ac[component->ac_tbl_no];
        if (!(keep && !h->dc_only[member] ? read_ac(&r, ac, blocks[b][0]) : read_ac(&r, ac, NULL))) return false;
    }
    h->next = r.next;
    h->bits = r.bits;
    h->bit_count = r.count;
    const size_t *ends = (const size_t *)(const void *)h->ends.bytes;
    return (r.next - h->stream.bytes) * 8 - r.count <= (ptrdiff_t)ends[h->interval] * 8;
}

static boolean decode_mcu(j_decompress_ptr cinfo, JBLOCKROW *blocks) {
    huffman_decoder *h = cinfo->client_data;
    if (!read_mcu(h, cinfo, blocks)) longjmp(*h->bail_out, 1);
    return TRUE;
}

#if defined(__x86_64__) && defined(__GNUC__)
/* Shifts by a variable that need no particular register: 3 % of a whole decode. */
__attribute__((target("bmi2"))) static boolean decode_mcu_bmi2(j_decompress_ptr cinfo, JBLOCKROW *blocks) {
    huffman_decoder *h = cinfo->client_data;
    if (!read_mcu(h, cinfo, blocks)) longjmp(*h->bail_out, 1);
    return TRUE;
}
#define FASTEST_DECODE_MCU (__builtin_cpu_supports("bmi2") ? decode_mcu_bmi2 : decode_mcu)
#else
#define FASTEST_DECODE_MCU decode_mcu
#endif

static const void *library_of(const void *address) {
    Dl_info found;
    return address && dladdr(address, &found) ? found.dli_fbase : NULL;
}

static bool has_methods(const struct jpeg_entropy_decoder *entropy, const huffman_decoder *h) {
    static _Atomic int answer; /* 1 yes, -1 no, 0 not asked yet */
    if (answer == 0) {
        const void *here = library_of((const void *)(uintptr_t)jpeg_read_scanlines);
        bool yes = here && library_of((const void *)(uintptr_t)h->start_scan) == here &&
                   library_of((const void *)(uintptr_t)entropy->start_pass) == here &&
                   library_of((const void *)(uintptr_t)entropy->decode_mcu) == here;
        answer = yes ? 1 : -1;
    }
    return answer == 1;
}

static bool is_for_us(huffman_decoder *h, j_decompress_ptr cinfo) {
    if (!has_methods(cinfo->entropy, h)) return false;
    if (cinfo->progressive_mode || cinfo->arith_code || cinfo->comps_in_scan != cinfo->num_components) return false;
    for (int i = 0; i < cinfo->comps_in_scan; i++) {
        const jpeg_component_info *component = cinfo->cur_comp_info[i];
        int dc = component->dc_tbl_no, ac = component->ac_tbl_no;
        if (dc < 0 || dc >= NUM_HUFF_TBLS || ac < 0 || ac >= NUM_HUFF_TBLS) return false;
        if (!build_table(&h->dc[dc], cinfo->dc_huff_tbl_ptrs[dc], true)) return false;
        if (!build_table(&h->ac[ac], cinfo->ac_huff_tbl_ptrs[ac], false)) return false;
    }
    return unstuff(h, cinfo->src->next_input_byte, cinfo->src->bytes_in_buffer, cinfo->restart_interval > 0);
}

/* Where there is something to pass over, by tables that pictures have in common: to build them for one picture costs
 * what they save, unless it is so large that it is scaled to an eighth. */
void huffman_keep(huffman_decoder *h, unsigned first_column, unsigned last_column) {
    h->first_column = first_column;
    h->last_column = last_column;
    bool passes_over = h->any_dc_only || first_column > 0 || last_column + 1 < h->columns;
    for (int i = 0; i < NUM_HUFF_TBLS && passes_over; i++)
        if ((h->ac[i].repeated || (h->any_dc_only && h->ac[i].built)) && !h->ac[i].has_skips) build_skips(&h->ac[i]);
}

static void find_dc_only(huffman_decoder *h, j_decompress_ptr cinfo) {
    h->any_dc_only = false;
    for (int i = 0; i < cinfo->comps_in_scan; i++) {
        h->dc_only[i] = SCALED_BLOCK_SIDE(cinfo->cur_comp_info[i]) == 1;
        h->any_dc_only |= h->dc_only[i];
    }
}

static void without_tables(j_decompress_ptr cinfo) { (void)cinfo; }

static void start_scan(j_decompress_ptr cinfo) {
    huffman_decoder *h = cinfo->client_data;
    if (!is_for_us(h, cinfo)) {
        h->start_scan(cinfo);
        return;
    }
    cinfo->entropy->start_pass = without_tables; /* libjpeg makes this structure anew for each picture */
    cinfo->entropy->insufficient_data = FALSE;
    h->start_scan(cinfo);
    h->next = h->stream.bytes;
    h->bits = 0;
    h->bit_count = 0;
    h->interval = 0;
    h->mcus_to_restart = cinfo->restart_interval;
    memset(h->last_dc, 0, sizeof h->last_dc);
    h->column = 0;
    h->columns = cinfo->MCUs_per_row;
    find_dc_only(h, cinfo);
    huffman_keep(h, 0, h->columns);
    cinfo->entropy->decode_mcu = FASTEST_DECODE_MCU;
}

void huffman_install(huffman_decoder *h, j_decompress_ptr cinfo) {
    h->start_scan = cinfo->inputctl->start_input_pass;
    cinfo->inputctl->start_input_pass = start_scan;
}

#else /* without libjpeg's internal header the stock decoder stays */

void huffman_install(huffman_decoder *h, j_decompress_ptr cinfo) { (void)h, (void)cinfo; }
void huffman_keep(huffman_decoder *h, unsigned first_column, unsigned last_column) {
    (void)h, (void)first_column, (void)last_column;
}

#endif

void huffman_free(huffman_decoder *h) {
    buffer_free(&h->stream);
    buffer_free(&h->ends);
}
