/* What poll(2), select(2) and epoll say of a descriptor. */
#include "diff.h"

#include <sys/epoll.h>
#include <sys/select.h>

enum { ALL = POLLIN | POLLOUT | POLLRDHUP | POLLPRI };

/* What poll says now. */
static void now(int fd, int events)
{
    struct pollfd p = {.fd = fd, .events = (short)events};

    MUST(poll(&p, 1, 0));
    say_events(p.revents);
}
/* What it says once it says all of these, or after a while. */
static void once(int fd, int events, int wanted)
{
    struct pollfd p = {.fd = fd, .events = (short)events};
    int i;

    for (i = 0; i < 1500; i++) {
        MUST(poll(&p, 1, 0));
        if ((p.revents & wanted) == wanted)
            break;
        (void)!poll(NULL, 0, 1);
    }
    say_events(p.revents);
}

BEHAVIOUR(poll_of_a_new_socket)
{
    now((int)MUST(make(AF_INET)), ALL);
}
BEHAVIOUR(poll_of_a_listener)
{
    struct sockaddr_in at;
    int fd, l = listener(&at);

    now(l, ALL);
    fd = (int)MUST(make(AF_INET));
    MUST(connect_to(fd, &at, sizeof at));
    once(l, ALL, POLLIN);
    MUST(accept_from(l, NULL, NULL, 0));
    now(l, ALL);
}
BEHAVIOUR(poll_of_a_listener_that_is_shut_down)
{
    struct sockaddr_in at;
    int l = listener(&at);

    MUST(end_way(l, SHUT_RD));
    once(l, ALL, POLLHUP);
}
BEHAVIOUR(poll_of_a_connection)
{
    struct pair p = pair();

    now(p.a, ALL);
    MUST(transmit(p.a, "x", 1, 0));
    once(p.b, ALL, POLLIN);
    MUST(receive(p.b, buf, 1, 0));
    now(p.b, ALL);
}
BEHAVIOUR(poll_after_a_short_receive)
{
    struct pair p = pair();

    MUST(transmit(p.a, "hello", 5, 0));
    once(p.b, POLLIN, POLLIN);
    MUST(receive(p.b, buf, 2, 0));
    now(p.b, POLLIN);
    MUST(receive(p.b, buf, 3, 0));
    now(p.b, POLLIN);
}
BEHAVIOUR(poll_of_a_full_connection)
{
    struct pair p = pair();

    fill_up(p.a);
    now(p.a, POLLOUT);
}
BEHAVIOUR(poll_after_the_peers_shutdown)
{
    struct pair p = pair();

    MUST(end_way(p.a, SHUT_WR));
    once(p.b, ALL, POLLRDHUP);
    once(p.b, POLLRDHUP, POLLRDHUP);
    once(p.b, POLLIN, POLLIN);
    now(p.b, 0);
    MUST(receive(p.b, buf, 1, 0));
    once(p.b, ALL, POLLRDHUP);
}
BEHAVIOUR(poll_after_data_and_the_peers_shutdown)
{
    struct pair p = pair();

    MUST(transmit(p.a, "x", 1, 0));
    MUST(end_way(p.a, SHUT_WR));
    once(p.b, ALL, POLLIN | POLLRDHUP);
    MUST(receive(p.b, buf, 1, 0));
    once(p.b, ALL, POLLIN | POLLRDHUP);
}
BEHAVIOUR(poll_after_our_shutdown_of_sending)
{
    struct pair p = pair();

    MUST(end_way(p.a, SHUT_WR));
    once(p.a, ALL, POLLOUT);
}
BEHAVIOUR(poll_after_our_shutdown_of_receiving)
{
    struct pair p = pair();

    MUST(end_way(p.a, SHUT_RD));
    once(p.a, ALL, POLLIN | POLLRDHUP);
}
BEHAVIOUR(poll_after_both_shutdowns)
{
    struct pair p = pair();

    MUST(end_way(p.a, SHUT_WR));
    MUST(end_way(p.b, SHUT_WR));
    MUST(receive(p.a, buf, 1, 0));
    MUST(receive(p.b, buf, 1, 0));
    once(p.a, ALL, POLLHUP);
    once(p.b, ALL, POLLHUP);
    once(p.a, 0, POLLHUP);
}
BEHAVIOUR(poll_after_the_peers_close)
{
    struct pair p = pair();

    MUST(finish(p.a));
    once(p.b, ALL, POLLRDHUP);
}
BEHAVIOUR(poll_after_a_reset)
{
    struct pair p = pair();

    cut(p.a);
    once(p.b, ALL, POLLERR);
    once(p.b, 0, POLLERR);
    once(p.b, POLLOUT, POLLERR);
    int_of(p.b, SOL_SOCKET, SO_ERROR);
    once(p.b, ALL, POLLHUP); /* the error was told */
}
BEHAVIOUR(poll_of_a_refused_connect)
{
    struct sockaddr_in at;
    int l = listener(&at), fd = (int)MUST(make(AF_INET));

    MUST(finish(l));
    unwilling(fd);
    connect_to(fd, &at, sizeof at);
    once(fd, ALL, POLLERR);
    int_of(fd, SOL_SOCKET, SO_ERROR);
    once(fd, ALL, POLLHUP);
}
BEHAVIOUR(poll_of_a_closed_descriptor)
{
    struct pair p = pair();

    MUST(finish(p.a));
    say("%d", poll(&(struct pollfd){.fd = p.a, .events = POLLIN}, 1, 0));
}
BEHAVIOUR(select_of_a_connection)
{
    struct pair p = pair();
    fd_set r, w;
    struct timeval t = {3, 0};

    MUST(transmit(p.a, "x", 1, 0));
    FD_ZERO(&r);
    FD_ZERO(&w);
    FD_SET(p.b, &r);
    say("%ld", MUST(select(p.b + 1, &r, NULL, NULL, &t)));
    FD_SET(p.b, &w);
    say("%ld", MUST(select(p.b + 1, NULL, &w, NULL, &t)));
}

/* ---- epoll by edges ---------------------------------------------------------------------- */

static int edges(int fd)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
    int ep = (int)MUST(epoll_create1(0));

    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    return ep;
}
/* Waits for an edge with one of these. */
static int edge(int ep, int wanted)
{
    struct epoll_event e;
    int i;

    for (i = 0; i < 20; i++)
        if (epoll_wait(ep, &e, 1, 100) == 1 && (e.events & (uint32_t)wanted))
            return 1;
    return 0;
}
BEHAVIOUR(an_edge_after_a_short_receive)
{
    struct pair p = pair();
    int i, ep = edges(p.b);

    unwilling(p.b);
    for (i = 0; i < 20; i++) {
        MUST(transmit(p.a, "hello", 5, 0));
        if (!edge(ep, EPOLLIN))
            break;
        /* Fewer bytes than there is room for: all that was there, as mio and tokio take it. */
        MUST(receive(p.b, buf, 64, 0));
    }
    say("%d", i);
}
BEHAVIOUR(an_edge_when_there_is_room_again)
{
    struct pair p = pair();
    int ep = edges(p.a);
    size_t all = 0;
    long n;

    unwilling(p.a);
    edge(ep, EPOLLOUT);
    while ((n = transmit(p.a, buf, sizeof buf, 0)) == sizeof buf)
        all += (size_t)n;
    all += n > 0 ? (size_t)n : 0;
    while (all > 0)
        all -= (size_t)MUST(receive(p.b, buf, all < sizeof buf ? all : sizeof buf, 0));
    say("%d", edge(ep, EPOLLOUT));
}
BEHAVIOUR(an_edge_at_the_end)
{
    struct pair p = pair();
    int ep = edges(p.b);

    MUST(transmit(p.a, "x", 1, 0));
    say("%d", edge(ep, EPOLLIN));
    MUST(receive(p.b, buf, 9, 0));
    MUST(end_way(p.a, SHUT_WR));
    say("%d", edge(ep, EPOLLRDHUP));
}
