/* Link groups: over the software RNIC, connections that a program serves by exs_epoll_wait share TCP
 * connections. Those of programs that wait otherwise do not. */
#include "net.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>

enum { N = 30, SIZE = 8, LISTENER = 1000, FIRST = 1001 };

/* One thread that connects to itself, and serves both ends. */
struct loop {
    int ep, listener;
    int (*wait)(int, struct epoll_event *, int, int);
    unsigned events; /* EPOLLET, EPOLLONESHOT */
    struct place at;
    int first[2];   /* a connection that is in no group */
    int client[N], served[N];
    int connected, accepted;
    char got[N][SIZE];
    int have[N];
};

static void watch(struct loop *l, int op, int fd, unsigned events, uint64_t data)
{
    struct epoll_event e;

    memset(&e, 0, sizeof e);
    e.events = events;
    e.data.u64 = data;
    GIVES(0, exs_epoll_ctl(l->ep, op, fd, &e));
}

/* EPOLLONESHOT disarms a registration with each event. */
static void again(struct loop *l, int fd, uint64_t data)
{
    if (l->events & EPOLLONESHOT)
        watch(l, EPOLL_CTL_MOD, fd, EPOLLIN | l->events, data);
}

static int dial(struct loop *l)
{
    int fd = new_socket();

    nonblocking(fd);
    FAILS(EINPROGRESS, exs_connect(fd, ADDR(l->at), l->at.len, 0, BLOCK));
    return fd;
}

static int has_connected(int fd)
{
    int error = -1;
    socklen_t len = sizeof error;

    GIVES(0, exs_getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
    GIVES(0, error);
    return 1;
}

/* Accepts what is there. */
static void accept_all(struct loop *l)
{
    int fd;

    while ((fd = exs_accept(l->listener, NULL, SOCK_NONBLOCK, BLOCK)) >= 0) {
        if (l->first[1] < 0) {
            l->first[1] = fd;
            watch(l, EPOLL_CTL_ADD, fd, EPOLLIN | l->events, FIRST);
            continue;
        }
        CHECK(l->accepted < N);
        l->served[l->accepted] = fd;
        watch(l, EPOLL_CTL_ADD, fd, EPOLLIN | l->events, (uint64_t)(N + l->accepted));
        l->accepted++;
    }
    CHECK(errno == EAGAIN);
}

/* Handles one event. Clients check that they get their own bytes, and the others send them back. */
static void handle(struct loop *l, const struct epoll_event *e)
{
    int number = (int)e->data.u64, n;
    char in[SIZE];

    if (number == LISTENER) {
        accept_all(l);
    } else if (number == FIRST) {
        CHECK(exs_recv(l->first[1], in, SIZE, 0, BLOCK, UNREG) < 0 && errno == EAGAIN);
    } else if (number >= N) {
        while ((n = exs_recv(l->served[number - N], in, SIZE, 0, BLOCK, UNREG)) > 0)
            GIVES(n, exs_send(l->served[number - N], in, (size_t)n, 0, BLOCK, UNREG));
        CHECK(n < 0 && errno == EAGAIN);
        again(l, l->served[number - N], e->data.u64);
    } else if (e->events & EPOLLOUT) {
        l->connected += has_connected(l->client[number]);
        watch(l, EPOLL_CTL_MOD, l->client[number], EPOLLIN | l->events, e->data.u64);
    } else {
        while ((n = exs_recv(l->client[number], l->got[number] + l->have[number],
                             (size_t)(SIZE - l->have[number]), 0, BLOCK, UNREG)) > 0) {
            l->have[number] += n;
            if (l->have[number] == SIZE)
                break;
        }
        CHECK(n > 0 || (n < 0 && errno == EAGAIN));
        again(l, l->client[number], e->data.u64);
    }
}

static void step(struct loop *l)
{
    struct epoll_event e[2 * N];
    int n = l->wait(l->ep, e, 2 * N, -1), i;

    CHECK(n > 0);
    for (i = 0; i < n; i++)
        handle(l, &e[i]);
}

/* Connects all. Each connection that can be in a group is. */
static struct loop looping(int (*wait)(int, struct epoll_event *, int, int), unsigned events)
{
    const char *transport = getenv("EXS_TRANSPORT");
    struct loop l;
    int i;

    if (!transport || strcmp(transport, "soft") != 0)
        skip("there are groups over the software RNIC only");
    setenv("EXS_LINK_GROUP", "0", 1);
    memset(&l, 0, sizeof l);
    l.wait = wait;
    l.events = events;
    l.ep = epoll_create1(EPOLL_CLOEXEC);
    CHECK(l.ep >= 0);
    l.listener = listener(&l.at);
    nonblocking(l.listener);
    watch(&l, EPOLL_CTL_ADD, l.listener, EPOLLIN, LISTENER);
    /* The thread has not waited yet. Its accept says whether the listener takes groups. */
    l.first[0] = dial(&l);
    l.first[1] = -1;
    while (l.first[1] < 0)
        step(&l);
    for (i = 0; i < N; i++) {
        l.client[i] = dial(&l);
        watch(&l, EPOLL_CTL_ADD, l.client[i], EPOLLOUT, (uint64_t)i);
    }
    while (l.connected < N || l.accepted < N)
        step(&l);
    return l;
}

/* Each client asks, and gets its own bytes back. */
static void ask_all(struct loop *l, int round)
{
    char out[N][SIZE];
    int i, left;

    for (i = 0; i < N; i++) {
        l->have[i] = 0;
        snprintf(out[i], SIZE, "%d.%d", i, round % 1000);
        GIVES(SIZE, exs_send(l->client[i], out[i], SIZE, 0, BLOCK, UNREG));
    }
    do {
        step(l);
        for (i = left = 0; i < N; i++)
            left += l->have[i] < SIZE;
    } while (left > 0);
    for (i = 0; i < N; i++)
        CHECK(memcmp(l->got[i], out[i], SIZE) == 0);
}

static void flow(struct loop *l)
{
    int round;

    for (round = 0; round < repeats(200); round++)
        ask_all(l, round);
}

static void end_loop(struct loop *l)
{
    int i;

    for (i = 0; i < N; i++) {
        if (l->client[i] >= 0)
            end_one(l->client[i]);
        if (l->served[i] >= 0)
            end_one(l->served[i]);
    }
    end_one(l->first[0]);
    end_one(l->first[1]);
    end_one(l->listener);
    close(l->ep);
}

CASE("epoll-8", connections_of_a_loop_share_a_tcp_connection, EXS | ALONE)
{
    struct loop l = looping(exs_epoll_wait, 0);

    GIVES(2, tcp_connections(ADDR(l.at)));
    flow(&l);
    end_loop(&l);
}

CASE("epoll-8", by_edges_they_do_too, EXS | ALONE)
{
    struct loop l = looping(exs_epoll_wait, EPOLLET);

    GIVES(2, tcp_connections(ADDR(l.at)));
    flow(&l);
    end_loop(&l);
}

CASE("epoll-8", connections_of_epoll_wait_2_share_none, EXS | ALONE)
{
    struct loop l = looping(epoll_wait, 0);

    GIVES(1 + N, tcp_connections(ADDR(l.at)));
    flow(&l);
    end_loop(&l);
}

CASE("epoll-8", a_loop_with_oneshots_shares_none, EXS | ALONE)
{
    struct loop l = looping(exs_epoll_wait, EPOLLONESHOT);

    flow(&l);
    end_loop(&l);
}

/* The end of the data of a shared connection is reported behind them, and the others go on. */
static void ends(unsigned events)
{
    struct loop l = looping(exs_epoll_wait, events | EPOLLRDHUP);
    struct epoll_event e[2 * N];
    int left = N / 2, i, n, got;
    char in[SIZE];

    GIVES(2, tcp_connections(ADDR(l.at)));
    flow(&l);
    for (i = 0; i < N / 2; i++) {
        send_all(l.client[2 * i], "last", 4);
        GIVES(0, exs_shutdown(l.client[2 * i], SHUT_WR, BLOCK));
    }
    while (left > 0) {
        n = exs_epoll_wait(l.ep, e, 2 * N, -1);
        CHECK(n > 0);
        for (i = 0; i < n; i++) {
            int number = (int)e[i].data.u64 - N, *fd;

            /* The clients are in the loop, too. */
            if (number < 0 || number >= N)
                continue;
            fd = &l.served[number];
            while ((got = exs_recv(*fd, in, SIZE, 0, BLOCK, UNREG)) > 0)
                GIVES(4, got);
            if (got < 0) {
                CHECK(errno == EAGAIN);
                continue;
            }
            end_one(*fd);
            *fd = -1;
            left--;
        }
    }
    for (i = 0; i < N / 2; i++) {
        end_one(l.client[2 * i]);
        l.client[2 * i] = -1;
    }
    /* The odd ones are there. */
    for (i = 1; i < N; i += 2) {
        l.have[i] = 0;
        send_all(l.client[i], "12345678", SIZE);
        while (l.have[i] < SIZE)
            step(&l);
        CHECK(memcmp(l.got[i], "12345678", SIZE) == 0);
    }
    end_loop(&l);
}

CASE("epoll-8", the_end_of_one_leaves_the_others, EXS | ALONE) { ends(0); }

CASE("epoll-8", the_end_of_one_leaves_the_others_by_edges, EXS | ALONE) { ends(EPOLLET); }

/* The connection with large data takes a TCP connection of its own. The loop serves it as before. */
static void large(unsigned events)
{
    enum { CHUNK = 64 << 10, TOTAL = 4 << 20 };
    static char out[CHUNK], in[CHUNK];
    struct loop l = looping(exs_epoll_wait, events);
    struct epoll_event e[2 * N];
    size_t sent = 0, came = 0;
    int i, j, n, got;

    for (i = 0; i < CHUNK; i++)
        out[i] = (char)(i % 251);
    flow(&l);
    GIVES(2, tcp_connections(ADDR(l.at)));
    while (came < TOTAL) {
        while (sent < TOTAL) {
            size_t at = sent % CHUNK;

            n = exs_send(l.client[0], out + at, CHUNK - at, 0, BLOCK, UNREG);
            if (n < 0)
                break;
            sent += (size_t)n;
        }
        CHECK(sent == TOTAL || errno == EAGAIN);
        watch(&l, EPOLL_CTL_MOD, l.client[0], (sent < TOTAL ? EPOLLOUT : EPOLLIN) | events, 0);
        n = exs_epoll_wait(l.ep, e, 2 * N, -1);
        CHECK(n > 0);
        for (i = 0; i < n; i++) {
            if (e[i].data.u64 != N)
                continue;
            while ((got = exs_recv(l.served[0], in, CHUNK, 0, BLOCK, UNREG)) > 0)
                for (j = 0; j < got; j++)
                    CHECK(in[j] == out[came++ % CHUNK]);
            CHECK(got < 0 && errno == EAGAIN);
        }
    }
    GIVES(3, tcp_connections(ADDR(l.at)));
    flow(&l);
    end_loop(&l);
}

CASE("epoll-8", large_data_have_a_connection_of_their_own, EXS | ALONE) { large(0); }

CASE("epoll-8", large_data_by_edges_have_one, EXS | ALONE) { large(EPOLLET); }

/* A program may stop to wait in the loop, and wait for its sockets in other ways. */
CASE("epoll-8", a_program_that_leaves_its_loop_gets_all, EXS | ALONE)
{
    struct loop l = looping(exs_epoll_wait, 0);
    struct pollfd f;
    char in[SIZE];
    int round, i, n, have;

    GIVES(2, tcp_connections(ADDR(l.at)));
    flow(&l);
    for (round = 0; round < repeats(5); round++) {
        for (i = 0; i < N; i++)
            send_all(l.client[i], "question", SIZE);
        /* Questions and answers are paired by the bytes alone: any order will do. */
        for (i = 0; i < N; i++) {
            f.fd = l.served[i];
            f.events = POLLIN;
            for (have = 0; have < SIZE; have += n > 0 ? n : 0) {
                GIVES(1, poll(&f, 1, -1));
                n = exs_recv(f.fd, in + have, (size_t)(SIZE - have), 0, BLOCK, UNREG);
                CHECK(n > 0 || (n < 0 && errno == EAGAIN));
            }
            CHECK(memcmp(in, "question", SIZE) == 0);
            send_all(f.fd, "answered", SIZE);
        }
        for (i = 0; i < N; i++) {
            /* By calls that wait. */
            GIVES(0, exs_fcntl(l.client[i], F_SETFL, 0));
            recv_all(l.client[i], in, SIZE);
            CHECK(memcmp(in, "answered", SIZE) == 0);
        }
    }
    for (i = 0; i < N; i++)
        nonblocking(l.client[i]);
    flow(&l);
    end_loop(&l);
}
