/* exs_epoll_ctl: of sockets of EXS it makes epoll say what it says of a TCP socket, so most cases
 * run on both. epoll_wait.c includes these cases, for sets of many sockets with exs_epoll_wait. */
#include "net.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>

enum { WORLDS = TCP | EXS | EXSMSG };

#ifdef CROWDED
#define SHARED(claim, name, worlds) CASE("epoll-7", crowded_##name, worlds)
#define WAIT exs_epoll_wait
#else
#define SHARED CASE
#define WAIT epoll_wait
#endif

static int control(int ep, int op, int fd, unsigned events, uint64_t data)
{
    struct epoll_event e;

    memset(&e, 0, sizeof e);
    e.events = events;
    e.data.u64 = data;
    return exs_epoll_ctl(ep, op, fd, &e);
}

#ifdef CROWDED
/* Connections of which nothing comes, so that a set has many sockets. */
static struct pair crowd[32];

static void add_crowd(int ep)
{
    size_t i;

    for (i = 0; i < sizeof crowd / sizeof *crowd; i++) {
        if (crowd[i].b == 0) {
            crowd[i] = connection();
            nonblocking(crowd[i].b);
        }
        GIVES(0, control(ep, EPOLL_CTL_ADD, crowd[i].b, EPOLLIN, 1000 + i));
    }
}
#endif

static int new_set(void)
{
    int ep = epoll_create1(EPOLL_CLOEXEC);

    CHECK(ep >= 0);
#ifdef CROWDED
    add_crowd(ep);
#endif
    return ep;
}

/* An epoll set with one socket, whose calls do not wait from now on. */
static int set_of(int fd, unsigned events)
{
    int ep = new_set();

    nonblocking(fd);
    GIVES(0, control(ep, EPOLL_CTL_ADD, fd, events, 1));
    return ep;
}

/* The next event of a set with one socket. */
static unsigned happens(int ep)
{
    struct epoll_event e;

    GIVES(1, WAIT(ep, &e, 1, -1));
    GIVES(1, (int)e.data.u64);
    return e.events;
}

/* Receives what the socket of a set has next: some bytes, or 0 at the end. */
static int take(int ep, int fd, void *buf, size_t len)
{
    int n;

    for (;;) {
        n = exs_recv(fd, buf, len, 0, BLOCK, UNREG);
        if (n >= 0)
            return n;
        CHECK(errno == EAGAIN);
        happens(ep);
    }
}

/* Receives exactly that many bytes. */
static void take_all(int ep, int fd, char *buf, size_t len)
{
    size_t have = 0;
    int n;

    while (have < len) {
        n = take(ep, fd, buf + have, len - have);
        CHECK(n > 0);
        have += (size_t)n;
    }
}

/* No event is there, nor comes, although the socket has data. */
static void silent(int ep)
{
    struct epoll_event e;

    GIVES(0, WAIT(ep, &e, 1, 0));
}

/* ---- The call ------------------------------------------------------------------------- */

SHARED("epoll-1", it_fails_as_epoll_ctl_2_does, WORLDS)
{
    struct pair p = connection();
    int ep = new_set(), pipes[2];

    FAILS(ENOENT, control(ep, EPOLL_CTL_MOD, p.b, EPOLLIN, 1));
    FAILS(ENOENT, exs_epoll_ctl(ep, EPOLL_CTL_DEL, p.b, NULL));
    FAILS(EFAULT, exs_epoll_ctl(ep, EPOLL_CTL_ADD, p.b, NULL));
    GIVES(0, control(ep, EPOLL_CTL_ADD, p.b, EPOLLIN, 1));
    FAILS(EEXIST, control(ep, EPOLL_CTL_ADD, p.b, EPOLLIN, 1));
    FAILS(EINVAL, control(ep, 77, p.b, EPOLLIN, 1));
    FAILS(EBADF, control(ep, EPOLL_CTL_ADD, -1, EPOLLIN, 1));
    FAILS(EBADF, control(-1, EPOLL_CTL_ADD, p.b, EPOLLIN, 1));
    FAILS(EINVAL, control(p.a, EPOLL_CTL_ADD, p.b, EPOLLIN, 1));
    GIVES(0, exs_epoll_ctl(ep, EPOLL_CTL_DEL, p.b, NULL));
    /* files that are no sockets */
    GIVES(0, pipe(pipes));
    GIVES(0, control(ep, EPOLL_CTL_ADD, pipes[0], EPOLLIN, 1));
    GIVES(1, (int)write(pipes[1], "x", 1));
    GIVES(EPOLLIN, happens(ep));
    close(pipes[0]);
    close(pipes[1]);
    close(ep);
    end(p);
}

SHARED("epoll-1", a_socket_may_be_registered_before_it_connects, WORLDS)
{
    struct place at;
    int l = listener(&at), fd = new_socket(), ep = set_of(fd, EPOLLIN | EPOLLOUT), peer;
    char in[8];

    CHECK(exs_connect(fd, ADDR(at), at.len, 0, BLOCK) == 0 || errno == EINPROGRESS);
    peer = exs_accept(l, NULL, 0, BLOCK);
    CHECK(peer >= 0);
    while (!(happens(ep) & EPOLLOUT))
        ;
    GIVES(0, control(ep, EPOLL_CTL_MOD, fd, EPOLLIN, 1));
    send_all(peer, "first", 5);
    take_all(ep, fd, in, 5);
    CHECK(memcmp(in, "first", 5) == 0);
    close(ep);
    end_one(fd);
    end_one(peer);
    end_one(l);
}

/* ---- Arrivals ------------------------------------------------------------------------- */

/* Messages of many lengths, some of which arrive together, and receives of many lengths. */
static void flow(unsigned events)
{
    struct pair p = connection();
    int ep = set_of(p.b, events), i;
    size_t sent = 0, len;
    static char out[1 << 16], in[1 << 16];

    for (i = 0; i < repeats(600); i++) {
        len = 1 + (size_t)(i * 7919) % (i % 10 == 0 ? sizeof out : 300);
        fill(out, len, sent);
        send_all(p.a, out, len);
        if (i % 3 == 0) {
            take_all(ep, p.b, in, 1);
            VERIFY(in, 1, sent);
            take_all(ep, p.b, in + 1, len - 1);
        } else {
            take_all(ep, p.b, in, len);
        }
        VERIFY(in, len, sent);
        sent += len;
        /* The answer, which goes out of the socket that is polled. */
        send_all(p.b, "ok", 2);
        recv_all(p.a, in, 2);
    }
    close(ep);
    end(p);
}

SHARED("epoll-2", messages_of_all_lengths_arrive, TCP | EXS)
{
    flow(EPOLLIN);
}

SHARED("epoll-2", messages_of_all_lengths_arrive_by_edges, TCP | EXS)
{
    flow(EPOLLIN | EPOLLET);
}

SHARED("epoll-2", each_arrival_gives_an_edge, WORLDS)
{
    struct pair p = connection();
    int ep = set_of(p.b, EPOLLIN | EPOLLET), i;
    char in[8];

    for (i = 0; i < repeats(2000); i++) {
        send_all(p.a, "12345678", 8);
        happens(ep);
        /* All of it: one edge may be the only one. */
        take_all(ep, p.b, in, 8);
    }
    close(ep);
    end(p);
}

SHARED("epoll-2", bytes_that_a_receive_has_left_are_reported_again, TCP | EXS)
{
    struct pair p = connection();
    int ep = set_of(p.b, EPOLLIN), i;
    char in[4];

    for (i = 0; i < repeats(500); i++) {
        send_all(p.a, "abcd", 4);
        take_all(ep, p.b, in, 1);
        CHECK(happens(ep) & EPOLLIN);
        take_all(ep, p.b, in, 3);
    }
    close(ep);
    end(p);
}

#ifndef CROWDED
/* A loop that polls as the program does that is asked. */
static void answer(int fd)
{
    int ep = set_of(fd, EPOLLIN);
    char byte;

    while (take(ep, fd, &byte, 1) == 1)
        GIVES(1, exs_send(fd, &byte, 1, 0, BLOCK, UNREG));
    exs_close(fd, 0, BLOCK);
    _exit(0);
}

/* The work of all threads of the library in this process. */
static uint64_t runs(void)
{
    exs_counters_t counters;

    GIVES(0, exs_counters(-1, &counters, sizeof counters));
    return counters.engine_runs;
}

static int is_over_a_device(int fd)
{
    char name[16] = "";
    socklen_t len = sizeof name;

    GIVES(0, exs_getsockopt(fd, SOL_EXS, EXS_SO_TRANSPORT, name, &len));
    return strncmp(name, "verbs", 5) == 0;
}

SHARED("epoll-2", no_thread_of_the_library_stands_between, EXS | ALONE | NATIVE)
{
    pid_t child;
    int fd = visitor(&child, answer), ep = set_of(fd, EPOLLIN), rounds = repeats(6000), i;
    uint64_t before = runs();
    char byte = 'x';

    for (i = 0; i < rounds; i++) {
        GIVES(1, exs_send(fd, &byte, 1, 0, BLOCK, UNREG));
        take_all(ep, fd, &byte, 1);
    }
    /* Where a thread shows what comes, as over RDMA devices, each message takes a run. */
    CHECK(is_over_a_device(fd) || runs() - before < (uint64_t)rounds / 2);
    close(ep);
    GIVES(0, exs_close(fd, 0, BLOCK));
    gone(child, 0);
}
#endif

/* ---- Registrations --------------------------------------------------------------------- */

SHARED("epoll-3", two_sets_report_one_socket, WORLDS)
{
    struct pair p = connection();
    int one = set_of(p.b, EPOLLIN), two = set_of(p.b, EPOLLIN), i;
    char in[4];

    for (i = 0; i < repeats(500); i++) {
        send_all(p.a, "both", 4);
        CHECK(happens(one) & EPOLLIN);
        CHECK(happens(two) & EPOLLIN);
        take_all(one, p.b, in, 4);
    }
    /* One set is enough. */
    close(one);
    for (i = 0; i < repeats(500); i++) {
        send_all(p.a, "once", 4);
        take_all(two, p.b, in, 4);
    }
    close(two);
    end(p);
}

SHARED("epoll-3", two_numbers_of_a_socket_are_reported, WORLDS)
{
    struct pair p = connection();
    int ep = set_of(p.b, EPOLLIN), other = dup(p.b), seen, i;
    struct epoll_event e[4];
    char in[4];

    CHECK(other >= 0);
    GIVES(0, control(ep, EPOLL_CTL_ADD, other, EPOLLIN, 2));
    for (i = 0; i < repeats(200); i++) {
        send_all(p.a, "both", 4);
        for (seen = 0; seen != 3;) {
            int n = WAIT(ep, e, 4, -1);

            CHECK(n > 0);
            while (n-- > 0)
                seen |= (int)e[n].data.u64;
        }
        while (exs_recv(p.b, in, 4, 0, BLOCK, UNREG) != 4)
            CHECK(errno == EAGAIN);
    }
    GIVES(0, exs_epoll_ctl(ep, EPOLL_CTL_DEL, other, NULL));
    close(other);
    send_all(p.a, "last", 4);
    take_all(ep, p.b, in, 4);
    close(ep);
    end(p);
}

SHARED("epoll-3", a_change_holds_for_arrivals_too, WORLDS)
{
    struct pair p = connection();
    int ep = set_of(p.b, EPOLLIN), i;
    struct epoll_event e;
    char in[4];

    for (i = 0; i < repeats(300); i++) {
        /* While the program does not ask for data, none are reported. */
        GIVES(0, control(ep, EPOLL_CTL_MOD, p.b, 0, 1));
        send_all(p.a, "data", 4);
        silent(ep);
        GIVES(0, control(ep, EPOLL_CTL_MOD, p.b, EPOLLIN, 7));
        GIVES(1, WAIT(ep, &e, 1, -1));
        GIVES(7, (int)e.data.u64);
        GIVES(0, control(ep, EPOLL_CTL_MOD, p.b, EPOLLIN, 1));
        take_all(ep, p.b, in, 4);
        send_all(p.a, "more", 4);
        take_all(ep, p.b, in, 4);
    }
    close(ep);
    end(p);
}

SHARED("epoll-3", a_socket_that_was_taken_out_is_silent, WORLDS)
{
    struct pair p = connection();
    int ep = set_of(p.b, EPOLLIN), i;
    char in[4];

    for (i = 0; i < repeats(200); i++) {
        send_all(p.a, "data", 4);
        take_all(ep, p.b, in, 4);
        GIVES(0, exs_epoll_ctl(ep, EPOLL_CTL_DEL, p.b, NULL));
        send_all(p.a, "wait", 4);
        GIVES(0, exs_fcntl(p.b, F_SETFL, 0));
        recv_all(p.b, in, 4);
        silent(ep);
        nonblocking(p.b);
        GIVES(0, control(ep, EPOLL_CTL_ADD, p.b, EPOLLIN, 1));
    }
    close(ep);
    end(p);
}

SHARED("epoll-3", one_shot_means_one_event, WORLDS)
{
    struct pair p = connection();
    int ep = set_of(p.b, EPOLLIN | EPOLLONESHOT), i, n;
    char in[4];

    for (i = 0; i < repeats(100); i++) {
        send_all(p.a, "shot", 4);
        do {
            CHECK(happens(ep) & EPOLLIN);
            silent(ep);
            n = exs_recv(p.b, in, 4, 0, BLOCK, UNREG);
            CHECK(n == 4 || (n < 0 && errno == EAGAIN));
            GIVES(0, control(ep, EPOLL_CTL_MOD, p.b, EPOLLIN | EPOLLONESHOT, 1));
        } while (n != 4);
    }
    close(ep);
    end(p);
}

/* ---- Ends ----------------------------------------------------------------------------- */

SHARED("epoll-4", the_end_comes_behind_the_data, TCP | EXS)
{
    int round;

    for (round = 0; round < repeats(50); round++) {
        struct pair p = connection();
        int ep = set_of(p.b, EPOLLIN | EPOLLRDHUP);
        char in[8];

        send_all(p.a, "some", 4);
        take_all(ep, p.b, in, 4);
        send_all(p.a, "rest", 4);
        if (round % 2)
            GIVES(0, exs_shutdown(p.a, SHUT_WR, BLOCK));
        else
            GIVES(0, exs_close(p.a, 0, BLOCK));
        GIVES(4, take(ep, p.b, in, 8));
        GIVES(0, take(ep, p.b, in, 8));
        CHECK(happens(ep) & EPOLLRDHUP);
        if (round % 2)
            end_one(p.a);
        close(ep);
        end_one(p.b);
    }
}

SHARED("epoll-4", a_closed_socket_leaves_no_event, WORLDS)
{
    int ep = new_set(), round;

    for (round = 0; round < repeats(50); round++) {
        struct pair p = connection();
        char in[4];

        nonblocking(p.b);
        GIVES(0, control(ep, EPOLL_CTL_ADD, p.b, EPOLLIN, 1));
        send_all(p.a, "data", 4);
        take_all(ep, p.b, in, 4);
        /* The program does not receive these. */
        send_all(p.a, "data", 4);
        end_one(p.b);
        silent(ep);
        end_one(p.a);
    }
    close(ep);
}

SHARED("epoll-5", a_program_may_go_over_to_a_queue, EXS | EXSMSG)
{
    struct pair p = connection();
    int ep = set_of(p.b, EPOLLIN), i;
    exs_qhandle_t q = new_queue(4);
    char in[4];

    send_all(p.a, "data", 4);
    take_all(ep, p.b, in, 4);
    for (i = 0; i < repeats(200); i++) {
        GIVES(0, exs_recv(p.b, in, 4, 0, q, 1, UNREG));
        send_all(p.a, "data", 4);
        GIVES(4, LENGTH(next(q, EXS_EVT_RECV)));
    }
    close(ep);
    end(p);
    end_queue(q);
}
