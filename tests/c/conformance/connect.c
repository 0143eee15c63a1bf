/* exs_connect, exs_accept. */
#include "net.h"

#include <arpa/inet.h>
#include <fcntl.h>

CASE("connect-1", the_event_says_that_it_is_connected, CONNECTED)
{
    struct place at;
    int l = listener(&at), fd = new_socket(), other;
    exs_qhandle_t q = new_queue(4);
    exs_event_t e;

    GIVES(0, exs_connect(fd, ADDR(at), at.len, 0, q, (exs_ahandle_t)-1));
    other = exs_accept(l, NULL, 0, BLOCK);
    CHECK(other >= 0);
    e = next(q, EXS_EVT_CONNECT);
    GIVES(fd, e.exs_evt_socket);
    CHECK(e.exs_evt_ahandle == (exs_ahandle_t)-1);
    nothing(q);
    end_one(fd);
    end_one(other);
    end_one(l);
    end_queue(q);
}

CASE("connect-1", a_socket_that_was_refused_connects_later, CONNECTED)
{
    struct place at, there;
    int l = listener(&at), fd = new_socket(), other;
    exs_qhandle_t q = new_queue(4);

    end_one(l);
    GIVES(0, exs_connect(fd, ADDR(at), at.len, 0, q, 1));
    next_failed(q, EXS_EVT_CONNECT, ECONNREFUSED);
    /* the socket is good for another attempt */
    l = listener(&there);
    GIVES(0, exs_connect(fd, ADDR(there), there.len, 0, q, 2));
    other = exs_accept(l, NULL, 0, BLOCK);
    CHECK(other >= 0);
    next(q, EXS_EVT_CONNECT);
    end_one(fd);
    end_one(other);
    end_one(l);
    end_queue(q);
}

CASE("connect-3", a_connected_socket_is_not_connected_again, CONNECTED)
{
    struct place at;
    int l = listener(&at), fd = new_socket();
    exs_qhandle_t q = new_queue(4);

    GIVES(0, exs_connect(fd, ADDR(at), at.len, 0, BLOCK));
    FAILS(EISCONN, exs_connect(fd, ADDR(at), at.len, 0, BLOCK));
    if (ON_EXS)
        FAILS(EISCONN, exs_connect(fd, ADDR(at), at.len, 0, q, 1));
    nothing(q);
    end_one(fd);
    end_one(l);
    end_queue(q);
}

CASE("all-3", without_a_queue_it_waits, CONNECTED)
{
    struct place at;
    int l = listener(&at), fd = new_socket(), other;

    GIVES(0, exs_connect(fd, ADDR(at), at.len, 0, BLOCK));
    other = exs_accept(l, NULL, 0, BLOCK);
    CHECK(other >= 0);
    send_all(fd, "x", 1);
    end_one(fd);
    end_one(other);
    end_one(l);
    fd = new_socket();
    FAILS(ECONNREFUSED, exs_connect(fd, ADDR(at), at.len, 0, BLOCK));
    end_one(fd);
}

CASE("connect-2", nonblocking_it_is_in_progress, EXS | EXSMSG | TCP)
{
    struct place at;
    int l = listener(&at), fd = new_socket(), other, error = -1;
    socklen_t len = sizeof error;
    exs_pollfd_t poll;

    GIVES(0, exs_fcntl(fd, F_SETFL, exs_fcntl(fd, F_GETFL) | O_NONBLOCK));
    FAILS(EINPROGRESS, exs_connect(fd, ADDR(at), at.len, 0, BLOCK));
    other = exs_accept(l, NULL, 0, BLOCK);
    CHECK(other >= 0);
    memset(&poll, 0, sizeof poll);
    poll.exs_pfd_fd = fd;
    poll.exs_pfd_events = EXS_POLLOUT;
    GIVES(1, exs_poll(&poll, 0, BLOCK));
    CHECK(poll.exs_pfd_revents & EXS_POLLOUT);
    GIVES(0, exs_getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
    GIVES(0, error);
    end_one(fd);
    end_one(other);
    end_one(l);
    /* and SO_ERROR reports its failure, once */
    fd = new_socket();
    GIVES(0, exs_fcntl(fd, F_SETFL, exs_fcntl(fd, F_GETFL) | O_NONBLOCK));
    if (exs_connect(fd, ADDR(at), at.len, 0, BLOCK) == -1 && errno == EINPROGRESS) {
        poll.exs_pfd_fd = fd;
        GIVES(1, exs_poll(&poll, 0, BLOCK));
        GIVES(1, exs_poll(&poll, 0, BLOCK)); /* a late call sees it, too */
        GIVES(0, exs_getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
        GIVES(ECONNREFUSED, error);
        GIVES(0, exs_getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
        GIVES(0, error);
    } else {
        GIVES(ECONNREFUSED, errno);
    }
    end_one(fd);
}

/* The port at this end of a connection. */
static in_port_t port_of(int fd)
{
    struct sockaddr_in mine;
    socklen_t len = sizeof mine;

    GIVES(0, exs_getsockname(fd, (struct sockaddr *)&mine, &len));
    return mine.sin_port;
}

/* Takes the next event. Returns 1 if it has a connection that was accepted, and 0 if not. */
static int take_accepted(exs_qhandle_t q, int *fd)
{
    exs_event_t e = next_any(q);

    GIVES(0, e.exs_evt_errno);
    if (e.exs_evt_type != EXS_EVT_ACCEPT)
        return 0;
    *fd = e.exs_evt_union.exs_evt_accept.exs_evt_newsocket;
    return 1;
}

/* Connections of a link group have no descriptors of their own, which a program could poll. */
CASE("connect-2", nonblocking_it_shares_no_tcp_connection, EXS | EXSMSG | ALONE)
{
    enum { N = 4 };
    const char *transport = getenv("EXS_TRANSPORT");
    exs_pollfd_t ready;
    int l, fd[2 * N], served[2 * N], i, n = 0;
    exs_qhandle_t q;
    struct place at;

    if (!transport || strcmp(transport, "soft") != 0)
        skip("there are groups over the software RNIC only");
    /* Each connection that can be is in a group. */
    setenv("EXS_LINK_GROUP", "0", 1);
    l = listener(&at);
    q = new_queue(4 * N);
    for (i = 0; i < 2 * N; i++)
        GIVES(0, exs_accept(l, NULL, 0, q, 1));
    for (i = 0; i < N; i++) {
        fd[i] = new_socket();
        GIVES(0, exs_connect(fd[i], ADDR(at), at.len, 0, q, 2));
    }
    for (i = 0; i < 2 * N; i++)
        n += take_accepted(q, &served[n]);
    GIVES(N, n);
    GIVES(1, tcp_connections(ADDR(at)));
    memset(&ready, 0, sizeof ready);
    ready.exs_pfd_events = EXS_POLLOUT;
    for (i = N; i < 2 * N; i++) {
        fd[i] = ready.exs_pfd_fd = new_socket();
        nonblocking(fd[i]);
        FAILS(EINPROGRESS, exs_connect(fd[i], ADDR(at), at.len, 0, BLOCK));
        GIVES(1, exs_poll(&ready, 0, BLOCK));
        n += take_accepted(q, &served[n]);
    }
    GIVES(2 * N, n);
    GIVES(1 + N, tcp_connections(ADDR(at)));
    /* In a group or not, each has a port of its own. */
    for (i = 1; i < 2 * N; i++)
        CHECK(port_of(fd[i]) != port_of(fd[i - 1]) && port_of(fd[i]) != port_of(fd[0]));
    for (i = 0; i < 2 * N; i++) {
        end_one(fd[i]);
        end_one(served[i]);
    }
    end_one(l);
    end_queue(q);
}

CASE("bind-1 all-4 all-5", what_makes_no_sense_is_refused, EXS | EXSMSG)
{
    struct place at;
    int l = listener(&at), fd = new_socket();
    exs_qhandle_t q = new_queue(4);
    struct sockaddr_un un = {AF_UNIX, "x"};

    FAILS(EFAULT, exs_connect(fd, NULL, at.len, 0, q, 1));
    FAILS(EINVAL, exs_connect(fd, ADDR(at), 3, 0, q, 1));
    FAILS(EINVAL, exs_connect(fd, ADDR(at), 0, 0, q, 1));
    FAILS(EINVAL, exs_connect(fd, ADDR(at), at.len, 1, q, 1));
    FAILS(EAFNOSUPPORT, exs_connect(fd, (struct sockaddr *)&un, sizeof un, 0, q, 1));
    FAILS(EBADF, exs_connect(-1, ADDR(at), at.len, 0, q, 1));
    FAILS(EINVAL, exs_connect(fd, ADDR(at), at.len, 0, 12345, 1));
    nothing(q);
    end_one(fd);
    end_one(l);
    end_queue(q);
}

/* HOST and the port of an address of AF_INET, as text. */
static void host_text(char *to, size_t size, const char *host, const struct place *at)
{
    int port = ntohs(((const struct sockaddr_in *)&at->addr)->sin_port);

    CHECK((size_t)snprintf(to, size, "%s:%d", host, port) < size);
}

CASE("host-1", a_host_is_connected_by_its_name, EXS | EXSMSG)
{
    struct place at, peer;
    int l = listener(&at), fd, other, i, error = -1;
    exs_qhandle_t q = new_queue(4);
    exs_event_t e;
    exs_pollfd_t poll;
    socklen_t len = sizeof error;
    char address[INET_ADDRSTRLEN], text[2][64];

    CHECK(inet_ntop(AF_INET, &((struct sockaddr_in *)&at.addr)->sin_addr, address, sizeof address));
    host_text(text[0], sizeof text[0], address, &at);
    host_text(text[1], sizeof text[1], "localhost", &at);
    for (i = 0; i < 2; i++) {
        /* the name is that of the loopback interface only */
        if (i == 1 && strcmp(address, "127.0.0.1") != 0)
            break;
        fd = new_socket();
        GIVES(0, exs_connect_host(fd, text[i], 0, q, 7));
        other = exs_accept(l, NULL, 0, BLOCK);
        CHECK(other >= 0);
        e = next(q, EXS_EVT_CONNECT);
        GIVES(7, e.exs_evt_ahandle);
        peer.len = sizeof peer.addr;
        GIVES(0, exs_getpeername(fd, ADDR(peer), &peer.len));
        GIVES(AF_INET, peer.addr.ss_family);
        FAILS(EISCONN, exs_connect_host(fd, text[i], 0, q, 8));
        end_one(fd);
        end_one(other);
        /* without a queue it waits */
        fd = new_socket();
        GIVES(0, exs_connect_host(fd, text[i], 0, BLOCK));
        end_one(fd);
        end_one(exs_accept(l, NULL, 0, BLOCK));
        /* and with O_NONBLOCK it does not */
        fd = new_socket();
        GIVES(0, exs_fcntl(fd, F_SETFL, exs_fcntl(fd, F_GETFL) | O_NONBLOCK));
        FAILS(EINPROGRESS, exs_connect_host(fd, text[i], 0, BLOCK));
        /* as connect(2): still connecting, or there by now, which it says once */
        if (exs_connect_host(fd, text[i], 0, BLOCK) != 0)
            CHECK(errno == EALREADY || errno == EISCONN);
        other = exs_accept(l, NULL, 0, BLOCK);
        CHECK(other >= 0);
        memset(&poll, 0, sizeof poll);
        poll.exs_pfd_fd = fd;
        poll.exs_pfd_events = EXS_POLLOUT;
        GIVES(1, exs_poll(&poll, 0, BLOCK));
        GIVES(0, exs_getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
        GIVES(0, error);
        end_one(fd);
        end_one(other);
    }
    nothing(q);
    end_one(l);
    end_queue(q);
}

CASE("host-2", what_names_no_host_is_refused, EXS | EXSMSG)
{
    int fd = new_socket(), six = exs_socket(AF_INET6, SOCK_STREAM, 0);
    int kernel = socket(AF_INET, SOCK_STREAM, 0);
    exs_qhandle_t q = new_queue(4);
    char lengthy[2000];

    memset(lengthy, 'a', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = 0;
    FAILS(EFAULT, exs_connect_host(fd, NULL, 0, q, 1));
    FAILS(EINVAL, exs_connect_host(fd, "server.example", 0, q, 1));
    CHECK(strstr(exs_strerror(), "the port is missing") != NULL);
    FAILS(EINVAL, exs_connect_host(fd, "server.example:1", 1, q, 1));
    FAILS(ENAMETOOLONG, exs_connect_host(fd, lengthy, 0, q, 1));
    FAILS(EAFNOSUPPORT, exs_connect_host(fd, "[::1]:1", 0, q, 1));
    FAILS(EINVAL, exs_connect_host(six, "[fe80::1]:1", 0, q, 1));
    FAILS(EOPNOTSUPP, exs_connect_host(kernel, "127.0.0.1:1", 0, q, 1));
    FAILS(EBADF, exs_connect_host(-1, "127.0.0.1:1", 0, q, 1));
    /* a service that no file of services has: no name server is asked */
    GIVES(0, exs_connect_host(fd, "127.0.0.1:no-such-service", 0, q, 2));
    next_failed(q, EXS_EVT_CONNECT, EINVAL);
    nothing(q);
    close(kernel);
    end_one(six);
    end_one(fd);
    end_queue(q);
}

CASE("accept-1", the_event_has_the_connection_and_the_peer, CONNECTED)
{
    struct place at, mine;
    int l = listener(&at), fd = new_socket(), other;
    exs_qhandle_t q = new_queue(4);
    exs_acceptaddr_t from;
    exs_event_t e;

    memset(&from, 0, sizeof from);
    GIVES(0, exs_accept(l, &from, 0, q, 42));
    GIVES(0, exs_connect(fd, ADDR(at), at.len, 0, BLOCK));
    e = next(q, EXS_EVT_ACCEPT);
    GIVES(l, e.exs_evt_socket);
    GIVES(42, e.exs_evt_ahandle);
    CHECK(e.exs_evt_union.exs_evt_accept.exs_evt_acceptaddr == &from);
    other = e.exs_evt_union.exs_evt_accept.exs_evt_newsocket;
    CHECK(other >= 0 && other != fd && other != l);
    GIVES(at.addr.ss_family, from.exs_aa_addr.ss_family);
    if (world != LOCAL) {
        mine.len = sizeof mine.addr;
        GIVES(0, exs_getsockname(fd, ADDR(mine), &mine.len));
        GIVES(sizeof(struct sockaddr_in), from.exs_aa_addrlen);
        CHECK(((struct sockaddr_in *)&mine.addr)->sin_port ==
              ((struct sockaddr_in *)&from.exs_aa_addr)->sin_port);
    }
    send_all(fd, "x", 1);
    end_one(fd);
    end_one(other);
    end_one(l);
    end_queue(q);
}

CASE("all-3 all-9", without_a_queue_it_returns_the_connection, CONNECTED)
{
    struct place at;
    int l = listener(&at), fd = new_socket(), other;
    exs_acceptaddr_t from;

    GIVES(0, exs_connect(fd, ADDR(at), at.len, 0, BLOCK));
    other = exs_accept(l, &from, 0, BLOCK);
    CHECK(other >= 0);
    GIVES(at.addr.ss_family, from.exs_aa_addr.ss_family);
    end_one(fd);
    end_one(other);
    GIVES(0, exs_fcntl(l, F_SETFL, exs_fcntl(l, F_GETFL) | O_NONBLOCK));
    FAILS(EAGAIN, exs_accept(l, NULL, 0, BLOCK));
    end_one(l);
}

CASE("accept-3", accept_needs_a_listener, CONNECTED)
{
    int fd = new_socket();
    exs_qhandle_t q = new_queue(4);

    FAILS(EINVAL, exs_accept(fd, NULL, 0, BLOCK));
    if (exs_accept(fd, NULL, 0, q, 1) == 0)
        next_failed(q, EXS_EVT_ACCEPT, EINVAL);
    else
        GIVES(EINVAL, errno);
    FAILS(EBADF, exs_accept(-1, NULL, 0, q, 1));
    FAILS(EINVAL, exs_accept(fd, NULL, 1 << 30, q, 1));
    nothing(q);
    end_one(fd);
    end_queue(q);
}

CASE("accept-4", accepts_posted_ahead_get_a_connection_each, CONNECTED)
{
    enum { N = 8 };
    struct place at;
    int l = listener(&at), fd[N], other, i, seen = 0;
    exs_qhandle_t q = new_queue(N);
    exs_event_t e[N];

    for (i = 0; i < N; i++)
        GIVES(0, exs_accept(l, NULL, 0, q, (exs_ahandle_t)i));
    for (i = 0; i < N; i++) {
        fd[i] = new_socket();
        GIVES(0, exs_connect(fd[i], ADDR(at), at.len, 0, BLOCK));
    }
    GIVES(N, exs_qdequeue(q, e, -N, NULL));
    for (i = 0; i < N; i++) {
        CHECK(e[i].exs_evt_type == EXS_EVT_ACCEPT && e[i].exs_evt_errno == 0);
        seen |= 1 << e[i].exs_evt_ahandle;
        other = e[i].exs_evt_union.exs_evt_accept.exs_evt_newsocket;
        CHECK(other >= 0);
        end_one(other);
        end_one(fd[i]);
    }
    GIVES((1 << N) - 1, seen);
    end_one(l);
    end_queue(q);
}

CASE("cancel-1", it_can_be_cancelled, CONNECTED)
{
    struct place at;
    int l = listener(&at);
    exs_qhandle_t q = new_queue(4);
    exs_event_t e;

    GIVES(0, exs_accept(l, NULL, 0, q, 1));
    GIVES(1, exs_cancel(l, EXS_CAF_FILDES, 0));
    e = next_failed(q, EXS_EVT_ACCEPT, ECANCELED);
    GIVES(-1, e.exs_evt_union.exs_evt_accept.exs_evt_newsocket);
    end_one(l);
    end_queue(q);
}

CASE("accept-2", flags_are_of_the_new_descriptor, CONNECTED)
{
    struct place at;
    int l = listener(&at), fd = new_socket(), other;
    exs_qhandle_t q = new_queue(4);
    exs_event_t e;

    GIVES(0, exs_accept(l, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC, q, 1));
    GIVES(0, exs_connect(fd, ADDR(at), at.len, 0, BLOCK));
    e = next(q, EXS_EVT_ACCEPT);
    other = e.exs_evt_union.exs_evt_accept.exs_evt_newsocket;
    CHECK(other >= 0);
    CHECK(fcntl(other, F_GETFL) & O_NONBLOCK);
    CHECK(fcntl(other, F_GETFD) & FD_CLOEXEC);
    CHECK(!(fcntl(l, F_GETFL) & O_NONBLOCK));
    end_one(other);
    end_one(fd);
    fd = new_socket();
    GIVES(0, exs_connect(fd, ADDR(at), at.len, 0, BLOCK));
    other = exs_accept(l, NULL, 0, BLOCK);
    CHECK(other >= 0 && !(fcntl(other, F_GETFL) & O_NONBLOCK));
    end_one(other);
    end_one(fd);
    end_one(l);
    end_queue(q);
}
