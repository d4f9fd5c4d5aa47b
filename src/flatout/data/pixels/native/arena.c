/* Decoded pictures in one stretch of memory that several threads fill at once, without a lock: a row of the index is
 * claimed, room is taken, the pixels are written, and only then does the row say where they end. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "native.h"

#define CLAIMED (-1)
#define STRIDE ((uintptr_t)1 << 17)
#define HUGE_PAGE ((uintptr_t)1 << 21)
#define MOST_HUGE_PAGE_SECONDS 400e-6 /* 512 small ones took 560 to 700 us where it was measured */
#define SMALL_STRETCHES 255

static uintptr_t round_up(const uint8_t *at, uintptr_t step) { return ((uintptr_t)at + step - 1) & ~(step - 1); }

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A huge page costs a quarter of the small ones that it stands for, or four times as much where a virtual machine must
 * ask its host for it: known when one has been taken. Then the next ones are small. */
static void try_huge_page(const arena *a, const uint8_t *from, const uint8_t *to) {
#if defined(MADV_HUGEPAGE) && defined(MADV_POPULATE_WRITE)
    uintptr_t page = round_up(from, HUGE_PAGE);
    if (page >= (uintptr_t)to || page + HUGE_PAGE > (uintptr_t)(a->pixels + a->capacity)) return;
    if (__atomic_load_n(a->small_stretches, __ATOMIC_RELAXED) > 0) {
        __atomic_fetch_sub(a->small_stretches, 1, __ATOMIC_RELAXED);
        return;
    }
    double started = cpu_seconds();
    if (madvise((void *)page, HUGE_PAGE, MADV_HUGEPAGE) == 0) madvise((void *)page, 1, MADV_POPULATE_WRITE);
    if (cpu_seconds() - started > MOST_HUGE_PAGE_SECONDS)
        __atomic_store_n(a->small_stretches, SMALL_STRETCHES, __ATOMIC_RELAXED);
#else
    (void)a, (void)from, (void)to;
#endif
}

/* Asks for the pages of the stretches that begin in these bytes, many at once: faults cost half as much again, and were a
 * quarter of keeping 64x64 pictures. An older kernel refuses, and faults. */
static void ask_for_pages(const arena *a, const uint8_t *from, const uint8_t *to) {
    try_huge_page(a, from, to);
#ifdef MADV_POPULATE_WRITE
    uintptr_t limit = (uintptr_t)(a->pixels + a->capacity), first = round_up(from, STRIDE), last = round_up(to, STRIDE);
    if (last > limit) last = limit;
    if (first < last) madvise((void *)first, last - first, MADV_POPULATE_WRITE);
#else
    (void)a, (void)from, (void)to;
#endif
}

uint8_t *arena_claim(const arena *a, int64_t row, int height, int width) {
    if (row < 0 || row >= a->rows || height <= 0 || width == 0) return NULL;
    int64_t not_there = 0, bytes = (int64_t)kept_bytes(height, width), used = __atomic_load_n(a->used, __ATOMIC_RELAXED);
    int64_t *end = &a->index[row].end;
    if (!__atomic_compare_exchange_n(end, &not_there, CLAIMED, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return NULL;
    do {
        if (used < 0 || used > a->capacity || bytes > a->capacity - used) {
            __atomic_store_n(end, 0, __ATOMIC_RELEASE);
            return NULL;
        }
    } while (!__atomic_compare_exchange_n(a->used, &used, used + bytes, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    if (a->fd < 0) ask_for_pages(a, a->pixels + used, a->pixels + used + bytes);
    return a->pixels + used;
}

/* Not through the mapping: faults of a file that is not in memory yet cost two to nine times as much. */
static bool write_all(int fd, const uint8_t *pixels, int64_t bytes, int64_t offset) {
    while (bytes > 0) {
        ssize_t done = pwrite(fd, pixels, (size_t)bytes, offset);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        pixels += done, bytes -= done, offset += done;
    }
    return true;
}

bool arena_keep(const arena *a, int64_t row, uint8_t *room, const uint8_t *pixels, int height, int width) {
    int64_t bytes = (int64_t)kept_bytes(height, width), start = room - a->pixels;
    if (a->fd >= 0 && !write_all(a->fd, pixels, bytes, start)) {
        arena_give_back(a, row, room, height, width);
        return false;
    }
    if (a->fd < 0 && room != pixels) memcpy(room, pixels, (size_t)bytes);
    a->index[row].height = height;
    a->index[row].width = width;
    __atomic_store_n(&a->index[row].end, start + bytes, __ATOMIC_RELEASE);
    return true;
}

/* The room is lost if another picture was given the room after it. */
void arena_give_back(const arena *a, int64_t row, const uint8_t *room, int height, int width) {
    int64_t start = room - a->pixels, used = start + (int64_t)kept_bytes(height, width);
    __atomic_compare_exchange_n(a->used, &used, start, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    __atomic_store_n(&a->index[row].end, 0, __ATOMIC_RELEASE);
}

bool arena_put(const arena *a, int64_t row, const uint8_t *pixels, int height, int width) {
    uint8_t *room = arena_claim(a, row, height, width);
    return room && arena_keep(a, row, room, pixels, height, width);
}
