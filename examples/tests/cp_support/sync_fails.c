/* A library for LD_PRELOAD. Below the directory $SYNC_FAILS_BELOW the calls that bring data to the
 * disk fail with the error number $SYNC_FAILS_WITH. $SYNC_FAILS_OF has a letter for each kind of
 * call that fails: f for fsync(2) and fdatasync(2) of a file, d for those of a directory, s for
 * syncfs(2). The first $SYNC_FAILS_AFTER of these calls succeed, and after $SYNC_FAILS_TIMES that
 * fail the others succeed: the kernel reports an error once. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fails(int fd, int kind)
{
    const char *below = getenv("SYNC_FAILS_BELOW"), *of = getenv("SYNC_FAILS_OF");
    const char *with = getenv("SYNC_FAILS_WITH"), *after = getenv("SYNC_FAILS_AFTER");
    const char *times = getenv("SYNC_FAILS_TIMES");
    static int calls;
    char link[64], path[PATH_MAX];
    struct stat st;

    if (!below || !of || !with || fstat(fd, &st) < 0)
        return 0;
    if (!kind)
        kind = S_ISDIR(st.st_mode) ? 'd' : 'f';
    if (!strchr(of, kind))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path);
    size_t len = strlen(below);
    if (n < (ssize_t)len || memcmp(path, below, len) != 0)
        return 0;
    int call = __atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST) - (after ? atoi(after) : 0);
    return call < 0 || (times && call >= atoi(times)) ? 0 : atoi(with);
}

static int sync_by(long call, int fd, int kind)
{
    int error = fails(fd, kind);

    if (!error)
        return (int)syscall(call, fd);
    errno = error;
    return -1;
}

int fsync(int fd)
{
    return sync_by(SYS_fsync, fd, 0);
}

int fdatasync(int fd)
{
    return sync_by(SYS_fdatasync, fd, 0);
}

/* Fails as it does once any write of the file system has failed. */
int syncfs(int fd)
{
    return sync_by(SYS_syncfs, fd, 's');
}
