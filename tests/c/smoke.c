/* One program that goes once around the house: each family of calls does its work, both
 * ends in one process. It is linked against libexs.so and against libexs.a. */
#define _GNU_SOURCE
#include <sys/exs.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                         \
    do {                                                                                    \
        if (!(what)) {                                                                      \
            fprintf(stderr, "%s:%d: %s: errno %d (%s); exs: %s\n", __FILE__, __LINE__,      \
                    #what, errno, strerror(errno), exs_strerror());                         \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)
/* The call fails, and with this errno. */
#define FAILS(call, number) CHECK((call) == -1 && errno == (number))

static const exs_ahandle_t NAME = (exs_ahandle_t)-1;
static exs_qhandle_t queue;

/* The next event, which must be of this kind and a success. */
static exs_event_t next(int type)
{
    exs_event_t e;
    struct timeval patience = {60, 0};

    CHECK(exs_qdequeue(queue, &e, 1, &patience) == 1);
    if (e.exs_evt_type != type || e.exs_evt_errno != 0) {
        fprintf(stderr, "an event of type %d, errno %d, instead of type %d: %s\n",
                e.exs_evt_type, e.exs_evt_errno, type, exs_strerror());
        exit(1);
    }
    return e;
}

/* A listener on a port of its own, and its address. */
static int listener(int type, struct sockaddr_in *addr)
{
    socklen_t len = sizeof *addr;
    int fd = exs_socket(AF_INET, type, 0);

    CHECK(fd >= 0);
    memset(addr, 0, sizeof *addr);
    addr->sin_family = AF_INET;
    addr->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(exs_bind(fd, (struct sockaddr *)addr, sizeof *addr) == 0);
    CHECK(exs_listen(fd, 8) == 0);
    CHECK(exs_getsockname(fd, (struct sockaddr *)addr, &len) == 0 && addr->sin_port != 0);
    return fd;
}

/* A connection, both ends, by operations with events. */
static void connection(int type, int *client, int *server)
{
    struct sockaddr_in addr;
    exs_acceptaddr_t from;
    exs_event_t e[2];
    int i, at = listener(type, &addr);

    *client = exs_socket(AF_INET, type, 0);
    CHECK(*client >= 0);
    CHECK(exs_accept(at, &from, 0, queue, NAME) == 0);
    CHECK(exs_connect(*client, (struct sockaddr *)&addr, sizeof addr, 0, queue, 7) == 0);
    CHECK(exs_qdequeue(queue, e, -2, NULL) == 2);
    for (i = 0; i < 2; i++) {
        CHECK(e[i].exs_evt_errno == 0);
        if (e[i].exs_evt_type == EXS_EVT_ACCEPT) {
            CHECK(e[i].exs_evt_socket == at && e[i].exs_evt_ahandle == NAME);
            CHECK(e[i].exs_evt_union.exs_evt_accept.exs_evt_acceptaddr == &from);
            *server = e[i].exs_evt_union.exs_evt_accept.exs_evt_newsocket;
        } else {
            CHECK(e[i].exs_evt_type == EXS_EVT_CONNECT && e[i].exs_evt_ahandle == 7);
            CHECK(e[i].exs_evt_socket == *client);
        }
    }
    CHECK(from.exs_aa_addrlen == sizeof(struct sockaddr_in));
    CHECK(from.exs_aa_addr.ss_family == AF_INET && *server >= 0);
    CHECK(exs_close(at, 0, EXS_QHANDLE_INVALID, 0) == 0);
}

static void data(void)
{
    static char out[300000], in[300000];
    exs_mhandle_t m = exs_mregister(in, sizeof in, 0);
    exs_iovec_t pieces[2] = {{out, 10, EXS_MHANDLE_UNREGISTERED, 0},
                             {out + 10, 20, EXS_MHANDLE_UNREGISTERED, 0}};
    exs_msghdr_t msg;
    exs_event_t e;
    int client, server;
    size_t i;

    CHECK(m != EXS_MHANDLE_INVALID);
    for (i = 0; i < sizeof out; i++)
        out[i] = (char)(i * 7);
    connection(SOCK_STREAM, &client, &server);
    CHECK(exs_recv(server, in, sizeof in, MSG_WAITALL, queue, 1, m) == 0);
    CHECK(exs_send(client, out, sizeof out, 0, queue, 2, EXS_MHANDLE_UNREGISTERED) == 0);
    do {
        CHECK(exs_qdequeue(queue, &e, 1, NULL) == 1 && e.exs_evt_errno == 0);
        CHECK(e.exs_evt_union.exs_evt_xfer.exs_evt_length == sizeof out);
    } while (e.exs_evt_type != EXS_EVT_RECV);
    CHECK(e.exs_evt_union.exs_evt_xfer.exs_evt_buffer == in && e.exs_evt_socket == server);
    CHECK(memcmp(in, out, sizeof in) == 0);
    /* The event of the send may have come before that of the receive. */
    if (exs_cancel(client, EXS_CAF_FILDES, 0) > 0)
        CHECK(exs_qdequeue(queue, &e, 1, NULL) == 1);
    while (exs_qdequeue(queue, &e, 1, &(struct timeval){0, 0}) > 0)
        CHECK(e.exs_evt_type == EXS_EVT_SEND);

    /* without a queue; a message in pieces */
    memset(&msg, 0, sizeof msg);
    msg.exs_msg_iov = pieces;
    msg.exs_msg_iovlen = 2;
    CHECK(exs_sendmsg(server, &msg, 0, EXS_QHANDLE_INVALID, 0) == 30);
    CHECK(exs_recv(client, in, 100, MSG_PEEK, EXS_QHANDLE_INVALID, 0, m) == 30);
    CHECK(exs_recv(client, in, 30, MSG_WAITALL, EXS_QHANDLE_INVALID, 0, m) == 30);
    CHECK(memcmp(in, out, 30) == 0);
    FAILS(exs_recv(client, in, 1, MSG_DONTWAIT, EXS_QHANDLE_INVALID, 0, m), EAGAIN);

    /* what cannot be */
    FAILS(exs_send(client, NULL, 5, 0, queue, 0, EXS_MHANDLE_UNREGISTERED), EFAULT);
    FAILS(exs_send(client, (void *)-16, 64, 0, queue, 0, EXS_MHANDLE_UNREGISTERED), EFAULT);
    FAILS(exs_send(client, in + 1, sizeof in, 0, queue, 0, m), EFAULT);
    FAILS(exs_send(client, in, 5, 0, queue, 0, EXS_MHANDLE_INVALID), EINVAL);
    FAILS(exs_send(client, in, 5, 0, 12345, 0, m), EINVAL);
    FAILS(exs_send(-1, in, 5, 0, queue, 0, m), EBADF);
    FAILS(exs_mregister(NULL, 5, 0), EFAULT);
    FAILS(exs_mregister((void *)4096, 5, 0), EFAULT);
    FAILS(exs_qdequeue(queue, NULL, 1, NULL), EFAULT);
    CHECK(exs_qdequeue(queue, NULL, 0, NULL) == 0);

    /* the end of the data; close with an event */
    CHECK(exs_shutdown(server, SHUT_WR, queue, 5) == 0);
    next(EXS_EVT_SHUTDOWN);
    CHECK(exs_recv(client, in, 5, 0, queue, 6, m) == 0);
    e = next(EXS_EVT_RECV);
    CHECK(e.exs_evt_flags == EXS_EVF_EOF);
    CHECK(e.exs_evt_union.exs_evt_xfer.exs_evt_length == 0);
    CHECK(exs_close(client, 0, queue, 8) == 0);
    next(EXS_EVT_CLOSE);
    FAILS(exs_recv(client, in, 5, 0, queue, 0, m), EBADF);
    CHECK(exs_close(server, 0, EXS_QHANDLE_INVALID, 0) == 0);
    CHECK(exs_mderegister(m) == 0);
    FAILS(exs_mderegister(m), EINVAL);
}

static void files_and_polls(void)
{
    char text[] = "head ", in[64], name[] = "/tmp/exs-smoke-XXXXXX";
    int client, server, copy, file = mkstemp(name);
    exs_xferfile_t vec[2];
    exs_pollfd_t p;
    struct pollfd now;
    exs_event_t e;

    CHECK(file >= 0 && unlink(name) == 0 && write(file, "0123456789", 10) == 10);
    connection(SOCK_STREAM, &client, &server);
    memset(vec, 0, sizeof vec);
    vec[0].exs_xf_type = EXS_IOVEC;
    vec[0].exs_xf_union.exs_xf_iovec.exs_iov_base = text;
    vec[0].exs_xf_union.exs_xf_iovec.exs_iov_len = 5;
    vec[0].exs_xf_union.exs_xf_iovec.exs_iov_mhandle = EXS_MHANDLE_UNREGISTERED;
    vec[1].exs_xf_type = EXS_FDVEC;
    vec[1].exs_xf_union.exs_xf_fdvec.exs_fdv_fd = file;
    vec[1].exs_xf_union.exs_xf_fdvec.exs_fdv_offset = 2;
    CHECK(exs_sendfile(client, vec, 2, EXS_SHUT_WR, queue, 3) == 0);
    e = next(EXS_EVT_SENDFILE);
    CHECK(e.exs_evt_union.exs_evt_xferfile.exs_evt_length == 13);
    CHECK(e.exs_evt_union.exs_evt_xferfile.exs_evt_xferfile == vec);
    p.exs_pfd_fd = server;
    p.exs_pfd_events = EXS_POLLIN;
    CHECK(exs_poll(&p, 0, queue, 4) == 0);
    e = next(EXS_EVT_POLL);
    CHECK(e.exs_evt_union.exs_evt_poll.exs_evt_revents & EXS_POLLIN);
    CHECK(exs_recv(server, in, sizeof in, MSG_WAITALL, EXS_QHANDLE_INVALID, 0,
                   EXS_MHANDLE_UNREGISTERED) == 13);
    CHECK(memcmp(in, "head 23456789", 13) == 0);
    CHECK(exs_recv(server, in, 1, 0, EXS_QHANDLE_INVALID, 0, EXS_MHANDLE_UNREGISTERED) == 0);

    /* a copy keeps the connection; close(2) of the last one ends it */
    copy = dup(client);
    CHECK(copy >= 0 && exs_close(client, 0, EXS_QHANDLE_INVALID, 0) == 0);
    CHECK(exs_send(server, in, 4, 0, EXS_QHANDLE_INVALID, 0, EXS_MHANDLE_UNREGISTERED) == 4);
    CHECK(exs_recv(copy, in, 4, 0, EXS_QHANDLE_INVALID, 0, EXS_MHANDLE_UNREGISTERED) == 4);
    CHECK(exs_send(copy, in, 4, 0, queue, 0, EXS_MHANDLE_UNREGISTERED) == -1 && errno == EPIPE);
    CHECK(close(copy) == 0);
    CHECK(exs_recv(server, in, 1, 0, EXS_QHANDLE_INVALID, 0, EXS_MHANDLE_UNREGISTERED) == 0);
    CHECK(close(server) == 0 && close(file) == 0);

    /* poll(2), where it is asked for */
    connection(SOCK_STREAM, &client, &server);
    CHECK(exs_setsockopt(server, SOL_EXS, EXS_SO_POLLABLE, &(int){1}, sizeof(int)) == 0);
    now.fd = server;
    now.events = POLLIN;
    CHECK(poll(&now, 1, 0) == 0);
    CHECK(exs_send(client, in, 4, 0, EXS_QHANDLE_INVALID, 0, EXS_MHANDLE_UNREGISTERED) == 4);
    CHECK(poll(&now, 1, 60000) == 1);
    CHECK(exs_recv(server, in, 4, 0, EXS_QHANDLE_INVALID, 0, EXS_MHANDLE_UNREGISTERED) == 4);
    CHECK(poll(&now, 1, 0) == 0);
    CHECK(close(server) == 0 && close(client) == 0);
}

static void one_sided(void)
{
    static char memory[1000];
    char local[100] = "written from afar";
    exs_remote_t remote;
    uint64_t len;
    int client, server, rights;

    connection(SOCK_SEQPACKET, &client, &server);
    CHECK(exs_export(server, memory, sizeof memory, EXS_RIGHT_READ | EXS_RIGHT_WRITE, 0,
                     EXS_MHANDLE_UNREGISTERED, &remote) == 0);
    CHECK(exs_remote_info(&remote, &len, &rights) == 0 && len == sizeof memory && rights == 3);
    CHECK(exs_write(client, local, 18, &remote, 500, 0, queue, 1, EXS_MHANDLE_UNREGISTERED) == 0);
    next(EXS_EVT_WRITE);
    memset(local, 0, sizeof local);
    CHECK(exs_read(client, local, 18, &remote, 500, 0, EXS_QHANDLE_INVALID, 0,
                   EXS_MHANDLE_UNREGISTERED) == 18);
    CHECK(strcmp(local, "written from afar") == 0);
    FAILS(exs_read(client, local, 18, &remote, 990, 0, queue, 0, EXS_MHANDLE_UNREGISTERED), EINVAL);
    CHECK(exs_revoke(server, &remote, queue, 2) == 0);
    next(EXS_EVT_REVOKE);
    CHECK(strcmp(memory + 500, "written from afar") == 0);
    FAILS(exs_revoke(server, &remote, queue, 2), EINVAL);
    CHECK(exs_close(client, EXS_CLOSE_ABORT, EXS_QHANDLE_INVALID, 0) == 0);
    CHECK(exs_close(server, EXS_CLOSE_ABORT, EXS_QHANDLE_INVALID, 0) == 0);
}

/* The same calls on sockets of the kernel's, whose other ends know nothing of EXS: the way
 * in which programs for ES-API use it (16 sends in flight, half of them awaited). */
static void kernel_sockets(void)
{
    static char block[65536], in[65536];
    struct sockaddr_in addr;
    socklen_t len = sizeof addr;
    exs_acceptaddr_t from;
    exs_event_t e[16];
    exs_mhandle_t m = exs_mregister(block, sizeof block, EXS_MRF_SHARED);
    int i, n, pending = 0, sent = 0, pair[2], at = socket(AF_INET, SOCK_STREAM, 0);
    ssize_t got;
    size_t total = 0;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && m != EXS_MHANDLE_INVALID);
    CHECK(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &(int){1 << 22}, sizeof(int)) == 0);
    while (sent < 32) {
        while (pending < 16 && sent < 32 &&
               exs_send(pair[0], block, sizeof block, 0, queue, NAME, m) == 0) {
            pending++;
            sent++;
            /* the other end's owner keeps up, by calls of its own */
            while ((got = recv(pair[1], in, sizeof in, MSG_DONTWAIT)) > 0)
                total += (size_t)got;
        }
        while ((got = recv(pair[1], in, sizeof in, MSG_DONTWAIT)) > 0)
            total += (size_t)got;
        CHECK((n = exs_qdequeue(queue, e, -(pending >> 1), &(struct timeval){0, 1000})) >= 0);
        for (i = 0; i < n; i++)
            CHECK(e[i].exs_evt_type == EXS_EVT_SEND && e[i].exs_evt_errno == 0 &&
                  e[i].exs_evt_ahandle == NAME && e[i].exs_evt_socket == pair[0]);
        pending -= n;
    }
    while (pending > 0) {
        while ((got = recv(pair[1], in, sizeof in, MSG_DONTWAIT)) > 0)
            total += (size_t)got;
        CHECK((n = exs_qdequeue(queue, e, 16, &(struct timeval){0, 1000})) >= 0);
        pending -= n;
    }
    CHECK(shutdown(pair[0], SHUT_WR) == 0 && (fcntl(pair[0], F_GETFL) & O_NONBLOCK) == 0);
    while ((got = recv(pair[1], in, sizeof in, 0)) > 0)
        total += (size_t)got;
    CHECK(got == 0 && total == 32 * sizeof block);
    CHECK(close(pair[1]) == 0 && recv(pair[0], in, 1, 0) == 0);
    CHECK(exs_close(pair[0], 0, queue, 1) == 0);
    next(EXS_EVT_CLOSE);

    /* accept, connect, poll, cancel */
    memset(&addr, 0, sizeof addr);
    addr.sin_family = AF_INET;
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(at >= 0 && exs_bind(at, (struct sockaddr *)&addr, sizeof addr) == 0);
    CHECK(exs_listen(at, 4) == 0);
    CHECK(exs_getsockname(at, (struct sockaddr *)&addr, &len) == 0);
    pair[0] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(exs_accept(at, &from, 0, queue, 2) == 0);
    CHECK(exs_connect(pair[0], (struct sockaddr *)&addr, sizeof addr, 0, queue, 3) == 0);
    CHECK(exs_qdequeue(queue, e, -2, NULL) == 2);
    pair[1] = -1;
    for (i = 0; i < 2; i++) {
        CHECK(e[i].exs_evt_errno == 0);
        if (e[i].exs_evt_type == EXS_EVT_ACCEPT)
            pair[1] = e[i].exs_evt_union.exs_evt_accept.exs_evt_newsocket;
    }
    CHECK(pair[1] >= 0 && from.exs_aa_addr.ss_family == AF_INET);
    CHECK(exs_recv(pair[1], in, 5, MSG_WAITALL, queue, 4, EXS_MHANDLE_UNREGISTERED) == 0);
    CHECK(exs_send(pair[0], block, 3, 0, EXS_QHANDLE_INVALID, 0, m) == 3);
    CHECK(exs_cancel(pair[1], EXS_CAF_AHANDLE, 4) == 1);
    CHECK(exs_qdequeue(queue, e, 1, NULL) == 1 && e[0].exs_evt_errno == ECANCELED);
    CHECK(exs_close(pair[0], 0, EXS_QHANDLE_INVALID, 0) == 0);
    CHECK(exs_close(pair[1], 0, EXS_QHANDLE_INVALID, 0) == 0);
    CHECK(exs_close(at, 0, EXS_QHANDLE_INVALID, 0) == 0);
    CHECK(exs_mderegister(m) == 0);
}

static void handler(int signo) { (void)signo; }

static void signals_and_processes(void)
{
    struct sigaction action;
    exs_event_t e;
    pid_t child;
    int status;
    struct itimerval soon = {{0, 1000}, {0, 1000}}, off = {{0, 0}, {0, 0}};

    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART; /* which changes nothing */
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
    /* One signal might come before the call, and there are many. */
    FAILS(exs_qdequeue(queue, &e, 1, NULL), EINTR);
    CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);

    child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(exs_qdequeue(queue, &e, 1, NULL) == -1 && errno == EPERM &&
                      exs_init(EXS_VERSION) == -1 && errno == EPERM
                  ? 0
                  : 1);
    while (waitpid(child, &status, 0) == -1)
        CHECK(errno == EINTR); /* the last of the signals */
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    exs_counters_t counters;
    int n;

    FAILS(exs_init(77), EINVAL);
    CHECK(exs_strerror()[0] != 0);
    CHECK(exs_init(EXS_VERSION) == 0 && exs_init(EXS_VERSION1) == 0);
    CHECK(exs_qcreate(0) == EXS_QHANDLE_INVALID && errno == EINVAL);
    queue = exs_qcreate(64);
    CHECK(queue != EXS_QHANDLE_INVALID && exs_qfd(queue) >= 0);
    data();
    files_and_polls();
    one_sided();
    kernel_sockets();
    signals_and_processes();
    CHECK(exs_qmodify(queue, EXS_QATTR_EVENTS, &n) == 0 && n == 0);
    CHECK(exs_qmodify(queue, EXS_QATTR_WAIT, EXS_WAIT_NOTIFY) == 0);
    CHECK(exs_counters(-1, &counters, sizeof counters) == 0 && counters.events > 10);
    CHECK(exs_qdelete(queue) == 0);
    FAILS(exs_qdelete(queue), EINVAL);
    printf("EXS %s: all is well\n", exs_version());
    return 0;
}
