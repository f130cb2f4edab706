/* Preloaded into wrend: while a file of one of these names stands in the directory FAULTS, the disk or the clock is faulty.
 *   full       nothing more can be written to files under FAULTY (ENOSPC)
 *   read_only  they can neither be written nor opened for writing (EROFS)
 *   failing    they can be written, but a sync fails (EIO)
 *   clock      the wall clock is off by the number of seconds that the file holds; the monotonic one is not
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define REAL(type, name) ((type)dlsym(RTLD_NEXT, name))

static int stands(const char *fault) {
    const char *faults = getenv("FAULTS");
    char path[4096];
    int saved = errno;
    snprintf(path, sizeof path, "%s/%s", faults ? faults : "", fault);
    int found = faults && access(path, F_OK) == 0;
    errno = saved;
    return found;
}

static int is_ours(const char *path) {
    const char *faulty = getenv("FAULTY");
    return faulty && path && strncmp(path, faulty, strlen(faulty)) == 0;
}

static int is_our_file(int fd) {
    char link[64], path[4096];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (length < 0) return 0;
    path[length] = 0;
    return is_ours(path);
}

/* Returns whether a write is refused, and says why in errno. */
static int refuses(int fd) {
    int full = stands("full"), read_only = stands("read_only");
    if ((!full && !read_only) || !is_our_file(fd)) return 0;
    errno = full ? ENOSPC : EROFS;
    return 1;
}

ssize_t write(int fd, const void *bytes, size_t count) {
    return refuses(fd) ? -1 : REAL(ssize_t (*)(int, const void *, size_t), "write")(fd, bytes, count);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
    return refuses(fd) ? -1 : REAL(ssize_t (*)(int, const void *, size_t, off_t), "pwrite")(fd, bytes, count, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
    return refuses(fd) ? -1 : REAL(ssize_t (*)(int, const void *, size_t, off64_t), "pwrite64")(fd, bytes, count, at);
}

int ftruncate(int fd, off_t length) {
    return refuses(fd) ? -1 : REAL(int (*)(int, off_t), "ftruncate")(fd, length);
}

int ftruncate64(int fd, off64_t length) {
    return refuses(fd) ? -1 : REAL(int (*)(int, off64_t), "ftruncate64")(fd, length);
}

static int cannot_open(const char *path, int flags) {
    if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) == 0 || !is_ours(path) || !stands("read_only")) return 0;
    errno = EROFS;
    return 1;
}

#define OPEN(name)                                                                    \
    int name(const char *path, int flags, ...) {                                      \
        va_list rest;                                                                 \
        va_start(rest, flags);                                                        \
        mode_t mode = va_arg(rest, mode_t);                                           \
        va_end(rest);                                                                 \
        if (cannot_open(path, flags)) return -1;                                      \
        return REAL(int (*)(const char *, int, ...), #name)(path, flags, mode);       \
    }
OPEN(open)
OPEN(open64)

static int synced(const char *name, int fd) {
    if (stands("failing") && is_our_file(fd)) {
        errno = EIO;
        return -1;
    }
    return REAL(int (*)(int), name)(fd);
}

int fsync(int fd) { return synced("fsync", fd); }
int fdatasync(int fd) { return synced("fdatasync", fd); }

int clock_gettime(clockid_t clock, struct timespec *now) {
    /* By the kernel, not by the next library: the clock is read before all of them are there. */
    long result = syscall(SYS_clock_gettime, clock, now);
    const char *faults = getenv("FAULTS");
    if (result != 0 || clock != CLOCK_REALTIME || !faults) return (int)result;
    char path[4096];
    int saved = errno;
    long seconds = 0;
    snprintf(path, sizeof path, "%s/clock", faults);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%ld", &seconds) == 1) now->tv_sec += seconds;
        fclose(file);
    }
    errno = saved;
    return 0;
}
