/* Several processes: fork, exec, a peer that is killed. */
#include "net.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

/* Every call of the header, with handles that were good. */
static void in_the_child(struct pair p, int l, exs_qhandle_t q, exs_mhandle_t m)
{
    struct place at = any_place();
    exs_pollfd_t poll = {p.a, EXS_POLLIN, 0, 0};
    exs_counters_t counters;
    exs_msghdr_t msg;
    exs_xferfile_t x;
    exs_remote_t remote;
    exs_event_t e;
    char b = 0;
    int n = 0;
    socklen_t len = sizeof n;

    memset(&msg, 0, sizeof msg);
    memset(&x, 0, sizeof x);
    memset(&remote, 0, sizeof remote);
    FAILS(EPERM, exs_init(EXS_VERSION));
    FAILS(EPERM, exs_qcreate(1));
    FAILS(EPERM, exs_qdelete(q));
    FAILS(EPERM, exs_qmodify(q, EXS_QATTR_DEPTH, 1));
    FAILS(EPERM, exs_qdequeue(q, &e, 1, NULL));
    FAILS(EPERM, exs_qfd(q));
    FAILS(EPERM, exs_mregister(&b, 1, 0));
    FAILS(EPERM, exs_mderegister(m));
    FAILS(EPERM, exs_socket(AF_INET, SOCK_STREAM, 0));
    FAILS(EPERM, exs_bind(p.a, ADDR(at), at.len));
    FAILS(EPERM, exs_listen(p.a, 1));
    FAILS(EPERM, exs_connect(p.a, ADDR(at), at.len, 0, q, 1));
    FAILS(EPERM, exs_accept(l, NULL, 0, q, 1));
    FAILS(EPERM, exs_send(p.a, &b, 1, 0, q, 1, m));
    FAILS(EPERM, exs_send(p.a, &b, 1, 0, BLOCK, m));
    FAILS(EPERM, exs_recv(p.a, &b, 1, 0, q, 1, m));
    FAILS(EPERM, exs_sendmsg(p.a, &msg, 0, q, 1));
    FAILS(EPERM, exs_recvmsg(p.a, &msg, 0, q, 1));
    FAILS(EPERM, exs_sendfile(p.a, &x, 1, 0, q, 1));
    FAILS(EPERM, exs_poll(&poll, 0, q, 1));
    FAILS(EPERM, exs_cancel(p.a, EXS_CAF_FILDES, 0));
    FAILS(EPERM, exs_shutdown(p.a, SHUT_WR, q, 1));
    FAILS(EPERM, exs_fcntl(p.a, 1));
    FAILS(EPERM, exs_getsockopt(p.a, SOL_SOCKET, SO_TYPE, &n, &len));
    FAILS(EPERM, exs_setsockopt(p.a, SOL_SOCKET, SO_KEEPALIVE, &n, len));
    FAILS(EPERM, exs_getsockname(p.a, ADDR(at), &at.len));
    FAILS(EPERM, exs_getpeername(p.a, ADDR(at), &at.len));
    FAILS(EPERM, exs_export(p.a, &b, 1, EXS_RIGHT_READ, 0, m, &remote));
    FAILS(EPERM, exs_revoke(p.a, &remote, q, 1));
    FAILS(EPERM, exs_remote_info(&remote, NULL, NULL));
    FAILS(EPERM, exs_read(p.a, &b, 1, &remote, 0, 0, q, 1, m));
    FAILS(EPERM, exs_write(p.a, &b, 1, &remote, 0, 0, q, 1, m));
    FAILS(EPERM, exs_counters(-1, &counters, sizeof counters));
    FAILS(EPERM, exs_close(p.a, 0, q, 1));
    CHECK(strstr(exs_strerror(), "fork"));
    CHECK(exs_version()[0] != 0);
}

CASE("all-12", a_child_is_told_and_the_parent_goes_on, CONNECTED | ALONE | NATIVE)
{
    struct pair p = connection();
    struct place at;
    int l = listener(&at), i;
    exs_qhandle_t q = new_queue(8);
    static char memory[64];
    exs_mhandle_t m = exs_mregister(memory, sizeof memory, 0);
    pid_t child;
    char in;

    GIVES(0, exs_recv(p.b, &in, 1, 0, q, 1, UNREG));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        in_the_child(p, l, q, m);
        _exit(0);
    }
    gone(child, 0);
    /* The receive is still under way, and whatever else there was. */
    nothing(q);
    send_all(p.a, "x", 1);
    next(q, EXS_EVT_RECV);
    for (i = 0; i < 100; i++) {
        GIVES(0, exs_recv(p.b, memory, 1, 0, q, 1, m));
        send_all(p.a, "y", 1);
        next(q, EXS_EVT_RECV);
    }
    GIVES(0, exs_mderegister(m));
    end(p);
    end_one(l);
    end_queue(q);
}

/* The first call of this process is of this one, on a socket of the kernel's. */
static void first_call(int close_it)
{
    int fds[2];
    pid_t child;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    if (close_it)
        GIVES(0, exs_close(fds[0], 0, BLOCK));
    else
        GIVES(0, exs_cancel(fds[0], EXS_CAF_FILDES, 0));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        FAILS(EPERM, exs_cancel(fds[1], EXS_CAF_FILDES, 0));
        _exit(0);
    }
    gone(child, 0);
}

CASE("all-12", a_close_or_a_cancel_is_use_too, NOWHERE | ALONE | NATIVE)
{
    int way;

    for (way = 0; way < 2; way++) {
        pid_t child = fork();

        CHECK(child >= 0);
        if (child == 0) {
            first_call(way);
            _exit(0);
        }
        gone(child, 0);
    }
}

CASE("all-12", a_process_that_has_not_used_it_may_fork, CONNECTED | ALONE)
{
    int say[2];
    struct place at;
    struct pair p;
    pid_t child;
    char in;
    int l;

    CHECK(pipe(say) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        /* Both use it, and talk to each other. */
        GIVES(sizeof at, read(say[0], &at, sizeof at));
        p.a = new_socket();
        GIVES(0, exs_connect(p.a, ADDR(at), at.len, 0, BLOCK));
        send_all(p.a, "x", 1);
        GIVES(1, exs_recv(p.a, &in, 1, 0, BLOCK, UNREG));
        end_one(p.a);
        _exit(5);
    }
    l = listener(&at);
    GIVES(sizeof at, write(say[1], &at, sizeof at));
    p.b = exs_accept(l, NULL, 0, BLOCK);
    CHECK(p.b >= 0);
    GIVES(1, exs_recv(p.b, &in, 1, 0, BLOCK, UNREG));
    send_all(p.b, "y", 1);
    gone(child, 5);
    end_one(p.b);
    end_one(l);
    close(say[0]);
    close(say[1]);
}

static void says_x_and_waits(int fd)
{
    send_all(fd, "x", 1);
    for (;;)
        pause();
}

/* A process of its own that has connected to us, and does nothing any more. Returns our end. */
static int victim(pid_t *child)
{
    int fd = visitor(child, says_x_and_waits);
    char in;

    GIVES(1, exs_recv(fd, &in, 1, 0, BLOCK, UNREG));
    return fd;
}

CASE("all-1", each_operation_has_one_event_when_the_peer_is_killed, CONNECTED | ALONE)
{
    enum { N = 8, LEN = 1 << 20 };
    static char out[LEN], in[N][16];
    int i, status, events[2 * N] = {0};
    pid_t child;
    int fd = victim(&child);
    exs_qhandle_t q = new_queue(2 * N);
    exs_event_t e;

    for (i = 0; i < N; i++) {
        GIVES(0, exs_recv(fd, in[i], sizeof in[i], 0, q, (exs_ahandle_t)i, UNREG));
        GIVES(0, exs_send(fd, out, LEN, 0, q, (exs_ahandle_t)(N + i), UNREG));
    }
    GIVES(0, kill(child, SIGKILL));
    GIVES(child, waitpid(child, &status, 0));
    for (i = 0; i < 2 * N; i++) {
        e = next_any(q);
        CHECK(e.exs_evt_ahandle < 2 * N);
        GIVES(0, events[e.exs_evt_ahandle]++);
        if (e.exs_evt_type == EXS_EVT_RECV)
            CHECK(e.exs_evt_errno == ECONNRESET ||
                  (e.exs_evt_errno == 0 && LENGTH(e) == 0 && (e.exs_evt_flags & EXS_EVF_EOF)));
        else
            CHECK(e.exs_evt_errno == 0 || e.exs_evt_errno == ECONNRESET || e.exs_evt_errno == EPIPE);
    }
    nothing(q);
    end_one(fd);
    end_queue(q);
}

CASE("all-9 all-15 shutdown-4", a_stopped_peer_delays_no_call_that_does_not_wait, CONNECTED | ALONE)
{
    static char out[1 << 17];
    int status, n;
    pid_t child;
    int fd = victim(&child);

    /* its library's threads stand still, too */
    GIVES(0, kill(child, SIGSTOP));
    while ((n = exs_send(fd, out, sizeof out, MSG_DONTWAIT, BLOCK, UNREG)) > 0)
        ;
    GIVES(-1, n);
    GIVES(EAGAIN, errno);
    FAILS(EAGAIN, exs_recv(fd, out, 1, MSG_DONTWAIT, BLOCK, UNREG));
    /* nor does the end of the direction, which comes after what was taken */
    GIVES(0, exs_fcntl(fd, F_SETFL, exs_fcntl(fd, F_GETFL) | O_NONBLOCK));
    alarm(20);
    GIVES(0, exs_shutdown(fd, SHUT_WR, BLOCK));
    alarm(0);
    FAILS(EPIPE, exs_send(fd, out, 1, MSG_NOSIGNAL, BLOCK, UNREG));
    GIVES(0, kill(child, SIGKILL));
    GIVES(child, waitpid(child, &status, 0));
    exs_close(fd, EXS_CLOSE_ABORT, BLOCK);
}

CASE("fd-3", a_process_that_ends_ends_its_connections, CONNECTED | ALONE)
{
    int status, n;
    pid_t child;
    int fd = victim(&child);
    char in;

    GIVES(0, kill(child, SIGTERM));
    GIVES(child, waitpid(child, &status, 0));
    n = exs_recv(fd, &in, 1, 0, BLOCK, UNREG);
    CHECK(n == 0 || (n == -1 && errno == ECONNRESET));
    end_one(fd);
}
