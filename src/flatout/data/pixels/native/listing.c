/* What one folder holds, without an object of Python's for each file. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "native.h"

static bool append(text *to, const void *bytes, size_t count) {
    if (count > to->capacity - to->used) {
        size_t capacity = 2 * to->capacity + count + 4096;
        uint8_t *grown = realloc(to->bytes, capacity);
        if (!grown) return false;
        to->bytes = grown;
        to->capacity = capacity;
    }
    memcpy(to->bytes + to->used, bytes, count);
    to->used += count;
    return true;
}

static bool append_file(folder_listing *to, const char *prefix, const char *name, const struct stat *about) {
    const int64_t bytes = about->st_size;
    uint8_t locator[DIGEST_BYTES];
    locate(about, locator);
    return append(&to->names, prefix, strlen(prefix)) && append(&to->names, name, strlen(name) + 1) &&
           append(&to->sizes, &bytes, sizeof bytes) && append(&to->locators, locator, sizeof locator);
}

/* Links are followed; one that leads nowhere, or round and round, is nothing. An item is its type, then its name. */
static bool append_item(folder_listing *to, int folder, const char *prefix, const char *item) {
    struct stat about;
    unsigned char type = (unsigned char)item[0];
    const char *name = item + 1;
    if (type == DT_UNKNOWN && fstatat(folder, name, &about, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(about.st_mode))
        type = DT_DIR;
    if (type == DT_DIR) return append(&to->folders, name, strlen(name) + 1);
    if (fstatat(folder, name, &about, 0) != 0) return true;
    if (S_ISREG(about.st_mode)) return append_file(to, prefix, name, &about);
    return !S_ISDIR(about.st_mode) || append(&to->links, name, strlen(name) + 1);
}

/* 0 or an errno; `items` follow each other. */
static int read_items(DIR *folder, text *items, size_t *count) {
    for (*count = 0;; ++*count) {
        const struct dirent *item;
        do {
            errno = 0;
            if (!(item = readdir(folder))) return errno;
        } while (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0);
        if (!append(items, &item->d_type, 1) || !append(items, item->d_name, strlen(item->d_name) + 1)) return ENOMEM;
    }
}

static int by_name(const void *left, const void *right) {
    return strcmp(*(const char *const *)left + 1, *(const char *const *)right + 1);
}

static const char **in_order(const text *items, size_t count) {
    const char **sorted = malloc((count + 1) * sizeof *sorted), *next = (const char *)items->bytes;
    for (size_t i = 0; sorted && i < count; i++, next += strlen(next + 1) + 2) sorted[i] = next;
    if (sorted) qsort(sorted, count, sizeof *sorted, by_name);
    return sorted;
}

int list_folder(const char *path, const char *prefix, folder_listing *to) {
    DIR *folder = opendir(path);
    if (!folder) return errno;
    text items = {0};
    size_t count;
    const char **sorted = NULL;
    int status = read_items(folder, &items, &count);
    if (!status && !(sorted = in_order(&items, count))) status = ENOMEM;
    for (size_t i = 0; !status && i < count; i++)
        if (!append_item(to, dirfd(folder), prefix, sorted[i])) status = ENOMEM;
    free(sorted);
    free(items.bytes);
    closedir(folder);
    return status;
}

void listing_free(folder_listing *l) {
    free(l->names.bytes);
    free(l->sizes.bytes);
    free(l->locators.bytes);
    free(l->folders.bytes);
    free(l->links.bytes);
}
