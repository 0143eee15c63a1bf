/* What other calls see of an EXS socket: it is a real descriptor. */
#include "net.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/wait.h>

CASE("fd-1 fd-2", fstat_and_dup, CONNECTED)
{
    struct pair p = connection();
    struct stat a, b;
    int copy = dup(p.a);
    char in;

    GIVES(0, fstat(p.a, &a));
    GIVES(0, fstat(copy, &b));
    CHECK(S_ISSOCK(a.st_mode) && a.st_ino == b.st_ino && a.st_dev == b.st_dev);
    send_all(copy, "x", 1);
    GIVES(1, exs_recv(p.b, &in, 1, 0, BLOCK, UNREG));
    close(copy);
    send_all(p.a, "y", 1);
    GIVES(1, exs_recv(p.b, &in, 1, 0, BLOCK, UNREG));
    end(p);
}

CASE("fd-8", read_and_write_do_not_reach_the_peer, EXS | EXSMSG)
{
    struct pair p = connection();
    char in;

    GIVES(0, fcntl(p.a, F_SETFL, fcntl(p.a, F_GETFL) | O_NONBLOCK));
    if (write(p.a, "x", 1) == 1) { /* whatever becomes of it */
    }
    FAILS(EAGAIN, exs_recv(p.b, &in, 1, MSG_DONTWAIT, BLOCK, UNREG));
    send_all(p.b, "y", 1);
    /* what is there, if anything, is the library's own mark that poll sees */
    in = 0;
    CHECK(read(p.a, &in, 1) == -1 || in != 'y');
    GIVES(0, fcntl(p.a, F_SETFL, fcntl(p.a, F_GETFL) & ~O_NONBLOCK));
    GIVES(1, exs_recv(p.a, &in, 1, 0, BLOCK, UNREG));
    GIVES('y', in);
    end(p);
}

/* What poll(2) says of a descriptor now, or when it says something. */
static int seen(int fd, int events, int timeout)
{
    struct pollfd p = {fd, (short)events, 0};
    int n = poll(&p, 1, timeout);

    CHECK(n >= 0);
    return n ? p.revents : 0;
}

static void tells_of_data(struct pair p)
{
    fd_set set;
    char in[2];
    int i;

    for (i = 0; i < 3; i++) {
        GIVES(0, seen(p.b, POLLIN, 0));
        send_all(p.a, "xy", 2);
        GIVES(POLLIN, seen(p.b, POLLIN, -1));
        FD_ZERO(&set);
        FD_SET(p.b, &set);
        GIVES(1, select(p.b + 1, &set, NULL, NULL, NULL));
        if (world == EXS) {
            /* there is more: it stays readable */
            GIVES(1, exs_recv(p.b, in, 1, 0, BLOCK, UNREG));
            GIVES(POLLIN, seen(p.b, POLLIN, 0));
            GIVES(1, exs_recv(p.b, in, 1, MSG_DONTWAIT, BLOCK, UNREG));
        } else {
            GIVES(2, exs_recv(p.b, in, 2, 0, BLOCK, UNREG));
        }
        FAILS(EAGAIN, exs_recv(p.b, in, 1, MSG_DONTWAIT, BLOCK, UNREG));
    }
    GIVES(0, exs_shutdown(p.a, SHUT_WR, BLOCK));
    GIVES(POLLIN, seen(p.b, POLLIN, -1));
    GIVES(0, exs_recv(p.b, in, 1, 0, BLOCK, UNREG));
    GIVES(POLLIN, seen(p.b, POLLIN, 0));
    end(p);
}

CASE("fd-6", poll_2_reports_data, EXS | EXSMSG) { tells_of_data(connection()); }

CASE("fd-6", poll_2_reports_connections, EXS | EXSMSG)
{
    struct place at;
    int l = listener(&at), fd = new_socket(), other;

    GIVES(0, seen(l, POLLIN, 0));
    GIVES(0, exs_connect(fd, ADDR(at), at.len, 0, BLOCK));
    GIVES(POLLIN, seen(l, POLLIN, -1));
    other = exs_accept(l, NULL, 0, BLOCK);
    CHECK(other >= 0);
    GIVES(0, seen(l, POLLIN, 0));
    end_one(other);
    end_one(fd);
    end_one(l);
}

CASE("fd-6", epoll_reports_each_arrival, EXS | EXSMSG)
{
    struct pair p = connection();
    struct epoll_event e = {EPOLLIN | EPOLLET, {0}};
    int ep = epoll_create1(EPOLL_CLOEXEC), i;
    char in[8];

    CHECK(ep >= 0);
    GIVES(0, epoll_ctl(ep, EPOLL_CTL_ADD, p.b, &e));
    for (i = 0; i < 100; i++) {
        send_all(p.a, "x", 1);
        /* edge-triggered: one too few, and this waits for ever */
        GIVES(1, epoll_wait(ep, &e, 1, -1));
        while (exs_recv(p.b, in, sizeof in, MSG_DONTWAIT, BLOCK, UNREG) > 0)
            ;
        GIVES(EAGAIN, errno);
    }
    close(ep);
    end(p);
}

CASE("fd-6", it_ends_with_a_receive_by_a_queue_unless_asked_for, EXS | EXSMSG)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(1);
    int on = -1;
    socklen_t len = sizeof on;
    char in;

    GIVES(0, exs_getsockopt(p.b, SOL_EXS, EXS_SO_POLLABLE, &on, &len));
    GIVES(1, on);
    send_all(p.a, "x", 1);
    GIVES(POLLIN, seen(p.b, POLLIN, -1));
    GIVES(0, exs_recv(p.b, &in, 1, 0, q, 1, UNREG));
    next(q, EXS_EVT_RECV);
    GIVES(0, exs_getsockopt(p.b, SOL_EXS, EXS_SO_POLLABLE, &on, &len));
    GIVES(0, on);
    GIVES(0, seen(p.b, POLLIN, 0));
    on = 1;
    GIVES(0, exs_setsockopt(p.b, SOL_EXS, EXS_SO_POLLABLE, &on, sizeof on));
    GIVES(0, exs_recv(p.b, &in, 1, 0, q, 1, UNREG));
    send_all(p.a, "x", 1);
    next(q, EXS_EVT_RECV);
    end_queue(q);
    /* a cancel of all that the program has posted leaves it as it is */
    GIVES(0, exs_cancel(p.b, EXS_CAF_FILDES, 0));
    tells_of_data(p);
}

CASE("fd-9", poll_2_reports_room, EXS)
{
    struct pair p = connection();
    static char out[100000], in[100000];
    int n;

    GIVES(POLLOUT, seen(p.a, POLLOUT, 0));
    while (exs_send(p.a, out, sizeof out, MSG_DONTWAIT, BLOCK, UNREG) > 0)
        ;
    GIVES(EAGAIN, errno);
    /* (the peer's side may still be taking what fills its ring) */
    while (seen(p.a, POLLOUT, 0) != 0) {
        n = exs_send(p.a, out, sizeof out, MSG_DONTWAIT, BLOCK, UNREG);
        CHECK(n > 0 || errno == EAGAIN);
    }
    while (seen(p.a, POLLOUT, 0) == 0) {
        n = exs_recv(p.b, in, sizeof in, MSG_DONTWAIT, BLOCK, UNREG);
        CHECK(n > 0 || errno == EAGAIN);
    }
    CHECK(exs_send(p.a, out, sizeof out, MSG_DONTWAIT, BLOCK, UNREG) > 0);
    end(p);
}

CASE("fd-9 connect-2", poll_2_reports_the_end_of_a_connect, EXS | EXSMSG)
{
    struct place at;
    int l = listener(&at), fd, other, round, error = -1;
    socklen_t len = sizeof error;

    for (round = 0; round < 20; round++) {
        fd = new_socket();
        GIVES(0, exs_fcntl(fd, F_SETFL, O_NONBLOCK));
        FAILS(EINPROGRESS, exs_connect(fd, ADDR(at), at.len, 0, BLOCK));
        CHECK(seen(fd, POLLOUT, -1) & POLLOUT);
        GIVES(0, exs_getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
        GIVES(0, error);
        GIVES(1, exs_send(fd, "x", 1, 0, BLOCK, UNREG));
        other = exs_accept(l, NULL, 0, BLOCK);
        CHECK(other >= 0);
        end_one(other);
        end_one(fd);
    }
    end_one(l);
    fd = new_socket();
    GIVES(0, exs_fcntl(fd, F_SETFL, O_NONBLOCK));
    FAILS(EINPROGRESS, exs_connect(fd, ADDR(at), at.len, 0, BLOCK));
    CHECK(seen(fd, POLLOUT, -1) & POLLOUT);
    GIVES(0, exs_getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
    GIVES(ECONNREFUSED, error);
    end_one(fd);
}

CASE("all-12", exec_takes_none_along, EXS | EXSMSG | ALONE)
{
    char mine[256], in;
    struct pair p;
    int status, n;
    pid_t child;

    /* what this test itself was started with, which is none of the library's */
    for (n = 3; n < 256; n++)
        mine[n] = fcntl(n, F_GETFD) >= 0;
    p = connection();
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        n = open("/dev/null", O_RDWR);
        dup2(n, 0);
        dup2(n, 1);
        dup2(n, 2);
        close(n);
        for (n = 3; n < 256; n++)
            if (mine[n])
                close(n);
        /* (the shell has pipes of its own) */
        execl("/bin/sh", "sh", "-c", "for f in /proc/$$/fd/*; do case $(readlink $f) in "
              "socket:*|anon_inode:*) exit 9;; esac; done; exit 0", (char *)NULL);
        _exit(127);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    GIVES(0, WEXITSTATUS(status));
    /* and this one goes on */
    send_all(p.a, "x", 1);
    GIVES(1, exs_recv(p.b, &in, 1, 0, BLOCK, UNREG));
    end(p);
}
