/* Kernel sockets: their owner goes on using them, and they share queues with EXS's. */
#include "net.h"

#include <fcntl.h>

CASE("kernel-1", the_socket_stays_as_its_owner_left_it, KERNEL)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(8);
    int flags = fcntl(p.a, F_GETFL), size = 0, now = 0;
    socklen_t len = sizeof size;
    char in[8];

    GIVES(0, getsockopt(p.a, SOL_SOCKET, SO_SNDBUF, &size, &len));
    GIVES(0, exs_send(p.a, "ab", 2, 0, q, 1, UNREG));
    GIVES(0, exs_recv(p.a, in, 1, 0, q, 2, UNREG));
    GIVES(flags, fcntl(p.a, F_GETFL)); /* while operations are in flight, too */
    next(q, EXS_EVT_SEND);
    GIVES(1, exs_cancel(p.a, EXS_CAF_FILDES, 0));
    next_failed(q, EXS_EVT_RECV, ECANCELED);
    GIVES(flags, fcntl(p.a, F_GETFL));
    GIVES(0, getsockopt(p.a, SOL_SOCKET, SO_SNDBUF, &now, &len));
    GIVES(size, now);
    /* its owner's own calls, on either end */
    GIVES(2, recv(p.b, in, sizeof in, 0));
    GIVES(3, send(p.b, "cde", 3, 0));
    GIVES(3, recv(p.a, in, 3, MSG_WAITALL));
    if (world != UDP) {
        GIVES(0, shutdown(p.a, SHUT_WR));
        GIVES(0, recv(p.b, in, 1, 0));
        GIVES(1, send(p.b, "f", 1, 0));
        GIVES(1, recv(p.a, in, 1, 0));
    }
    GIVES(0, close(p.a));
    GIVES(0, close(p.b));
    end_queue(q);
}

CASE("kernel-2", a_peer_needs_to_know_nothing_of_exs, STREAMS & KERNEL)
{
    int pair[2];
    exs_qhandle_t q = new_queue(8);
    static char out[300000], in[300000];
    struct pair p;
    size_t done = 0;
    ssize_t n;

    if (world == LOCAL) {
        GIVES(0, socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
        p = (struct pair){pair[0], pair[1]};
    } else {
        p = connection();
    }
    fill(out, sizeof out, 0);
    GIVES(0, exs_send(p.a, out, sizeof out, 0, q, 1, UNREG));
    while (done < sizeof in) {
        n = recv(p.b, in + done, sizeof in - done, 0);
        CHECK(n > 0);
        done += (size_t)n;
    }
    VERIFY(in, sizeof in, 0);
    next(q, EXS_EVT_SEND);
    GIVES(0, close(p.a));
    GIVES(0, recv(p.b, in, 1, 0));
    GIVES(0, close(p.b));
    end_queue(q);
}

CASE("kernel-3", one_queue_for_all_kinds, EXS | EXSMSG)
{
    struct pair p = connection(), k;
    exs_qhandle_t q = new_queue(8);
    char a[4], b[4];
    int mine = world, pair[2], i;
    exs_event_t e;

    GIVES(0, socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    world = TCP;
    k = connection();
    world = mine;
    for (i = 0; i < 50; i++) {
        char c[4];
        int seen = 0, n;

        GIVES(0, exs_recv(p.b, a, 1, 0, q, 1, UNREG));
        GIVES(0, exs_recv(k.b, b, 1, 0, q, 2, UNREG));
        GIVES(0, exs_recv(pair[1], c, 1, 0, q, 4, UNREG));
        send_all(pair[0], "z", 1);
        send_all(p.a, "x", 1);
        send_all(k.a, "y", 1);
        for (n = 0; n < 3; n++) {
            e = next(q, EXS_EVT_RECV);
            seen |= (int)e.exs_evt_ahandle;
        }
        GIVES(7, seen);
        CHECK(a[0] == 'x' && b[0] == 'y' && c[0] == 'z');
    }
    end(p);
    end(k);
    close(pair[0]);
    close(pair[1]);
    end_queue(q);
}

CASE("kernel-4", sends_of_a_burst_leave_before_a_call_without_a_queue, STREAMS & KERNEL)
{
    enum { SENDS = 24, LEN = 1000 };
    struct pair p = connection();
    exs_qhandle_t q = new_queue(SENDS);
    static char out[SENDS * LEN], in[SENDS * LEN];
    int round, i;

    for (round = 0; round < 4; round++) {
        fill(out, sizeof out, (unsigned)round);
        memset(in, 0, sizeof in);
        for (i = 0; i < SENDS; i++)
            GIVES(0, exs_send(p.a, out + (size_t)i * LEN, LEN, 0, q, i, UNREG));
        GIVES(1, exs_send(p.a, "!", 1, 0, EXS_QHANDLE_INVALID, 0, UNREG));
        recv_all(p.b, in, sizeof in);
        VERIFY(in, sizeof in, (unsigned)round);
        recv_all(p.b, in, 1);
        CHECK(in[0] == '!');
        /* and by the program's own calls, soon */
        for (i = 0; i < SENDS; i++)
            next(q, EXS_EVT_SEND);
        for (i = 0; i < SENDS; i++)
            GIVES(0, exs_send(p.a, out + (size_t)i * LEN, LEN, 0, q, i, UNREG));
        GIVES(sizeof in, recv(p.b, in, sizeof in, MSG_WAITALL));
        VERIFY(in, sizeof in, (unsigned)round);
        for (i = 0; i < SENDS; i++)
            next(q, EXS_EVT_SEND);
    }
    /* what there was room for is not lost by a close */
    for (i = 0; i < SENDS; i++)
        GIVES(0, exs_send(p.a, out + (size_t)i * LEN, LEN, 0, q, i, UNREG));
    GIVES(0, exs_close(p.a, 0, EXS_QHANDLE_INVALID, 0));
    recv_all(p.b, in, sizeof in);
    GIVES(0, recv(p.b, in, 1, 0));
    for (i = 0; i < SENDS; i++)
        next(q, EXS_EVT_SEND);
    GIVES(0, close(p.b));
    end_queue(q);
}
