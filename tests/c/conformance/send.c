/* exs_send. */
#include "net.h"

#include <netinet/tcp.h>
#include <signal.h>

CASE("send-3 send-4", one_event_says_all, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char out[100], in[100];
    exs_event_t e;

    fill(out, sizeof out, 0);
    GIVES(0, exs_send(p.a, out, sizeof out, 0, q, 77, UNREG));
    e = next(q, EXS_EVT_SEND);
    GIVES(p.a, e.exs_evt_socket);
    GIVES(77, e.exs_evt_ahandle);
    GIVES(sizeof out, LENGTH(e));
    CHECK(BUFFER(e) == out && e.exs_evt_flags == 0);
    nothing(q);
    recv_all(p.b, in, sizeof in);
    VERIFY(in, sizeof in, 0);
    end(p);
    end_queue(q);
}

CASE("send-3", any_ahandle_comes_back, SOCKETS)
{
    static const exs_ahandle_t HANDLES[] = {0, 1, (exs_ahandle_t)-1, UINTPTR_MAX / 2 + 1};
    struct pair p = connection();
    exs_qhandle_t q = new_queue(8);
    char byte = 'x';
    size_t i;

    for (i = 0; i < sizeof HANDLES / sizeof *HANDLES; i++)
        GIVES(0, exs_send(p.a, &byte, 1, 0, q, HANDLES[i], UNREG));
    for (i = 0; i < sizeof HANDLES / sizeof *HANDLES; i++)
        CHECK(next(q, EXS_EVT_SEND).exs_evt_ahandle == HANDLES[i]);
    end(p);
    end_queue(q);
}

CASE("send-7 all-6", a_send_of_nothing_has_its_event, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char byte = 'x';

    GIVES(0, exs_send(p.a, &byte, 0, 0, q, 1, UNREG));
    GIVES(0, LENGTH(next(q, EXS_EVT_SEND)));
    GIVES(0, exs_send(p.a, NULL, 0, 0, q, 2, UNREG));
    GIVES(0, LENGTH(next(q, EXS_EVT_SEND)));
    /* of a stream nothing comes of it; a message of no bytes is one */
    if (world & MESSAGES) {
        GIVES(0, exs_recv(p.b, &byte, 1, 0, BLOCK, UNREG));
        GIVES(0, exs_recv(p.b, &byte, 1, 0, BLOCK, UNREG));
    }
    send_all(p.a, "y", 1);
    GIVES(1, exs_recv(p.b, &byte, 1, 0, BLOCK, UNREG));
    GIVES('y', byte);
    end(p);
    end_queue(q);
}

/* Many sends in flight; the other end takes them as they come. */
struct sink {
    int fd;
    size_t total, chunk;
};

static void take_all(void *arg)
{
    struct sink *s = arg;
    char *in = malloc(s->chunk);
    size_t done = 0;

    CHECK(in);
    while (done < s->total) {
        int n = exs_recv(s->fd, in, s->chunk, 0, BLOCK, UNREG);

        CHECK(n > 0);
        VERIFY(in, (size_t)n, done);
        done += (size_t)n;
    }
    free(in);
}

static void bulk(size_t block, int blocks, int registered)
{
    enum { IN_FLIGHT = 16 };
    struct pair p = connection();
    exs_qhandle_t q = new_queue(IN_FLIGHT);
    size_t total = block * (size_t)blocks;
    struct sink s = {p.b, total, block};
    struct thread *t = start(take_all, &s);
    char *out = malloc(total);
    exs_mhandle_t m = UNREG;
    int sent = 0, ended = 0, i, n;
    exs_event_t e[IN_FLIGHT];

    CHECK(out);
    fill(out, total, 0);
    if (registered) {
        m = exs_mregister(out, total, 0);
        CHECK(m != EXS_MHANDLE_INVALID);
    }
    while (ended < blocks) {
        while (sent < blocks && exs_send(p.a, out + (size_t)sent * block, block, 0, q,
                                         (exs_ahandle_t)sent, m) == 0)
            sent++;
        CHECK(sent == blocks || errno == EAGAIN);
        n = exs_qdequeue(q, e, -((sent - ended + 1) / 2), NULL);
        CHECK(n > 0);
        for (i = 0; i < n; i++) {
            CHECK(e[i].exs_evt_type == EXS_EVT_SEND && e[i].exs_evt_errno == 0);
            GIVES(ended, e[i].exs_evt_ahandle);
            GIVES(block, LENGTH(e[i]));
            ended++;
        }
    }
    join(t);
    if (registered)
        GIVES(0, exs_mderegister(m));
    free(out);
    end(p);
    end_queue(q);
}

CASE("send-2 qdequeue-8", bytes_arrive_in_order_registered, CONNECTED) { bulk(65536, 64, 1); }

CASE("qdequeue-8", bytes_arrive_in_order_unregistered, CONNECTED) { bulk(20000, 100, 0); }

CASE("qdequeue-8", small_ones_arrive_in_order, CONNECTED) { bulk(7, 2000, 0); }

CASE("send-6 all-1 all-4 all-5 all-6 all-7", bad_arguments_are_refused_and_leave_nothing, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char byte = 'x';
    int pipe_[2];

    CHECK(pipe(pipe_) == 0);
    FAILS(EBADF, exs_send(-1, &byte, 1, 0, q, 0, UNREG));
    FAILS(EBADF, exs_send(12345, &byte, 1, 0, q, 0, UNREG));
    FAILS(ENOTSOCK, exs_send(pipe_[1], &byte, 1, 0, q, 0, UNREG));
    FAILS(EFAULT, exs_send(p.a, NULL, 1, 0, q, 0, UNREG));
    FAILS(EFAULT, exs_send(p.a, (void *)(UINTPTR_MAX - 15), 64, 0, q, 0, UNREG));
    FAILS(EFAULT, exs_send(p.a, &byte, SIZE_MAX, 0, q, 0, UNREG));
    FAILS(EFAULT, exs_send(p.a, &byte, (size_t)(ssize_t)-1, 0, BLOCK, UNREG));
    FAILS(EINVAL, exs_send(p.a, &byte, 1, 0, q, 0, EXS_MHANDLE_INVALID));
    FAILS(EINVAL, exs_send(p.a, &byte, 1, 0, q, 0, 4242));
    FAILS(EINVAL, exs_send(p.a, &byte, 1, 0, 4242, 0, UNREG));
    FAILS(EINVAL, exs_send(p.a, &byte, 1, 0, -2, 0, UNREG));
    if (ON_EXS)
        FAILS(EOPNOTSUPP, exs_send(p.a, &byte, 1, MSG_OOB, q, 0, UNREG));
    nothing(q);
    /* Flags that send(2) ignores are ignored. */
    GIVES(0, exs_send(p.a, &byte, 1, MSG_NOSIGNAL | MSG_WAITALL | MSG_CMSG_CLOEXEC, q, 9, UNREG));
    GIVES(9, next(q, EXS_EVT_SEND).exs_evt_ahandle);
    close(pipe_[0]);
    close(pipe_[1]);
    end(p);
    end_queue(q);
}

CASE("all-5 fd-4", a_closed_descriptor_is_refused, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char byte = 'x';

    end_one(p.a);
    FAILS(EBADF, exs_send(p.a, &byte, 1, 0, q, 0, UNREG));
    FAILS(EBADF, exs_send(p.a, &byte, 1, 0, BLOCK, UNREG));
    /* the number is another file's now */
    GIVES(p.a, dup2(0, p.a));
    if (exs_send(p.a, &byte, 1, 0, q, 0, UNREG) == -1)
        GIVES(ENOTSOCK, errno);
    else /* standard input is a socket by chance: then it is that one's */
        next_any(q);
    close(p.a);
    end_one(p.b);
    end_queue(q);
}

CASE("send-8", without_a_connection_it_fails, TCP | EXS | EXSMSG)
{
    int fd = new_socket();
    exs_qhandle_t q = new_queue(4);
    char byte = 'x';

    if (ON_EXS) {
        FAILS(ENOTCONN, exs_send(fd, &byte, 1, 0, q, 0, UNREG));
        FAILS(ENOTCONN, exs_send(fd, &byte, 1, 0, BLOCK, UNREG));
    } else {
        /* as send(2) has it: EPIPE, by an event or at once */
        if (exs_send(fd, &byte, 1, 0, q, 0, UNREG) == 0)
            next_failed(q, EXS_EVT_SEND, EPIPE);
        else
            GIVES(EPIPE, errno);
        FAILS(EPIPE, exs_send(fd, &byte, 1, 0, BLOCK, UNREG));
    }
    end_one(fd);
    end_queue(q);
}

CASE("send-5", after_the_end_of_its_direction_it_fails_without_a_signal, CONNECTED)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char byte = 'x';

    /* SIGPIPE would end this process. */
    GIVES(0, exs_shutdown(p.a, SHUT_WR, BLOCK));
    if (exs_send(p.a, &byte, 1, 0, q, 0, UNREG) == 0)
        next_failed(q, EXS_EVT_SEND, EPIPE);
    else
        GIVES(EPIPE, errno);
    FAILS(EPIPE, exs_send(p.a, &byte, 1, 0, BLOCK, UNREG));
    end(p);
    end_queue(q);
}

CASE("send-5", sends_to_a_gone_peer_are_errors, CONNECTED)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    static char out[1 << 20];
    exs_event_t e;

    end_one(p.b);
    for (;;) {
        if (exs_send(p.a, out, sizeof out, 0, q, 0, UNREG) == -1) {
            CHECK(errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN);
            break;
        }
        e = next_any(q);
        GIVES(EXS_EVT_SEND, e.exs_evt_type);
        if (e.exs_evt_errno != 0) {
            CHECK(e.exs_evt_errno == EPIPE || e.exs_evt_errno == ECONNRESET);
            break;
        }
    }
    end_one(p.a);
    end_queue(q);
}

CASE("send-4", memory_that_cannot_be_written_can_be_sent, CONNECTED)
{
    /* in a segment that is mapped read-only; more than is copied, too */
    static const char text[20000] = "constant";
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    static char in[20000];

    GIVES(0, exs_recv(p.b, in, sizeof in, world & STREAMS ? MSG_WAITALL : 0, q, 1, UNREG));
    GIVES(0, exs_send(p.a, (char *)(uintptr_t)text, sizeof text, 0, q, 2, UNREG));
    CHECK(next_any(q).exs_evt_errno == 0);
    CHECK(next_any(q).exs_evt_errno == 0);
    CHECK(memcmp(in, text, sizeof text) == 0);
    end(p);
    end_queue(q);
}

CASE("send-7", messages_keep_their_ends, MESSAGES)
{
    struct pair p = connection();
    char out[300], in[300];
    size_t i;

    for (i = 1; i <= 300; i += 23) {
        fill(out, i, i);
        GIVES((long long)i, exs_send(p.a, out, i, 0, BLOCK, UNREG));
    }
    for (i = 1; i <= 300; i += 23) {
        GIVES((long long)i, exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG));
        VERIFY(in, i, i);
    }
    end(p);
}

CASE("send-7", a_message_has_a_longest_length, EXSMSG)
{
    uint64_t most = 1000;
    struct place at;
    int l = listener(&at), fd = new_socket(), other;
    exs_qhandle_t q = new_queue(4);
    static char out[2000];

    /* the limit is the receiver's, which accepted sockets have of their listener */
    GIVES(0, exs_setsockopt(l, SOL_EXS, EXS_SO_MAX_MESSAGE, &most, sizeof most));
    GIVES(0, exs_connect(fd, ADDR(at), at.len, 0, BLOCK));
    other = exs_accept(l, NULL, 0, BLOCK);
    CHECK(other >= 0);
    FAILS(EMSGSIZE, exs_send(fd, out, 1001, 0, q, 0, UNREG));
    GIVES(0, exs_send(fd, out, 1000, 0, q, 0, UNREG));
    GIVES(1000, exs_recv(other, out, sizeof out, 0, BLOCK, UNREG));
    next(q, EXS_EVT_SEND);
    end_one(fd);
    end_one(other);
    end_one(l);
    end_queue(q);
}

CASE("all-10 send-7", a_message_is_not_cut_to_what_a_call_moves, EXSMSG)
{
    enum { PIECE = 4 << 20, PIECES = 1024 };
    uint64_t most = 1ull << 33;
    struct timeval soon = {0, 1000};
    struct place at;
    int l = listener(&at), fd = new_socket(), other, i;
    static exs_iovec_t pieces[PIECES];
    char *out = calloc(1, PIECE);
    exs_msghdr_t m;

    CHECK(out);
    memset(&m, 0, sizeof m);
    m.exs_msg_iov = pieces;
    m.exs_msg_iovlen = PIECES;
    for (i = 0; i < PIECES; i++) {
        pieces[i].exs_iov_base = out;
        pieces[i].exs_iov_len = PIECE;
        pieces[i].exs_iov_mhandle = UNREG;
    }
    /* as far as the receiver is concerned it may be as long */
    GIVES(0, exs_setsockopt(l, SOL_EXS, EXS_SO_MAX_MESSAGE, &most, sizeof most));
    GIVES(0, exs_connect(fd, ADDR(at), at.len, 0, BLOCK));
    other = exs_accept(l, NULL, 0, BLOCK);
    CHECK(other >= 0);
    /* a part of it would wait for a receive */
    GIVES(0, exs_setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon));
    FAILS(EMSGSIZE, exs_sendmsg(fd, &m, 0, BLOCK));
    FAILS(EMSGSIZE, exs_sendmsg(fd, &m, MSG_DONTWAIT, BLOCK));
    free(out);
    end_one(fd);
    end_one(other);
    end_one(l);
}
