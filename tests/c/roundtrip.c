/* Round trips of 64 bytes between two processes whose sockets do not block. One line: microseconds
 * for each.
 *
 *   roundtrip recv|poll|epoll|exs-epoll|exs-wait|qfd tcp|soft|shm|verbs ROUNDS [ADDRESS]
 *
 * How the program waits: in the receiving call; by poll(2) or epoll on the socket's descriptor;
 * by epoll with the socket registered by exs_epoll_ctl, and epoll_wait or exs_epoll_wait; by epoll on the descriptor of a queue, with
 * sends that have no queue. tcp: kernel sockets and the kernel's own calls (exs-epoll, exs-wait, qfd: as epoll,
 * for comparison). */
#define _GNU_SOURCE
#include <sys/exs.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 64 };
enum mode { RECV, POLL, EPOLL, EXS_EPOLL, EXS_WAIT, QFD };
#define BLOCK EXS_QHANDLE_INVALID, 0
#define UNREG EXS_MHANDLE_UNREGISTERED

static int kernel, ep = -1;
static enum mode mode;
static exs_qhandle_t queue = EXS_QHANDLE_INVALID;

static void check(int good, const char *what)
{
    if (good)
        return;
    perror(what);
    exit(1);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* What the socket needs before the first round. */
static void prepare(int fd)
{
    struct epoll_event e;
    int on = 1;

    if (kernel)
        check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0, "TCP_NODELAY");
    if (mode == RECV)
        return;
    check(fcntl(fd, F_SETFL, O_NONBLOCK) == 0, "fcntl");
    if (mode == POLL)
        return;
    if (mode == QFD && !kernel)
        queue = exs_qcreate(4);
    ep = epoll_create1(0);
    memset(&e, 0, sizeof e);
    e.events = EPOLLIN;
    if (mode == EXS_EPOLL || mode == EXS_WAIT)
        check(exs_epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e) == 0, "exs_epoll_ctl");
    else
        check(epoll_ctl(ep, EPOLL_CTL_ADD, queue >= 0 ? exs_qfd(queue) : fd, &e) == 0, "epoll_ctl");
}

static void put(int fd, const char *bytes)
{
    ssize_t n = kernel ? send(fd, bytes, SIZE, 0)
                       : exs_send(fd, (void *)bytes, SIZE, 0, BLOCK, UNREG);

    check(n == SIZE, "send");
}

static void await_data(int fd)
{
    struct epoll_event e;
    struct pollfd p = {fd, POLLIN, 0};

    if (mode == POLL)
        check(poll(&p, 1, -1) == 1, "poll");
    else if (mode == EXS_WAIT && !kernel)
        check(exs_epoll_wait(ep, &e, 1, -1) == 1, "exs_epoll_wait");
    else if (mode != RECV)
        check(epoll_wait(ep, &e, 1, -1) == 1, "epoll_wait");
}

/* Receives `len` bytes at most. Returns how many came, 0 at the end. */
static size_t take(int fd, char *bytes, size_t len)
{
    struct timeval none = {0, 0};
    exs_event_t e;
    ssize_t n;

    if (queue >= 0)
        check(exs_recv(fd, bytes, len, 0, queue, 1, UNREG) == 0, "exs_recv");
    for (;;) {
        await_data(fd);
        if (queue >= 0) {
            if (exs_qdequeue(queue, &e, 1, &none) == 1)
                return e.exs_evt_errno ? 0 : e.exs_evt_union.exs_evt_xfer.exs_evt_length;
            continue;
        }
        n = kernel ? recv(fd, bytes, len, 0) : exs_recv(fd, bytes, len, 0, BLOCK, UNREG);
        if (n >= 0)
            return (size_t)n;
        if (errno != EAGAIN)
            return 0;
    }
}

static int get(int fd, char *bytes)
{
    size_t have = 0, n;

    while (have < SIZE) {
        n = take(fd, bytes + have, SIZE - have);
        if (n == 0)
            return 0;
        have += n;
    }
    return 1;
}

static void serve(int say, const char *address)
{
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    char bytes[SIZE];
    int l, fd;

    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    check(inet_pton(AF_INET, address, &at.sin_addr) == 1, "inet_pton");
    l = kernel ? socket(AF_INET, SOCK_STREAM, 0) : exs_socket(AF_INET, SOCK_STREAM, 0);
    check(l >= 0 && exs_bind(l, (struct sockaddr *)&at, len) == 0 && exs_listen(l, 1) == 0, "listen");
    check(exs_getsockname(l, (struct sockaddr *)&at, &len) == 0, "getsockname");
    check(write(say, &at, sizeof at) == sizeof at, "write");
    fd = exs_accept(l, NULL, 0, BLOCK);
    check(fd >= 0, "accept");
    prepare(fd);
    while (get(fd, bytes))
        put(fd, bytes);
    _exit(0);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"recv", "poll", "epoll", "exs-epoll", "exs-wait", "qfd"};
    struct sockaddr_in at;
    char bytes[SIZE] = {0};
    int say[2], rounds, i, fd;
    double begun;
    pid_t child;

    if (argc < 4)
        return 2;
    while (mode < QFD && strcmp(argv[1], names[mode]) != 0)
        mode++;
    kernel = strcmp(argv[2], "tcp") == 0;
    if (!kernel)
        setenv("EXS_TRANSPORT", argv[2], 1);
    rounds = atoi(argv[3]);
    check(pipe(say) == 0 && (child = fork()) >= 0, "fork");
    if (child == 0)
        serve(say[1], argc > 4 ? argv[4] : "127.0.0.1");
    check(read(say[0], &at, sizeof at) == sizeof at, "read");
    fd = kernel ? socket(AF_INET, SOCK_STREAM, 0) : exs_socket(AF_INET, SOCK_STREAM, 0);
    check(fd >= 0 && exs_connect(fd, (struct sockaddr *)&at, sizeof at, 0, BLOCK) == 0, "connect");
    prepare(fd);
    begun = now();
    for (i = 0; i < rounds; i++) {
        put(fd, bytes);
        check(get(fd, bytes), "recv");
    }
    printf("%.1f\n", (now() - begun) / rounds * 1e6);
    exs_close(fd, 0, BLOCK);
    waitpid(child, NULL, 0);
    return 0;
}
