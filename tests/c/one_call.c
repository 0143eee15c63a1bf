/* Small sends on kernel sockets through a queue, for strace(1) to count; and numbers that come to
 * mean another socket between two of them, whose bytes must go to that one.
 *
 *   one_call ROUNDS    sends of 64 bytes, each of which is dequeued */
#define _GNU_SOURCE
#include <sys/exs.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static exs_qhandle_t queue;

static void check(int good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "one_call: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void tcp_pair(int fd[2])
{
    struct sockaddr_in addr;
    socklen_t len = sizeof addr;
    int l = socket(AF_INET, SOCK_STREAM, 0);

    memset(&addr, 0, sizeof addr);
    addr.sin_family = AF_INET;
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(l >= 0 && bind(l, (struct sockaddr *)&addr, len) == 0 && listen(l, 1) == 0, "listen");
    check(getsockname(l, (struct sockaddr *)&addr, &len) == 0, "getsockname");
    fd[0] = socket(AF_INET, SOCK_STREAM, 0);
    check(fd[0] >= 0 && connect(fd[0], (struct sockaddr *)&addr, len) == 0, "connect");
    fd[1] = accept(l, NULL, NULL);
    check(fd[1] >= 0, "accept");
    close(l);
}

static int sent(int fd, const char *text, size_t len)
{
    exs_event_t e;

    check(exs_send(fd, (void *)(uintptr_t)text, len, 0, queue, 1, EXS_MHANDLE_UNREGISTERED) == 0, "exs_send");
    check(exs_qdequeue(queue, &e, 1, NULL) == 1 && e.exs_evt_type == EXS_EVT_SEND, "exs_qdequeue");
    if (e.exs_evt_errno == 0)
        check(e.exs_evt_union.exs_evt_xfer.exs_evt_length == len, "the length");
    return e.exs_evt_errno;
}

static void arrives(int fd, const char *text)
{
    char got[64];
    size_t len = strlen(text);

    check(recv(fd, got, len, MSG_WAITALL) == (ssize_t)len && memcmp(got, text, len) == 0, text);
    check(recv(fd, got, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN, "something more came");
}

/* Posts sends of one byte, which may be kept for one another. */
static void burst(int fd, const char *text, int sends)
{
    while (sends-- > 0)
        check(exs_send(fd, (void *)(uintptr_t)text, 1, 0, queue, 1, EXS_MHANDLE_UNREGISTERED) == 0, "exs_send");
}

/* In the middle of a burst the number means one socket after another. */
static void bursts(int a[2], int b[2], int u[2])
{
    int n = dup(a[0]), second = dup(a[0]), exs = exs_socket(AF_INET, SOCK_STREAM, 0);
    exs_event_t e[62];
    int i;

    check(n >= 0 && second >= 0 && exs >= 0, "dup");
    burst(n, "1", 12);
    burst(second, "2", 1);
    burst(n, "3", 12);
    check(dup2(b[0], n) == n, "dup2");
    burst(n, "4", 12);
    check(dup2(exs, n) == n, "dup2");
    check(exs_send(n, (void *)(uintptr_t)"5", 1, 0, queue, 1, EXS_MHANDLE_UNREGISTERED) == -1 && errno == ENOTCONN,
          "exs_send on a socket that is not connected");
    check(dup2(u[0], n) == n, "dup2");
    burst(n, "6", 12);
    check(dup2(a[0], n) == n, "dup2");
    burst(n, "7", 12);
    /* Sends that were posted leave, though their number is closed. */
    check(close(n) == 0 && exs_send(n, (void *)(uintptr_t)"x", 1, 0, queue, 1, EXS_MHANDLE_UNREGISTERED) == -1 && errno == EBADF, "a closed number");
    burst(second, "8", 1);
    check(exs_qdequeue(queue, e, -62, NULL) == 62, "exs_qdequeue");
    for (i = 0; i < 62; i++)
        check(e[i].exs_evt_type == EXS_EVT_SEND && e[i].exs_evt_errno == 0 &&
                  e[i].exs_evt_union.exs_evt_xfer.exs_evt_length == 1,
              "an event");
    arrives(a[1], "11111111111123333333333337777777777778");
    arrives(b[1], "444444444444");
    arrives(u[1], "666666666666");
    check(close(second) == 0 && close(exs) == 0, "close");
}

/* Takes `count` events of sends that have left. */
static void take(int count)
{
    exs_event_t e[62];
    int i;

    check(exs_qdequeue(queue, e, -count, NULL) == count, "exs_qdequeue");
    for (i = 0; i < count; i++)
        check(e[i].exs_evt_type == EXS_EVT_SEND && e[i].exs_evt_errno == 0, "an event");
}

/* Takes some of the events of a burst, so that the library still holds the socket for the next. */
static void half_a_burst(int fd, const char *text)
{
    burst(fd, text, 16);
    take(8);
}

static void ends(int fd)
{
    char byte;

    check(recv(fd, &byte, 1, 0) == 0, "the end of a closed connection");
}

/* Between two bursts the program closes the socket, or gives its number to another. */
static void closes_between_bursts(int b[2])
{
    int p[2];

    tcp_pair(p);
    half_a_burst(p[0], "1");
    burst(p[0], "2", 8);
    check(dup2(b[0], p[0]) == p[0], "dup2");
    burst(p[0], "3", 12);
    take(28);
    arrives(b[1], "333333333333");
    check(recv(p[1], (char[24]){0}, 24, MSG_WAITALL) == 24, "recv");
    ends(p[1]);
    check(close(p[0]) == 0 && close(p[1]) == 0, "close");
    /* The number is that of another socket before the second burst begins. */
    tcp_pair(p);
    half_a_burst(p[0], "4");
    check(dup2(b[0], p[0]) == p[0], "dup2");
    half_a_burst(p[0], "5");
    take(16);
    arrives(b[1], "5555555555555555");
    check(recv(p[1], (char[16]){0}, 16, MSG_WAITALL) == 16, "recv");
    ends(p[1]);
    check(close(p[0]) == 0 && close(p[1]) == 0, "close");
    /* The peer sees a close though events of the socket are in the queue. */
    tcp_pair(p);
    half_a_burst(p[0], "6");
    check(close(p[0]) == 0, "close");
    check(recv(p[1], (char[16]){0}, 16, MSG_WAITALL) == 16, "recv");
    ends(p[1]);
    take(8);
    check(close(p[1]) == 0, "close");
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 100, a[2], b[2], u[2], d[2], n, exs, i;
    static char room[1 << 16];

    check(exs_init(EXS_VERSION) == 0, "exs_init");
    queue = exs_qcreate(64);
    check(queue != EXS_QHANDLE_INVALID, "exs_qcreate");
    tcp_pair(a);
    tcp_pair(b);
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, u) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, d) == 0, "socketpair");
    for (i = 0; i < rounds; i++) {
        check(sent(a[0], room, 64) == 0, "a send");
        if (i % 512 == 511)
            check(recv(a[1], room, sizeof room / 2, MSG_WAITALL) == sizeof room / 2, "recv");
    }
    while (recv(a[1], room, sizeof room, MSG_DONTWAIT) > 0)
        ;
    bursts(a, b, u);
    closes_between_bursts(b);
    /* The number is that of another socket: one of each kind, and the first again. */
    n = a[0];
    a[0] = dup(n);
    check(a[0] >= 0 && dup2(b[0], n) == n && sent(n, "to the second", 13) == 0, "dup2");
    arrives(b[1], "to the second");
    check(dup2(u[0], n) == n && sent(n, "to a UNIX stream", 16) == 0, "dup2");
    arrives(u[1], "to a UNIX stream");
    check(dup2(b[0], n) == n && sent(n, "again", 5) == 0, "dup2");
    arrives(b[1], "again");
    check(dup2(d[0], n) == n && sent(n, "a datagram", 10) == 0, "dup2");
    arrives(d[1], "a datagram");
    check(dup2(a[0], n) == n && sent(n, "the first", 9) == 0, "dup2");
    arrives(a[1], "the first");
    /* One of EXS, which is not connected: nothing is sent to its descriptor. */
    exs = exs_socket(AF_INET, SOCK_STREAM, 0);
    check(exs >= 0 && dup2(exs, n) == n, "exs_socket");
    check(exs_send(n, room, 1, 0, queue, 1, EXS_MHANDLE_UNREGISTERED) == -1 && errno == ENOTCONN,
          "exs_send on a socket that is not connected");
    check(dup2(a[0], n) == n && sent(n, "at last", 7) == 0, "dup2");
    arrives(a[1], "at last");
    /* Without a queue, too. */
    check(exs_send(n, "blocking", 8, 0, EXS_QHANDLE_INVALID, 0, EXS_MHANDLE_UNREGISTERED) == 8, "exs_send");
    arrives(a[1], "blocking");
    check(dup2(u[0], n) == n && exs_send(n, "there", 5, 0, EXS_QHANDLE_INVALID, 0, EXS_MHANDLE_UNREGISTERED) == 5, "exs_send");
    arrives(u[1], "there");
    /* The peer has ended it. */
    check(dup2(b[0], n) == n && close(b[1]) == 0, "dup2");
    while ((i = sent(n, "x", 1)) == 0)
        ;
    check(i == EPIPE || i == ECONNRESET, "the end of the connection");
    printf("all is well\n");
    return 0;
}
