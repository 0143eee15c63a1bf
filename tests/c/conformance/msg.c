/* exs_sendmsg, exs_recvmsg. */
#include "net.h"

#include <limits.h>

static exs_msghdr_t message(exs_iovec_t *pieces, int n)
{
    exs_msghdr_t m;

    memset(&m, 0, sizeof m);
    m.exs_msg_iov = pieces;
    m.exs_msg_iovlen = n;
    return m;
}

static exs_iovec_t piece(void *base, size_t len, exs_mhandle_t m)
{
    exs_iovec_t v = {base, len, m, 0};

    return v;
}

CASE("msg-1", pieces_of_mixed_registrations_are_one_stretch, SOCKETS)
{
    static char one[5000], two[3000], in[10000];
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    exs_mhandle_t m1 = exs_mregister(one, sizeof one, 0), m2 = exs_mregister(two, sizeof two, 0);
    char three[7];
    exs_iovec_t v[5];
    exs_msghdr_t m;
    exs_event_t e;

    fill(one, 5000, 0);
    fill(three, 7, 5000);
    fill(two, 3000, 5007);
    v[0] = piece(one, 4000, m1);
    v[1] = piece(one + 4000, 1000, UNREG);
    v[2] = piece(NULL, 0, UNREG);
    v[3] = piece(three, 7, UNREG);
    v[4] = piece(two, 3000, m2);
    m = message(v, 5);
    /* (a long message waits for its receive) */
    GIVES(0, exs_recv(p.b, in, 8007, world & STREAMS ? MSG_WAITALL : 0, q, 12, UNREG));
    GIVES(0, exs_sendmsg(p.a, &m, 0, q, 11));
    e = next_any(q);
    if (e.exs_evt_type == EXS_EVT_RECV)
        e = next(q, EXS_EVT_SENDMSG);
    else
        next(q, EXS_EVT_RECV);
    GIVES(EXS_EVT_SENDMSG, e.exs_evt_type);
    GIVES(0, e.exs_evt_errno);
    GIVES(p.a, e.exs_evt_socket);
    GIVES(11, e.exs_evt_ahandle);
    GIVES(8007, e.exs_evt_union.exs_evt_xfermsg.exs_evt_length);
    CHECK(e.exs_evt_union.exs_evt_xfermsg.exs_evt_msghdr == &m);
    VERIFY(in, 8007, 0);
    GIVES(0, exs_mderegister(m1));
    GIVES(0, exs_mderegister(m2));
    end(p);
    end_queue(q);
}

CASE("msg-4", the_list_is_read_during_the_call_only, CONNECTED)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    static char out[300000], in[300000];
    exs_iovec_t v[2];
    exs_msghdr_t m;

    fill(out, sizeof out, 0);
    v[0] = piece(out, 100000, UNREG);
    v[1] = piece(out + 100000, 200000, UNREG);
    m = message(v, 2);
    GIVES(0, exs_sendmsg(p.a, &m, 0, q, 11));
    memset(v, 0xff, sizeof v);
    GIVES(0, exs_recv(p.b, in, sizeof in, MSG_WAITALL, q, 12, UNREG));
    next_any(q);
    next_any(q);
    VERIFY(in, sizeof in, 0);
    end(p);
    end_queue(q);
}

CASE("msg-1 msg-2 all-4 all-5 all-6 all-7", lists_without_sense_are_refused, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    exs_iovec_t *v = calloc(EXS_IOV_MAX + 1, sizeof *v);
    exs_msghdr_t m;
    char byte = 'x';
    int i;

    CHECK(v);
    for (i = 0; i <= EXS_IOV_MAX; i++)
        v[i] = piece(&byte, 1, UNREG);
    FAILS(EFAULT, exs_sendmsg(p.a, NULL, 0, q, 1));
    FAILS(EFAULT, exs_recvmsg(p.a, NULL, 0, q, 1));
    m = message(NULL, 1);
    FAILS(EFAULT, exs_sendmsg(p.a, &m, 0, q, 1));
    FAILS(EFAULT, exs_recvmsg(p.a, &m, 0, q, 1));
    m = message(v, -1);
    FAILS(EINVAL, exs_sendmsg(p.a, &m, 0, q, 1));
    FAILS(EINVAL, exs_recvmsg(p.a, &m, 0, BLOCK));
    m = message(v, INT_MIN);
    FAILS(EINVAL, exs_sendmsg(p.a, &m, 0, BLOCK));
    m = message(v, EXS_IOV_MAX + 1);
    FAILS(EINVAL, exs_sendmsg(p.a, &m, 0, q, 1));
    FAILS(EINVAL, exs_recvmsg(p.a, &m, 0, q, 1));
    m = message(v, 2);
    v[1] = piece(NULL, 5, UNREG);
    FAILS(EFAULT, exs_sendmsg(p.a, &m, 0, q, 1));
    v[1] = piece((void *)(UINTPTR_MAX - 3), 5, UNREG);
    FAILS(EFAULT, exs_recvmsg(p.a, &m, 0, q, 1));
    v[1] = piece(&byte, 1, 4242);
    FAILS(EINVAL, exs_sendmsg(p.a, &m, 0, q, 1));
    v[1] = piece(&byte, 1, EXS_MHANDLE_INVALID);
    FAILS(EINVAL, exs_recvmsg(p.a, &m, 0, q, 1));
    v[1] = piece(&byte, 1, UNREG);
    m.exs_msg_control = &byte;
    m.exs_msg_controllen = 1;
    FAILS(EOPNOTSUPP, exs_sendmsg(p.a, &m, 0, q, 1));
    FAILS(EOPNOTSUPP, exs_recvmsg(p.a, &m, 0, q, 1));
    m = message(v, 2);
    if (ON_EXS)
        FAILS(EOPNOTSUPP, exs_sendmsg(p.a, &m, MSG_OOB, q, 1));
    FAILS(ON_EXS ? EINVAL : EOPNOTSUPP, exs_recvmsg(p.a, &m, MSG_OOB, q, 1));
    FAILS(EBADF, exs_sendmsg(-1, &m, 0, q, 1));
    FAILS(EBADF, exs_recvmsg(-1, &m, 0, q, 1));
    FAILS(EINVAL, exs_sendmsg(p.a, &m, 0, 4242, 1));
    nothing(q);
    free(v);
    end(p);
    end_queue(q);
}

CASE("msg-1", the_longest_list, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    exs_iovec_t *v = calloc(EXS_IOV_MAX, sizeof *v);
    char out[EXS_IOV_MAX], in[EXS_IOV_MAX];
    exs_msghdr_t m;
    int i;

    CHECK(v);
    fill(out, sizeof out, 0);
    for (i = 0; i < EXS_IOV_MAX; i++)
        v[i] = piece(&out[i], 1, UNREG);
    m = message(v, EXS_IOV_MAX);
    GIVES(0, exs_sendmsg(p.a, &m, 0, q, 1));
    GIVES(EXS_IOV_MAX, next(q, EXS_EVT_SENDMSG).exs_evt_union.exs_evt_xfermsg.exs_evt_length);
    recv_all(p.b, in, sizeof in);
    VERIFY(in, sizeof in, 0);
    free(v);
    end(p);
    end_queue(q);
}

CASE("msg-1", a_message_of_no_pieces, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    exs_msghdr_t m = message(NULL, 0);

    GIVES(0, exs_sendmsg(p.a, &m, 0, q, 1));
    GIVES(0, next(q, EXS_EVT_SENDMSG).exs_evt_union.exs_evt_xfermsg.exs_evt_length);
    end(p);
    end_queue(q);
}

CASE("all-3", without_a_queue_it_returns_the_bytes, SOCKETS)
{
    struct pair p = connection();
    char out[10], in[10];
    exs_iovec_t v[2];
    exs_msghdr_t m;

    fill(out, 10, 0);
    v[0] = piece(out, 4, UNREG);
    v[1] = piece(out + 4, 6, UNREG);
    m = message(v, 2);
    GIVES(10, exs_sendmsg(p.a, &m, 0, BLOCK));
    v[0] = piece(in, 3, UNREG);
    v[1] = piece(in + 3, 7, UNREG);
    m = message(v, 2);
    GIVES(10, exs_recvmsg(p.b, &m, 0, BLOCK));
    VERIFY(in, 10, 0);
    FAILS(EAGAIN, exs_recvmsg(p.b, &m, MSG_DONTWAIT, BLOCK));
    end(p);
}

CASE("msg-1", pieces_of_mixed_registrations_are_filled, SOCKETS)
{
    static char one[5000], two[5000], out[8000];
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    exs_mhandle_t m1 = exs_mregister(one, sizeof one, 0);
    exs_iovec_t v[3];
    exs_msghdr_t m;
    exs_event_t e;

    fill(out, sizeof out, 0);
    v[0] = piece(one, 3000, m1);
    v[1] = piece(two, 4000, UNREG);
    v[2] = piece(one + 3000, 1000, m1);
    m = message(v, 3);
    GIVES(0, exs_recvmsg(p.b, &m, world & STREAMS ? MSG_WAITALL : 0, q, 12));
    send_all(p.a, out, sizeof out);
    e = next(q, EXS_EVT_RECVMSG);
    GIVES(p.b, e.exs_evt_socket);
    GIVES(12, e.exs_evt_ahandle);
    GIVES(8000, e.exs_evt_union.exs_evt_xfermsg.exs_evt_length);
    CHECK(e.exs_evt_union.exs_evt_xfermsg.exs_evt_msghdr == &m);
    VERIFY(one, 3000, 0);
    VERIFY(two, 4000, 3000);
    VERIFY(one + 3000, 1000, 7000);
    GIVES(0, exs_mderegister(m1));
    end(p);
    end_queue(q);
}

CASE("msg-3", flags_say_what_became_of_a_message, MESSAGES)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char in[4];
    exs_iovec_t v = piece(in, 4, UNREG);
    exs_msghdr_t m = message(&v, 1);
    exs_event_t e;

    GIVES(0, exs_recvmsg(p.b, &m, 0, q, 1));
    send_all(p.a, "0123456789", 10);
    e = next(q, EXS_EVT_RECVMSG);
    CHECK(m.exs_msg_flags & MSG_TRUNC);
    CHECK(e.exs_evt_flags & EXS_EVF_TRUNC);
    GIVES(4, e.exs_evt_union.exs_evt_xfermsg.exs_evt_length);
    GIVES(10, e.exs_evt_union.exs_evt_xfermsg.exs_evt_total);
    GIVES(0, exs_recvmsg(p.b, &m, 0, q, 1));
    send_all(p.a, "0123", 4);
    next(q, EXS_EVT_RECVMSG);
    CHECK(!(m.exs_msg_flags & MSG_TRUNC));
    if (ON_EXS)
        CHECK(m.exs_msg_flags & MSG_EOR);
    end(p);
    end_queue(q);
}

CASE("msg-3", datagrams_go_to_and_come_from_addresses, UDP)
{
    struct place at[2], from;
    int fd[2], i;
    exs_qhandle_t q = new_queue(4);
    char out[4] = "abc", in[4];
    exs_iovec_t v = piece(out, 4, UNREG), w = piece(in, 4, UNREG);
    exs_msghdr_t m = message(&v, 1), r = message(&w, 1);

    for (i = 0; i < 2; i++) {
        fd[i] = new_socket();
        at[i] = any_place();
        GIVES(0, exs_bind(fd[i], ADDR(at[i]), at[i].len));
        GIVES(0, exs_getsockname(fd[i], ADDR(at[i]), &at[i].len));
    }
    memset(&from, 0, sizeof from);
    r.exs_msg_name = &from.addr;
    r.exs_msg_namelen = sizeof from.addr;
    GIVES(0, exs_recvmsg(fd[1], &r, 0, q, 1));
    m.exs_msg_name = &at[1].addr;
    m.exs_msg_namelen = at[1].len;
    GIVES(0, exs_sendmsg(fd[0], &m, 0, q, 2));
    next_any(q);
    next_any(q);
    CHECK(memcmp(in, "abc", 4) == 0);
    GIVES(at[0].len, r.exs_msg_namelen);
    CHECK(((struct sockaddr_in *)&from.addr)->sin_port ==
          ((struct sockaddr_in *)&at[0].addr)->sin_port);
    end_one(fd[0]);
    end_one(fd[1]);
    end_queue(q);
}

CASE("recv-1", peek_and_waitall, STREAMS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char a[3], b[7];
    exs_iovec_t v[2] = {piece(a, 3, UNREG), piece(b, 7, UNREG)};
    exs_msghdr_t m = message(v, 2);

    send_all(p.a, "01234", 5);
    GIVES(0, exs_recvmsg(p.b, &m, MSG_PEEK, q, 1));
    GIVES(5, next(q, EXS_EVT_RECVMSG).exs_evt_union.exs_evt_xfermsg.exs_evt_length);
    GIVES(0, exs_recvmsg(p.b, &m, MSG_WAITALL, q, 2));
    send_all(p.a, "56789", 5);
    GIVES(10, next(q, EXS_EVT_RECVMSG).exs_evt_union.exs_evt_xfermsg.exs_evt_length);
    CHECK(memcmp(a, "012", 3) == 0 && memcmp(b, "3456789", 7) == 0);
    end(p);
    end_queue(q);
}
