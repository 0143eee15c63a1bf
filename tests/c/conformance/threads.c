/* Many threads. */
#include "net.h"

#include <pthread.h>

enum { THREADS = 8, EACH = 500 };

static struct pair pairs[THREADS];
static exs_qhandle_t shared_queue;
static int seen[THREADS][EACH];
static int taken;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Posts on its own connection; takes whatever events come to the queue of all. */
static void post_and_take(void *arg)
{
    int me = *(int *)arg, posted = 0, i, n, done = 0;
    static char byte = 'x';
    exs_event_t e[4];

    while (!done) {
        while (posted < EACH) {
            exs_ahandle_t name = (exs_ahandle_t)(me * EACH + posted);

            if (exs_send(pairs[me].a, &byte, 1, 0, shared_queue, name, UNREG) == -1) {
                GIVES(EAGAIN, errno);
                break;
            }
            posted++;
        }
        n = exs_qdequeue(shared_queue, e, 4, &(struct timeval){0, 2000});
        CHECK(n >= 0);
        pthread_mutex_lock(&lock);
        for (i = 0; i < n; i++) {
            int pair = (int)(e[i].exs_evt_ahandle / EACH), which = (int)(e[i].exs_evt_ahandle % EACH);

            CHECK(e[i].exs_evt_type == EXS_EVT_SEND && e[i].exs_evt_errno == 0);
            GIVES(pairs[pair].a, e[i].exs_evt_socket);
            GIVES(0, seen[pair][which]++);
        }
        taken += n;
        done = taken == THREADS * EACH;
        pthread_mutex_unlock(&lock);
    }
}

static void drain(void *fd)
{
    char in[EACH];
    int done = 0;

    while (done < EACH) {
        int n = exs_recv(*(int *)fd, in, sizeof in, 0, BLOCK, UNREG);

        CHECK(n > 0);
        done += n;
    }
}

CASE("all-1 qdequeue-1", eight_threads_share_a_queue, CONNECTED | NATIVE)
{
    struct thread *t[THREADS], *d[THREADS];
    int names[THREADS], i, j;

    shared_queue = new_queue(16);
    for (i = 0; i < THREADS; i++) {
        pairs[i] = connection();
        names[i] = i;
    }
    for (i = 0; i < THREADS; i++) {
        d[i] = start(drain, &pairs[i].b);
        t[i] = start(post_and_take, &names[i]);
    }
    for (i = 0; i < THREADS; i++) {
        join(t[i]);
        join(d[i]);
    }
    for (i = 0; i < THREADS; i++)
        for (j = 0; j < EACH; j++)
            GIVES(1, seen[i][j]);
    nothing(shared_queue);
    for (i = 0; i < THREADS; i++)
        end(pairs[i]);
    end_queue(shared_queue);
}

static exs_qhandle_t quiet;

static void wait_for_one(void *count)
{
    exs_event_t e;

    GIVES(1, exs_qdequeue(quiet, &e, 1, NULL));
    pthread_mutex_lock(&lock);
    ++*(int *)count;
    pthread_mutex_unlock(&lock);
}

CASE("qdequeue-1", each_thread_that_waits_gets_an_event, SOCKETS)
{
    struct pair p = connection();
    struct thread *t[THREADS];
    int got = 0, i;

    quiet = new_queue(THREADS);
    for (i = 0; i < THREADS; i++)
        t[i] = start(wait_for_one, &got);
    for (i = 0; i < THREADS; i++)
        GIVES(0, exs_send(p.a, "x", 1, 0, quiet, 1, UNREG));
    for (i = 0; i < THREADS; i++)
        join(t[i]);
    GIVES(THREADS, got);
    end(p);
    end_queue(quiet);
}

/* Time limits that last and those of other calls do not get in each other's way. */
enum { LIMITS = 3000 };

static struct timeval limit_of(int fd, int name)
{
    struct timeval t;
    socklen_t len = sizeof t;

    GIVES(0, exs_getsockopt(fd, SOL_SOCKET, name, &t, &len));
    return t;
}

static void send_without_waiting(void *fd)
{
    exs_pollfd_t poll = {*(int *)fd, EXS_POLLOUT, 0, 0};
    int i, n;

    for (i = 0; i < LIMITS; i++) {
        n = exs_send(*(int *)fd, "x", 1, MSG_DONTWAIT, BLOCK, UNREG);
        if (n == -1) {
            GIVES(EAGAIN, errno);
            GIVES(1, exs_poll(&poll, 0, BLOCK));
        }
    }
}

static void take_all(void *fd)
{
    char in[EACH];
    int n;

    while ((n = exs_recv(*(int *)fd, in, sizeof in, 0, BLOCK, UNREG)) > 0)
        ;
    GIVES(0, n);
}

CASE("timeout-1 all-15", a_limit_stays_while_others_send_without_waiting, EXS | EXSMSG)
{
    struct pair p = connection();
    struct timeval t = {5, 0};
    struct thread *sender, *peer;
    int i;

    GIVES(0, exs_setsockopt(p.a, SOL_SOCKET, SO_ASYNC_SEND_TIMEOUT, &t, sizeof t));
    peer = start(take_all, &p.b);
    sender = start(send_without_waiting, &p.a);
    for (i = 0; i < LIMITS; i++) {
        t.tv_sec = 100 + i;
        GIVES(0, exs_setsockopt(p.a, SOL_SOCKET, SO_ASYNC_RECV_TIMEOUT, &t, sizeof t));
        GIVES(100 + i, limit_of(p.a, SO_ASYNC_RECV_TIMEOUT).tv_sec);
        GIVES(5, limit_of(p.a, SO_ASYNC_SEND_TIMEOUT).tv_sec);
    }
    join(sender);
    GIVES(5, limit_of(p.a, SO_ASYNC_SEND_TIMEOUT).tv_sec);
    GIVES(100 + LIMITS - 1, limit_of(p.a, SO_ASYNC_RECV_TIMEOUT).tv_sec);
    GIVES(0, exs_shutdown(p.a, SHUT_WR, BLOCK));
    join(peer);
    end(p);
}

static void set_once(int fd, int name)
{
    exs_timeout_t hour = {{3600, 0}, EXS_TIMEOUT_ONCE, 0};

    GIVES(0, exs_setsockopt(fd, SOL_SOCKET, name, &hour, sizeof hour));
}

static void send_each_with_a_limit(void *fd)
{
    int i;

    for (i = 0; i < LIMITS; i++) {
        set_once(*(int *)fd, SO_ASYNC_SEND_TIMEOUT);
        GIVES(1, exs_send(*(int *)fd, "x", 1, 0, BLOCK, UNREG));
    }
}

/* Sends what the other end receives, and takes what it sends. */
static void answer_all(void *fd)
{
    char in;
    int i;

    for (i = 0; i < LIMITS; i++) {
        GIVES(1, exs_send(*(int *)fd, "y", 1, 0, BLOCK, UNREG));
        GIVES(1, exs_recv(*(int *)fd, &in, 1, 0, BLOCK, UNREG));
    }
}

CASE("timeout-2", limits_of_both_directions_are_for_one_operation_each, EXS | EXSMSG)
{
    struct pair p = connection();
    struct thread *sender = start(send_each_with_a_limit, &p.a), *peer = start(answer_all, &p.b);
    char in;
    int i;

    for (i = 0; i < LIMITS; i++) {
        set_once(p.a, SO_ASYNC_RECV_TIMEOUT);
        GIVES(1, exs_recv(p.a, &in, 1, 0, BLOCK, UNREG));
    }
    join(sender);
    join(peer);
    GIVES(0, limit_of(p.a, SO_ASYNC_SEND_TIMEOUT).tv_sec);
    GIVES(0, limit_of(p.a, SO_ASYNC_RECV_TIMEOUT).tv_sec);
    end(p);
}

/* Receives and a close race. There is no third way: a late receive is refused, and
 * an accepted one is cancelled, as no data are sent. */
static int racing;

static void close_it(void *unused)
{
    (void)unused;
    GIVES(0, exs_close(racing, 0, BLOCK));
}

CASE("all-1 close-4 close-7", a_close_races_with_posts, CONNECTED)
{
    exs_qhandle_t q = new_queue(64);
    int round, posted, i;
    char in[64];

    for (round = 0; round < 30; round++) {
        struct pair p = connection();
        struct thread *t;

        racing = p.a;
        posted = 0;
        t = start(close_it, NULL);
        while (posted < 64 && exs_recv(p.a, &in[posted], 1, 0, q, 1, UNREG) == 0)
            posted++;
        if (posted < 64)
            GIVES(EBADF, errno);
        join(t);
        for (i = 0; i < posted; i++) {
            exs_event_t e = next_any(q);

            GIVES(EXS_EVT_RECV, e.exs_evt_type);
            GIVES(ECANCELED, e.exs_evt_errno);
        }
        nothing(q);
        end_one(p.b);
    }
    end_queue(q);
}
