/* Ends of connections: shutdown, close, reset, copies of descriptors. */
#include "diff.h"

BEHAVIOUR(shutdown_without_connection)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(end_way(fd, SHUT_WR));
    TELL(end_way(fd, SHUT_RD));
    TELL(end_way(fd, SHUT_RDWR));
}
BEHAVIOUR(shutdown_of_a_way_that_is_none)
{
    struct pair p = pair();

    TELL(end_way(p.a, 3));
    TELL(end_way(p.a, -1));
}
BEHAVIOUR(shutdown_twice)
{
    struct pair p = pair();

    TELL(end_way(p.a, SHUT_WR));
    TELL(end_way(p.a, SHUT_WR));
    TELL(end_way(p.a, SHUT_RDWR));
    TELL(end_way(p.a, SHUT_RD));
}
BEHAVIOUR(one_way_ends)
{
    struct pair p = pair();

    MUST(transmit(p.a, "last", 4, 0));
    TELL(end_way(p.a, SHUT_WR));
    TELL(receive(p.b, buf, 9, 0));
    TELL(receive(p.b, buf, 9, 0));
    TELL(receive(p.b, buf, 9, 0));
    TELL(transmit(p.b, "still", 5, 0));
    TELL(receive(p.a, buf, 9, 0));
    TELL(transmit(p.a, "x", 1, MSG_NOSIGNAL));
}
BEHAVIOUR(a_send_after_shutdown_raises_sigpipe)
{
    struct pair p = pair();

    MUST(end_way(p.a, SHUT_WR));
    TELL(transmit(p.a, "x", 1, 0));
}
BEHAVIOUR(a_send_of_nothing_after_shutdown)
{
    struct pair p = pair();

    MUST(end_way(p.a, SHUT_WR));
    TELL(transmit(p.a, "x", 0, MSG_NOSIGNAL));
}
BEHAVIOUR(a_receive_after_shutdown_of_receiving)
{
    struct pair p = pair();

    TELL(end_way(p.b, SHUT_RD));
    TELL(receive(p.b, buf, 9, 0));
    TELL(receive(p.b, buf, 9, MSG_DONTWAIT));
    TELL(transmit(p.b, "out", 3, 0));
    TELL(receive(p.a, buf, 9, 0));
}
BEHAVIOUR(shutdown_of_receiving_with_data_there)
{
    struct pair p = pair();

    MUST(transmit(p.a, "hello", 5, 0));
    until_readable(p.b);
    TELL(end_way(p.b, SHUT_RD));
    TELL(receive(p.b, buf, 9, 0));
    TELL(receive(p.b, buf, 9, 0));
}
static void get_one(struct worker *w) { w->result = receive(w->fd, buf, 1, 0); }
BEHAVIOUR(shutdown_wakes_a_receive)
{
    struct pair p = pair();
    struct worker w;

    begin(&w, get_one, p.b);
    await_sleep(&w);
    TELL(end_way(p.b, SHUT_RD));
    done(&w);
    errno = w.error;
    tell(w.result);
}
BEHAVIOUR(both_ways_end)
{
    struct pair p = pair();

    TELL(end_way(p.a, SHUT_WR));
    TELL(end_way(p.b, SHUT_WR));
    TELL(receive(p.a, buf, 9, 0));
    TELL(receive(p.b, buf, 9, 0));
    TELL(transmit(p.a, "x", 1, MSG_NOSIGNAL));
    TELL(int_of(p.a, SOL_SOCKET, SO_ERROR));
}
BEHAVIOUR(names_after_both_ways_have_ended)
{
    struct pair p = pair();
    struct sockaddr_storage room;
    socklen_t len = sizeof room;

    MUST(end_way(p.a, SHUT_WR));
    MUST(receive(p.b, buf, 1, 0));
    MUST(end_way(p.b, SHUT_WR));
    MUST(receive(p.a, buf, 1, 0));
    TELL(name_of(p.b, &room, &len));
    say("%d", room.ss_family);
}
BEHAVIOUR(the_peer_closes)
{
    struct pair p = pair();

    MUST(finish(p.a));
    TELL(receive(p.b, buf, 9, 0));
    TELL(receive(p.b, buf, 9, 0));
    TELL(int_of(p.b, SOL_SOCKET, SO_ERROR));
}
BEHAVIOUR(what_was_sent_comes_before_the_end)
{
    struct pair p = pair();
    long n, all = 0;

    MUST(transmit(p.a, buf, 50000, 0));
    MUST(close(p.a));
    while ((n = receive(p.b, buf, sizeof buf, 0)) > 0)
        all += n;
    say("%ld", all);
    tell(n);
}
/* Sends until it is told that the peer is gone. */
static long until_told(int fd)
{
    long n;
    int i;

    for (i = 0; i < 100000; i++)
        if ((n = transmit(fd, "x", 1, MSG_NOSIGNAL)) < 0)
            return n;
    return 0;
}
BEHAVIOUR(sends_to_a_peer_that_has_closed)
{
    struct pair p = pair();

    MUST(close(p.a));
    MUST(receive(p.b, buf, 9, 0)); /* the end */
    errno = 0;
    until_told(p.b);
    /* The first failure is ECONNRESET or EPIPE, by the moment of the reset. */
    say("%d", errno == EPIPE || errno == ECONNRESET);
    TELL(transmit(p.b, "x", 1, MSG_NOSIGNAL));
}
BEHAVIOUR(a_close_with_data_unread)
{
    struct pair p = pair();

    MUST(transmit(p.a, "hello", 5, 0));
    until_readable(p.b);
    MUST(finish(p.b));
    TELL(receive(p.a, buf, 9, 0));
}
BEHAVIOUR(a_receive_after_a_reset)
{
    struct pair p = pair();

    cut(p.a);
    TELL(receive(p.b, buf, 9, 0));
    TELL(receive(p.b, buf, 9, 0)); /* the error was told */
    TELL(transmit(p.b, "x", 1, MSG_NOSIGNAL));
    TELL(int_of(p.b, SOL_SOCKET, SO_ERROR));
}
BEHAVIOUR(so_error_after_a_reset)
{
    struct pair p = pair();

    cut(p.a);
    until_readable(p.b);
    TELL(int_of(p.b, SOL_SOCKET, SO_ERROR));
    TELL(int_of(p.b, SOL_SOCKET, SO_ERROR)); /* it was told */
    TELL(receive(p.b, buf, 9, 0));
}
BEHAVIOUR(a_send_after_a_reset)
{
    struct pair p = pair();

    cut(p.a);
    until_readable(p.b);
    TELL(transmit(p.b, "x", 1, MSG_NOSIGNAL));
    TELL(transmit(p.b, "x", 1, MSG_NOSIGNAL));
    TELL(receive(p.b, buf, 9, 0));
    TELL(int_of(p.b, SOL_SOCKET, SO_ERROR));
}
BEHAVIOUR(shutdown_after_a_reset)
{
    struct pair p = pair();

    cut(p.a);
    until_readable(p.b);
    TELL(end_way(p.b, SHUT_WR));
    TELL(int_of(p.b, SOL_SOCKET, SO_ERROR));
    TELL(end_way(p.b, SHUT_RDWR));
}
BEHAVIOUR(the_peer_after_a_reset)
{
    struct pair p = pair();
    struct sockaddr_storage room;
    socklen_t len = sizeof room;

    cut(p.a);
    until_readable(p.b);
    TELL(peer_of(p.b, &room, &len));
    TELL(name_of(p.b, &room, &len));
}
BEHAVIOUR(data_before_a_reset)
{
    struct pair p = pair();

    MUST(transmit(p.a, "hello", 5, 0));
    until_readable(p.b);
    cut(p.a);
    until_readable(p.b);
    TELL(receive(p.b, buf, 9, MSG_PEEK) == 5 || errno == ECONNRESET);
}
BEHAVIOUR(a_reset_wakes_a_receive)
{
    struct pair p = pair();
    struct worker w;

    begin(&w, get_one, p.b);
    await_sleep(&w);
    cut(p.a);
    done(&w);
    errno = w.error;
    tell(w.result);
    TELL(int_of(p.b, SOL_SOCKET, SO_ERROR));
}
static void send_many(struct worker *w)
{
    while ((w->result = transmit(w->fd, buf, sizeof buf, MSG_NOSIGNAL)) == sizeof buf)
        ;
    if (w->result > 0) /* what was taken before it */
        w->result = transmit(w->fd, buf, 1, MSG_NOSIGNAL);
}
BEHAVIOUR(a_reset_wakes_a_send)
{
    struct pair p = pair();
    struct worker w;

    begin(&w, send_many, p.b);
    await_sleep(&w);
    cut(p.a);
    done(&w);
    errno = w.error;
    tell(w.result);
    TELL(int_of(p.b, SOL_SOCKET, SO_ERROR));
}
BEHAVIOUR(close_of_a_reset_connection)
{
    struct pair p = pair();

    cut(p.a);
    until_readable(p.b);
    TELL(finish(p.b));
}
BEHAVIOUR(close_twice)
{
    struct pair p = pair();

    TELL(finish(p.a));
    TELL(finish(p.a));
    TELL(transmit(p.a, "x", 1, 0));
}
BEHAVIOUR(a_copy_is_the_same_socket)
{
    struct pair p = pair();
    int copy = (int)MUST(dup(p.a));

    MUST(finish(p.a));
    TELL(transmit(copy, "hello", 5, 0));
    TELL(receive(p.b, buf, 9, 0));
    TELL(int_of(copy, SOL_SOCKET, SO_TYPE));
    MUST(finish(copy));
    TELL(receive(p.b, buf, 9, 0));
}
BEHAVIOUR(a_copy_by_number)
{
    struct pair p = pair(), q = pair();

    TELL(dup2(p.a, q.a) == q.a);
    TELL(transmit(q.a, "hello", 5, 0));
    TELL(receive(p.b, buf, 9, 0));
    TELL(receive(q.b, buf, 9, 0)); /* its peer's last copy is gone */
}
BEHAVIOUR(a_copy_by_fcntl)
{
    struct pair p = pair();
    int copy = (int)MUST(control(p.a, F_DUPFD_CLOEXEC, 100));

    say("%d", copy >= 100);
    TELL(control(copy, F_GETFD, 0));
    TELL(transmit(copy, "hello", 5, 0));
    TELL(receive(p.b, buf, 9, 0));
}
BEHAVIOUR(shutdown_reaches_copies)
{
    struct pair p = pair();
    int copy = (int)MUST(dup(p.a));

    MUST(end_way(copy, SHUT_WR));
    TELL(transmit(p.a, "x", 1, MSG_NOSIGNAL));
    TELL(receive(p.b, buf, 9, 0));
}
BEHAVIOUR(o_nonblock_is_of_all_copies)
{
    struct pair p = pair();
    int copy = (int)MUST(dup(p.b));

    unwilling(copy);
    TELL(receive(p.b, buf, 9, 0));
}
BEHAVIOUR(close_of_a_listener_while_copies_listen)
{
    struct sockaddr_in at;
    int fd, l = listener(&at), copy = (int)MUST(dup(l));

    MUST(finish(l));
    fd = (int)MUST(make(AF_INET));
    TELL(connect_to(fd, &at, sizeof at));
    TELL(accept_from(copy, NULL, NULL, 0) >= 0);
}
BEHAVIOUR(a_linger_of_nothing_resets)
{
    struct pair p = pair();
    struct linger now = {1, 0};

    MUST(set(p.a, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    MUST(close(p.a));
    TELL(receive(p.b, buf, 9, 0));
}
BEHAVIOUR(close_after_linger_with_all_delivered)
{
    struct pair p = pair();
    struct linger some = {1, 5};

    MUST(set(p.a, SOL_SOCKET, SO_LINGER, &some, sizeof some));
    MUST(transmit(p.a, "hello", 5, 0));
    MUST(receive(p.b, buf, 9, 0));
    TELL(finish(p.a));
}
