/* libjpeg-turbo spends most of a decode in its Huffman decoder. This one is half as fast again: stuffed bytes are
 * removed beforehand, so that the bit buffer refills without a branch; one look-up says how to take a coefficient
 * apart, whatever its value; blocks outside the wanted columns are passed over, several coefficients at once.
 *
 * Contract with libjpeg: where a scan is plain and its tables are sound, entropy->decode_mcu is replaced when the scan
 * starts, and libjpeg's own tables are not built (a twentieth of decoding a small picture); the rest of libjpeg never
 * notices. Where a corrupt stream would make libjpeg warn, we bail out.
 * The header that names these members is libjpeg's internal one, and version 3 has others under the same name of the
 * library: unless the library in use is one of TESTED_LIBRARIES, and what we take for its methods lies in its own code,
 * its decoder stays (docs/decisions/0001-huffman-decoder.md). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "huffman_codes.h"

#if __has_include(<jpegint.h>) && LIBJPEG_TURBO_VERSION_NUMBER == 2001005
#include <jpegint.h>

#if JPEG_LIB_VERSION >= 70
#define SCALED_BLOCK_SIDE(component) ((component)->DCT_h_scaled_size)
#else
#define SCALED_BLOCK_SIDE(component) ((component)->DCT_scaled_size)
#endif

#ifndef LEAST_SKIMMED_BYTES
#define LEAST_SKIMMED_BYTES 65536 /* fewer take less time than the tables */
#endif
#define MOST_MARKED_BYTES ((size_t)1 << 28) /* a mark is the number of a bit, in 32 bits */

static uint32_t table_entry(unsigned length, unsigned symbol, bool is_dc) {
    unsigned size = symbol & 15, step = is_dc ? 1 : (symbol >> 4) + 1;
    if (size == 0) return SPECIAL | length << 8 | symbol << 24;
    return (length + size) | length << 8 | (64 - size) << 16 | step << 24;
}

static uint16_t skip_entry(const huffman_table *t, unsigned bits) {
    int length = 0, steps = 0;
    bool ends = false;
    while (length < SKIP_BITS) {
        uint32_t entry = t->lookup[(bits << length & ((1 << SKIP_BITS) - 1)) >> (SKIP_BITS - LOOKUP_BITS)];
        int code = CODE_LENGTH(entry);
        if (code == 0 || length + code > SKIP_BITS) break;
        bool zeros = entry & SPECIAL && STEP(entry) == 0xF0;
        if (entry & SPECIAL && !zeros) {
            ends = STEP(entry) == 0;
            length += ends ? code : 0;
            break;
        }
        int step = zeros ? 16 : STEP(entry);
        if (steps + step > 63) break;
        length += zeros ? code : TOTAL_LENGTH(entry);
        steps += step;
    }
    return length ? (uint16_t)(length << 8 | (steps + (ends ? END_OF_BLOCK : 0))) : NO_SKIP;
}

/* Of a DC, which is one code, after which the AC coefficients have their turn. */
static uint16_t skip_dc_entry(const huffman_table *t, unsigned bits) {
    uint32_t entry = t->lookup[bits >> (SKIP_BITS - LOOKUP_BITS)];
    if (CODE_LENGTH(entry) == 0) return NO_SKIP;
    return (uint16_t)((entry & SPECIAL ? CODE_LENGTH(entry) : TOTAL_LENGTH(entry)) << 8 | END_OF_BLOCK);
}

static void build_skips(huffman_table *t, uint16_t (*entry)(const huffman_table *t, unsigned bits)) {
    for (unsigned i = 0; i < 1 << SKIP_BITS; i++) t->skips[i] = entry(t, i);
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

/* Nothing depends on where the block before it ended. */
static inline __attribute__((always_inline)) bool read_marked_mcu(huffman_decoder *h, j_decompress_ptr cinfo,
                                                                  JBLOCKROW *blocks) {
    const uint32_t *mark = (const uint32_t *)(const void *)h->marks.bytes + h->mcu * (size_t)cinfo->blocks_in_MCU;
    bool keep = blocks && h->column >= h->first_column && h->column <= h->last_column;
    if (++h->column == h->columns) h->column = 0;
    for (int b = 0; b < cinfo->blocks_in_MCU; b++) {
        int member = cinfo->MCU_membership[b], difference;
        const jpeg_component_info *component = cinfo->cur_comp_info[member];
        bit_reader r = reader_at(h->stream.bytes, mark[b]);
        if (!take_dc(&r, &h->dc[component->dc_tbl_no], &difference)) return false;
        h->last_dc[member] = (int)((unsigned)h->last_dc[member] + (unsigned)difference);
        if (!keep) continue;
        blocks[b][0][0] = (JCOEF)h->last_dc[member];
        if (!h->dc_only[member] && !read_ac(&r, &h->ac[component->ac_tbl_no], blocks[b][0], 0)) return false;
    }
    if (++h->mcu == h->marked) {
        bit_reader r = reader_at(h->stream.bytes, mark[cinfo->blocks_in_MCU]);
        h->next = r.next, h->bits = r.bits, h->bit_count = r.count;
    }
    return true;
}

static inline __attribute__((always_inline)) bool read_mcu(huffman_decoder *h, j_decompress_ptr cinfo,
                                                           JBLOCKROW *blocks) {
    if (h->mcu < h->marked) return read_marked_mcu(h, cinfo, blocks);
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
        if (!(keep && !h->dc_only[member] ? read_ac(&r, ac, blocks[b][0], 0) : read_ac(&r, ac, NULL, 0))) return false;
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

/* Add one after `make fuzz` has passed with it. */
static const char *const TESTED_LIBRARIES[] = {"libjpeg-turbo version 2.1.5 (build "};

static _Atomic bool allowed = true;
static _Atomic int has_methods_answer; /* 1 yes, -1 no, 0 not asked yet */

/* No public function says which version is loaded; its file holds the text. */
static bool is_tested(const char *path) {
    struct stat status;
    bool found = false;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0 && fstat(file, &status) == 0 && status.st_size > 0) {
        void *bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
        for (size_t i = 0; bytes != MAP_FAILED && i < sizeof TESTED_LIBRARIES / sizeof *TESTED_LIBRARIES; i++)
            found |= memmem(bytes, (size_t)status.st_size, TESTED_LIBRARIES[i], strlen(TESTED_LIBRARIES[i])) != NULL;
        if (bytes != MAP_FAILED) munmap(bytes, (size_t)status.st_size);
    }
    if (file >= 0) close(file);
    return found;
}

static const void *library_of(const void *address) {
    Dl_info found;
    return address && dladdr(address, &found) ? found.dli_fbase : NULL;
}

static bool has_methods(const struct jpeg_entropy_decoder *entropy, const huffman_decoder *h) {
    if (has_methods_answer == 0) {
        const void *here = library_of((const void *)(uintptr_t)jpeg_read_scanlines);
        Dl_info library;
        bool yes = here && dladdr((const void *)(uintptr_t)jpeg_read_scanlines, &library) &&
                   is_tested(library.dli_fname) && library_of((const void *)(uintptr_t)h->start_scan) == here &&
                   library_of((const void *)(uintptr_t)entropy->start_pass) == here &&
                   library_of((const void *)(uintptr_t)entropy->decode_mcu) == here;
        has_methods_answer = yes ? 1 : -1;
    }
    return has_methods_answer == 1;
}

static bool is_for_us(huffman_decoder *h, j_decompress_ptr cinfo) {
    if (!allowed || !has_methods(cinfo->entropy, h)) return false;
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

static void build_all_skips(huffman_decoder *h, bool with_dc, bool only_repeated) {
    for (int i = 0; i < NUM_HUFF_TBLS; i++) {
        huffman_table *ac = &h->ac[i], *dc = &h->dc[i];
        if (ac->built && !ac->has_skips && (ac->repeated || !only_repeated)) build_skips(ac, skip_entry);
        if (with_dc && dc->built && !dc->has_skips) build_skips(dc, skip_dc_entry);
    }
}

/* Rows above those that are wanted are passed over as a whole, as are all rows of which only the DC is. */
static void mark_rows(huffman_decoder *h, j_decompress_ptr cinfo, unsigned rows) {
    const size_t *ends = (const size_t *)(const void *)h->ends.bytes;
    size_t bytes = ends[0], passed_over = cinfo->total_iMCU_rows ? bytes / cinfo->total_iMCU_rows * rows : 0;
    if (h->intervals > 1 || cinfo->restart_interval || bytes > MOST_MARKED_BYTES || passed_over < LEAST_SKIMMED_BYTES) return;
    build_all_skips(h, true, false);
    size_t mcus = (size_t)rows * h->columns;
    if (huffman_skim(h, cinfo, mcus, bytes)) h->marked = mcus;
}

/* Skips where there is something to pass over, by tables that pictures have in common: to build them for one picture
 * costs what they save, unless it is so large that it is scaled to an eighth. */
void huffman_keep(huffman_decoder *h, j_decompress_ptr cinfo, unsigned first_column, unsigned last_column,
                  unsigned first_row, unsigned last_row) {
    if (!h->columns) return; /* not ours to read */
    h->first_column = first_column;
    h->last_column = last_column;
    if (h->any_dc_only || first_column > 0 || last_column + 1 < h->columns) build_all_skips(h, false, !h->any_dc_only);
    mark_rows(h, cinfo, h->any_dc_only || 2 * (last_column - first_column + 1) < h->columns ? last_row + 1 : first_row);
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
    h->columns = 0;
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
    h->mcu = h->marked = 0;
    h->first_column = 0;
    h->last_column = h->columns;
    find_dc_only(h, cinfo);
    cinfo->entropy->decode_mcu = FASTEST_DECODE_MCU;
}

bool huffman_allow(bool allow) {
    allowed = allow;
    return allow && has_methods_answer == 1;
}

void huffman_install(huffman_decoder *h, j_decompress_ptr cinfo) {
    h->start_scan = cinfo->inputctl->start_input_pass;
    cinfo->inputctl->start_input_pass = start_scan;
}

#else /* without the internal header of a tested libjpeg-turbo the stock decoder stays */

bool huffman_allow(bool allow) {
    (void)allow;
    return false;
}
void huffman_install(huffman_decoder *h, j_decompress_ptr cinfo) { (void)h, (void)cinfo; }
void huffman_keep(huffman_decoder *h, j_decompress_ptr cinfo, unsigned first_column, unsigned last_column,
                  unsigned first_row, unsigned last_row) {
    (void)h, (void)cinfo, (void)first_column, (void)last_column, (void)first_row, (void)last_row;
}

#endif

void huffman_free(huffman_decoder *h) {
    buffer_free(&h->stream);
    buffer_free(&h->ends);
    buffer_free(&h->marks);
}
