/* What poll(2) and epoll say of a descriptor: of EXS's own what they say of a TCP socket, so
 * most cases run on both. */
#include "net.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

enum { WORLDS = TCP | EXS | EXSMSG, ALL = POLLIN | POLLOUT | POLLRDHUP };

/* What poll(2) says of a descriptor now, or when it says something. */
static int seen(int fd, int events, int timeout)
{
    struct pollfd p = {fd, (short)events, 0};
    int n = poll(&p, 1, timeout);

    CHECK(n >= 0);
    return n ? p.revents : 0;
}

static void reset(int fd)
{
    struct linger cut = {1, 0};

    GIVES(0, exs_setsockopt(fd, SOL_SOCKET, SO_LINGER, &cut, sizeof cut));
    GIVES(0, exs_close(fd, 0, BLOCK));
}

/* An edge-triggered watch of a descriptor. */
static int edges(int fd, unsigned events)
{
    struct epoll_event e;
    int ep = epoll_create1(EPOLL_CLOEXEC);

    memset(&e, 0, sizeof e);
    e.events = events | EPOLLET;
    CHECK(ep >= 0);
    GIVES(0, epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    return ep;
}

/* The next edge: one too few, and this waits for ever. */
static unsigned edge(int ep)
{
    struct epoll_event e;

    GIVES(1, epoll_wait(ep, &e, 1, -1));
    return e.events;
}

static int bytes_there(int fd)
{
    int n = -1;

    GIVES(0, ioctl(fd, FIONREAD, &n));
    return n;
}

/* ---- Ends ----------------------------------------------------------------------------- */

CASE("fd-10", the_end_of_the_peers_data_is_pollrdhup, WORLDS)
{
    struct pair p = connection();
    char in[4];

    GIVES(POLLOUT, seen(p.b, ALL, 0));
    GIVES(0, exs_shutdown(p.a, SHUT_WR, BLOCK));
    GIVES(POLLRDHUP, seen(p.b, POLLRDHUP, -1));
    GIVES(ALL, seen(p.b, ALL, 0));
    GIVES(0, exs_recv(p.b, in, 4, 0, BLOCK, UNREG));
    GIVES(ALL, seen(p.b, ALL, 0));
    /* the other direction goes on */
    send_all(p.b, "back", 4);
    recv_all(p.a, in, 4);
    end(p);
}

CASE("fd-10", pollrdhup_is_said_while_data_wait, WORLDS)
{
    struct pair p = connection();
    char in[8];

    send_all(p.a, "rest", 4);
    GIVES(0, exs_shutdown(p.a, SHUT_WR, BLOCK));
    GIVES(POLLRDHUP, seen(p.b, POLLRDHUP, -1));
    GIVES(ALL, seen(p.b, ALL, 0));
    GIVES(4, exs_recv(p.b, in, 8, 0, BLOCK, UNREG));
    GIVES(0, exs_recv(p.b, in, 8, 0, BLOCK, UNREG));
    GIVES(ALL, seen(p.b, ALL, 0));
    end(p);
}

CASE("fd-10", a_poll_that_waits_sees_the_end_at_once, WORLDS)
{
    struct pair p = connection();
    int ep = edges(p.b, EPOLLIN | EPOLLRDHUP), round;

    /* POLLIN is not said before POLLRDHUP where there are no data */
    GIVES(0, exs_shutdown(p.a, SHUT_WR, BLOCK));
    GIVES(EPOLLIN | EPOLLRDHUP, edge(ep));
    close(ep);
    end(p);
    for (round = 0; round < 20; round++) {
        p = connection();
        GIVES(0, exs_shutdown(p.a, SHUT_WR, BLOCK));
        GIVES(POLLIN | POLLRDHUP, seen(p.b, POLLIN | POLLRDHUP, -1));
        end(p);
    }
}

CASE("fd-10", the_end_of_both_directions_is_pollhup, WORLDS)
{
    struct pair p = connection();

    GIVES(0, exs_shutdown(p.b, SHUT_WR, BLOCK));
    GIVES(POLLOUT, seen(p.b, ALL, 0));
    GIVES(0, exs_shutdown(p.a, SHUT_WR, BLOCK));
    GIVES(POLLHUP, seen(p.b, 0, -1));
    GIVES(ALL | POLLHUP, seen(p.b, ALL, 0));
    GIVES(POLLHUP, seen(p.a, 0, -1));
    end(p);
    p = connection();
    GIVES(0, exs_shutdown(p.b, SHUT_RDWR, BLOCK));
    GIVES(POLLHUP, seen(p.b, 0, -1));
    GIVES(ALL | POLLHUP, seen(p.b, ALL, 0));
    end(p);
    /* a peer that closes ends one direction only */
    p = connection();
    GIVES(0, exs_close(p.a, 0, BLOCK));
    GIVES(POLLRDHUP, seen(p.b, POLLRDHUP, -1));
    GIVES(ALL, seen(p.b, ALL, 0));
    end_one(p.b);
}

CASE("fd-10", a_reset_is_pollerr, WORLDS)
{
    struct pair p = connection();
    int ep;
    char in;

    ep = edges(p.b, EPOLLRDHUP);
    reset(p.a);
    GIVES(POLLERR | POLLHUP, seen(p.b, 0, -1));
    GIVES(ALL | POLLERR | POLLHUP, seen(p.b, ALL, 0));
    GIVES(EPOLLRDHUP | EPOLLERR | EPOLLHUP, edge(ep));
    FAILS(ECONNRESET, exs_recv(p.b, &in, 1, 0, BLOCK, UNREG));
    GIVES(ALL | POLLHUP, seen(p.b, ALL, 0));
    close(ep);
    end_one(p.b);
    /* after half an end, too */
    p = connection();
    GIVES(0, exs_shutdown(p.a, SHUT_WR, BLOCK));
    GIVES(POLLRDHUP, seen(p.b, POLLRDHUP, -1));
    reset(p.a);
    GIVES(POLLERR | POLLHUP, seen(p.b, 0, -1) & (POLLERR | POLLHUP));
    end_one(p.b);
}

static int open_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    CHECK(d != NULL);
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

CASE("fd-3 fd-10", a_close_after_the_end_is_seen_as_well, EXS | EXSMSG)
{
    struct pair p = connection();
    int before, copy;

    end(p);
    p = connection();
    before = open_descriptors();
    GIVES(0, exs_shutdown(p.a, SHUT_WR, BLOCK));
    GIVES(0, exs_shutdown(p.b, SHUT_WR, BLOCK));
    GIVES(POLLHUP, seen(p.a, 0, -1));
    GIVES(POLLHUP, seen(p.b, 0, -1));
    copy = dup(p.b);
    close(p.b);
    close(p.a);
    /* The library's end of `a` goes with the last copy, that of `b` stays. */
    while (open_descriptors() > before - 2)
        usleep(1000); /* sleep-ok: until it has, or the harness ends this */
    GIVES(POLLHUP, seen(copy, 0, 0));
    close(copy);
    while (open_descriptors() > before - 4)
        usleep(1000); /* sleep-ok: as above */
}

/* ---- Edges ---------------------------------------------------------------------------- */

CASE("fd-11", a_short_read_is_followed_by_an_edge, WORLDS)
{
    struct pair p = connection();
    char in[64];
    int ep, round;

    nonblocking(p.b);
    ep = edges(p.b, EPOLLIN);
    for (round = 0; round < repeats(500); round++) {
        send_all(p.a, "x", 1);
        edge(ep);
        /* as mio and tokio do: less than there was room for is all there was */
        GIVES(1, exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG));
    }
    close(ep);
    end(p);
}

static void talk(void *arg)
{
    static char out[300];
    unsigned r = 1;
    int i, n, fd = *(int *)arg;

    for (i = 0; i < repeats(20000); i++) {
        r = r * 1103515245 + 12345;
        n = 1 + (int)((r >> 16) % sizeof out);
        GIVES(n, exs_send(fd, out, (size_t)n, 0, BLOCK, UNREG));
    }
    GIVES(0, exs_shutdown(fd, SHUT_WR, BLOCK));
}

CASE("fd-11", no_edge_is_lost_between_two_threads, EXS | EXSMSG)
{
    struct pair p = connection();
    struct thread *t;
    char in[4096];
    int ep, n = 1;

    nonblocking(p.b);
    ep = edges(p.b, EPOLLIN | EPOLLRDHUP);
    t = start(talk, &p.a);
    while (n != 0) {
        edge(ep);
        do
            n = exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG);
        while (world == EXSMSG ? n > 0 : n == (int)sizeof in);
        CHECK(n >= 0 || errno == EAGAIN);
    }
    join(t);
    close(ep);
    end(p);
}

CASE("fd-11", what_comes_beside_unread_data_is_an_edge, WORLDS)
{
    struct pair p = connection();
    int ep = edges(p.b, EPOLLIN), round;
    char in[200];

    for (round = 0; round < 100; round++) {
        send_all(p.a, "x", 1);
        edge(ep);
    }
    if (world != EXSMSG)
        GIVES(100, exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG));
    else
        for (round = 0; round < 100; round++)
            GIVES(1, exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG));
    GIVES(0, seen(p.b, POLLIN, 0));
    close(ep);
    end(p);
}

CASE("fd-11", data_make_one_level_and_no_storm, WORLDS)
{
    struct pair p = connection();
    struct epoll_event e;
    int ep = edges(p.b, EPOLLIN);
    char in;

    send_all(p.a, "xy", 2);
    edge(ep);
    /* nothing new: no edge, and the level stays */
    GIVES(0, epoll_wait(ep, &e, 1, 0));
    GIVES(POLLIN, seen(p.b, POLLIN, 0));
    GIVES(1, exs_recv(p.b, &in, 1, 0, BLOCK, UNREG));
    GIVES(world == EXSMSG ? 0 : POLLIN, seen(p.b, POLLIN, 0));
    close(ep);
    end(p);
}

CASE("fd-11", a_short_write_is_followed_by_an_edge, WORLDS)
{
    static char out[100000], in[100000];
    struct pair p = connection();
    int ep, n, round, calls = 0;
    size_t left = 0;

    nonblocking(p.a);
    nonblocking(p.b);
    ep = edges(p.a, EPOLLOUT);
    edge(ep);
    for (round = 0; round < 5; round++) {
        for (;;) {
            n = exs_send(p.a, out, sizeof out, 0, BLOCK, UNREG);
            CHECK(n > 0 || errno == EAGAIN);
            left += n > 0 ? (size_t)n : 0;
            /* mio and tokio take the first for full that is shorter */
            if (n < (int)sizeof out)
                break;
        }
        while (left > 0) {
            seen(p.b, POLLIN, -1);
            n = exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG);
            CHECK(n > 0 || errno == EAGAIN);
            left -= n > 0 ? (size_t)n : 0;
            calls++;
        }
        CHECK(edge(ep) & EPOLLOUT);
    }
    CHECK(calls > 0);
    close(ep);
    end(p);
}

/* ---- How much there is ---------------------------------------------------------------- */

CASE("fd-12", fionread_says_how_much_there_is, TCP | EXS)
{
    struct pair p = connection();
    static char in[100000];

    GIVES(0, bytes_there(p.b));
    send_all(p.a, "12345", 5);
    GIVES(POLLIN, seen(p.b, POLLIN, -1));
    GIVES(5, bytes_there(p.b));
    send_all(p.a, "12345678", 8);
    while (bytes_there(p.b) != 13)
        ;
    GIVES(2, exs_recv(p.b, in, 2, 0, BLOCK, UNREG));
    GIVES(11, bytes_there(p.b));
    GIVES(11, exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG));
    GIVES(0, bytes_there(p.b));
    /* of much, at least 4096, and never more than there is */
    send_all(p.a, in, 50000);
    while (bytes_there(p.b) < 4096)
        ;
    recv_all(p.b, in, 49000);
    while (bytes_there(p.b) != 1000)
        ;
    recv_all(p.b, in, 1000);
    GIVES(0, bytes_there(p.b));
    /* at the end there is nothing, and that is readable */
    GIVES(0, exs_shutdown(p.a, SHUT_WR, BLOCK));
    GIVES(POLLIN, seen(p.b, POLLIN, -1));
    GIVES(0, bytes_there(p.b));
    end(p);
}

/* ---- Round trips ----------------------------------------------------------------------- */

/* If each waited for the background thread to look around, they would take longer than a case
 * may. */
enum { ROUNDS = 6000 };

static void await_data(int fd, int ep)
{
    struct epoll_event e;

    if (ep >= 0)
        GIVES(1, epoll_wait(ep, &e, 1, -1));
    else
        CHECK(seen(fd, POLLIN, -1) & POLLIN);
}

static void play(int fd, int rounds, int ep, int first)
{
    char byte = 'x';
    int n;

    while (rounds-- > 0) {
        if (first)
            GIVES(1, exs_send(fd, &byte, 1, 0, BLOCK, UNREG));
        do {
            await_data(fd, ep);
            n = exs_recv(fd, &byte, 1, 0, BLOCK, UNREG);
            CHECK(n == 1 || (n < 0 && errno == EAGAIN));
        } while (n != 1);
        if (!first)
            GIVES(1, exs_send(fd, &byte, 1, 0, BLOCK, UNREG));
    }
}

static void answer_by_epoll(int fd)
{
    struct epoll_event e;
    int ep = epoll_create1(EPOLL_CLOEXEC);

    memset(&e, 0, sizeof e);
    e.events = EPOLLIN;
    nonblocking(fd);
    GIVES(0, epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    play(fd, repeats(ROUNDS), ep, 0);
    close(ep);
    exs_close(fd, 0, BLOCK);
    _exit(0);
}

CASE("fd-13", round_trips_by_poll_2_wait_for_no_tick, EXS | EXSMSG | ALONE | NATIVE)
{
    pid_t child;
    int fd = visitor(&child, answer_by_epoll);

    nonblocking(fd);
    play(fd, repeats(ROUNDS), -1, 1);
    end_one(fd);
    gone(child, 0);
}

static void answer_blocking(int fd)
{
    /* select(2) style: it waits for the descriptor, and then calls without O_NONBLOCK */
    play(fd, repeats(ROUNDS), -1, 0);
    exs_close(fd, 0, BLOCK);
    _exit(0);
}

CASE("fd-13 qfd-1", an_epoll_loop_on_a_queue_waits_for_no_tick, EXS | EXSMSG | ALONE | NATIVE)
{
    pid_t child;
    int fd = visitor(&child, answer_blocking), ep, round;
    exs_qhandle_t q = new_queue(4);
    struct epoll_event e;
    exs_event_t done;
    char byte;

    ep = epoll_create1(EPOLL_CLOEXEC);
    memset(&e, 0, sizeof e);
    e.events = EPOLLIN;
    GIVES(0, epoll_ctl(ep, EPOLL_CTL_ADD, exs_qfd(q), &e));
    for (round = 0; round < repeats(ROUNDS); round++) {
        GIVES(0, exs_recv(fd, &byte, 1, 0, q, 1, UNREG));
        /* a call without a queue beside it */
        GIVES(1, exs_send(fd, "x", 1, 0, BLOCK, UNREG));
        do
            GIVES(1, epoll_wait(ep, &e, 1, -1));
        while (exs_qdequeue(q, &done, 1, NOW) != 1);
        GIVES(1, LENGTH(done));
    }
    close(ep);
    end_one(fd);
    gone(child, 0);
    end_queue(q);
}
