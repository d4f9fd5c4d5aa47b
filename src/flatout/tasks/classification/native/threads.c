/* Loops over the cores that torch computes with: by its own OpenMP, whose threads are awake, and not by a second team. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>

#include "native.h"

static void (*omp_parallel)(void (*)(void *), void *, unsigned, unsigned);
static int (*omp_thread)(void), (*omp_team)(void);
static pthread_once_t looked = PTHREAD_ONCE_INIT;

static void look(void) { /* torch loads it for everybody to see */
    *(void **)&omp_parallel = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    *(void **)&omp_thread = dlsym(RTLD_DEFAULT, "omp_get_thread_num");
    *(void **)&omp_team = dlsym(RTLD_DEFAULT, "omp_get_num_threads");
}

typedef struct {
    int count;
    void (*task)(const void *, int);
    const void *context;
} loop;

static void part_of_loop(void *data) {
    const loop *l = data;
    int64_t thread = omp_thread(), team = omp_team();
    for (int i = (int)(l->count * thread / team); i < (int)(l->count * (thread + 1) / team); i++) l->task(l->context, i);
}

void in_threads(int threads, int count, void (*task)(const void *context, int number), const void *context) {
    pthread_once(&looked, look);
    loop l = {count, task, context};
    if (threads > 1 && count > 1 && omp_parallel && omp_thread && omp_team)
        omp_parallel(part_of_loop, &l, (unsigned)(threads < count ? threads : count), 0);
    else
        for (int i = 0; i < count; i++) task(context, i);
}
