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
            int who = (int)(e[i].exs_evt_ahandle / EACH), which = (int)(e[i].exs_evt_ahandle % EACH);

            CHECK(e[i].exs_evt_type == EXS_EVT_SEND && e[i].exs_evt_errno == 0);
            GIVES(pairs[who].a, e[i].exs_evt_socket);
            GIVES(0, seen[who][which]++);
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

/* Receives and a close race. There is no third way: who comes too late is refused, and
 * what was accepted is cancelled, as no data are sent. */
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
