/* Making sockets, binding, listening, names. */
#include "diff.h"

static struct sockaddr_storage room;
static socklen_t len = sizeof room;

BEHAVIOUR(a_socket_of_another_family) { TELL(make_as(AF_UNIX + 90, SOCK_STREAM, 0)); }
BEHAVIOUR(a_socket_of_another_type) { TELL(make_as(AF_INET, 77, 0)); }
BEHAVIOUR(a_socket_of_udp_for_a_stream) { TELL(make_as(AF_INET, SOCK_STREAM, IPPROTO_UDP)); }
BEHAVIOUR(a_socket_that_names_tcp) { TELL(make_as(AF_INET, SOCK_STREAM, IPPROTO_TCP) >= 0); }
BEHAVIOUR(a_socket_with_flags)
{
    int fd = (int)MUST(make_as(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));

    TELL(control(fd, F_GETFL, 0) & O_NONBLOCK);
    TELL(control(fd, F_GETFD, 0));
}
BEHAVIOUR(flags_of_a_new_socket)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(control(fd, F_GETFL, 0));
}
BEHAVIOUR(close_on_exec_of_a_new_socket)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(control(fd, F_GETFD, 0));
}
BEHAVIOUR(flags_are_set_and_cleared)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(control(fd, F_SETFL, O_NONBLOCK));
    TELL(control(fd, F_GETFL, 0) & O_NONBLOCK);
    TELL(control(fd, F_SETFL, 0));
    TELL(control(fd, F_GETFL, 0) & O_NONBLOCK);
}
BEHAVIOUR(the_name_of_a_new_socket)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(name_of(fd, &room, &len));
    say_addr(&room, len, 0);
}
BEHAVIOUR(the_name_of_a_new_socket_of_ipv6)
{
    int fd = (int)MUST(make(AF_INET6));

    TELL(name_of(fd, &room, &len));
    say_addr(&room, len, 0);
}
BEHAVIOUR(the_peer_of_a_new_socket)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(peer_of(fd, &room, &len));
}
BEHAVIOUR(the_peer_of_a_listener)
{
    struct sockaddr_in at;

    TELL(peer_of(listener(&at), &room, &len));
}
BEHAVIOUR(bind_takes_an_address)
{
    struct sockaddr_in a = v4("127.0.0.1", 0);
    int fd = (int)MUST(make(AF_INET));

    TELL(bind_to(fd, &a, sizeof a));
    TELL(name_of(fd, &room, &len));
    say_addr(&room, len, 0);
}
BEHAVIOUR(bind_to_no_address)
{
    struct sockaddr_in a = v4("0.0.0.0", 0);
    int fd = (int)MUST(make(AF_INET));

    TELL(bind_to(fd, &a, sizeof a));
    TELL(name_of(fd, &room, &len));
    say_addr(&room, len, 0);
}
BEHAVIOUR(bind_twice)
{
    struct sockaddr_in a = v4("127.0.0.1", 0);
    int fd = (int)MUST(make(AF_INET));

    MUST(bind_to(fd, &a, sizeof a));
    TELL(bind_to(fd, &a, sizeof a));
}
BEHAVIOUR(bind_of_a_connection)
{
    struct sockaddr_in a = v4("127.0.0.1", 0);
    struct pair p = pair();

    TELL(bind_to(p.a, &a, sizeof a));
    TELL(bind_to(p.b, &a, sizeof a));
}
BEHAVIOUR(bind_to_another_hosts_address)
{
    struct sockaddr_in a = v4("192.0.2.1", 0);
    int fd = (int)MUST(make(AF_INET));

    TELL(bind_to(fd, &a, sizeof a));
}
BEHAVIOUR(bind_to_a_port_in_use)
{
    struct sockaddr_in at;
    int fd, l = listener(&at);

    (void)l;
    fd = (int)MUST(make(AF_INET));
    TELL(bind_to(fd, &at, sizeof at));
}
BEHAVIOUR(bind_to_the_other_family)
{
    struct sockaddr_in6 a = v6("::1", 0);
    int fd = (int)MUST(make(AF_INET));

    TELL(bind_to(fd, &a, sizeof a));
}
BEHAVIOUR(bind_of_ipv6_to_ipv4)
{
    struct sockaddr_in a = v4("127.0.0.1", 0);
    int fd = (int)MUST(make(AF_INET6));

    TELL(bind_to(fd, &a, sizeof a));
}
BEHAVIOUR(bind_to_a_short_address)
{
    struct sockaddr_in a = v4("127.0.0.1", 0);
    int fd = (int)MUST(make(AF_INET));

    TELL(bind_to(fd, &a, sizeof a - 9));
    TELL(bind_to(fd, &a, 1));
    TELL(bind_to(fd, &a, 0));
}
BEHAVIOUR(bind_to_no_family)
{
    struct sockaddr_in a = {.sin_family = AF_UNSPEC};
    int fd = (int)MUST(make(AF_INET));

    TELL(bind_to(fd, &a, sizeof a)); /* Linux takes it for INADDR_ANY */
}
BEHAVIOUR(bind_to_a_family_that_is_none)
{
    struct sockaddr_in a = {.sin_family = 99};
    int fd = (int)MUST(make(AF_INET));

    TELL(bind_to(fd, &a, sizeof a));
}
BEHAVIOUR(bind_at_null)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(bind_to(fd, NULL, sizeof(struct sockaddr_in)));
}
BEHAVIOUR(names_of_nothing)
{
    TELL(name_of(-1, &room, &len));
    TELL(peer_of(987, &room, &len));
    TELL(bind_to(987, &room, 16));
    TELL(listen_on(987, 1));
    TELL(finish(987));
}
BEHAVIOUR(calls_on_what_is_no_socket)
{
    int fd = (int)MUST(open("/dev/null", O_RDWR));

    TELL(bind_to(fd, &room, 16));
    TELL(listen_on(fd, 1));
    TELL(connect_to(fd, &room, 16));
    TELL(accept_from(fd, NULL, NULL, 0));
    TELL(transmit(fd, buf, 1, 0));
    TELL(receive(fd, buf, 1, 0));
    TELL(end_way(fd, SHUT_WR));
    TELL(name_of(fd, &room, &len));
    TELL(int_of(fd, SOL_SOCKET, SO_TYPE));
}
BEHAVIOUR(a_name_where_there_is_no_room)
{
    struct sockaddr_in at;
    int l = listener(&at);

    len = 4;
    memset(&room, 7, sizeof room);
    TELL(name_of(l, &room, &len));
    say("%u %d %d", len, room.ss_family, ((char *)&room)[4]);
    len = 0;
    TELL(name_of(l, &room, &len));
    say("%u", len);
    TELL(name_of(l, NULL, &len));
    len = 16;
    TELL(name_of(l, NULL, &len));
    TELL(name_of(l, &room, NULL));
}
BEHAVIOUR(names_of_a_connection)
{
    struct sockaddr_in at;
    struct sockaddr_storage other;
    int l = listener(&at);
    struct pair p = pair_at(l, &at, sizeof at, AF_INET);

    TELL(peer_of(p.a, &room, &len));
    say_addr(&room, len, ntohs(at.sin_port));
    TELL(name_of(p.b, &room, &len));
    say_addr(&room, len, ntohs(at.sin_port));
    MUST(name_of(p.a, &room, &len));
    MUST(peer_of(p.b, &other, &len));
    say("%d", memcmp(&room, &other, sizeof(struct sockaddr_in)));
}
BEHAVIOUR(names_of_a_connection_of_ipv6)
{
    struct sockaddr_in6 any = v6("::1", 0), at;
    int l = (int)MUST(make(AF_INET6));
    struct pair p;

    MUST(bind_to(l, &any, sizeof any));
    MUST(listen_on(l, 5));
    MUST(name_of(l, &at, &(socklen_t){sizeof at}));
    p = pair_at(l, &at, sizeof at, AF_INET6);
    TELL(peer_of(p.a, &room, &len));
    say_addr(&room, len, ntohs(at.sin6_port));
    TELL(peer_of(p.b, &room, &len));
    say_addr(&room, len, 0);
    TELL(name_of(p.b, &room, &len));
    say_addr(&room, len, ntohs(at.sin6_port));
}

/* A listener of IPv6 on every address, and its port. */
static int everywhere(int *port)
{
    struct sockaddr_in6 any = v6("::", 0), at;
    int l = (int)MUST(make(AF_INET6));

    MUST(set_int(l, IPPROTO_IPV6, IPV6_V6ONLY, 0));
    MUST(bind_to(l, &any, sizeof any));
    MUST(listen_on(l, 5));
    MUST(name_of(l, &at, &(socklen_t){sizeof at}));
    *port = ntohs(at.sin6_port);
    return l;
}

BEHAVIOUR(ipv4_reaches_a_listener_of_ipv6)
{
    int port, l = everywhere(&port);
    struct sockaddr_in at = v4("127.0.0.1", port);
    struct pair p = pair_at(l, &at, sizeof at, AF_INET);

    TELL(peer_of(p.b, &room, &len));
    say_addr(&room, len, 0);
    TELL(name_of(p.b, &room, &len));
    say_addr(&room, len, port);
    TELL(peer_of(p.a, &room, &len));
    say_addr(&room, len, port);
    TELL(name_of(p.a, &room, &len));
    say_addr(&room, len, 0);
}
BEHAVIOUR(an_ipv4_mapped_address_is_called)
{
    struct sockaddr_in at;
    int l = listener(&at);
    struct sockaddr_in6 mapped = v6("::ffff:127.0.0.1", ntohs(at.sin_port));
    struct pair p = pair_at(l, &mapped, sizeof mapped, AF_INET6);

    TELL(peer_of(p.a, &room, &len));
    say_addr(&room, len, ntohs(at.sin_port));
    TELL(name_of(p.a, &room, &len));
    say_addr(&room, len, 0);
    TELL(peer_of(p.b, &room, &len));
    say_addr(&room, len, 0);
}

static struct sockaddr_storage from;
static socklen_t from_len;
static void take(struct worker *w)
{
    from_len = sizeof from;
    w->result = accept_from(w->fd, &from, &from_len, 0);
}

BEHAVIOUR(accept_tells_the_caller)
{
    struct sockaddr_in at;
    struct worker w;
    int fd, l = listener(&at);

    begin(&w, take, l);
    fd = (int)MUST(make(AF_INET));
    MUST(connect_to(fd, &at, sizeof at));
    done(&w);
    MUST(w.result);
    MUST(name_of(fd, &room, &len));
    say_addr(&from, from_len, ntohs(((struct sockaddr_in *)&room)->sin_port));
}
BEHAVIOUR(accept_of_ipv6_tells_the_caller_of_ipv4)
{
    struct worker w;
    int fd, port, l = everywhere(&port);
    struct sockaddr_in at = v4("127.0.0.1", port);

    begin(&w, take, l);
    fd = (int)MUST(make(AF_INET));
    MUST(connect_to(fd, &at, sizeof at));
    done(&w);
    MUST(w.result);
    say_addr(&from, from_len, 0);
}
BEHAVIOUR(no_address_is_this_host)
{
    struct sockaddr_in any = v4("0.0.0.0", 0), at;
    int l = (int)MUST(make(AF_INET));
    struct pair p;

    MUST(bind_to(l, &any, sizeof any));
    MUST(listen_on(l, 5));
    MUST(name_of(l, &at, &(socklen_t){sizeof at}));
    p = pair_at(l, &at, sizeof at, AF_INET);
    TELL(peer_of(p.a, &room, &len));
    say_addr(&room, len, ntohs(at.sin_port));
    TELL(name_of(p.b, &room, &len));
    say_addr(&room, len, ntohs(at.sin_port));
}
BEHAVIOUR(no_address_of_ipv6_is_this_host)
{
    int port, l = everywhere(&port);
    struct sockaddr_in6 at = v6("::", port);
    struct pair p = pair_at(l, &at, sizeof at, AF_INET6);

    TELL(peer_of(p.a, &room, &len));
    say_addr(&room, len, port);
    TELL(name_of(p.b, &room, &len));
    say_addr(&room, len, port);
}
BEHAVIOUR(no_mapped_address_is_this_host)
{
    int port, l = everywhere(&port);
    struct sockaddr_in6 at = v6("::ffff:0.0.0.0", port);
    struct pair p = pair_at(l, &at, sizeof at, AF_INET6);

    TELL(peer_of(p.a, &room, &len));
    say_addr(&room, len, port);
}
BEHAVIOUR(a_bound_socket_calls_no_address)
{
    struct sockaddr_in any = v4("0.0.0.0", 0), mine = v4("127.0.0.3", 0), at;
    int fd, l = (int)MUST(make(AF_INET));

    MUST(bind_to(l, &any, sizeof any));
    MUST(listen_on(l, 5));
    MUST(name_of(l, &at, &(socklen_t){sizeof at}));
    fd = (int)MUST(make(AF_INET));
    MUST(bind_to(fd, &mine, sizeof mine));
    TELL(connect_to(fd, &at, sizeof at));
    MUST(peer_of(fd, &room, &len));
    say_addr(&room, len, ntohs(at.sin_port));
}

/* ---- Listening ------------------------------------------------------------------------------ */

BEHAVIOUR(listen_without_bind)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(listen_on(fd, 5));
    TELL(name_of(fd, &room, &len));
    say_addr(&room, len, 0);
}
BEHAVIOUR(listen_of_ipv6_without_bind)
{
    int fd = (int)MUST(make(AF_INET6));

    TELL(listen_on(fd, 5));
    TELL(name_of(fd, &room, &len));
    say_addr(&room, len, 0);
}
BEHAVIOUR(listen_twice)
{
    struct sockaddr_in at;
    int l = listener(&at);

    TELL(listen_on(l, 5));
    TELL(listen_on(l, 0));
    TELL(listen_on(l, -1));
    TELL(int_of(l, SOL_SOCKET, SO_ACCEPTCONN));
}
BEHAVIOUR(listen_with_any_backlog)
{
    int a = (int)MUST(make(AF_INET)), b = (int)MUST(make(AF_INET)), c = (int)MUST(make(AF_INET));

    TELL(listen_on(a, 0));
    TELL(listen_on(b, -5));
    TELL(listen_on(c, 1 << 30));
}
BEHAVIOUR(listen_of_a_connection)
{
    struct pair p = pair();

    TELL(listen_on(p.a, 5));
    TELL(listen_on(p.b, 5));
}
BEHAVIOUR(two_listeners_on_a_port)
{
    struct sockaddr_in at;
    int fd, l = listener(&at);

    (void)l;
    fd = (int)MUST(make(AF_INET));
    MUST(set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1));
    /* One of the two says it. */
    TELL(bind_to(fd, &at, sizeof at) < 0 || listen_on(fd, 5) < 0 ? errno == EADDRINUSE : 2);
}
BEHAVIOUR(a_port_is_free_after_its_listener)
{
    struct sockaddr_in at;
    int fd, l = listener(&at);

    MUST(finish(l));
    fd = (int)MUST(make(AF_INET));
    TELL(bind_to(fd, &at, sizeof at));
    TELL(listen_on(fd, 5));
}
BEHAVIOUR(ports_below_1024_of_a_user)
{
    struct sockaddr_in a = v4("127.0.0.1", 1);
    int fd;

    /* Before a socket is made: threads have rights of their own. */
    MUST(setresuid(65534, 65534, 65534));
    fd = (int)MUST(make(AF_INET));
    TELL(bind_to(fd, &a, sizeof a) < 0 || listen_on(fd, 5) < 0 ? errno == EACCES : 2);
}
