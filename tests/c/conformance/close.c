/* exs_shutdown, exs_close, close(2). */
#include "net.h"

#include <fcntl.h>

CASE("shutdown-1", the_peer_sees_the_end_after_the_data, CONNECTED)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    static char out[200000], in[200000];
    exs_event_t e;
    int i;

    fill(out, sizeof out, 0);
    GIVES(0, exs_send(p.a, out, sizeof out, 0, q, 1, UNREG));
    GIVES(0, exs_shutdown(p.a, SHUT_WR, q, 2));
    if (world == EXSMSG)
        GIVES(sizeof in, exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG));
    else
        recv_all(p.b, in, sizeof in);
    VERIFY(in, sizeof in, 0);
    GIVES(0, exs_recv(p.b, in, 1, 0, BLOCK, UNREG));
    for (i = 1; i <= 2; i++) {
        e = next_any(q);
        GIVES(i, e.exs_evt_ahandle);
        GIVES(0, e.exs_evt_errno);
        GIVES(i == 1 ? EXS_EVT_SEND : EXS_EVT_SHUTDOWN, e.exs_evt_type);
        GIVES(p.a, e.exs_evt_socket);
    }
    /* the other direction goes on */
    send_all(p.b, "x", 1);
    GIVES(1, exs_recv(p.a, in, 1, 0, BLOCK, UNREG));
    end(p);
    end_queue(q);
}

CASE("shutdown-2", reading_can_be_ended, CONNECTED)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char in;

    GIVES(0, exs_shutdown(p.a, SHUT_RD, q, 1));
    next(q, EXS_EVT_SHUTDOWN);
    GIVES(0, exs_recv(p.a, &in, 1, 0, BLOCK, UNREG));
    send_all(p.a, "x", 1);
    GIVES(1, exs_recv(p.b, &in, 1, 0, BLOCK, UNREG));
    end(p);
    end_queue(q);
}

CASE("shutdown-2 recv-2 poll-4", an_end_of_reading_is_found_without_waiting, CONNECTED)
{
    struct pair p = connection();
    exs_pollfd_t f;
    exs_iovec_t v;
    exs_msghdr_t m;
    char in;
    int n;

    memset(&f, 0, sizeof f);
    memset(&m, 0, sizeof m);
    memset(&v, 0, sizeof v);
    f.exs_pfd_fd = p.a;
    f.exs_pfd_events = EXS_POLLIN;
    v.exs_iov_base = &in;
    v.exs_iov_len = 1;
    v.exs_iov_mhandle = UNREG;
    m.exs_msg_iov = &v;
    m.exs_msg_iovlen = 1;
    GIVES(0, exs_shutdown(p.a, SHUT_RD, BLOCK));
    GIVES(0, exs_recv(p.a, &in, 1, MSG_DONTWAIT, BLOCK, UNREG));
    GIVES(0, exs_recv(p.a, &in, 1, MSG_DONTWAIT | MSG_PEEK, BLOCK, UNREG));
    GIVES(0, exs_recvmsg(p.a, &m, MSG_DONTWAIT, BLOCK));
    GIVES(1, exs_poll(&f, 0, BLOCK));
    CHECK(f.exs_pfd_revents & EXS_POLLIN);
    n = fcntl(p.a, F_GETFL);
    GIVES(0, fcntl(p.a, F_SETFL, n | O_NONBLOCK));
    GIVES(0, exs_recv(p.a, &in, 1, 0, BLOCK, UNREG));
    end(p);
}

CASE("shutdown-2", both_directions, CONNECTED)
{
    struct pair p = connection();
    char in;

    GIVES(0, exs_shutdown(p.a, SHUT_RDWR, BLOCK));
    GIVES(0, exs_recv(p.a, &in, 1, 0, BLOCK, UNREG));
    GIVES(0, exs_recv(p.b, &in, 1, 0, BLOCK, UNREG));
    FAILS(EPIPE, exs_send(p.a, &in, 1, 0, BLOCK, UNREG));
    end(p);
}

CASE("shutdown-3", what_makes_no_sense_is_refused, TCP | EXS | EXSMSG)
{
    int fd = new_socket();
    exs_qhandle_t q = new_queue(4);

    FAILS(EINVAL, exs_shutdown(fd, 3, q, 1));
    FAILS(EINVAL, exs_shutdown(fd, -1, BLOCK));
    FAILS(EBADF, exs_shutdown(-1, SHUT_WR, q, 1));
    FAILS(EINVAL, exs_shutdown(fd, SHUT_WR, 4242, 1));
    FAILS(ENOTCONN, exs_shutdown(fd, SHUT_WR, BLOCK));
    if (exs_shutdown(fd, SHUT_WR, q, 1) == 0)
        next_failed(q, EXS_EVT_SHUTDOWN, ENOTCONN);
    else
        GIVES(ENOTCONN, errno);
    end_one(fd);
    end_queue(q);
}

CASE("close-1", the_event_says_that_it_is_over, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    exs_event_t e;
    char in;

    GIVES(0, exs_close(p.a, 0, q, 3));
    FAILS(EBADF, fcntl(p.a, F_GETFD));
    if (world != UDP)
        GIVES(0, exs_recv(p.b, &in, 1, 0, BLOCK, UNREG));
    GIVES(0, exs_close(p.b, 0, BLOCK));
    e = next(q, EXS_EVT_CLOSE);
    GIVES(p.a, e.exs_evt_socket);
    GIVES(3, e.exs_evt_ahandle);
    nothing(q);
    end_queue(q);
}

CASE("close-2", what_was_sent_is_delivered_first, CONNECTED)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    static char out[150000], in[150000];

    fill(out, sizeof out, 0);
    GIVES(0, exs_send(p.a, out, sizeof out, 0, q, 1, UNREG));
    if (!ON_EXS) /* close(2) of a kernel socket leaves what was not handed over yet */
        next(q, EXS_EVT_SEND);
    GIVES(0, exs_close(p.a, 0, q, 2));
    if (world == EXSMSG)
        GIVES(sizeof in, exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG));
    else
        recv_all(p.b, in, sizeof in);
    VERIFY(in, sizeof in, 0);
    GIVES(0, exs_recv(p.b, in, 1, 0, BLOCK, UNREG));
    GIVES(0, exs_close(p.b, 0, BLOCK));
    if (ON_EXS)
        next(q, EXS_EVT_SEND);
    next(q, EXS_EVT_CLOSE);
    end_queue(q);
}

CASE("close-4", receives_that_wait_are_cancelled, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(8);
    char in[3];
    exs_event_t e;
    int i, closed = 0;

    for (i = 0; i < 3; i++)
        GIVES(0, exs_recv(p.a, &in[i], 1, 0, q, (exs_ahandle_t)i, UNREG));
    GIVES(0, exs_close(p.a, 0, q, 9));
    for (i = 0; i < 4; i++) {
        e = next_any(q);
        if (e.exs_evt_type == EXS_EVT_CLOSE) {
            closed++;
            continue;
        }
        GIVES(EXS_EVT_RECV, e.exs_evt_type);
        GIVES(ECANCELED, e.exs_evt_errno);
    }
    GIVES(1, closed);
    nothing(q);
    end_one(p.b);
    end_queue(q);
}

CASE("close-5", an_abort_cuts_it, CONNECTED)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char in;
    int n;

    GIVES(0, exs_close(p.a, EXS_CLOSE_ABORT, q, 1));
    GIVES(1, exs_qdequeue(q, &(exs_event_t){0}, 1, NULL));
    n = exs_recv(p.b, &in, 1, 0, BLOCK, UNREG);
    if (ON_EXS) {
        GIVES(-1, n);
        GIVES(ECONNRESET, errno);
    } else {
        /* close(2) of a kernel socket is orderly, unless data wait in it */
        GIVES(0, n);
    }
    end_one(p.b);
    end_queue(q);
}

CASE("close-6", it_succeeds_though_the_peer_has_cut_it, CONNECTED)
{
    static char out[8 << 20]; /* more than there is room for */
    exs_qhandle_t q = new_queue(4);
    exs_event_t e;
    char in;
    int round;

    /* whether or not the cut was seen before, as with close(2) */
    for (round = 0; round < 50; round++) {
        struct pair p = connection();

        send_all(p.a, "x", 1);
        GIVES(0, exs_close(p.b, EXS_CLOSE_ABORT, BLOCK));
        if (round % 2 && exs_recv(p.a, &in, 1, 0, BLOCK, UNREG) == -1)
            GIVES(ECONNRESET, errno);
        GIVES(0, exs_close(p.a, 0, BLOCK));
    }
    /* what was in flight has its own event, which says what became of it */
    for (round = 0; round < 20; round++) {
        struct pair p = connection();

        GIVES(0, exs_send(p.a, out, sizeof out, 0, q, 1, UNREG));
        GIVES(0, exs_close(p.b, EXS_CLOSE_ABORT, BLOCK));
        GIVES(0, exs_close(p.a, 0, BLOCK));
        e = next_any(q);
        GIVES(EXS_EVT_SEND, e.exs_evt_type);
        CHECK(e.exs_evt_errno == ECONNRESET || e.exs_evt_errno == EPIPE ||
              /* a kernel socket: it was cancelled by the close; or the kernel has room for it */
              (!ON_EXS && (e.exs_evt_errno == ECANCELED || e.exs_evt_errno == 0)));
    }
    end_queue(q);
}

CASE("close-6", its_event_says_what_it_found, EXS | EXSMSG)
{
    exs_qhandle_t q = new_queue(4);
    exs_event_t e;
    int round;
    char in;

    for (round = 0; round < 20; round++) {
        struct pair p = connection();

        GIVES(0, exs_close(p.b, EXS_CLOSE_ABORT, BLOCK));
        /* once it is told, it is no news; else it may be what the close finds */
        if (round % 2)
            FAILS(ECONNRESET, exs_recv(p.a, &in, 1, 0, BLOCK, UNREG));
        GIVES(0, exs_close(p.a, 0, q, 1));
        e = next_any(q);
        GIVES(EXS_EVT_CLOSE, e.exs_evt_type);
        CHECK(e.exs_evt_errno == 0 || (round % 2 == 0 && e.exs_evt_errno == ECONNRESET));
    }
    end_queue(q);
}

CASE("close-6 all-15", it_reports_bytes_that_no_other_call_reports, EXS | EXSMSG)
{
    static char out[100000], more[8 << 20];
    exs_qhandle_t q = new_queue(1);
    int round, error;
    socklen_t len = sizeof error;

    for (round = 0; round < 2; round++) {
        struct pair p = connection();

        /* taken by a call that did not wait, behind more than there is room for */
        GIVES(0, exs_send(p.a, more, sizeof more, 0, q, 1, UNREG));
        GIVES(sizeof out, exs_send(p.a, out, sizeof out, MSG_DONTWAIT, BLOCK, UNREG));
        GIVES(0, exs_close(p.b, EXS_CLOSE_ABORT, BLOCK));
        if (round) {
            FAILS(ECONNRESET, exs_recv(p.a, out, 1, 0, BLOCK, UNREG));
            GIVES(0, exs_getsockopt(p.a, SOL_SOCKET, SO_ERROR, &error, &len));
            GIVES(0, error); /* it was told */
            GIVES(0, exs_close(p.a, 0, BLOCK));
        } else {
            GIVES(-1, exs_close(p.a, 0, BLOCK));
            CHECK(errno == ECONNRESET || errno == EPIPE);
        }
        FAILS(EBADF, exs_close(p.a, 0, BLOCK));
        CHECK(next_any(q).exs_evt_errno != 0);
    }
    end_queue(q);
}

CASE("close-3 fd-2", a_copy_keeps_it_open, CONNECTED)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    int copy = dup(p.a);
    char in;

    CHECK(copy >= 0);
    GIVES(0, exs_close(p.a, 0, q, 1));
    next(q, EXS_EVT_CLOSE);
    FAILS(EBADF, exs_send(p.a, "x", 1, 0, BLOCK, UNREG));
    send_all(copy, "x", 1);
    GIVES(1, exs_recv(p.b, &in, 1, 0, BLOCK, UNREG));
    send_all(p.b, "y", 1);
    GIVES(1, exs_recv(copy, &in, 1, 0, BLOCK, UNREG));
    GIVES('y', in);
    end_one(copy);
    GIVES(0, exs_recv(p.b, &in, 1, 0, BLOCK, UNREG) > 0);
    end_one(p.b);
    end_queue(q);
}

CASE("fd-3", close_2_ends_it_too, CONNECTED)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char in[5];

    send_all(p.a, "12345", 5);
    GIVES(0, close(p.a));
    GIVES(5, exs_recv(p.b, in, 5, MSG_WAITALL, BLOCK, UNREG));
    GIVES(0, exs_recv(p.b, in, 1, 0, BLOCK, UNREG));
    FAILS(EBADF, exs_send(p.a, in, 1, 0, q, 1, UNREG));
    end_one(p.b);
    end_queue(q);
}

CASE("fd-3 close-4", close_2_cancels_what_is_in_flight, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char in;

    GIVES(0, exs_recv(p.a, &in, 1, 0, q, 1, UNREG));
    GIVES(0, close(p.a));
    next_failed(q, EXS_EVT_RECV, ECANCELED);
    end_one(p.b);
    end_queue(q);
}

CASE("fd-4", a_number_that_is_used_again_is_another_socket, CONNECTED)
{
    struct pair p = connection(), other = connection();
    exs_qhandle_t q = new_queue(4);
    char in = 0;

    GIVES(0, exs_recv(p.a, &in, 1, 0, q, 1, UNREG));
    /* p.a is closed here, and its number is other.a's */
    GIVES(p.a, dup2(other.a, p.a));
    next_failed(q, EXS_EVT_RECV, ECANCELED);
    send_all(p.a, "z", 1);
    GIVES(1, exs_recv(other.b, &in, 1, 0, BLOCK, UNREG));
    GIVES('z', in);
    end_one(p.a);
    end(other);
    end_one(p.b);
    end_queue(q);
}

CASE("all-4 all-5", what_cannot_be_closed_is_refused, SOCKETS)
{
    struct pair p = connection();
    int pipe_[2];

    CHECK(pipe(pipe_) == 0);
    FAILS(EBADF, exs_close(-1, 0, BLOCK));
    FAILS(EBADF, exs_close(12345, 0, BLOCK));
    FAILS(ENOTSOCK, exs_close(pipe_[0], 0, BLOCK));
    FAILS(EINVAL, exs_close(p.a, 2, BLOCK));
    FAILS(EINVAL, exs_close(p.a, 0, 4242, 0));
    /* it was refused: the socket is still there */
    send_all(p.a, "x", 1);
    close(pipe_[0]);
    close(pipe_[1]);
    end(p);
    FAILS(EBADF, exs_close(p.a, 0, BLOCK));
}

CASE("all-2", a_full_queue_refuses_and_keeps_it_open, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(1);
    char in;

    GIVES(0, exs_recv(p.b, &in, 1, 0, q, 1, UNREG));
    FAILS(EAGAIN, exs_close(p.a, 0, q, 2));
    send_all(p.a, "x", 1);
    next(q, EXS_EVT_RECV);
    end(p);
    end_queue(q);
}

CASE("fd-5", shutdown_2_of_the_descriptor_is_its_close, EXS | EXSMSG)
{
    struct pair p = connection();
    char in;

    GIVES(0, shutdown(p.a, SHUT_RDWR));
    GIVES(0, exs_recv(p.b, &in, 1, 0, BLOCK, UNREG));
    GIVES(0, close(p.a));
    end_one(p.b);
}
