/* Preloaded into wrend: whenever a file under SYNCED_FROM is synced, its content as of then is kept under SYNCED_TO.
 * A directory that is synced forgets the files that are gone from it. So SYNCED_TO is what a disk holds for certain, and
 * all that is left when the power goes; but for a new file's name, which is kept with its first sync.
 * It reads through the handle that is synced: to open and close the file anew would drop SQLite's locks on it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void forget(const char *from, const char *to) {
    char here[8192], kept[8192];
    DIR *dir = opendir(to);
    if (!dir) abort();
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(here, sizeof here, "%s/%s", from, entry->d_name);
        snprintf(kept, sizeof kept, "%s/%s", to, entry->d_name);
        if (access(here, F_OK) != 0) unlink(kept);
    }
    closedir(dir);
}

static void keep(int fd) {
    const char *from = getenv("SYNCED_FROM"), *to = getenv("SYNCED_TO");
    char link[64], path[4096], kept[8192], half[8256], bytes[65536];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!from || !to || length < 0) return;
    path[length] = 0;
    if (strcmp(path, from) == 0) {
        forget(from, to);
        return;
    }
    size_t prefix = strlen(from);
    if (strncmp(path, from, prefix) != 0 || path[prefix] != '/' || strchr(path + prefix + 1, '/')) return;
    snprintf(kept, sizeof kept, "%s%s", to, path + prefix);
    snprintf(half, sizeof half, "%s.%d", kept, gettid());
    int out = open(half, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    if (out < 0) abort();
    off_t at = 0;
    ssize_t got;
    while ((got = pread(fd, bytes, sizeof bytes, at)) > 0) {
        if (write(out, bytes, got) != got) abort();
        at += got;
    }
    close(out);
    if (got < 0 || rename(half, kept) != 0) abort();
}

/* Syncs of several threads are kept one after the other. */
static pthread_mutex_t keeping = PTHREAD_MUTEX_INITIALIZER;

static int synced(const char *name, int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    int result = real(fd);
    int saved = errno;
    if (result == 0) {
        pthread_mutex_lock(&keeping);
        keep(fd);
        pthread_mutex_unlock(&keeping);
    }
    errno = saved;
    return result;
}

int fsync(int fd) { return synced("fsync", fd); }
int fdatasync(int fd) { return synced("fdatasync", fd); }
