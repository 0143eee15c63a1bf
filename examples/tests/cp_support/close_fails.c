/* Preloaded into exs-cp: below the directory $CLOSE_FAILS_BELOW a file system has no room
 * for the data, and reports that when a file is closed, as NFS and FUSE do. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int close(int fd)
{
    const char *below = getenv("CLOSE_FAILS_BELOW");
    char link[64], path[PATH_MAX];
    struct stat st;
    int kept = errno, fails = 0;

    if (below && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, sizeof path);
        size_t len = strlen(below);
        fails = n > (ssize_t)len && memcmp(path, below, len) == 0 && path[len] == '/';
    }
    errno = kept;
    if (syscall(SYS_close, fd) < 0)
        return -1;
    if (!fails)
        return 0;
    errno = EDQUOT;
    return -1;
}
