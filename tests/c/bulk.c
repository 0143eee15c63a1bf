/* A bulk sender in the way of ES-API: 16 sends in flight, half of them awaited by a
 * threshold; beside a loop of send(2). One line: megabytes per second of each kind.
 *
 *   bulk plain|exs tcp|unix|soft|shm|verbs SIZE MEGABYTES [ADDRESS]
 *
 * ADDRESS (IPv4, 127.0.0.1) is one of this host's: of a device, say. plain: send(2) and recv(2) on kernel sockets. exs: exs_send through a queue, on kernel
 * sockets (tcp, unix; the peer has a recv(2) loop) or on EXS sockets. The peer is another
 * process. */
#define _GNU_SOURCE
#include <sys/exs.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { IN_FLIGHT = 16 };
#define BLOCK EXS_QHANDLE_INVALID, 0

static int kernel, local;
static const char *address = "127.0.0.1";
static size_t size, total;
static char *memory;

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
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int new_socket(void)
{
    int fd = !kernel ? exs_socket(AF_INET, SOCK_STREAM, 0)
                     : socket(local ? AF_UNIX : AF_INET, SOCK_STREAM, 0);

    check(fd >= 0, "socket");
    return fd;
}

/* The peer: tells where it listens, takes all, and confirms it by one byte. */
static void receive(int say)
{
    struct sockaddr_storage at;
    struct sockaddr_in *in = (struct sockaddr_in *)&at;
    socklen_t len = local ? sizeof(sa_family_t) : sizeof *in;
    exs_mhandle_t m = EXS_MHANDLE_UNREGISTERED;
    exs_qhandle_t q = EXS_QHANDLE_INVALID;
    int l = new_socket(), fd, i, posted = 0, blocks = (int)(total / size);
    exs_event_t e;

    memset(&at, 0, sizeof at);
    at.ss_family = local ? AF_UNIX : AF_INET;
    if (!local)
        check(inet_pton(AF_INET, address, &in->sin_addr) == 1, "the address");
    check(exs_bind(l, (struct sockaddr *)&at, len) == 0, "bind");
    check(exs_listen(l, 1) == 0, "listen");
    len = sizeof at;
    check(exs_getsockname(l, (struct sockaddr *)&at, &len) == 0, "getsockname");
    check(write(say, &len, sizeof len) == sizeof len && write(say, &at, sizeof at) == sizeof at, "write");
    fd = exs_accept(l, NULL, 0, BLOCK);
    check(fd >= 0, "accept");
    if (kernel) {
        size_t done = 0;

        while (done < total) {
            ssize_t n = recv(fd, memory, size, 0);

            check(n > 0, "recv");
            done += (size_t)n;
        }
        check(send(fd, "", 1, 0) == 1, "send");
    } else {
        m = exs_mregister(memory, size * IN_FLIGHT, 0);
        q = exs_qcreate(IN_FLIGHT);
        for (; posted < IN_FLIGHT && posted < blocks; posted++)
            check(exs_recv(fd, memory + (size_t)posted * size, size, MSG_WAITALL, q, 0, m) == 0, "exs_recv");
        for (i = 0; i < blocks; i++) {
            check(exs_qdequeue(q, &e, 1, NULL) == 1 && e.exs_evt_errno == 0, "exs_qdequeue");
            if (posted++ < blocks)
                check(exs_recv(fd, e.exs_evt_union.exs_evt_xfer.exs_evt_buffer, size, MSG_WAITALL, q, 0, m) == 0, "exs_recv");
        }
        check(exs_send(fd, memory, 1, 0, BLOCK, m) == 1, "exs_send");
    }
    check(exs_close(fd, 0, BLOCK) == 0, "close");
    exit(0);
}

static void send_plain(int fd)
{
    size_t done;

    for (done = 0; done < total; done += size) {
        size_t sent = 0;

        while (sent < size) {
            ssize_t n = send(fd, memory + sent, size - sent, 0);

            check(n > 0, "send");
            sent += (size_t)n;
        }
    }
}

static void send_exs(int fd)
{
    exs_mhandle_t m = exs_mregister(memory, size * IN_FLIGHT, 0);
    exs_qhandle_t q = exs_qcreate(IN_FLIGHT);
    int posted = 0, pending = 0, blocks = (int)(total / size), n, i;
    exs_event_t e[IN_FLIGHT];

    check(m != EXS_MHANDLE_INVALID && q != EXS_QHANDLE_INVALID, "exs_mregister");
    while (posted < blocks || pending > 0) {
        while (posted < blocks && pending < IN_FLIGHT) {
            char *block = memory + (size_t)(posted % IN_FLIGHT) * size;

            check(exs_send(fd, block, size, 0, q, (exs_ahandle_t)-1, m) == 0, "exs_send");
            posted++;
            pending++;
        }
        n = exs_qdequeue(q, e, -((pending + 1) >> 1), NULL);
        check(n > 0, "exs_qdequeue");
        for (i = 0; i < n; i++)
            check(e[i].exs_evt_errno == 0, "a send");
        pending -= n;
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_storage at;
    socklen_t len;
    int say[2], fd, status, plain;
    double begun;
    pid_t child;
    char byte;

    if (argc != 5 && argc != 6) {
        fprintf(stderr, "usage: bulk plain|exs tcp|unix|soft|shm|verbs SIZE MEGABYTES [ADDRESS]\n");
        return 2;
    }
    if (argc == 6)
        address = argv[5];
    plain = strcmp(argv[1], "plain") == 0;
    local = strcmp(argv[2], "unix") == 0;
    kernel = local || strcmp(argv[2], "tcp") == 0;
    if (!kernel)
        setenv("EXS_TRANSPORT", argv[2], 1);
    size = (size_t)atol(argv[3]);
    total = ((size_t)atol(argv[4]) << 20) / size * size;
    memory = malloc(size * IN_FLIGHT);
    check(memory != NULL && pipe(say) == 0, "malloc");
    memset(memory, 'b', size * IN_FLIGHT);
    child = fork(); /* before the library is used: both processes use it */
    check(child >= 0, "fork");
    if (child == 0)
        receive(say[1]);
    check(read(say[0], &len, sizeof len) == sizeof len && read(say[0], &at, sizeof at) == sizeof at, "read");
    fd = new_socket();
    check(exs_connect(fd, (struct sockaddr *)&at, len, 0, BLOCK) == 0, "connect");
    begun = now();
    if (plain)
        send_plain(fd);
    else
        send_exs(fd);
    check(exs_recv(fd, &byte, 1, 0, BLOCK, EXS_MHANDLE_UNREGISTERED) == 1, "recv");
    printf("%.1f\n", (double)total / (now() - begun) / 1e6);
    check(exs_close(fd, 0, BLOCK) == 0, "close");
    check(waitpid(child, &status, 0) == child && status == 0, "the peer");
    return 0;
}
