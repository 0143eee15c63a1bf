/* See net.h. SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

static const char *program = "example";

/* Output that could not be written (a full disk, a reader that is gone) is a failure
 * like any other: one line, and status 1. */
static void check_output(void)
{
    int lost = ferror(stdout);
    if (fflush(stdout) == 0 && !lost)
        return;
    fprintf(stderr, "%s: cannot write to standard output%s%s\n", program, errno ? ": " : "",
            errno ? strerror(errno) : "");
    _exit(1);
}

void begin(char **argv)
{
    const char *slash = argv[0] ? strrchr(argv[0], '/') : NULL;
    program = slash ? slash + 1 : argv[0] ? argv[0] : program;
    signal(SIGPIPE, SIG_IGN);
    /* Each line leaves at once, also through a pipe. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    atexit(check_output);
}

static void say(const char *format, va_list args, int error)
{
    fprintf(stderr, "%s: ", program);
    vfprintf(stderr, format, args);
    if (error)
        fprintf(stderr, ": %s", strerror(error));
    fputc('\n', stderr);
}

void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args, 0);
    va_end(args);
    exit(1);
}

void fail_errno(const char *format, ...)
{
    int error = errno;
    va_list args;
    va_start(args, format);
    say(format, args, error);
    va_end(args);
    exit(1);
}

void warn(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args, 0);
    va_end(args);
}

void warn_errno(const char *format, ...)
{
    int error = errno;
    va_list args;
    va_start(args, format);
    say(format, args, error);
    va_end(args);
}

void usage(const char *text)
{
    fprintf(stderr, "usage: %s %s\n", program, text);
    exit(2);
}

/* Powers of 1024, as in the environment variables of EXS: k, M, G, with i or iB behind them or not. */
static const char *after_unit(const char *unit, unsigned long *n)
{
    static const char units[] = "kmg";
    const char *at = *unit ? strchr(units, *unit | 0x20) : NULL;
    int shift = at ? 10 * (int)(at - units + 1) : 0;
    if (!at || *n > ULONG_MAX >> shift)
        return unit;
    *n <<= shift;
    unit++;
    if ((*unit | 0x20) == 'i')
        unit += (unit[1] | 0x20) == 'b' ? 2 : 1;
    return unit;
}

unsigned long size(const char *text, unsigned long least, unsigned long most, const char *what)
{
    char *end;
    errno = 0;
    unsigned long n = strtoul(text, &end, 10);
    if (errno || *text < '0' || *text > '9' || *after_unit(end, &n) || n < least || n > most) {
        fprintf(stderr, "%s: %s is a size from %lu to %lu (64, 4k, 1MiB), not \"%s\"\n", program,
                what, least, most, text);
        exit(2);
    }
    return n;
}

unsigned long number(const char *text, unsigned long least, unsigned long most, const char *what)
{
    char *end;
    errno = 0;
    unsigned long n = strtoul(text, &end, 10);
    /* strtoul takes "-1", " 1" and numbers that are too long, which are mistakes here. */
    if (errno || *end || *text < '0' || *text > '9' || n < least || n > most) {
        fprintf(stderr, "%s: %s is a number from %lu to %lu, not \"%s\"\n", program, what, least,
                most, text);
        exit(2);
    }
    return n;
}

struct endpoint resolve(const char *text, bool to_listen)
{
    char host[256];
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : 0;
    if (!colon || n >= sizeof(host))
        fail("\"%s\" is no address of the form HOST:PORT", text);
    memcpy(host, text, n);
    host[n] = 0;
    char *name = host;
    if (n >= 2 && host[0] == '[' && host[n - 1] == ']') { /* [::1]:80 */
        host[n - 1] = 0;
        name = host + 1;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = to_listen ? AI_PASSIVE : 0};
    struct addrinfo *found;
    int error = getaddrinfo(*name ? name : NULL, colon + 1, &hints, &found);
    if (error)
        fail("no address is known for %s: %s", text, gai_strerror(error));
    struct endpoint out = {.len = found->ai_addrlen};
    memcpy(&out.addr, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return out;
}

int tcp_listener(const char *text)
{
    struct endpoint at = resolve(text, true);
    int on = 1, fd = socket(at.addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        fail_errno("socket");
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0)
        fail_errno("setsockopt, SO_REUSEADDR");
    if (bind(fd, (struct sockaddr *)&at.addr, at.len) < 0 || listen(fd, SOMAXCONN) < 0)
        fail_errno("cannot listen on %s", text);
    at.len = sizeof(at.addr);
    if (getsockname(fd, (struct sockaddr *)&at.addr, &at.len) < 0)
        fail_errno("getsockname");
    printf("listening on %s\n", address_text(&at.addr, at.len));
    return fd;
}

int tcp_connection(const char *text)
{
    struct endpoint at = resolve(text, false);
    int fd = socket(at.addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        fail_errno("socket");
    if (connect(fd, (struct sockaddr *)&at.addr, at.len) < 0)
        fail_errno("cannot connect to %s", text);
    return fd;
}

const char *address_text(const struct sockaddr_storage *addr, socklen_t len)
{
    static char text[NI_MAXHOST + NI_MAXSERV + 4];
    char host[NI_MAXHOST], port[NI_MAXSERV];
    int flags = NI_NUMERICHOST | NI_NUMERICSERV;
    if (getnameinfo((const struct sockaddr *)addr, len, host, sizeof(host), port, sizeof(port),
                    flags))
        return "an unknown address";
    const char *form = addr->ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s";
    snprintf(text, sizeof(text), form, host, port);
    return text;
}

int ending_descriptor(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    /* Blocked in this thread, and so in those that it will start: then the descriptor is the
     * only way by which they arrive. */
    int error = pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (error) {
        errno = error;
        fail_errno("pthread_sigmask");
    }
    int fd = signalfd(-1, &set, SFD_CLOEXEC);
    if (fd < 0)
        fail_errno("signalfd");
    return fd;
}

void allow_many_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return; /* then it is what it is */
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

enum console read_console(bool (*obey)(const char *line))
{
    static char text[256];
    static size_t have;
    ssize_t n = read(STDIN_FILENO, text + have, sizeof(text) - have);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return CONSOLE_OPEN;
    if (n <= 0)
        return CONSOLE_ENDED;
    have += (size_t)n;
    for (char *end; (end = memchr(text, '\n', have));) {
        *end = 0;
        if (!obey(text))
            return CONSOLE_STOPPED;
        have -= (size_t)(end + 1 - text);
        memmove(text, end + 1, have);
    }
    if (have == sizeof(text)) /* no command is this long */
        have = 0;
    return CONSOLE_OPEN;
}

bool write_all(int fd, const void *bytes, size_t len)
{
    const char *at = bytes;
    while (len > 0) {
        ssize_t n = write(fd, at, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

void *allocate(size_t count, size_t size)
{
    void *p = calloc(count, size);
    if (!p)
        fail("no memory for %zu bytes", count * size);
    return p;
}

double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
