/* exs_recv. */
#include "net.h"

CASE("recv-1", one_event_says_all, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char out[100], in[200];
    exs_event_t e;

    fill(out, sizeof out, 0);
    GIVES(0, exs_recv(p.b, in, sizeof in, 0, q, 78, UNREG));
    send_all(p.a, out, sizeof out);
    e = next(q, EXS_EVT_RECV);
    GIVES(p.b, e.exs_evt_socket);
    GIVES(78, e.exs_evt_ahandle);
    /* as many as are there, at least one: the peer sent them all at once */
    GIVES(sizeof out, LENGTH(e));
    CHECK(BUFFER(e) == in && e.exs_evt_flags == 0);
    VERIFY(in, sizeof out, 0);
    nothing(q);
    end(p);
    end_queue(q);
}

CASE("recv-1", waitall_fills_the_memory, STREAMS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    static char out[100000], in[100000];
    size_t done = 0;

    fill(out, sizeof out, 0);
    GIVES(0, exs_recv(p.b, in, sizeof in, MSG_WAITALL, q, 1, UNREG));
    for (; done < sizeof out - 1; done += 9999) {
        size_t n = sizeof out - 1 - done < 9999 ? sizeof out - 1 - done : 9999;

        send_all(p.a, out + done, n);
        nothing(q);
    }
    send_all(p.a, out + sizeof out - 1, 1);
    GIVES(sizeof in, LENGTH(next(q, EXS_EVT_RECV)));
    VERIFY(in, sizeof in, 0);
    end(p);
    end_queue(q);
}

CASE("recv-1", waitall_ends_with_the_data, STREAMS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char in[100];
    exs_event_t e;

    GIVES(0, exs_recv(p.b, in, sizeof in, MSG_WAITALL, q, 1, UNREG));
    send_all(p.a, "0123456789", 10);
    GIVES(0, exs_shutdown(p.a, SHUT_WR, BLOCK));
    e = next(q, EXS_EVT_RECV);
    GIVES(10, LENGTH(e));
    CHECK(memcmp(in, "0123456789", 10) == 0);
    end(p);
    end_queue(q);
}

CASE("recv-1", peek_leaves_the_data, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char in[10];
    int i;

    GIVES(0, exs_recv(p.b, in, sizeof in, MSG_PEEK, q, 1, UNREG));
    send_all(p.a, "01234", 5);
    GIVES(5, LENGTH(next(q, EXS_EVT_RECV)));
    for (i = 0; i < 3; i++) {
        memset(in, 0, sizeof in);
        GIVES(0, exs_recv(p.b, in, sizeof in, MSG_PEEK, q, 1, UNREG));
        GIVES(5, LENGTH(next(q, EXS_EVT_RECV)));
        CHECK(memcmp(in, "01234", 5) == 0);
        GIVES(5, exs_recv(p.b, in, sizeof in, MSG_PEEK, BLOCK, UNREG));
    }
    GIVES(5, exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG));
    FAILS(EAGAIN, exs_recv(p.b, in, sizeof in, MSG_DONTWAIT, BLOCK, UNREG));
    end(p);
    end_queue(q);
}

CASE("recv-2", the_end_of_the_data_is_no_bytes, CONNECTED)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char in[10];
    exs_event_t e;
    int i;

    GIVES(0, exs_recv(p.b, in, sizeof in, 0, q, 1, UNREG));
    GIVES(0, exs_shutdown(p.a, SHUT_WR, BLOCK));
    for (i = 0; i < 3; i++) {
        /* now and for ever */
        e = next(q, EXS_EVT_RECV);
        GIVES(0, LENGTH(e));
        CHECK(e.exs_evt_flags & EXS_EVF_EOF);
        GIVES(0, exs_recv(p.b, in, sizeof in, 0, q, 1, UNREG));
    }
    next(q, EXS_EVT_RECV);
    GIVES(0, exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG));
    end(p);
    end_queue(q);
}

CASE("recv-4 qdequeue-8", receives_are_filled_in_order, SOCKETS)
{
    enum { N = 16 };
    struct pair p = connection();
    exs_qhandle_t q = new_queue(N);
    char in[N][10], out[10];
    exs_event_t e;
    int i;

    for (i = 0; i < N; i++)
        GIVES(0, exs_recv(p.b, in[i], 10, world & STREAMS ? MSG_WAITALL : 0, q, (exs_ahandle_t)i,
                          UNREG));
    for (i = 0; i < N; i++) {
        fill(out, 10, (size_t)i * 10);
        send_all(p.a, out, 10);
    }
    for (i = 0; i < N; i++) {
        e = next(q, EXS_EVT_RECV);
        GIVES(i, e.exs_evt_ahandle);
        GIVES(10, LENGTH(e));
        VERIFY(in[i], 10, (size_t)i * 10);
    }
    end(p);
    end_queue(q);
}

CASE("all-6", into_nothing_comes_nothing, STREAMS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char in[4];
    exs_event_t e;

    send_all(p.a, "abc", 3);
    GIVES(0, exs_recv(p.b, in, 0, 0, q, 1, UNREG));
    e = next(q, EXS_EVT_RECV);
    GIVES(0, LENGTH(e));
    CHECK(!(e.exs_evt_flags & EXS_EVF_EOF));
    GIVES(3, exs_recv(p.b, in, 3, MSG_WAITALL, BLOCK, UNREG));
    CHECK(memcmp(in, "abc", 3) == 0);
    end(p);
    end_queue(q);
}

CASE("recv-3", a_message_too_long_is_cut_and_reported, MESSAGES)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char in[20];
    exs_event_t e;

    memset(in, '-', sizeof in);
    GIVES(0, exs_recv(p.b, in, 4, 0, q, 1, UNREG));
    send_all(p.a, "0123456789", 10);
    e = next(q, EXS_EVT_RECV);
    GIVES(4, LENGTH(e));
    CHECK(e.exs_evt_flags & EXS_EVF_TRUNC);
    GIVES(10, e.exs_evt_union.exs_evt_xfer.exs_evt_total);
    CHECK(memcmp(in, "0123----", 8) == 0);
    /* the rest of it is gone */
    send_all(p.a, "next", 4);
    GIVES(4, exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG));
    CHECK(memcmp(in, "next", 4) == 0);
    send_all(p.a, "0123456789", 10);
    GIVES(10, exs_recv(p.b, in, 4, MSG_TRUNC, BLOCK, UNREG));
    end(p);
    end_queue(q);
}

CASE("all-1 all-4 all-5 all-6 all-7", bad_arguments_are_refused_and_leave_nothing, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char byte = 'x';
    int pipe_[2];

    CHECK(pipe(pipe_) == 0);
    FAILS(EBADF, exs_recv(-1, &byte, 1, 0, q, 0, UNREG));
    FAILS(EBADF, exs_recv(12345, &byte, 1, 0, q, 0, UNREG));
    FAILS(ENOTSOCK, exs_recv(pipe_[0], &byte, 1, 0, q, 0, UNREG));
    FAILS(EFAULT, exs_recv(p.a, NULL, 1, 0, q, 0, UNREG));
    FAILS(EFAULT, exs_recv(p.a, (void *)(UINTPTR_MAX - 15), 64, 0, q, 0, UNREG));
    FAILS(EFAULT, exs_recv(p.a, &byte, (size_t)(ssize_t)-1, 0, q, 0, UNREG));
    FAILS(EFAULT, exs_recv(p.a, &byte, (size_t)(ssize_t)-1, 0, BLOCK, UNREG));
    FAILS(EINVAL, exs_recv(p.a, &byte, 1, 0, q, 0, EXS_MHANDLE_INVALID));
    FAILS(EINVAL, exs_recv(p.a, &byte, 1, 0, 4242, 0, UNREG));
    FAILS(ON_EXS ? EINVAL : EOPNOTSUPP, exs_recv(p.a, &byte, 1, MSG_OOB, q, 0, UNREG));
    FAILS(ON_EXS ? EAGAIN : EOPNOTSUPP, exs_recv(p.a, &byte, 1, MSG_ERRQUEUE, q, 0, UNREG));
    nothing(q);
    close(pipe_[0]);
    close(pipe_[1]);
    end(p);
    end_queue(q);
}

CASE("recv-5", without_a_connection_it_fails, TCP | EXS | EXSMSG)
{
    int fd = new_socket();
    exs_qhandle_t q = new_queue(4);
    char byte;

    if (exs_recv(fd, &byte, 1, 0, q, 0, UNREG) == 0)
        next_failed(q, EXS_EVT_RECV, ENOTCONN);
    else
        GIVES(ENOTCONN, errno);
    FAILS(ENOTCONN, exs_recv(fd, &byte, 1, 0, BLOCK, UNREG));
    end_one(fd);
    end_queue(q);
}

CASE("recv-1", data_that_came_before_it_are_there, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char in[10];

    send_all(p.a, "01234", 5);
    GIVES(0, exs_recv(p.b, in, sizeof in, 0, q, 1, UNREG));
    GIVES(5, LENGTH(next(q, EXS_EVT_RECV)));
    CHECK(memcmp(in, "01234", 5) == 0);
    end(p);
    end_queue(q);
}

CASE("recv-1", both_ends_send_much_at_once, STREAMS)
{
    enum { MUCH = 1 << 20 };
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char *out = malloc(MUCH), *a = malloc(MUCH), *b = malloc(MUCH);
    exs_event_t e[4];
    int i;

    CHECK(out && a && b);
    fill(out, MUCH, 0);
    GIVES(0, exs_send(p.a, out, MUCH, 0, q, 1, UNREG));
    GIVES(0, exs_send(p.b, out, MUCH, 0, q, 2, UNREG));
    GIVES(0, exs_recv(p.a, a, MUCH, MSG_WAITALL, q, 3, UNREG));
    GIVES(0, exs_recv(p.b, b, MUCH, MSG_WAITALL, q, 4, UNREG));
    GIVES(4, exs_qdequeue(q, e, -4, NULL));
    for (i = 0; i < 4; i++)
        CHECK(e[i].exs_evt_errno == 0 && LENGTH(e[i]) == MUCH);
    VERIFY(a, MUCH, 0);
    VERIFY(b, MUCH, 0);
    free(out);
    free(a);
    free(b);
    end(p);
    end_queue(q);
}
