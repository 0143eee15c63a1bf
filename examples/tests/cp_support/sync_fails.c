/* Preloaded into exs-cp: below the directory $SYNC_FAILS_BELOW the calls that bring data to
 * the disk fail with the error number $SYNC_FAILS_WITH, of files ($SYNC_FAILS_OF=f), of
 * directories (d), or of both (fd). */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fails(int fd)
{
    const char *below = getenv("SYNC_FAILS_BELOW"), *of = getenv("SYNC_FAILS_OF");
    const char *with = getenv("SYNC_FAILS_WITH");
    char link[64], path[PATH_MAX];
    struct stat st;

    if (!below || !of || !with || fstat(fd, &st) < 0)
        return 0;
    if (!strchr(of, S_ISDIR(st.st_mode) ? 'd' : 'f'))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path);
    size_t len = strlen(below);
    return n >= (ssize_t)len && memcmp(path, below, len) == 0 ? atoi(with) : 0;
}

static int sync_by(long call, int fd)
{
    int error = fails(fd);

    if (!error)
        return (int)syscall(call, fd);
    errno = error;
    return -1;
}

int fsync(int fd)
{
    return sync_by(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return sync_by(SYS_fdatasync, fd);
}

/* Fails as it does once any write of the file system has failed. */
int syncfs(int fd)
{
    return sync_by(SYS_syncfs, fd);
}
