/* Calls without a queue: what their socket twins return. */
#include "net.h"

#include <fcntl.h>

CASE("all-3", send_and_receive_return_bytes, SOCKETS)
{
    struct pair p = connection();
    char out[100], in[200];

    fill(out, sizeof out, 0);
    GIVES(100, exs_send(p.a, out, sizeof out, 0, BLOCK, UNREG));
    GIVES(100, exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG));
    VERIFY(in, sizeof out, 0);
    end(p);
}

CASE("all-9", nonblocking_does_not_wait, SOCKETS)
{
    struct pair p = connection();
    exs_pollfd_t poll = {p.b, EXS_POLLIN, 0, 0};
    char in[4];

    FAILS(EAGAIN, exs_recv(p.b, in, 4, MSG_DONTWAIT, BLOCK, UNREG));
    GIVES(0, exs_fcntl(p.b, F_SETFL, exs_fcntl(p.b, F_GETFL) | O_NONBLOCK));
    FAILS(EAGAIN, exs_recv(p.b, in, 4, 0, BLOCK, UNREG));
    send_all(p.a, "x", 1);
    GIVES(1, exs_poll(&poll, 0, BLOCK));
    GIVES(1, exs_recv(p.b, in, 4, 0, BLOCK, UNREG));
    GIVES('x', in[0]);
    end(p);
}

CASE("all-9", nonblocking_means_nothing_to_a_queue, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char in[4];

    GIVES(0, exs_fcntl(p.b, F_SETFL, exs_fcntl(p.b, F_GETFL) | O_NONBLOCK));
    GIVES(0, exs_recv(p.b, in, 4, MSG_DONTWAIT, q, 1, UNREG));
    nothing(q);
    send_all(p.a, "x", 1);
    next(q, EXS_EVT_RECV);
    end(p);
    end_queue(q);
}

/* A stream of which each byte tells where it belongs, sent and taken without waiting. */
struct flow {
    int from, to;
    size_t sent, got;
};

static int send_some(struct flow *f)
{
    static char out[1 << 20];
    int n;

    fill(out, sizeof out, f->sent);
    n = exs_send(f->from, out, sizeof out, MSG_DONTWAIT, BLOCK, UNREG);
    if (n > 0)
        f->sent += (size_t)n;
    return n;
}

static int take_some(struct flow *f, int flags)
{
    static char in[1 << 16];
    int n = exs_recv(f->to, in, sizeof in, flags, BLOCK, UNREG);

    if (n > 0)
        VERIFY(in, (size_t)n, f->got);
    f->got += n > 0 ? (size_t)n : 0;
    return n;
}

CASE("all-9 poll-4", a_full_connection_does_not_wait_if_told_so, STREAMS)
{
    struct pair p = connection();
    struct flow f = {p.a, p.b, 0, 0};
    exs_qhandle_t q = new_queue(1);
    exs_pollfd_t poll = {p.a, EXS_POLLOUT, 0, 0};
    int round, n;

    /* the first call is taken, however new the connection is */
    GIVES(1, exs_poll(&poll, 0, BLOCK));
    CHECK(send_some(&f) > 0);
    for (round = 0; round < 10; round++) {
        while ((n = send_some(&f)) > 0)
            ;
        GIVES(-1, n);
        GIVES(EAGAIN, errno);
        /* what poll says is what a call finds, each time */
        GIVES(0, exs_poll(&poll, 0, q, 1));
        while (exs_qdequeue(q, &(exs_event_t){0}, 1, &(struct timeval){0, 0}) == 0)
            CHECK(take_some(&f, MSG_DONTWAIT) > 0 || errno == EAGAIN);
        CHECK(send_some(&f) > 0);
    }
    /* what was said to be sent, and no more, arrives */
    GIVES(0, exs_shutdown(p.a, SHUT_WR, q, 1));
    while ((n = take_some(&f, 0)) > 0)
        ;
    GIVES(0, n);
    CHECK(f.sent == f.got);
    next(q, EXS_EVT_SHUTDOWN);
    end(p);
    end_queue(q);
}

CASE("all-9 all-15", what_was_taken_is_the_librarys, EXS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(1);
    struct timeval soon = {0, 1000};
    static char out[100000], in[100000], more[16 << 20];
    size_t left;
    int n;

    /* the memory is the program's again, and a cancel does not reach what was taken */
    fill(out, sizeof out, 0);
    GIVES(sizeof out, exs_send(p.a, out, sizeof out, MSG_DONTWAIT, BLOCK, UNREG));
    memset(out, 'z', sizeof out);
    GIVES(0, exs_cancel(p.a, EXS_CAF_FILDES, 0));
    GIVES(0, exs_cancel(p.a, EXS_CAF_AHANDLE, sizeof out));
    recv_all(p.b, in, sizeof in);
    VERIFY(in, sizeof in, 0);
    /* nor does a time limit, which is over when that of a later send is; nor close(2) */
    GIVES(0, exs_setsockopt(p.a, SOL_SOCKET, SO_ASYNC_SEND_TIMEOUT, &soon, sizeof soon));
    for (left = 0; (n = exs_send(p.a, out, sizeof out, MSG_DONTWAIT, BLOCK, UNREG)) > 0;)
        left += (size_t)n;
    GIVES(EAGAIN, errno);
    GIVES(0, exs_send(p.a, more, sizeof more, 0, q, 1, UNREG));
    left += LENGTH(next_failed(q, EXS_EVT_SENDTIMEOUT, ETIMEDOUT));
    GIVES(0, close(p.a));
    for (; left > 0; left -= (size_t)n) {
        n = exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG);
        CHECK(n > 0 && (size_t)n <= left);
    }
    GIVES(0, exs_recv(p.b, in, 1, 0, BLOCK, UNREG));
    end_one(p.b);
    end_queue(q);
}

CASE("all-9 all-15", messages_are_taken_whole_or_not_at_all, EXSMSG)
{
    struct pair p = connection();
    exs_pollfd_t poll = {p.a, EXS_POLLOUT, 0, 0};
    static char out[600000], in[sizeof out + 1];
    int n = 0, i;

    /* a long one, which waits for its receive: the memory is free all the same */
    fill(out, sizeof out, 0);
    GIVES(1, exs_poll(&poll, 0, BLOCK));
    GIVES(sizeof out, exs_send(p.a, out, sizeof out, MSG_DONTWAIT, BLOCK, UNREG));
    FAILS(EAGAIN, exs_send(p.a, out, 1, MSG_DONTWAIT, BLOCK, UNREG));
    memset(out, 'z', sizeof out);
    GIVES(sizeof out, exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG));
    VERIFY(in, sizeof out, 0);
    GIVES(1, exs_poll(&poll, 0, BLOCK));
    /* many, down to those of no bytes: there is an end to what is taken */
    while (exs_send(p.a, out, (size_t)(n % 2) * 50000, MSG_DONTWAIT, BLOCK, UNREG) ==
           n % 2 * 50000)
        n++;
    GIVES(EAGAIN, errno);
    CHECK(n > 0);
    for (i = 0; i < n; i++)
        GIVES(i % 2 * 50000, exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG));
    FAILS(EAGAIN, exs_recv(p.b, in, sizeof in, MSG_DONTWAIT, BLOCK, UNREG));
    end(p);
}

CASE("all-9 poll-4", what_poll_says_a_receive_finds, SOCKETS)
{
    struct pair p = connection();
    exs_pollfd_t poll = {p.b, EXS_POLLIN, 0, 0};
    char in[200], out[200];
    int i, n;

    fill(out, sizeof out, 0);
    for (i = 1; i <= 20; i++) {
        FAILS(EAGAIN, exs_recv(p.b, in, sizeof in, MSG_DONTWAIT, BLOCK, UNREG));
        send_all(p.a, out, (size_t)i * 10);
        GIVES(1, exs_poll(&poll, 0, BLOCK));
        n = exs_recv(p.b, in, sizeof in, MSG_DONTWAIT | MSG_WAITALL, BLOCK, UNREG);
        GIVES(i * 10, n);
        VERIFY(in, (size_t)n, 0);
    }
    end(p);
}

static void take_without_waiting(void *fd)
{
    exs_pollfd_t poll = {*(int *)fd, EXS_POLLIN, 0, 0};
    char in;
    int n;

    do {
        GIVES(1, exs_poll(&poll, 0, BLOCK));
        n = exs_recv(*(int *)fd, &in, 1, MSG_DONTWAIT, BLOCK, UNREG);
        CHECK(n >= 0 || errno == EAGAIN);
    } while (n != 0);
}

CASE("all-9", of_two_threads_that_do_not_wait_neither_waits, STREAMS)
{
    struct pair p = connection();
    struct thread *t[2];
    int i;

    /* both learn that there is one byte: one takes it, the other must come back */
    for (i = 0; i < 2; i++)
        t[i] = start(take_without_waiting, &p.b);
    for (i = 0; i < 200; i++)
        send_all(p.a, "x", 1);
    GIVES(0, exs_shutdown(p.a, SHUT_WR, BLOCK));
    for (i = 0; i < 2; i++)
        join(t[i]);
    end(p);
}

CASE("shutdown-4 all-15", an_end_that_is_not_waited_for_comes_last, STREAMS)
{
    struct pair p = connection();
    struct flow f = {p.a, p.b, 0, 0};
    char in;
    int n;

    GIVES(0, exs_fcntl(p.a, F_SETFL, exs_fcntl(p.a, F_GETFL) | O_NONBLOCK));
    while ((n = send_some(&f)) > 0)
        ;
    GIVES(-1, n);
    GIVES(EAGAIN, errno);
    GIVES(0, exs_shutdown(p.a, SHUT_WR, BLOCK));
    FAILS(EPIPE, exs_send(p.a, "x", 1, 0, BLOCK, UNREG));
    while ((n = take_some(&f, 0)) > 0)
        ;
    GIVES(0, n);
    CHECK(f.sent == f.got);
    /* the other direction goes on, until it is ended, too */
    send_all(p.b, "y", 1);
    GIVES(0, exs_fcntl(p.a, F_SETFL, exs_fcntl(p.a, F_GETFL) & ~O_NONBLOCK));
    GIVES(1, exs_recv(p.a, &in, 1, 0, BLOCK, UNREG));
    GIVES('y', in);
    GIVES(0, exs_fcntl(p.a, F_SETFL, exs_fcntl(p.a, F_GETFL) | O_NONBLOCK));
    GIVES(0, exs_shutdown(p.a, SHUT_RD, BLOCK));
    GIVES(0, exs_fcntl(p.a, F_SETFL, exs_fcntl(p.a, F_GETFL) & ~O_NONBLOCK));
    GIVES(0, exs_recv(p.a, &in, 1, 0, BLOCK, UNREG));
    end(p);
}

CASE("shutdown-4 shutdown-3", without_a_connection_there_is_no_end, EXS | EXSMSG)
{
    int fd = new_socket();

    GIVES(0, exs_fcntl(fd, F_SETFL, O_NONBLOCK));
    FAILS(ENOTCONN, exs_shutdown(fd, SHUT_WR, BLOCK));
    FAILS(ENOTCONN, exs_shutdown(fd, SHUT_RDWR, BLOCK));
    end_one(fd);
}

static void receive_late(void *fd)
{
    static char in[1 << 20];

    recv_all(*(int *)fd, in, sizeof in);
    VERIFY(in, sizeof in, 0);
}

CASE("all-3", a_long_send_waits_for_the_receiver, STREAMS)
{
    struct pair p = connection();
    static char out[1 << 20];
    struct thread *t;

    fill(out, sizeof out, 0);
    t = start(receive_late, &p.b);
    GIVES(sizeof out, exs_send(p.a, out, sizeof out, 0, BLOCK, UNREG));
    join(t);
    end(p);
}

CASE("recv-4", it_goes_between_operations_with_events, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char in[2];

    GIVES(0, exs_recv(p.b, &in[0], 1, 0, q, 1, UNREG));
    send_all(p.a, "1", 1);
    send_all(p.a, "2", 1);
    /* receives are filled in order, whichever thread waits for them */
    next(q, EXS_EVT_RECV);
    GIVES(1, exs_recv(p.b, &in[1], 1, 0, BLOCK, UNREG));
    CHECK(in[0] == '1' && in[1] == '2');
    end(p);
    end_queue(q);
}
