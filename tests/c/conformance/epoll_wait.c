/* exs_epoll_wait: the cases of exs_epoll_ctl in sets with enough sockets for the library to look
 * in memory for all of them, and cases of its own. */
#define CROWDED
#include "epoll.c"

#include <sched.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>

enum { BUSY = 40 };

/* Receives one byte if one is there. */
static int take_byte(int fd)
{
    char byte;
    int n = exs_recv(fd, &byte, 1, 0, BLOCK, UNREG);

    CHECK(n == 1 || (n < 0 && errno == EAGAIN));
    return n == 1;
}

/* Connections of which data come, in one set. The data of an event are the number. */
struct busy {
    int ep;
    struct pair p[BUSY];
};

/* No socket has data. An event may find nothing. */
static void nothing_comes(struct busy *b)
{
    struct epoll_event e;

    while (exs_epoll_wait(b->ep, &e, 1, 0) > 0)
        GIVES(0, take_byte(b->p[e.data.u64].b));
}

/* This socket is reported. No other one has data. */
static void await_data(struct busy *b, uint64_t number)
{
    struct epoll_event e;

    for (;;) {
        GIVES(1, exs_epoll_wait(b->ep, &e, 1, -1));
        if (e.data.u64 == number)
            return;
        GIVES(0, take_byte(b->p[e.data.u64].b));
    }
}

static struct busy busy(unsigned events)
{
    struct epoll_event e;
    struct busy b;
    int i;

    b.ep = epoll_create1(EPOLL_CLOEXEC);
    CHECK(b.ep >= 0);
    for (i = 0; i < BUSY; i++) {
        b.p[i] = connection();
        nonblocking(b.p[i].b);
        GIVES(0, control(b.ep, EPOLL_CTL_ADD, b.p[i].b, events, (uint64_t)i));
    }
    /* By these calls the library learns how the program waits. */
    CHECK(exs_epoll_wait(b.ep, &e, 1, 0) >= 0);
    for (i = 0; i < BUSY; i++)
        GIVES(0, take_byte(b.p[i].b));
    nothing_comes(&b);
    return b;
}

static void end_busy(struct busy *b)
{
    int i;

    for (i = 0; i < BUSY; i++)
        end(b->p[i]);
    close(b->ep);
}

/* The software RNIC: what arrives shows by edges. */
static int kernel_shows(int fd)
{
    char name[16] = "";
    socklen_t len = sizeof name;

    return exs_getsockopt(fd, SOL_EXS, EXS_SO_TRANSPORT, name, &len) == 0 &&
           strncmp(name, "soft", 4) == 0;
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- The call ------------------------------------------------------------------------- */

CASE("epoll-6", it_fails_as_epoll_wait_2_does, WORLDS)
{
    struct pair p = connection();
    int ep = set_of(p.b, EPOLLIN);
    struct epoll_event e;

    send_all(p.a, "data", 4);
    CHECK(happens(ep) & EPOLLIN);
    FAILS(EINVAL, exs_epoll_wait(ep, &e, 0, 0));
    FAILS(EINVAL, exs_epoll_wait(ep, &e, -1, 0));
    FAILS(EFAULT, exs_epoll_wait(ep, NULL, 1, -1));
    FAILS(EBADF, exs_epoll_wait(-1, &e, 1, 0));
    FAILS(EINVAL, exs_epoll_wait(p.a, &e, 1, 0));
    close(ep);
    end(p);
}

CASE("epoll-6", it_ends_after_its_time, WORLDS)
{
    struct busy b = busy(EPOLLIN);
    struct epoll_event e[4];
    double begun;

    do {
        nothing_comes(&b);
        begun = seconds();
    } while (exs_epoll_wait(b.ep, e, 4, 30) != 0);
    CHECK(seconds() - begun > 0.029);
    end_busy(&b);
}

static void on_alarm(int number)
{
    (void)number;
}

CASE("epoll-6", a_signal_ends_it, WORLDS | ALONE)
{
    struct busy b = busy(EPOLLIN);
    struct itimerval soon = {{0, 10000}, {0, 10000}};
    struct sigaction action;
    struct epoll_event e;

    memset(&action, 0, sizeof action);
    action.sa_handler = on_alarm;
    GIVES(0, sigaction(SIGALRM, &action, NULL));
    GIVES(0, setitimer(ITIMER_REAL, &soon, NULL));
    while (exs_epoll_wait(b.ep, &e, 1, -1) >= 0)
        GIVES(0, take_byte(b.p[e.data.u64].b));
    CHECK(errno == EINTR);
    memset(&soon, 0, sizeof soon);
    GIVES(0, setitimer(ITIMER_REAL, &soon, NULL));
    end_busy(&b);
}

/* ---- Many sockets --------------------------------------------------------------------- */

/* Each round another part of the connections has a byte, and each byte is received. */
static void crowd_flow(unsigned events, int max)
{
    struct busy b = busy(events);
    struct epoll_event e[BUSY];
    int round, i, n, left;

    for (round = 0; round < repeats(300); round++) {
        for (i = 0, left = 0; i < BUSY; i++) {
            if ((i * 7 + round) % 3 != 0)
                continue;
            send_all(b.p[i].a, "x", 1);
            left++;
        }
        while (left > 0) {
            n = exs_epoll_wait(b.ep, e, max, -1);
            CHECK(n > 0);
            for (i = 0; i < n; i++) {
                CHECK(e[i].events & EPOLLIN);
                left -= take_byte(b.p[e[i].data.u64].b);
            }
        }
        for (i = 0; i < BUSY; i++)
            GIVES(0, take_byte(b.p[i].b));
    }
    end_busy(&b);
}

CASE("epoll-6", what_many_sockets_have_is_reported, TCP | EXS)
{
    crowd_flow(EPOLLIN, BUSY);
}

CASE("epoll-6", what_many_sockets_have_is_reported_by_edges, TCP | EXS)
{
    crowd_flow(EPOLLIN | EPOLLET, BUSY);
}

CASE("epoll-6", what_many_sockets_have_is_reported_one_by_one, TCP | EXS)
{
    crowd_flow(EPOLLIN, 1);
}

CASE("epoll-6", what_no_call_receives_is_reported_again, TCP | EXS)
{
    struct busy b = busy(EPOLLIN);
    struct epoll_event e[BUSY];
    int round, i, n;
    uint64_t seen = 0;

    for (i = 0; i < 3; i++)
        send_all(b.p[i].a, "x", 1);
    while (seen != 7) {
        n = exs_epoll_wait(b.ep, e, BUSY, -1);
        CHECK(n > 0 && n <= 3);
        while (n-- > 0)
            seen |= 1u << e[n].data.u64;
    }
    /* Where the kernel shows what arrives, a thread of the library does so after a while. */
    for (round = 0; round < repeats(100); round++)
        CHECK(exs_epoll_wait(b.ep, e, BUSY, kernel_shows(b.p[0].b) ? -1 : 0) > 0);
    for (i = 0; i < 3; i++)
        GIVES(1, take_byte(b.p[i].b));
    nothing_comes(&b);
    end_busy(&b);
}

CASE("epoll-6", a_change_loses_nothing_that_was_reported, TCP | EXS)
{
    struct busy b = busy(EPOLLIN);
    struct epoll_event e;
    int i, fd;

    for (i = 0; i < repeats(200); i++) {
        fd = b.p[i % BUSY].b;
        send_all(b.p[i % BUSY].a, "x", 1);
        await_data(&b, (uint64_t)i % BUSY);
        GIVES(0, control(b.ep, EPOLL_CTL_MOD, fd, 0, BUSY));
        while (exs_epoll_wait(b.ep, &e, 1, 0) > 0) {
            CHECK(e.data.u64 != BUSY);
            GIVES(0, take_byte(b.p[e.data.u64].b));
        }
        GIVES(0, control(b.ep, EPOLL_CTL_MOD, fd, EPOLLIN, (uint64_t)i % BUSY));
        await_data(&b, (uint64_t)i % BUSY);
        GIVES(1, take_byte(fd));
    }
    end_busy(&b);
}

CASE("epoll-6", other_files_have_their_turn, TCP | EXS)
{
    struct busy b = busy(EPOLLIN);
    struct epoll_event e;
    int pipes[2], i;

    GIVES(0, pipe(pipes));
    GIVES(0, control(b.ep, EPOLL_CTL_ADD, pipes[0], EPOLLIN, BUSY));
    for (i = 0; i < BUSY; i++)
        send_all(b.p[i].a, "x", 1);
    GIVES(1, exs_epoll_wait(b.ep, &e, 1, -1));
    GIVES(1, (int)write(pipes[1], "x", 1));
    /* No call receives what the sockets have. */
    for (i = 0, e.data.u64 = 0; e.data.u64 != BUSY; i++) {
        CHECK(i < 10 * BUSY);
        GIVES(1, exs_epoll_wait(b.ep, &e, 1, -1));
    }
    close(pipes[0]);
    close(pipes[1]);
    end_busy(&b);
}

CASE("epoll-6", poll_2_shows_what_it_has_reported, TCP | EXS)
{
    struct busy b = busy(EPOLLIN);
    struct pollfd f;
    int i;

    for (i = 0; i < repeats(20); i++) {
        send_all(b.p[i % BUSY].a, "x", 1);
        await_data(&b, (uint64_t)i % BUSY);
        /* The program waits for the same data elsewhere. */
        f.fd = b.p[i % BUSY].b;
        f.events = POLLIN;
        do
            GIVES(1, poll(&f, 1, -1));
        while (!take_byte(f.fd));
    }
    end_busy(&b);
}

CASE("epoll-6", a_closed_socket_of_many_is_reported_no_more, TCP | EXS)
{
    struct busy b = busy(EPOLLIN);
    struct epoll_event e[BUSY];
    int i, n, left = BUSY / 2;

    for (i = 0; i < BUSY; i++)
        send_all(b.p[i].a, "x", 1);
    CHECK(exs_epoll_wait(b.ep, e, BUSY, -1) > 0);
    /* These were reported, or were about to be. */
    for (i = 0; i < BUSY / 2; i++)
        end_one(b.p[i].b);
    while (left > 0) {
        n = exs_epoll_wait(b.ep, e, BUSY, -1);
        CHECK(n > 0);
        while (n-- > 0) {
            CHECK(e[n].data.u64 >= BUSY / 2);
            left -= take_byte(b.p[e[n].data.u64].b);
        }
    }
    while (exs_epoll_wait(b.ep, e, 1, 0) > 0) {
        CHECK(e[0].data.u64 >= BUSY / 2);
        GIVES(0, take_byte(b.p[e[0].data.u64].b));
    }
    for (i = 0; i < BUSY; i++) {
        end_one(b.p[i].a);
        if (i >= BUSY / 2)
            end_one(b.p[i].b);
    }
    close(b.ep);
}

CASE("epoll-6", data_and_an_end_are_one_event, TCP | EXS)
{
    struct busy b = busy(EPOLLIN | EPOLLRDHUP);
    struct epoll_event e[2];
    unsigned seen = 0;
    char in[4];
    int n;

    send_all(b.p[7].a, "x", 1);
    await_data(&b, 7);
    GIVES(1, take_byte(b.p[7].b));
    send_all(b.p[7].a, "last", 4);
    GIVES(0, exs_shutdown(b.p[7].a, SHUT_WR, BLOCK));
    while (!(seen & EPOLLRDHUP)) {
        n = exs_epoll_wait(b.ep, e, 2, -1);
        CHECK(n > 0);
        /* Where the kernel shows what arrives, it can report the end by an event of its own. */
        CHECK(n < 2 || e[0].data.u64 != e[1].data.u64 || kernel_shows(b.p[7].b));
        while (n-- > 0) {
            if (e[n].data.u64 == 7)
                seen |= e[n].events;
            else
                GIVES(0, take_byte(b.p[e[n].data.u64].b));
        }
    }
    GIVES(4, exs_recv(b.p[7].b, in, 4, 0, BLOCK, UNREG));
    GIVES(0, exs_recv(b.p[7].b, in, 4, 0, BLOCK, UNREG));
    end_busy(&b);
}

/* ---- Threads and processes -------------------------------------------------------------- */

struct shared {
    struct busy *b;
    int answers;
};

/* A thread of a loop that several threads run. It ends when the last pipe has something. */
static void runs_the_loop(void *arg)
{
    struct shared *s = arg;
    struct epoll_event e[4];
    int n, ended = 0;

    while (!ended) {
        n = exs_epoll_wait(s->b->ep, e, 4, -1);
        CHECK(n > 0);
        while (n-- > 0) {
            if (e[n].data.u64 == BUSY)
                ended = 1;
            else if (take_byte(s->b->p[e[n].data.u64].b))
                __sync_add_and_fetch(&s->answers, 1);
        }
    }
}

CASE("epoll-6", threads_share_a_loop, TCP | EXS)
{
    struct busy b = busy(EPOLLIN);
    struct shared s = {&b, 0};
    struct thread *t[3];
    int pipes[2], round, i, sent = 0;

    GIVES(0, pipe(pipes));
    GIVES(0, control(b.ep, EPOLL_CTL_ADD, pipes[0], EPOLLIN, BUSY));
    for (i = 0; i < 3; i++)
        t[i] = start(runs_the_loop, &s);
    for (round = 0; round < repeats(200); round++) {
        for (i = round % 5; i < BUSY; i += 1 + round % 7) {
            send_all(b.p[i].a, "x", 1);
            sent++;
        }
        /* The threads sleep now and then. */
        while (round % 8 == 0 && __sync_add_and_fetch(&s.answers, 0) != sent)
            sched_yield();
    }
    while (__sync_add_and_fetch(&s.answers, 0) != sent)
        sched_yield();
    GIVES(1, (int)write(pipes[1], "x", 1));
    for (i = 0; i < 3; i++)
        join(t[i]);
    close(pipes[0]);
    close(pipes[1]);
    end_busy(&b);
}

/* A loop in another process, which answers. */
static void answers_in_a_loop(int fd)
{
    int ep = epoll_create1(EPOLL_CLOEXEC);
    char byte;

    CHECK(ep >= 0);
    nonblocking(fd);
    GIVES(0, control(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1));
    while (take(ep, fd, &byte, 1) == 1)
        GIVES(1, exs_send(fd, &byte, 1, 0, BLOCK, UNREG));
    exs_close(fd, 0, BLOCK);
    _exit(0);
}

CASE("epoll-6", a_loop_that_sleeps_is_woken_by_another_process, EXS | ALONE)
{
    pid_t child;
    int fd = visitor(&child, answers_in_a_loop), ep = set_of(fd, EPOLLIN), i;
    char byte = 'x';

    for (i = 0; i < repeats(2000); i++) {
        GIVES(1, exs_send(fd, &byte, 1, 0, BLOCK, UNREG));
        take_all(ep, fd, &byte, 1);
    }
    close(ep);
    GIVES(0, exs_close(fd, 0, BLOCK));
    gone(child, 0);
}

/* Gives a set the number of another one, which is closed. */
static void take_number(int set, int number)
{
    if (set != number) {
        GIVES(number, dup2(set, number));
        close(set);
    }
}

CASE("epoll-6", a_set_with_the_number_of_another_is_waited_for, WORLDS)
{
    struct pair p = connection(), q = connection();
    int ep = epoll_create1(EPOLL_CLOEXEC), next;
    struct epoll_event e;

    CHECK(ep >= 0);
    nonblocking(p.b);
    nonblocking(q.b);
    GIVES(0, control(ep, EPOLL_CTL_ADD, p.b, EPOLLIN, 1));
    send_all(p.a, "p", 1);
    GIVES(1, exs_epoll_wait(ep, &e, 1, -1));
    GIVES(1, e.data.u64);

    /* Another set, with another socket. */
    next = epoll_create1(EPOLL_CLOEXEC);
    close(ep);
    take_number(next, ep);
    GIVES(0, control(ep, EPOLL_CTL_ADD, q.b, EPOLLIN, 2));
    GIVES(0, exs_epoll_wait(ep, &e, 1, 0));
    send_all(q.a, "q", 1);
    GIVES(1, exs_epoll_wait(ep, &e, 1, -1));
    GIVES(2, e.data.u64);

    /* A set that the library knew by another number. */
    next = epoll_create1(EPOLL_CLOEXEC);
    GIVES(0, control(next, EPOLL_CTL_ADD, p.b, EPOLLIN, 3));
    GIVES(1, exs_epoll_wait(next, &e, 1, -1));
    GIVES(1, exs_epoll_wait(ep, &e, 1, -1));
    GIVES(2, e.data.u64);
    close(ep);
    take_number(next, ep);
    GIVES(1, exs_epoll_wait(ep, &e, 1, -1));
    GIVES(3, e.data.u64);
    GIVES(1, take_byte(p.b));
    GIVES(1, take_byte(q.b));
    send_all(p.a, "p", 1);
    GIVES(1, exs_epoll_wait(ep, &e, 1, -1));
    GIVES(3, e.data.u64);
    close(ep);
    end(p);
    end(q);
}
