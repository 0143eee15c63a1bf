/* exs_qcreate, exs_qdelete. */
#include "net.h"

#include <limits.h>
#include <sys/syscall.h>

static const int BAD[] = {0, -1, -2, 1, 77, INT_MAX, INT_MIN};

CASE("qcreate-1", handles_are_distinct_and_print_as_ints, NOWHERE)
{
    exs_qhandle_t q[16];
    char text[32];
    int i, j;

    for (i = 0; i < 16; i++) {
        q[i] = new_queue(i + 1);
        for (j = 0; j < i; j++)
            CHECK(q[i] != q[j]);
        snprintf(text, sizeof text, "%d", q[i]);
        GIVES(q[i], atoi(text));
    }
    for (i = 0; i < 16; i++)
        end_queue(q[i]);
}

CASE("qcreate-2", the_depth_has_bounds, NOWHERE)
{
    exs_qhandle_t q;

    FAILS(EINVAL, exs_qcreate(0));
    FAILS(EINVAL, exs_qcreate(-1));
    FAILS(EINVAL, exs_qcreate(INT_MIN));
    FAILS(EINVAL, exs_qcreate(EXS_QDEPTH_MAX + 1));
    FAILS(EINVAL, exs_qcreate(INT_MAX));
    q = new_queue(EXS_QDEPTH_MAX);
    end_queue(q);
}

CASE("qcreate-2 all-2", the_depth_bounds_what_is_in_flight, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(3);
    char in[4];
    int i;

    for (i = 0; i < 3; i++)
        GIVES(0, exs_recv(p.a, &in[i], 1, 0, q, (exs_ahandle_t)i, UNREG));
    FAILS(EAGAIN, exs_recv(p.a, &in[3], 1, 0, q, 3, UNREG));
    FAILS(EAGAIN, exs_send(p.b, in, 1, 0, q, 3, UNREG));
    GIVES(3, exs_cancel(p.a, EXS_CAF_FILDES, 0));
    for (i = 0; i < 3; i++)
        next_failed(q, EXS_EVT_RECV, ECANCELED);
    /* what was refused has left nothing behind */
    nothing(q);
    GIVES(0, exs_recv(p.a, in, 1, 0, q, 4, UNREG));
    GIVES(1, exs_cancel(p.a, EXS_CAF_FILDES, 0));
    next_failed(q, EXS_EVT_RECV, ECANCELED);
    end(p);
    end_queue(q);
}

CASE("qcreate-2 all-2", events_that_wait_count_too, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(2);
    char byte = 'x';
    int waiting = 0;

    GIVES(0, exs_send(p.a, &byte, 1, 0, q, 1, UNREG));
    GIVES(0, exs_send(p.a, &byte, 1, 0, q, 2, UNREG));
    while (waiting < 2)
        GIVES(0, exs_qmodify(q, EXS_QATTR_EVENTS, &waiting));
    FAILS(EAGAIN, exs_send(p.a, &byte, 1, 0, q, 3, UNREG));
    GIVES(1, next(q, EXS_EVT_SEND).exs_evt_ahandle);
    GIVES(0, exs_send(p.a, &byte, 1, 0, q, 3, UNREG));
    GIVES(2, next(q, EXS_EVT_SEND).exs_evt_ahandle);
    GIVES(3, next(q, EXS_EVT_SEND).exs_evt_ahandle);
    end(p);
    end_queue(q);
}

CASE("qdelete-2 all-4", a_deleted_queue_is_refused_everywhere, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t old = new_queue(1), q;
    exs_event_t e;
    char byte = 0;
    int i;

    end_queue(old);
    for (i = 0; i < 3000; i++) {
        /* whatever gets its place */
        q = new_queue(1);
        CHECK(q != old);
        end_queue(q);
    }
    FAILS(EINVAL, exs_qdelete(old));
    FAILS(EINVAL, exs_qdequeue(old, &e, 1, NOW));
    FAILS(EINVAL, exs_qmodify(old, EXS_QATTR_WAIT, EXS_WAIT_NOTIFY));
    FAILS(EINVAL, exs_qfd(old));
    FAILS(EINVAL, exs_send(p.a, &byte, 1, 0, old, 0, UNREG));
    FAILS(EINVAL, exs_recv(p.a, &byte, 1, 0, old, 0, UNREG));
    FAILS(EINVAL, exs_shutdown(p.a, SHUT_WR, old, 0));
    FAILS(EINVAL, exs_close(p.a, 0, old, 0));
    end(p);
}

CASE("qdelete-1", a_queue_in_use_is_busy, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(2);
    char byte;

    GIVES(0, exs_recv(p.a, &byte, 1, 0, q, 0, UNREG));
    FAILS(EBUSY, exs_qdelete(q));
    GIVES(1, exs_cancel(p.a, EXS_CAF_FILDES, 0));
    next_failed(q, EXS_EVT_RECV, ECANCELED);
    end_queue(q);
    end(p);
}

CASE("qdelete-1", events_left_are_thrown_away, STREAMS)
{
    struct place at;
    int l = listener(&at), client = new_socket(), waiting = 0;
    exs_qhandle_t q = new_queue(4);
    char byte;

    /* Among them a connection that the program never takes: its peer sees a reset, and not an
     * end in order. */
    GIVES(0, exs_accept(l, NULL, 0, q, 1));
    GIVES(0, exs_connect(client, ADDR(at), at.len, 0, BLOCK));
    while (waiting < 1)
        GIVES(0, exs_qmodify(q, EXS_QATTR_EVENTS, &waiting));
    end_queue(q);
    if (world != LOCAL)
        FAILS(ECONNRESET, exs_recv(client, &byte, 1, 0, BLOCK, UNREG));
    else
        GIVES(0, exs_recv(client, &byte, 1, 0, BLOCK, UNREG));
    end_one(client);
    end_one(l);
}

struct waiter {
    exs_qhandle_t q;
    volatile int tid;
};

static void wait_for_one(void *arg)
{
    struct waiter *w = arg;

    w->tid = (int)syscall(SYS_gettid);
    next(w->q, EXS_EVT_POLL);
}

CASE("qdelete-1", a_queue_that_is_waited_for_is_busy, NOWHERE)
{
    struct waiter w = {new_queue(2), 0};
    struct thread *t;
    exs_pollfd_t poll;
    int pipe_[2];

    GIVES(0, exs_qmodify(w.q, EXS_QATTR_WAIT, EXS_WAIT_NOTIFY));
    CHECK(pipe(pipe_) == 0);
    t = start(wait_for_one, &w);
    while (!w.tid) {
    }
    await_sleeper(w.tid);
    FAILS(EBUSY, exs_qdelete(w.q));
    memset(&poll, 0, sizeof poll);
    poll.exs_pfd_fd = pipe_[1];
    poll.exs_pfd_events = EXS_POLLOUT;
    GIVES(0, exs_poll(&poll, 0, w.q, 1));
    join(t);
    end_queue(w.q);
    close(pipe_[0]);
    close(pipe_[1]);
}

CASE("qdelete-2 all-4", what_is_no_queue_is_refused, NOWHERE)
{
    exs_event_t e;
    size_t i;

    for (i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        FAILS(EINVAL, exs_qdelete(BAD[i]));
        FAILS(EINVAL, exs_qdequeue(BAD[i], &e, 1, NOW));
        FAILS(EINVAL, exs_qdequeue(BAD[i], &e, 0, NOW));
        FAILS(EINVAL, exs_qmodify(BAD[i], EXS_QATTR_DEPTH, 1));
        FAILS(EINVAL, exs_qfd(BAD[i]));
    }
}
