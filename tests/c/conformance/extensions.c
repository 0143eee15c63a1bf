/* What ES-API does not have: exs_qfd, one-sided operations, counters. */
#include "net.h"

#include <limits.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/un.h>

/* The descriptor may be readable for what the library has to do, which brings no event here. */
static void until_quiet(exs_qhandle_t q, struct pollfd *now)
{
    while (poll(now, 1, 0) == 1)
        GIVES(0, exs_qdequeue(q, &(exs_event_t){0}, 1, NOW));
}

CASE("qfd-1", it_is_readable_while_events_wait, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(8);
    struct pollfd now = {exs_qfd(q), POLLIN, 0};
    struct epoll_event ev = {EPOLLIN, {0}};
    int epoll = epoll_create1(EPOLL_CLOEXEC), i;
    char in[2];

    CHECK(now.fd >= 0 && epoll >= 0);
    GIVES(now.fd, exs_qfd(q));
    GIVES(0, epoll_ctl(epoll, EPOLL_CTL_ADD, now.fd, &ev));
    for (i = 0; i < 20; i++) {
        GIVES(0, exs_recv(p.b, in, 1, 0, q, 1, UNREG));
        until_quiet(q, &now);
        send_all(p.a, "x", 1);
        do
            GIVES(1, epoll_wait(epoll, &ev, 1, -1));
        while (exs_qdequeue(q, &(exs_event_t){0}, 1, NOW) != 1);
    }
    until_quiet(q, &now);
    close(epoll);
    end(p);
    end_queue(q);
}

CASE("one-1 one-2", memory_is_read_and_written_from_afar, EXS | EXSMSG)
{
    enum { LEN = 200000 };
    struct pair p = connection();
    exs_qhandle_t q = new_queue(8);
    char *there = calloc(1, LEN), *here = calloc(1, LEN);
    exs_mhandle_t m = exs_mregister(here, LEN, 0);
    exs_remote_t remote;
    exs_event_t e;
    uint64_t len = 0;
    int rights = 0;

    CHECK(there && here);
    GIVES(0, exs_export(p.b, there, LEN, EXS_RIGHT_READ | EXS_RIGHT_WRITE, 0, UNREG, &remote));
    GIVES(0, exs_remote_info(&remote, &len, &rights));
    GIVES(LEN, len);
    GIVES(EXS_RIGHT_READ | EXS_RIGHT_WRITE, rights);
    GIVES(0, exs_remote_info(&remote, NULL, NULL));
    fill(here, LEN - 10, 0);
    GIVES(0, exs_write(p.a, here, LEN - 10, &remote, 10, 0, q, 5, m));
    e = next(q, EXS_EVT_WRITE);
    GIVES(LEN - 10, LENGTH(e));
    CHECK(BUFFER(e) == here && e.exs_evt_ahandle == 5 && e.exs_evt_socket == p.a);
    memset(here, 0, LEN);
    GIVES(0, exs_read(p.a, here, LEN - 10, &remote, 10, 0, q, 6, m));
    e = next(q, EXS_EVT_READ);
    GIVES(LEN - 10, LENGTH(e));
    VERIFY(here, LEN - 10, 0);
    /* without a queue, and without a registration */
    GIVES(4, exs_write(p.a, (char *)"abcd", 4, &remote, 0, 0, BLOCK, UNREG));
    GIVES(4, exs_read(p.a, here, 4, &remote, 0, 0, BLOCK, UNREG));
    CHECK(memcmp(here, "abcd", 4) == 0);
    GIVES(0, exs_revoke(p.b, &remote, q, 7));
    e = next(q, EXS_EVT_REVOKE);
    GIVES(7, e.exs_evt_ahandle);
    CHECK(memcmp(there, "abcd", 4) == 0);
    VERIFY(there + 10, LEN - 10, 0);
    GIVES(0, exs_mderegister(m));
    end(p);
    end_queue(q);
    free(there);
    free(here);
}

CASE("one-3", ranges_and_rights_are_kept, EXS | EXSMSG)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(8);
    static char there[100], here[200];
    exs_remote_t r, w, none;

    memset(&none, 0xa5, sizeof none);
    GIVES(0, exs_export(p.b, there, 100, EXS_RIGHT_READ, 0, UNREG, &r));
    GIVES(0, exs_export(p.b, there, 100, EXS_RIGHT_WRITE, 0, UNREG, &w));
    FAILS(EINVAL, exs_write(p.a, here, 1, &r, 0, 0, q, 1, UNREG));
    FAILS(EINVAL, exs_read(p.a, here, 1, &w, 0, 0, q, 1, UNREG));
    FAILS(EINVAL, exs_read(p.a, here, 101, &r, 0, 0, q, 1, UNREG));
    FAILS(EINVAL, exs_read(p.a, here, 1, &r, 100, 0, q, 1, UNREG));
    FAILS(EINVAL, exs_read(p.a, here, 2, &r, UINT64_MAX, 0, q, 1, UNREG));
    FAILS(EINVAL, exs_read(p.a, here, 1, &none, 0, 0, q, 1, UNREG));
    FAILS(EINVAL, exs_remote_info(&none, NULL, NULL));
    FAILS(EFAULT, exs_remote_info(NULL, NULL, NULL));
    FAILS(EFAULT, exs_read(p.a, here, 1, NULL, 0, 0, q, 1, UNREG));
    FAILS(EFAULT, exs_read(p.a, NULL, 1, &r, 0, 0, q, 1, UNREG));
    FAILS(EINVAL, exs_read(p.a, here, 1, &r, 0, 1, q, 1, UNREG));
    FAILS(EINVAL, exs_export(p.b, there, 100, 0, 0, UNREG, &none));
    FAILS(EINVAL, exs_export(p.b, there, 100, 8, 0, UNREG, &none));
    FAILS(EINVAL, exs_export(p.b, there, 0, EXS_RIGHT_READ, 0, UNREG, &none));
    FAILS(EFAULT, exs_export(p.b, NULL, 1, EXS_RIGHT_READ, 0, UNREG, &none));
    FAILS(EFAULT, exs_export(p.b, there, 1, EXS_RIGHT_READ, 0, UNREG, NULL));
    FAILS(EINVAL, exs_revoke(p.a, &r, q, 1)); /* not exported by this end */
    FAILS(EFAULT, exs_revoke(p.b, NULL, q, 1));
    nothing(q);
    GIVES(100, exs_read(p.a, here, 100, &r, 0, 0, BLOCK, UNREG));
    GIVES(0, exs_revoke(p.b, &r, BLOCK));
    GIVES(0, exs_revoke(p.b, &w, BLOCK));
    FAILS(EINVAL, exs_revoke(p.b, &w, BLOCK));
    end(p);
    end_queue(q);
}

/* True if atomic operations work; otherwise they are refused, and the connection stays. */
static int has_atomics(struct pair p, uint64_t *words)
{
    int atomics = -1, peers = -1;
    socklen_t len = sizeof atomics;
    exs_remote_t remote, changed;

    GIVES(0, exs_getsockopt(p.b, SOL_EXS, EXS_SO_ATOMICS, &atomics, &len));
    GIVES(0, exs_getsockopt(p.a, SOL_EXS, EXS_SO_PEER_ATOMICS, &peers, &len));
    CHECK(atomics == peers && atomics >= EXS_ATOMICS_NONE && atomics <= EXS_ATOMICS_HOST);
    if (atomics != EXS_ATOMICS_NONE)
        return 1;
    FAILS(EOPNOTSUPP, exs_export(p.b, words, 8, EXS_RIGHT_ATOMIC, 0, UNREG, &remote));
    GIVES(0, exs_export(p.b, words, 8, EXS_RIGHT_READ, 0, UNREG, &remote));
    changed = remote;
    changed.exs_remote_bytes[EXS_REMOTE_SIZE - 1] |= EXS_RIGHT_ATOMIC;
    FAILS(EOPNOTSUPP, exs_fetch_add(p.a, &changed, 0, 1, NULL, 0, BLOCK));
    FAILS(EOPNOTSUPP, exs_compare_swap(p.a, &changed, 0, 0, 1, NULL, 0, BLOCK));
    GIVES(0, exs_revoke(p.b, &remote, BLOCK));
    send_all(p.a, "x", 1);
    return 0;
}

CASE("one-6", words_change_in_one_step, EXS | EXSMSG)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(8);
    uint64_t *there = calloc(4, sizeof *there), old = 99, len;
    exs_remote_t remote, plain;
    exs_event_t e;
    int rights, i;

    CHECK(there);
    if (has_atomics(p, there)) {
        FAILS(EINVAL, exs_export(p.b, (char *)there + 4, 8, EXS_RIGHT_ATOMIC, 0, UNREG, &remote));
        GIVES(0, exs_export(p.b, there, 32, EXS_RIGHT_ATOMIC, 0, UNREG, &remote));
        GIVES(0, exs_export(p.b, there, 32, EXS_RIGHT_READ, 0, UNREG, &plain));
        GIVES(0, exs_remote_info(&remote, &len, &rights));
        GIVES(EXS_RIGHT_ATOMIC, rights);
        for (i = 0; i < 3; i++) {
            GIVES(0, exs_fetch_add(p.a, &remote, 8, 5, i == 1 ? NULL : &old, 0, q, 7));
            e = next(q, EXS_EVT_FETCH_ADD);
            CHECK(e.exs_evt_errno == 0 && e.exs_evt_ahandle == 7 && e.exs_evt_socket == p.a);
            GIVES(8, e.exs_evt_union.exs_evt_atomic.exs_evt_length);
            GIVES(5 * i, e.exs_evt_union.exs_evt_atomic.exs_evt_old);
            CHECK(e.exs_evt_union.exs_evt_atomic.exs_evt_place == (i == 1 ? NULL : &old));
            GIVES(i == 2 ? 10 : 0, old);
        }
        GIVES(0, exs_compare_swap(p.a, &remote, 8, 14, 1, &old, 0, q, 8));
        e = next(q, EXS_EVT_COMPARE_SWAP);
        CHECK(old == 15 && e.exs_evt_union.exs_evt_atomic.exs_evt_old == 15);
        /* without a queue */
        GIVES(0, exs_compare_swap(p.a, &remote, 8, 15, UINT64_MAX, &old, 0, BLOCK));
        GIVES(15, old);
        GIVES(0, exs_fetch_add(p.a, &remote, 8, 2, NULL, 0, BLOCK));
        GIVES(0, exs_fetch_add(p.a, &remote, 8, 0, &old, 0, BLOCK));
        GIVES(1, old);
        FAILS(EINVAL, exs_fetch_add(p.a, &remote, 4, 1, &old, 0, q, 1));
        FAILS(EINVAL, exs_fetch_add(p.a, &remote, 32, 1, &old, 0, q, 1));
        FAILS(EINVAL, exs_fetch_add(p.a, &remote, UINT64_MAX - 7, 1, &old, 0, q, 1));
        FAILS(EINVAL, exs_fetch_add(p.a, &plain, 8, 1, &old, 0, q, 1));
        FAILS(EINVAL, exs_compare_swap(p.a, &plain, 8, 0, 1, &old, 0, q, 1));
        FAILS(EINVAL, exs_fetch_add(p.a, &remote, 8, 1, &old, 1, q, 1));
        FAILS(EFAULT, exs_fetch_add(p.a, NULL, 8, 1, &old, 0, q, 1));
        FAILS(EINVAL, exs_read(p.a, &old, 8, &remote, 8, 0, q, 1, UNREG));
        nothing(q);
        GIVES(0, exs_revoke(p.b, &remote, BLOCK));
        CHECK(there[0] == 0 && there[1] == 1 && there[2] == 0 && there[3] == 0 && old == 1);
        /* after the revocation: an event, which says so, and no change */
        if (exs_fetch_add(p.a, &remote, 8, 1, &old, 0, q, 9) == 0) {
            e = next_any(q);
            CHECK(e.exs_evt_type == EXS_EVT_FETCH_ADD && e.exs_evt_errno != 0);
        }
        CHECK(there[1] == 1 && old == 1);
    }
    end(p);
    end_queue(q);
    free(there);
}

CASE("one-4", what_was_revoked_is_out_of_reach, EXS | EXSMSG)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(8);
    char there[100] = "kept", here[100] = "other";
    exs_remote_t remote;
    exs_event_t e;

    GIVES(0, exs_export(p.b, there, 100, EXS_RIGHT_READ | EXS_RIGHT_WRITE, 0, UNREG, &remote));
    GIVES(0, exs_revoke(p.b, &remote, q, 1));
    next(q, EXS_EVT_REVOKE);
    if (exs_write(p.a, here, 100, &remote, 0, 0, q, 2, UNREG) == 0) {
        e = next_any(q);
        CHECK(e.exs_evt_type == EXS_EVT_WRITE && e.exs_evt_errno != 0);
    }
    CHECK(strcmp(there, "kept") == 0);
    end(p);
    end_queue(q);
}

CASE("one-5", kernel_sockets_have_none_of_it, KERNEL)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(8);
    char there[100];
    exs_remote_t remote;

    memset(&remote, 0, sizeof remote);
    FAILS(EOPNOTSUPP, exs_export(p.b, there, 100, EXS_RIGHT_READ, 0, UNREG, &remote));
    FAILS(EOPNOTSUPP, exs_revoke(p.b, &remote, q, 1));
    FAILS(EOPNOTSUPP, exs_read(p.b, there, 1, &remote, 0, 0, q, 1, UNREG));
    FAILS(EOPNOTSUPP, exs_write(p.b, there, 1, &remote, 0, 0, q, 1, UNREG));
    FAILS(EOPNOTSUPP, exs_fetch_add(p.b, &remote, 0, 1, NULL, 0, q, 1));
    FAILS(EOPNOTSUPP, exs_compare_swap(p.b, &remote, 0, 0, 1, NULL, 0, q, 1));
    nothing(q);
    end(p);
    end_queue(q);
}

CASE("batch-1", a_batch_is_as_many_calls, EXS | EXSMSG)
{
    enum { COUNT = 20, LEN = 40 };
    struct pair p = connection();
    exs_qhandle_t q = new_queue(2 * COUNT);
    static char out[COUNT * LEN], in[COUNT * LEN];
    exs_iovec_t sends[COUNT], receives[COUNT];
    exs_ahandle_t names[COUNT], others[COUNT];
    exs_mhandle_t m = exs_mregister(out, sizeof out, 0);
    int i, sent = 0, received = 0;

    fill(out, sizeof out, 0);
    for (i = 0; i < COUNT; i++) {
        sends[i] = (exs_iovec_t){out + i * LEN, LEN, i % 2 ? m : UNREG, 0};
        receives[i] = (exs_iovec_t){in + i * LEN, LEN, UNREG, 0};
        names[i] = (exs_ahandle_t)(1 + i);
        others[i] = (exs_ahandle_t)(101 + i);
    }
    GIVES(0, exs_send_batch(p.a, sends, names, 0, 0, q));
    GIVES(COUNT, exs_recv_batch(p.b, receives, others, COUNT, MSG_WAITALL, q));
    GIVES(COUNT, exs_send_batch(p.a, sends, names, COUNT, 0, q));
    while (sent + received < 2 * COUNT) {
        exs_event_t e = next_any(q);
        int own = e.exs_evt_type == EXS_EVT_SEND;
        int at = own ? sent++ : received++;

        CHECK(e.exs_evt_errno == 0 && (own || e.exs_evt_type == EXS_EVT_RECV));
        GIVES(own ? 1 + at : 101 + at, e.exs_evt_ahandle);
        GIVES(LEN, LENGTH(e));
        CHECK(BUFFER(e) == (own ? out : in) + at * LEN);
        CHECK(e.exs_evt_socket == (own ? p.a : p.b));
    }
    VERIFY(in, sizeof in, 0);
    GIVES(0, exs_mderegister(m));
    end(p);
    end_queue(q);
}

CASE("batch-2", a_batch_is_cut_where_one_is_refused, EXS | EXSMSG)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char out[8] = "12345678";
    exs_iovec_t pieces[6];
    exs_ahandle_t names[6] = {1, 2, 3, 4, 5, 6};
    int i;

    for (i = 0; i < 6; i++)
        pieces[i] = (exs_iovec_t){out, 8, UNREG, 0};
    GIVES(4, exs_send_batch(p.a, pieces, names, 6, 0, q));
    FAILS(EAGAIN, exs_send_batch(p.a, pieces + 4, names + 4, 2, 0, q));
    for (i = 1; i <= 4; i++)
        GIVES(i, next(q, EXS_EVT_SEND).exs_evt_ahandle);
    pieces[1].exs_iov_base = NULL;
    pieces[2].exs_iov_mhandle = 12345;
    GIVES(1, exs_send_batch(p.a, pieces, names, 6, 0, q));
    next(q, EXS_EVT_SEND);
    FAILS(EFAULT, exs_send_batch(p.a, pieces + 1, names, 5, 0, q));
    FAILS(EINVAL, exs_send_batch(p.a, pieces + 2, names, 4, 0, q));
    FAILS(EFAULT, exs_send_batch(p.a, NULL, names, 1, 0, q));
    FAILS(EFAULT, exs_recv_batch(p.b, pieces, NULL, 1, 0, q));
    FAILS(EINVAL, exs_send_batch(p.a, pieces, names, -1, 0, q));
    FAILS(EINVAL, exs_send_batch(p.a, pieces, names, EXS_IOV_MAX + 1, 0, q));
    FAILS(EINVAL, exs_send_batch(p.a, pieces, names, 1, 0, EXS_QHANDLE_INVALID));
    FAILS(EOPNOTSUPP, exs_send_batch(p.a, pieces, names, 1, MSG_OOB, q));
    FAILS(EBADF, exs_recv_batch(-1, pieces, names, 1, 0, q));
    FAILS(ENOTCONN, exs_send_batch(new_socket(), pieces, names, 1, 0, q));
    nothing(q);
    end(p);
    end_queue(q);
}

CASE("batch-3", kernel_sockets_have_no_batches, KERNEL)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char out[8] = "12345678";
    exs_iovec_t piece = {out, 8, UNREG, 0};
    exs_ahandle_t name = 1;

    FAILS(EOPNOTSUPP, exs_send_batch(p.a, &piece, &name, 1, 0, q));
    FAILS(EOPNOTSUPP, exs_recv_batch(p.a, &piece, &name, 1, 0, q));
    nothing(q);
    end(p);
    end_queue(q);
}

CASE("counters-1", figures_of_a_socket_and_of_the_process, EXS | EXSMSG)
{
    struct pair p = connection();
    struct {
        exs_counters_t known;
        uint64_t later[4];
    } big;
    exs_counters_t c;
    uint64_t first[2] = {7, 7};
    char in[100] = "";

    GIVES(100, exs_send(p.a, in, 100, 0, BLOCK, UNREG));
    GIVES(100, exs_recv(p.b, in, 100, 0, BLOCK, UNREG));
    GIVES(0, exs_counters(p.a, &c, sizeof c));
    GIVES(1, c.sends);
    GIVES(100, c.sent_direct + c.sent_indirect + c.sent_inline);
    GIVES(0, exs_counters(-1, &c, sizeof c));
    CHECK(c.sends >= 1 && c.recvs >= 1 && c.events >= 2);
    /* a library that knows fewer, or more, than the program */
    memset(&big, 0xff, sizeof big);
    GIVES(0, exs_counters(p.a, &big.known, sizeof big));
    GIVES(1, big.known.sends);
    CHECK(big.later[0] == 0 && big.later[3] == 0);
    GIVES(0, exs_counters(p.a, (exs_counters_t *)(void *)first, sizeof first[0]));
    CHECK(first[0] == 1 && first[1] == 7);
    FAILS(EFAULT, exs_counters(p.a, NULL, sizeof c));
    FAILS(EINVAL, exs_counters(p.a, &c, SIZE_MAX));
    FAILS(EBADF, exs_counters(-2, &c, sizeof c));
    end(p);
}

CASE("stats-1", figures_are_offered_to_readers, EXS | EXSMSG)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char again[sizeof at.sun_path], wanted[64], text[64] = "";
    size_t len = 0;
    ssize_t n;
    int fd;

    GIVES(0, exs_offer_stats(NULL, 0));
    GIVES(0, exs_offer_stats(at.sun_path, sizeof at.sun_path));
    GIVES(0, exs_offer_stats(again, sizeof again));
    CHECK(strcmp(at.sun_path, again) == 0 && at.sun_path[0] == '/');
    GIVES(0, exs_offer_stats(again, strlen(at.sun_path) + 1));
    FAILS(ERANGE, exs_offer_stats(again, strlen(at.sun_path)));
    FAILS(EFAULT, exs_offer_stats(NULL, 1));
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    GIVES(0, connect(fd, (struct sockaddr *)&at, sizeof at));
    while (len < sizeof text - 1 && (n = read(fd, text + len, sizeof text - 1 - len)) > 0)
        len += (size_t)n;
    close(fd);
    snprintf(wanted, sizeof wanted, "/%d", (int)getpid());
    CHECK(strstr(at.sun_path, wanted) != NULL);
    CHECK(strstr(text, "{\"type\":\"process\",\"format\":1,") == text);
}
