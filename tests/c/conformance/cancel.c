/* exs_cancel. */
#include "net.h"

CASE("cancel-1 cancel-2", all_of_a_descriptor, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(8);
    char in[4];
    int i, seen = 0;
    exs_event_t e;

    for (i = 0; i < 4; i++)
        GIVES(0, exs_recv(p.a, &in[i], 1, 0, q, (exs_ahandle_t)i, UNREG));
    GIVES(0, exs_recv(p.b, in, 1, 0, q, 9, UNREG));
    GIVES(4, exs_cancel(p.a, EXS_CAF_FILDES, 0));
    for (i = 0; i < 4; i++) {
        e = next_failed(q, EXS_EVT_RECV, ECANCELED);
        GIVES(0, LENGTH(e));
        seen |= 1 << e.exs_evt_ahandle;
    }
    GIVES(15, seen);
    nothing(q); /* the other socket's goes on */
    send_all(p.a, "x", 1);
    GIVES(9, next(q, EXS_EVT_RECV).exs_evt_ahandle);
    end(p);
    end_queue(q);
}

CASE("cancel-1 cancel-2", those_with_an_ahandle, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(8);
    char in[3] = "";

    GIVES(0, exs_recv(p.b, &in[0], 1, 0, q, 7, UNREG));
    GIVES(0, exs_recv(p.b, &in[1], 1, 0, q, 8, UNREG));
    GIVES(0, exs_recv(p.b, &in[2], 1, 0, q, 7, UNREG));
    GIVES(0, exs_cancel(p.b, EXS_CAF_AHANDLE, 99));
    GIVES(2, exs_cancel(p.b, EXS_CAF_AHANDLE, 7));
    GIVES(7, next_failed(q, EXS_EVT_RECV, ECANCELED).exs_evt_ahandle);
    GIVES(7, next_failed(q, EXS_EVT_RECV, ECANCELED).exs_evt_ahandle);
    send_all(p.a, "x", 1);
    GIVES(8, next(q, EXS_EVT_RECV).exs_evt_ahandle);
    CHECK(in[1] == 'x' && in[0] == 0 && in[2] == 0);
    /* both flags mean the same as the one */
    GIVES(0, exs_recv(p.b, &in[0], 1, 0, q, 5, UNREG));
    GIVES(1, exs_cancel(p.b, EXS_CAF_FILDES | EXS_CAF_AHANDLE, 5));
    next_failed(q, EXS_EVT_RECV, ECANCELED);
    end(p);
    end_queue(q);
}

CASE("cancel-2", nothing_to_cancel_is_none, SOCKETS)
{
    struct pair p = connection();

    GIVES(0, exs_cancel(p.a, EXS_CAF_FILDES, 0));
    GIVES(0, exs_cancel(p.a, EXS_CAF_AHANDLE, 1));
    end(p);
}

CASE("cancel-2 all-5", what_makes_no_sense_is_refused, SOCKETS)
{
    struct pair p = connection();

    FAILS(EINVAL, exs_cancel(p.a, 0, 0));
    FAILS(EINVAL, exs_cancel(p.a, 4, 0));
    FAILS(EINVAL, exs_cancel(p.a, -1, 0));
    FAILS(EBADF, exs_cancel(-1, EXS_CAF_FILDES, 0));
    FAILS(EBADF, exs_cancel(12345, EXS_CAF_FILDES, 0));
    end(p);
}

CASE("cancel-1", a_stream_goes_on_after_a_cancelled_receive, STREAMS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(8);
    static char in[100000], out[100000];
    exs_event_t e;
    size_t moved;
    int i;

    fill(out, sizeof out, 0);
    for (i = 0; i < 10; i++) {
        GIVES(0, exs_recv(p.b, in, sizeof in, MSG_WAITALL, q, 1, UNREG));
        send_all(p.a, out, 50000);
        GIVES(1, exs_cancel(p.b, EXS_CAF_FILDES, 0));
        e = next_any(q);
        /* the cancelled receive keeps its bytes; the next receive gets the rest */
        moved = LENGTH(e);
        CHECK(e.exs_evt_errno == ECANCELED && moved <= 50000);
        VERIFY(in, moved, 0);
        if (moved < 50000)
            recv_all(p.b, in + moved, 50000 - moved);
        VERIFY(in, 50000, 0);
        FAILS(EAGAIN, exs_recv(p.b, in, 1, MSG_DONTWAIT, BLOCK, UNREG));
    }
    end(p);
    end_queue(q);
}

CASE("cancel-1", sends_that_wait_end, STREAMS)
{
    enum { N = 64, LEN = 1 << 20 };
    struct pair p = connection();
    exs_qhandle_t q = new_queue(N);
    char *out = calloc(1, LEN);
    int i, n, cancelled = 0;
    exs_event_t e;

    CHECK(out);
    /* more than any buffer holds, and the peer does not receive */
    for (i = 0; i < N; i++)
        GIVES(0, exs_send(p.a, out, LEN, 0, q, (exs_ahandle_t)i, UNREG));
    n = exs_cancel(p.a, EXS_CAF_FILDES, 0);
    CHECK(n > 0 && n <= N);
    for (i = 0; i < N; i++) {
        e = next_any(q);
        GIVES(EXS_EVT_SEND, e.exs_evt_type);
        CHECK(e.exs_evt_errno == 0 || e.exs_evt_errno == ECANCELED);
        if (e.exs_evt_errno == ECANCELED) {
            CHECK(LENGTH(e) < LEN);
            cancelled++;
        } else {
            GIVES(LEN, LENGTH(e));
        }
    }
    CHECK(cancelled > 0 && cancelled <= n);
    nothing(q);
    free(out);
    end(p);
    end_queue(q);
}
