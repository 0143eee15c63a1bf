/* Options. */
#include "diff.h"

static struct sockaddr_in at;

#define DEFAULT(behaviour, level, name)                                                     \
    BEHAVIOUR(behaviour)                                                                    \
    {                                                                                       \
        int fd = (int)MUST(make(AF_INET));                                                  \
                                                                                            \
        TELL(int_of(fd, level, name));                                                      \
    }
DEFAULT(type_of_a_socket, SOL_SOCKET, SO_TYPE)
DEFAULT(domain_of_a_socket, SOL_SOCKET, SO_DOMAIN)
DEFAULT(protocol_of_a_socket, SOL_SOCKET, SO_PROTOCOL)
DEFAULT(acceptconn_of_a_socket, SOL_SOCKET, SO_ACCEPTCONN)
DEFAULT(error_of_a_socket, SOL_SOCKET, SO_ERROR)
DEFAULT(reuseaddr_of_a_socket, SOL_SOCKET, SO_REUSEADDR)
DEFAULT(reuseport_of_a_socket, SOL_SOCKET, SO_REUSEPORT)
DEFAULT(keepalive_of_a_socket, SOL_SOCKET, SO_KEEPALIVE)
DEFAULT(broadcast_of_a_socket, SOL_SOCKET, SO_BROADCAST)
DEFAULT(dontroute_of_a_socket, SOL_SOCKET, SO_DONTROUTE)
DEFAULT(oobinline_of_a_socket, SOL_SOCKET, SO_OOBINLINE)
DEFAULT(rcvlowat_of_a_socket, SOL_SOCKET, SO_RCVLOWAT)
DEFAULT(sndlowat_of_a_socket, SOL_SOCKET, SO_SNDLOWAT)
DEFAULT(nodelay_of_a_socket, IPPROTO_TCP, TCP_NODELAY)
DEFAULT(maxseg_of_a_socket, IPPROTO_TCP, TCP_MAXSEG)
DEFAULT(cork_of_a_socket, IPPROTO_TCP, TCP_CORK)
DEFAULT(an_option_that_is_none, SOL_SOCKET, 9999)
DEFAULT(a_tcp_option_that_is_none, IPPROTO_TCP, 9999)

/* Sets an option and reads it again. */
#define SWITCH(behaviour, level, name)                                                      \
    BEHAVIOUR(behaviour)                                                                    \
    {                                                                                       \
        int fd = (int)MUST(make(AF_INET));                                                  \
                                                                                            \
        TELL(set_int(fd, level, name, 1));                                                  \
        TELL(int_of(fd, level, name));                                                      \
        TELL(set_int(fd, level, name, 0));                                                  \
        TELL(int_of(fd, level, name));                                                      \
    }
SWITCH(reuseaddr_is_set, SOL_SOCKET, SO_REUSEADDR)
SWITCH(reuseport_is_set, SOL_SOCKET, SO_REUSEPORT)
SWITCH(keepalive_is_set, SOL_SOCKET, SO_KEEPALIVE)
SWITCH(oobinline_is_set, SOL_SOCKET, SO_OOBINLINE)
SWITCH(dontroute_is_set, SOL_SOCKET, SO_DONTROUTE)
SWITCH(nodelay_is_set, IPPROTO_TCP, TCP_NODELAY)
SWITCH(cork_is_set, IPPROTO_TCP, TCP_CORK)
SWITCH(quickack_is_set, IPPROTO_TCP, TCP_QUICKACK)
BEHAVIOUR(v6only_is_set)
{
    int fd = (int)MUST(make(AF_INET6));

    TELL(set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1));
    TELL(int_of(fd, IPPROTO_IPV6, IPV6_V6ONLY));
    TELL(set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0));
    TELL(int_of(fd, IPPROTO_IPV6, IPV6_V6ONLY));
}
BEHAVIOUR(v6only_of_ipv4)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1));
    TELL(int_of(fd, IPPROTO_IPV6, IPV6_V6ONLY));
}
BEHAVIOUR(v6only_after_bind)
{
    struct sockaddr_in6 any = v6("::1", 0);
    int fd = (int)MUST(make(AF_INET6));

    MUST(bind_to(fd, &any, sizeof any));
    TELL(set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1));
}
BEHAVIOUR(a_listener_of_ipv6_only)
{
    struct sockaddr_in6 any = v6("::", 0), there;
    struct sockaddr_in four;
    int fd, l = (int)MUST(make(AF_INET6));

    MUST(set_int(l, IPPROTO_IPV6, IPV6_V6ONLY, 1));
    MUST(bind_to(l, &any, sizeof any));
    MUST(listen_on(l, 5));
    MUST(name_of(l, &there, &(socklen_t){sizeof there}));
    four = v4("127.0.0.1", ntohs(there.sin6_port));
    fd = (int)MUST(make(AF_INET));
    TELL(connect_to(fd, &four, sizeof four));
}
/* Sizes are what the kernel makes of them: no less than asked for. */
BEHAVIOUR(buffers_are_sized)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(set_int(fd, SOL_SOCKET, SO_RCVBUF, 32768));
    TELL(int_of(fd, SOL_SOCKET, SO_RCVBUF) >= 32768);
    TELL(set_int(fd, SOL_SOCKET, SO_SNDBUF, 32768));
    TELL(int_of(fd, SOL_SOCKET, SO_SNDBUF) >= 32768);
}
BEHAVIOUR(buffers_have_a_size)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(int_of(fd, SOL_SOCKET, SO_RCVBUF) > 1000);
    TELL(int_of(fd, SOL_SOCKET, SO_SNDBUF) > 1000);
}
BEHAVIOUR(linger_of_a_socket)
{
    int fd = (int)MUST(make(AF_INET));
    struct linger l = {7, 7};
    socklen_t len = sizeof l;

    TELL(get(fd, SOL_SOCKET, SO_LINGER, &l, &len));
    say("%d %d %u", l.l_onoff, l.l_linger, len);
}
BEHAVIOUR(linger_is_set)
{
    int fd = (int)MUST(make(AF_INET));
    struct linger on = {1, 3}, zero = {1, 0}, off = {0, 0}, l;
    socklen_t len = sizeof l;

    TELL(set(fd, SOL_SOCKET, SO_LINGER, &on, sizeof on));
    MUST(get(fd, SOL_SOCKET, SO_LINGER, &l, &len));
    say("%d %d", l.l_onoff, l.l_linger);
    TELL(set(fd, SOL_SOCKET, SO_LINGER, &zero, sizeof zero));
    MUST(get(fd, SOL_SOCKET, SO_LINGER, &l, &len));
    say("%d %d", l.l_onoff, l.l_linger);
    TELL(set(fd, SOL_SOCKET, SO_LINGER, &off, sizeof off));
    MUST(get(fd, SOL_SOCKET, SO_LINGER, &l, &len));
    say("%d", l.l_onoff);
}
BEHAVIOUR(time_limits_are_set)
{
    int fd = (int)MUST(make(AF_INET));
    struct timeval t = {3, 500000}, r;
    socklen_t len = sizeof r;

    TELL(get(fd, SOL_SOCKET, SO_RCVTIMEO, &r, &len));
    say("%ld %ld %u", (long)r.tv_sec, (long)r.tv_usec, len);
    TELL(set(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    MUST(get(fd, SOL_SOCKET, SO_RCVTIMEO, &r, &len));
    say("%ld %ld", (long)r.tv_sec, (long)r.tv_usec);
    TELL(set(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    MUST(get(fd, SOL_SOCKET, SO_SNDTIMEO, &r, &len));
    say("%ld %ld", (long)r.tv_sec, (long)r.tv_usec);
}
BEHAVIOUR(time_limits_that_are_none)
{
    int fd = (int)MUST(make(AF_INET));
    struct timeval odd = {0, 1000000}, minus = {-1, 0};

    TELL(set(fd, SOL_SOCKET, SO_RCVTIMEO, &odd, sizeof odd));
    TELL(set(fd, SOL_SOCKET, SO_RCVTIMEO, &minus, sizeof minus));
    TELL(set(fd, SOL_SOCKET, SO_RCVTIMEO, &odd, 3));
}
BEHAVIOUR(a_value_that_is_too_short)
{
    int fd = (int)MUST(make(AF_INET)), on = 1;

    TELL(set(fd, SOL_SOCKET, SO_KEEPALIVE, &on, 3));
    TELL(set(fd, SOL_SOCKET, SO_KEEPALIVE, &on, 0));
    TELL(set(fd, SOL_SOCKET, SO_LINGER, &on, sizeof on));
    TELL(set(fd, IPPROTO_TCP, TCP_NODELAY, &on, 3));
}
BEHAVIOUR(a_value_at_null)
{
    int fd = (int)MUST(make(AF_INET)), on = 1;
    socklen_t len = sizeof on;

    TELL(set(fd, SOL_SOCKET, SO_KEEPALIVE, NULL, sizeof on));
    TELL(get(fd, SOL_SOCKET, SO_KEEPALIVE, NULL, &len));
    TELL(get(fd, SOL_SOCKET, SO_KEEPALIVE, &on, NULL));
}
BEHAVIOUR(a_value_where_there_is_little_room)
{
    int fd = (int)MUST(make(AF_INET)), on = 0x55555555;
    socklen_t len = 2;

    TELL(get(fd, SOL_SOCKET, SO_TYPE, &on, &len));
    say("%x %u", (unsigned)on, len);
    len = 100;
    TELL(get(fd, SOL_SOCKET, SO_TYPE, buf, &len));
    say("%u", len);
    len = 0;
    TELL(get(fd, SOL_SOCKET, SO_TYPE, &on, &len));
    say("%u", len);
}
BEHAVIOUR(what_cannot_be_set)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(set_int(fd, SOL_SOCKET, SO_TYPE, 1));
    TELL(set_int(fd, SOL_SOCKET, SO_DOMAIN, 1));
    TELL(set_int(fd, SOL_SOCKET, SO_PROTOCOL, 1));
    TELL(set_int(fd, SOL_SOCKET, SO_ERROR, 1));
    TELL(set_int(fd, SOL_SOCKET, SO_ACCEPTCONN, 1));
}
BEHAVIOUR(acceptconn_of_a_listener) { TELL(int_of(listener(&at), SOL_SOCKET, SO_ACCEPTCONN)); }
BEHAVIOUR(a_connection_has_its_listeners_options)
{
    struct linger on = {1, 3}, l;
    socklen_t len = sizeof l;
    int fd = listener(&at);
    struct pair p;

    MUST(set(fd, SOL_SOCKET, SO_LINGER, &on, sizeof on));
    MUST(set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1));
    MUST(set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1));
    p = pair_at(fd, &at, sizeof at, AF_INET);
    MUST(get(p.b, SOL_SOCKET, SO_LINGER, &l, &len));
    say("%d %d", l.l_onoff, l.l_linger);
    TELL(int_of(p.b, SOL_SOCKET, SO_KEEPALIVE));
    TELL(int_of(p.b, IPPROTO_TCP, TCP_NODELAY));
    TELL(int_of(p.b, SOL_SOCKET, SO_TYPE));
    TELL(int_of(p.b, SOL_SOCKET, SO_DOMAIN));
    TELL(int_of(p.b, SOL_SOCKET, SO_ACCEPTCONN));
}
BEHAVIOUR(options_of_a_connection_are_set)
{
    struct pair p = pair();

    TELL(set_int(p.a, IPPROTO_TCP, TCP_NODELAY, 1));
    TELL(int_of(p.a, IPPROTO_TCP, TCP_NODELAY));
    TELL(set_int(p.a, SOL_SOCKET, SO_KEEPALIVE, 0));
    TELL(int_of(p.a, SOL_SOCKET, SO_KEEPALIVE));
}
BEHAVIOUR(maxseg_of_a_connection)
{
    struct pair p = pair();

    TELL(int_of(p.a, IPPROTO_TCP, TCP_MAXSEG) > 0);
}
BEHAVIOUR(tcp_info_of_a_connection)
{
    struct pair p = pair();
    struct tcp_info info = {0};
    socklen_t len = sizeof info;

    TELL(get(p.a, IPPROTO_TCP, TCP_INFO, &info, &len));
    say("state %d mss %d", info.tcpi_state, info.tcpi_snd_mss > 0);
}
BEHAVIOUR(tcp_info_of_a_listener)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;

    TELL(get(listener(&at), IPPROTO_TCP, TCP_INFO, &info, &len));
    say("state %d", info.tcpi_state);
}
BEHAVIOUR(tcp_info_of_a_new_socket)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;

    TELL(get((int)MUST(make(AF_INET)), IPPROTO_TCP, TCP_INFO, &info, &len));
    say("state %d", info.tcpi_state);
}
BEHAVIOUR(tcp_info_as_a_connection_ends)
{
    struct pair p = pair();
    int i;
    struct tcp_info info = {0};
    socklen_t len = sizeof info;

    MUST(end_way(p.a, SHUT_WR));
    MUST(receive(p.b, buf, 1, 0));
    MUST(get(p.b, IPPROTO_TCP, TCP_INFO, &info, &len));
    say("state %d", info.tcpi_state); /* TCP_CLOSE_WAIT */
    cut(p.a);
    for (i = 0; i < 3000 && info.tcpi_state != TCP_CLOSE; i++) {
        (void)!poll(NULL, 0, 1);
        MUST(get(p.b, IPPROTO_TCP, TCP_INFO, &info, &len));
    }
    say("state %d", info.tcpi_state);
}
BEHAVIOUR(keepalive_times)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30));
    TELL(int_of(fd, IPPROTO_TCP, TCP_KEEPIDLE));
    TELL(set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5));
    TELL(int_of(fd, IPPROTO_TCP, TCP_KEEPINTVL));
    TELL(set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, 4));
    TELL(int_of(fd, IPPROTO_TCP, TCP_KEEPCNT));
    TELL(set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 0));
}
BEHAVIOUR(user_timeout)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 7000));
    TELL(int_of(fd, IPPROTO_TCP, TCP_USER_TIMEOUT));
}
BEHAVIOUR(peek_off)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(int_of(fd, SOL_SOCKET, SO_PEEK_OFF));
}
BEHAVIOUR(type_of_service)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(set_int(fd, IPPROTO_IP, IP_TOS, 0x10));
    TELL(int_of(fd, IPPROTO_IP, IP_TOS));
}
BEHAVIOUR(socket_options_of_what_is_none)
{
    TELL(int_of(-1, SOL_SOCKET, SO_TYPE));
    TELL(set_int(-1, SOL_SOCKET, SO_KEEPALIVE, 1));
}
