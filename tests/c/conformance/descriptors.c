/* What other calls see of an EXS socket: it is a real descriptor. */
#include "net.h"

#include <fcntl.h>
#include <poll.h>
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
    CHECK(read(p.a, &in, 1) == -1);
    GIVES(0, fcntl(p.a, F_SETFL, fcntl(p.a, F_GETFL) & ~O_NONBLOCK));
    GIVES(1, exs_recv(p.a, &in, 1, 0, BLOCK, UNREG));
    GIVES('y', in);
    end(p);
}

CASE("fd-6", poll_2_tells_of_data_where_it_is_asked_for, EXS | EXSMSG)
{
    struct pair p = connection();
    struct pollfd now = {p.b, POLLIN, 0};
    fd_set set;
    char in[2];
    int i, on = 1;

    GIVES(0, exs_setsockopt(p.b, SOL_EXS, EXS_SO_POLLABLE, &on, sizeof on));
    for (i = 0; i < 3; i++) {
        GIVES(0, poll(&now, 1, 0));
        send_all(p.a, "xy", 2);
        GIVES(1, poll(&now, 1, -1));
        GIVES(POLLIN, now.revents);
        FD_ZERO(&set);
        FD_SET(p.b, &set);
        GIVES(1, select(p.b + 1, &set, NULL, NULL, NULL));
        if (world == EXS) {
            /* there is more: it stays readable, or becomes so again */
            GIVES(1, exs_recv(p.b, in, 1, 0, BLOCK, UNREG));
            GIVES(1, poll(&now, 1, -1));
            GIVES(1, exs_recv(p.b, in, 1, 0, BLOCK, UNREG));
        } else {
            GIVES(2, exs_recv(p.b, in, 2, 0, BLOCK, UNREG));
        }
    }
    GIVES(0, exs_shutdown(p.a, SHUT_WR, BLOCK));
    GIVES(1, poll(&now, 1, -1));
    GIVES(0, exs_recv(p.b, in, 1, 0, BLOCK, UNREG));
    end(p);
}

CASE("fd-6", poll_2_tells_of_connections, EXS | EXSMSG)
{
    struct place at;
    int l = listener(&at), fd = new_socket(), other, on = 1;
    struct pollfd now = {l, POLLIN, 0};

    GIVES(0, exs_setsockopt(l, SOL_EXS, EXS_SO_POLLABLE, &on, sizeof on));
    GIVES(0, poll(&now, 1, 0));
    GIVES(0, exs_connect(fd, ADDR(at), at.len, 0, BLOCK));
    GIVES(1, poll(&now, 1, -1));
    other = exs_accept(l, NULL, 0, BLOCK);
    CHECK(other >= 0);
    GIVES(0, poll(&now, 1, 0));
    end_one(other);
    end_one(fd);
    end_one(l);
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
