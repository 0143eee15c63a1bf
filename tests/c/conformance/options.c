/* exs_getsockopt, exs_setsockopt; time limits; O_NONBLOCK. */
#include "net.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>

static int get_int(int fd, int level, int name)
{
    int value = -12345;
    socklen_t len = sizeof value;

    GIVES(0, exs_getsockopt(fd, level, name, &value, &len));
    GIVES(sizeof value, len);
    return value;
}

static void set_int(int fd, int level, int name, int value)
{
    GIVES(0, exs_setsockopt(fd, level, name, &value, sizeof value));
}

CASE("opt-1", habits_of_socket_programs_are_taken, CONNECTED)
{
    struct place at;
    int l = listener(&at), fd = new_socket();

    GIVES(1, get_int(l, SOL_SOCKET, SO_ACCEPTCONN));
    GIVES(0, get_int(fd, SOL_SOCKET, SO_ACCEPTCONN));
    GIVES(0, get_int(fd, SOL_SOCKET, SO_ERROR));
    CHECK(get_int(fd, SOL_SOCKET, SO_TYPE) == (world == EXSMSG ? SOCK_SEQPACKET : SOCK_STREAM));
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    CHECK(get_int(fd, SOL_SOCKET, SO_KEEPALIVE) != 0);
    set_int(fd, SOL_SOCKET, SO_SNDBUF, 65536);
    set_int(fd, SOL_SOCKET, SO_RCVBUF, 131072);
    CHECK(get_int(fd, SOL_SOCKET, SO_RCVBUF) >= 131072);
    set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    CHECK(get_int(fd, SOL_SOCKET, SO_REUSEADDR) != 0);
    if (world != LOCAL) {
        set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
        CHECK(get_int(fd, IPPROTO_TCP, TCP_NODELAY) != 0);
    }
    end_one(fd);
    end_one(l);
}

CASE("opt-3", a_time_limit_of_calls_without_a_queue, SOCKETS)
{
    struct pair p = connection();
    struct timeval t = {0, 20000}, got;
    socklen_t len = sizeof got;
    char in;

    GIVES(0, exs_setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    GIVES(0, exs_getsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &got, &len));
    CHECK(got.tv_sec == 0 && got.tv_usec >= 20000 && got.tv_usec < 40000);
    FAILS(EAGAIN, exs_recv(p.b, &in, 1, 0, BLOCK, UNREG));
    send_all(p.a, "x", 1);
    t.tv_usec = 0;
    GIVES(0, exs_setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    GIVES(1, exs_recv(p.b, &in, 1, 0, BLOCK, UNREG));
    end(p);
}

CASE("opt-1", what_makes_no_sense_is_refused, SOCKETS)
{
    int fd = new_socket(), value = 0;
    socklen_t len = sizeof value;

    FAILS(ENOPROTOOPT, exs_setsockopt(fd, SOL_SOCKET, 9999, &value, sizeof value));
    FAILS(ENOPROTOOPT, exs_getsockopt(fd, SOL_SOCKET, 9999, &value, &len));
    FAILS(EINVAL, exs_setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, 1));
    FAILS(EFAULT, exs_setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, NULL, sizeof value));
    FAILS(EFAULT, exs_getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, NULL));
    FAILS(EBADF, exs_setsockopt(-1, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value));
    FAILS(EBADF, exs_getsockopt(-1, SOL_SOCKET, SO_TYPE, &value, &len));
    FAILS(EINVAL, exs_setsockopt(fd, SOL_SOCKET, SO_ASYNC_RECV_TIMEOUT, &value, 3));
    FAILS(EFAULT, exs_setsockopt(fd, SOL_SOCKET, SO_ASYNC_RECV_TIMEOUT, NULL, 16));
    end_one(fd);
}

CASE("close-5", lingering_for_no_time_cuts_the_connection, EXS | EXSMSG)
{
    struct pair p = connection();
    struct linger l = {1, 0}, got;
    socklen_t len = sizeof got;
    char in;
    int n;

    GIVES(0, exs_setsockopt(p.a, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    GIVES(0, exs_getsockopt(p.a, SOL_SOCKET, SO_LINGER, &got, &len));
    CHECK(got.l_onoff && got.l_linger == 0);
    GIVES(0, exs_close(p.a, 0, BLOCK));
    n = exs_recv(p.b, &in, 1, 0, BLOCK, UNREG);
    CHECK(n == 0 || (n == -1 && errno == ECONNRESET));
    end_one(p.b);
}

CASE("opt-1", options_of_exs, EXS | EXSMSG)
{
    struct pair p = connection();
    char text[256], one;
    const char *asked = getenv("EXS_TRANSPORT");
    int fd = new_socket(), crc = 1;
    size_t size = 1 << 20, got_size = 0;
    socklen_t len = sizeof text;

    GIVES(0, exs_getsockopt(p.a, SOL_EXS, EXS_SO_TRANSPORT, text, &len));
    CHECK(asked && strncmp(text, asked, strlen(asked)) == 0);
    /* The transport's own value, as the program has set none. */
    len = sizeof got_size;
    GIVES(0, exs_getsockopt(p.a, SOL_EXS, EXS_SO_INLINE, &got_size, &len));
    GIVES(strncmp(text, "shm", 3) == 0 ? 8 << 10 : 4 << 10, got_size);
    len = sizeof text;
    GIVES(0, exs_getsockopt(p.a, SOL_EXS, EXS_SO_ROUTE, text, &len));
    CHECK(strlen(text) + 1 == len);
    len = 1;
    GIVES(0, exs_getsockopt(p.a, SOL_EXS, EXS_SO_ROUTE, &one, &len));
    CHECK(one == 0 && len == 1);
    len = sizeof text;
    FAILS(ENOTCONN, exs_getsockopt(fd, SOL_EXS, EXS_SO_ROUTE, text, &len));
    GIVES(0, exs_setsockopt(fd, SOL_EXS, EXS_SO_RING_SIZE, &size, sizeof size));
    len = sizeof got_size;
    GIVES(0, exs_getsockopt(fd, SOL_EXS, EXS_SO_RING_SIZE, &got_size, &len));
    GIVES(1 << 20, got_size);
    GIVES(0, exs_setsockopt(fd, SOL_EXS, EXS_SO_CRC, &crc, sizeof crc));
    GIVES(1, get_int(fd, SOL_EXS, EXS_SO_CRC));
    FAILS(EINVAL, exs_setsockopt(fd, SOL_EXS, EXS_SO_TRANSPORT, "pigeon", 7));
    FAILS(ENOPROTOOPT, exs_setsockopt(fd, SOL_EXS, 999, &crc, sizeof crc));
    FAILS(ENOPROTOOPT, exs_setsockopt(p.a, SOL_EXS, EXS_SO_ROUTE, "x", 2));
    end_one(fd);
    end(p);
}

CASE("opt-1", options_of_the_path, EXS | EXSMSG)
{
    int fd = new_socket(), family = get_int(fd, SOL_SOCKET, SO_DOMAIN), count = 8;
    struct timeval t = {0, 700}, got;
    socklen_t len = sizeof got;

    GIVES(0, get_int(fd, IPPROTO_IP, IP_TOS));
    set_int(fd, IPPROTO_IP, IP_TOS, 0x68 | 1);
    GIVES(0x68, get_int(fd, IPPROTO_IP, IP_TOS));
    if (family == AF_INET6) {
        set_int(fd, IPPROTO_IPV6, IPV6_TCLASS, 0xb8);
        GIVES(0xb8, get_int(fd, IPPROTO_IPV6, IPV6_TCLASS));
    }
    GIVES(-1, get_int(fd, SOL_EXS, EXS_SO_RETRY_COUNT));
    set_int(fd, SOL_EXS, EXS_SO_RETRY_COUNT, 3);
    GIVES(3, get_int(fd, SOL_EXS, EXS_SO_RETRY_COUNT));
    set_int(fd, SOL_EXS, EXS_SO_RNR_RETRY_COUNT, 0);
    GIVES(0, get_int(fd, SOL_EXS, EXS_SO_RNR_RETRY_COUNT));
    FAILS(EINVAL, exs_setsockopt(fd, SOL_EXS, EXS_SO_RETRY_COUNT, &count, sizeof count));
    GIVES(3, get_int(fd, SOL_EXS, EXS_SO_RETRY_COUNT));
    GIVES(-1, get_int(fd, SOL_EXS, EXS_SO_PATH_MTU));
    set_int(fd, SOL_EXS, EXS_SO_PATH_MTU, 1024);
    GIVES(1024, get_int(fd, SOL_EXS, EXS_SO_PATH_MTU));
    count = 1500;
    FAILS(EINVAL, exs_setsockopt(fd, SOL_EXS, EXS_SO_PATH_MTU, &count, sizeof count));
    GIVES(1024, get_int(fd, SOL_EXS, EXS_SO_PATH_MTU));
    set_int(fd, SOL_EXS, EXS_SO_PATH_MTU, -1);
    GIVES(-1, get_int(fd, SOL_EXS, EXS_SO_PATH_MTU));
    set_int(fd, SOL_EXS, EXS_SO_PKEY, 0x8001);
    GIVES(0x8001, get_int(fd, SOL_EXS, EXS_SO_PKEY));
    count = 0x10000;
    FAILS(EINVAL, exs_setsockopt(fd, SOL_EXS, EXS_SO_PKEY, &count, sizeof count));
    set_int(fd, SOL_EXS, EXS_SO_SERVICE_LEVEL, 0);
    GIVES(0, get_int(fd, SOL_EXS, EXS_SO_SERVICE_LEVEL));
    count = 16;
    FAILS(EINVAL, exs_setsockopt(fd, SOL_EXS, EXS_SO_SERVICE_LEVEL, &count, sizeof count));
    count = 256;
    FAILS(EINVAL, exs_setsockopt(fd, SOL_EXS, EXS_SO_SERVICE_LEVEL, &count, sizeof count));
    GIVES(0, exs_setsockopt(fd, SOL_EXS, EXS_SO_RNR_TIMER, &t, sizeof t));
    GIVES(0, exs_getsockopt(fd, SOL_EXS, EXS_SO_RNR_TIMER, &got, &len));
    CHECK(got.tv_sec == 0 && got.tv_usec == 700);
    t.tv_sec = 1;
    FAILS(EINVAL, exs_setsockopt(fd, SOL_EXS, EXS_SO_RNR_TIMER, &t, sizeof t));
    GIVES(0, exs_setsockopt(fd, SOL_EXS, EXS_SO_ACK_TIMEOUT, &t, sizeof t));
    end_one(fd);
}

static void set_limit(int fd, int name, int milliseconds, int flags)
{
    exs_timeout_t t;

    memset(&t, 0, sizeof t);
    t.exs_to_time.tv_usec = milliseconds * 1000;
    t.exs_to_flags = flags;
    GIVES(0, exs_setsockopt(fd, SOL_SOCKET, name, &t, sizeof t));
}

CASE("timeout-1", a_receive_has_its_time, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    exs_iovec_t v;
    exs_msghdr_t m;
    char in[4];

    memset(&v, 0, sizeof v);
    memset(&m, 0, sizeof m);
    v.exs_iov_base = in;
    v.exs_iov_len = 4;
    v.exs_iov_mhandle = UNREG;
    m.exs_msg_iov = &v;
    m.exs_msg_iovlen = 1;
    set_limit(p.b, SO_ASYNC_RECV_TIMEOUT, 10, 0);
    GIVES(0, exs_recv(p.b, in, 4, 0, q, 7, UNREG));
    GIVES(7, next_failed(q, EXS_EVT_RECVTIMEOUT, ETIMEDOUT).exs_evt_ahandle);
    GIVES(0, exs_recvmsg(p.b, &m, 0, q, 8));
    GIVES(8, next_failed(q, EXS_EVT_RECVTIMEOUT, ETIMEDOUT).exs_evt_ahandle);
    /* zero is none */
    set_limit(p.b, SO_ASYNC_RECV_TIMEOUT, 0, 0);
    GIVES(0, exs_recv(p.b, in, 4, 0, q, 9, UNREG));
    GIVES(0, exs_qdequeue(q, &(exs_event_t){0}, 1, &(struct timeval){0, 30000}));
    send_all(p.a, "x", 1);
    GIVES(1, LENGTH(next(q, EXS_EVT_RECV)));
    end(p);
    end_queue(q);
}

CASE("timeout-1", a_send_has_its_time, STREAMS)
{
    enum { LEN = 64 << 20 };
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char *out = calloc(1, LEN);
    exs_event_t e;

    CHECK(out);
    set_limit(p.a, SO_ASYNC_SEND_TIMEOUT, 20, 0);
    /* more than fits, and the peer does not receive */
    GIVES(0, exs_send(p.a, out, LEN, 0, q, 7, UNREG));
    e = next_failed(q, EXS_EVT_SENDTIMEOUT, ETIMEDOUT);
    CHECK(LENGTH(e) < LEN);
    end(p);
    free(out);
    end_queue(q);
}

CASE("timeout-2", once_is_for_one_operation, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char in[2];

    set_limit(p.b, SO_ASYNC_RECV_TIMEOUT, 10, EXS_TIMEOUT_ONCE);
    GIVES(0, exs_recv(p.b, in, 1, 0, q, 1, UNREG));
    GIVES(0, exs_recv(p.b, in, 1, 0, q, 2, UNREG));
    GIVES(1, next_failed(q, EXS_EVT_RECVTIMEOUT, ETIMEDOUT).exs_evt_ahandle);
    GIVES(0, exs_qdequeue(q, &(exs_event_t){0}, 1, &(struct timeval){0, 30000}));
    send_all(p.a, "x", 1);
    GIVES(2, next(q, EXS_EVT_RECV).exs_evt_ahandle);
    end(p);
    end_queue(q);
}

CASE("timeout-2 opt-2", values_can_be_read_back, SOCKETS)
{
    struct pair p = connection();
    exs_timeout_t t = {{1, 500000}, 0, 0};
    struct timeval got;
    socklen_t len = sizeof got;
    int fd = p.a, one = 1;

    GIVES(0, exs_getsockopt(fd, SOL_SOCKET, SO_ASYNC_SEND_TIMEOUT, &got, &len));
    CHECK(got.tv_sec == 0 && got.tv_usec == 0);
    GIVES(0, exs_setsockopt(fd, SOL_SOCKET, SO_ASYNC_SEND_TIMEOUT, &t, sizeof t));
    len = sizeof got;
    GIVES(0, exs_getsockopt(fd, SOL_SOCKET, SO_ASYNC_SEND_TIMEOUT, &got, &len));
    CHECK(got.tv_sec == 1 && got.tv_usec == 500000);
    /* a struct timeval alone will do */
    got.tv_sec = 2;
    GIVES(0, exs_setsockopt(fd, SOL_SOCKET, SO_ASYNC_RECV_TIMEOUT, &got, sizeof got));
    t.exs_to_flags = 8;
    FAILS(EINVAL, exs_setsockopt(fd, SOL_SOCKET, SO_ASYNC_SEND_TIMEOUT, &t, sizeof t));
    t.exs_to_flags = 0;
    t.exs_to_time.tv_usec = -1;
    FAILS(EINVAL, exs_setsockopt(fd, SOL_SOCKET, SO_ASYNC_SEND_TIMEOUT, &t, sizeof t));
    GIVES(0, exs_setsockopt(fd, SOL_SOCKET, SO_ASYNC_RECV_ORDERED, &one, sizeof one));
    GIVES(1, get_int(fd, SOL_SOCKET, SO_ASYNC_RECV_ORDERED));
    end(p);
}
