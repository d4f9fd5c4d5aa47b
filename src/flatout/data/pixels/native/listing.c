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

/* Links are followed; one that leads nowhere, or round and round, is nothing. */
static bool append_item(folder_listing *to, int folder, const char *prefix, const struct dirent *item) {
    struct stat about;
    int type = item->d_type;
    if (type == DT_UNKNOWN && fstatat(folder, item->d_name, &about, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(about.st_mode))
        type = DT_DIR;
    if (type == DT_DIR) return append(&to->folders, item->d_name, strlen(item->d_name) + 1);
    if (fstatat(folder, item->d_name, &about, 0) != 0) return true;
    if (S_ISREG(about.st_mode)) return append_file(to, prefix, item->d_name, &about);
    return !S_ISDIR(about.st_mode) || append(&to->links, item->d_name, strlen(item->d_name) + 1);
}

int list_folder(const char *path, const char *prefix, folder_listing *to) {
    DIR *folder = opendir(path);
    if (!folder) return errno;
    int status = 0;
    while (!status) {
        errno = 0;
        const struct dirent *item = readdir(folder);
        if (!item) {
            status = errno;
            break;
        }
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0) continue;
        if (!append_item(to, dirfd(folder), prefix, item)) status = ENOMEM;
    }
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
