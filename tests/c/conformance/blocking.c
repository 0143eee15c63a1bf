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
    char in[4];

    FAILS(EAGAIN, exs_recv(p.b, in, 4, MSG_DONTWAIT, BLOCK, UNREG));
    GIVES(0, exs_fcntl(p.b, F_SETFL, exs_fcntl(p.b, F_GETFL) | O_NONBLOCK));
    FAILS(EAGAIN, exs_recv(p.b, in, 4, 0, BLOCK, UNREG));
    send_all(p.a, "x", 1);
    while (exs_recv(p.b, in, 4, 0, BLOCK, UNREG) == -1)
        GIVES(EAGAIN, errno);
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

CASE("all-9", a_full_connection_does_not_wait_if_told_so, STREAMS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(1);
    static char out[1 << 20];
    long long sent = 0;
    int n;

    /* (EXS: what the peer has room for is known a moment after the first try.) */
    do {
        while ((n = exs_send(p.a, out, sizeof out, MSG_DONTWAIT, BLOCK, UNREG)) > 0)
            sent += n;
        GIVES(-1, n);
        GIVES(EAGAIN, errno);
    } while (sent == 0);
    /* what was said to be sent, and no more, arrives */
    GIVES(0, exs_shutdown(p.a, SHUT_WR, q, 1));
    while ((n = exs_recv(p.b, out, sizeof out, 0, BLOCK, UNREG)) > 0)
        sent -= n;
    GIVES(0, n);
    GIVES(0, sent);
    next(q, EXS_EVT_SHUTDOWN);
    end(p);
    end_queue(q);
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
    /* receives are filled in order, whoever waits for them */
    next(q, EXS_EVT_RECV);
    GIVES(1, exs_recv(p.b, &in[1], 1, 0, BLOCK, UNREG));
    CHECK(in[0] == '1' && in[1] == '2');
    end(p);
    end_queue(q);
}
