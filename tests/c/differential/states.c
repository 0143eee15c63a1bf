/* Connecting and accepting: what calls say of sockets in this state or that. */
#include "diff.h"

#include <sys/prctl.h>
#include <sys/wait.h>

/* A port of this host at which nothing listens. */
static struct sockaddr_in unused_port(void)
{
    struct sockaddr_in at;
    int l = listener(&at);

    MUST(finish(l));
    return at;
}

BEHAVIOUR(connect_where_nothing_listens)
{
    struct sockaddr_in at = unused_port();
    int fd = (int)MUST(make(AF_INET));

    TELL(connect_to(fd, &at, sizeof at));
    TELL(int_of(fd, SOL_SOCKET, SO_ERROR));
}
BEHAVIOUR(connect_again_after_a_refusal)
{
    struct sockaddr_in at = unused_port(), there;
    int l, fd = (int)MUST(make(AF_INET));

    TELL(connect_to(fd, &at, sizeof at));
    l = listener(&there);
    (void)l;
    TELL(connect_to(fd, &there, sizeof there));
}
BEHAVIOUR(connect_twice)
{
    struct sockaddr_in at;
    int fd, l = listener(&at);

    (void)l;
    fd = (int)MUST(make(AF_INET));
    TELL(connect_to(fd, &at, sizeof at));
    TELL(connect_to(fd, &at, sizeof at));
}
BEHAVIOUR(connect_of_an_accepted_socket)
{
    struct sockaddr_in at = unused_port();

    TELL(connect_to(pair().b, &at, sizeof at));
}
BEHAVIOUR(connect_of_a_listener)
{
    struct sockaddr_in at;
    int l = listener(&at);

    TELL(connect_to(l, &at, sizeof at));
}
BEHAVIOUR(connect_to_the_other_family)
{
    struct sockaddr_in6 a = v6("::1", 9);
    int fd = (int)MUST(make(AF_INET));

    TELL(connect_to(fd, &a, sizeof a));
}
BEHAVIOUR(connect_of_ipv6_to_ipv4)
{
    struct sockaddr_in at;
    int fd, l = listener(&at);

    (void)l;
    fd = (int)MUST(make(AF_INET6));
    TELL(connect_to(fd, &at, sizeof at));
}
BEHAVIOUR(connect_to_a_short_address)
{
    struct sockaddr_in a = v4("127.0.0.1", 9);
    int fd = (int)MUST(make(AF_INET));

    TELL(connect_to(fd, &a, sizeof a - 9));
    TELL(connect_to(fd, &a, 1));
}
BEHAVIOUR(connect_at_null)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(connect_to(fd, NULL, sizeof(struct sockaddr_in)));
}
BEHAVIOUR(connect_to_no_family)
{
    struct sockaddr_in a = {.sin_family = AF_UNSPEC};
    int fd = (int)MUST(make(AF_INET));

    TELL(connect_to(fd, &a, sizeof a));
}
BEHAVIOUR(connect_to_a_family_that_is_none)
{
    struct sockaddr_in a = {.sin_family = 99};
    int fd = (int)MUST(make(AF_INET));

    TELL(connect_to(fd, &a, sizeof a));
}
BEHAVIOUR(connect_without_a_route)
{
    struct sockaddr_in a = v4("255.255.255.255", 9);
    int fd = (int)MUST(make(AF_INET));

    TELL(connect_to(fd, &a, sizeof a) == -1 && (errno == ENETUNREACH || errno == EACCES));
}
BEHAVIOUR(connect_from_another_hosts_address)
{
    struct sockaddr_in mine = v4("192.0.2.1", 0), at = unused_port();
    int fd = (int)MUST(make(AF_INET));

    TELL(bind_to(fd, &mine, sizeof mine) < 0 || connect_to(fd, &at, sizeof at) < 0
             ? errno == EADDRNOTAVAIL
             : 2);
}
BEHAVIOUR(connect_without_waiting)
{
    struct sockaddr_in at;
    int fd, n, l = listener(&at);

    fd = (int)MUST(make(AF_INET));
    unwilling(fd);
    n = connect_to(fd, &at, sizeof at);
    say("%s", n == 0 || errno == EINPROGRESS ? "begun" : strerrorname_np(errno));
    MUST(accept_from(l, NULL, NULL, 0));
    say_events(await(fd, POLLOUT));
    TELL(int_of(fd, SOL_SOCKET, SO_ERROR));
    TELL(connect_to(fd, &at, sizeof at)); /* says how it ended, once */
    TELL(connect_to(fd, &at, sizeof at));
}
BEHAVIOUR(connect_without_waiting_where_nothing_listens)
{
    struct sockaddr_in at = unused_port();
    int n, fd = (int)MUST(make(AF_INET));

    unwilling(fd);
    n = connect_to(fd, &at, sizeof at);
    say("%s", n == -1 && errno == EINPROGRESS ? "begun" : strerrorname_np(errno));
    say("%d", (await(fd, POLLOUT) & POLLOUT) != 0);
    TELL(int_of(fd, SOL_SOCKET, SO_ERROR));
    TELL(int_of(fd, SOL_SOCKET, SO_ERROR));
}
/* A listener of a process that has stopped: the kernel takes its callers, and none is answered. */
static void stopped_listener(struct sockaddr_in *at)
{
    int ready[2];
    pid_t child;

    MUST(pipe(ready));
    child = (pid_t)MUST(fork());
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        listener(at);
        if (write(ready[1], at, sizeof *at) == sizeof *at)
            raise(SIGSTOP);
        _exit(0);
    }
    MUST(read(ready[0], at, sizeof *at) == sizeof *at ? 0 : -1);
    MUST(waitpid(child, NULL, WUNTRACED));
}
/* A listener whose queue is full, whose callers the kernel drops: with a backlog of 0, after one. */
static void full_listener(struct sockaddr_in *at)
{
    struct sockaddr_in any = v4("127.0.0.1", 0);
    socklen_t len = sizeof *at;
    int l = (int)MUST(socket(AF_INET, SOCK_STREAM, 0)), first = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));

    MUST(bind(l, (struct sockaddr *)&any, sizeof any));
    MUST(listen(l, 0));
    MUST(getsockname(l, (struct sockaddr *)at, &len));
    MUST(connect(first, (struct sockaddr *)at, len));
}
/* A socket that is about to connect without waiting, and where to: no answer comes from there. */
static int unanswered(struct sockaddr_in *at)
{
    int fd;

    if (over_exs)
        stopped_listener(at);
    else
        full_listener(at);
    fd = (int)MUST(make(AF_INET));
    unwilling(fd);
    return fd;
}
BEHAVIOUR(calls_on_a_socket_that_is_connecting)
{
    struct sockaddr_in at;
    int fd = unanswered(&at);

    TELL(connect_to(fd, &at, sizeof at));
    TELL(connect_to(fd, &at, sizeof at));
    TELL(transmit(fd, buf, 1, MSG_NOSIGNAL));
    TELL(receive(fd, buf, 1, 0));
    TELL(listen_on(fd, 3));
    TELL(peer_of(fd, buf, &(socklen_t){16}));
    TELL(int_of(fd, SOL_SOCKET, SO_ERROR));
    say("%d", poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, 0));
}
BEHAVIOUR(a_connection_to_itself)
{
    struct sockaddr_in a = v4("127.0.0.1", 0), at;
    int fd = (int)MUST(make(AF_INET));

    MUST(bind_to(fd, &a, sizeof a));
    MUST(name_of(fd, &at, &(socklen_t){sizeof at}));
    TELL(connect_to(fd, &at, sizeof at));
    TELL(transmit(fd, "x", 1, MSG_NOSIGNAL));
    TELL(receive(fd, buf, 1, MSG_DONTWAIT));
}

/* ---- Accepting ------------------------------------------------------------------------------ */

BEHAVIOUR(accept_of_a_new_socket)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(accept_from(fd, NULL, NULL, 0));
}
BEHAVIOUR(accept_of_a_bound_socket)
{
    struct sockaddr_in a = v4("127.0.0.1", 0);
    int fd = (int)MUST(make(AF_INET));

    MUST(bind_to(fd, &a, sizeof a));
    TELL(accept_from(fd, NULL, NULL, 0));
}
BEHAVIOUR(accept_of_a_connection) { TELL(accept_from(pair().a, NULL, NULL, 0)); }
BEHAVIOUR(accept_of_nothing) { TELL(accept_from(-1, NULL, NULL, 0)); }
BEHAVIOUR(accept_without_waiting)
{
    struct sockaddr_in at;
    int l = listener(&at);

    unwilling(l);
    TELL(accept_from(l, NULL, NULL, 0));
}
BEHAVIOUR(accept_with_flags_that_are_none)
{
    struct sockaddr_in at;

    TELL(accept_from(listener(&at), NULL, NULL, 1));
}
BEHAVIOUR(accept_with_flags)
{
    struct sockaddr_in at;
    int fd, c, l = listener(&at);

    fd = (int)MUST(make(AF_INET));
    MUST(connect_to(fd, &at, sizeof at));
    c = (int)MUST(accept_from(l, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    TELL(control(c, F_GETFL, 0) & O_NONBLOCK);
    TELL(control(c, F_GETFD, 0));
    TELL(receive(c, buf, 1, 0));
}
BEHAVIOUR(o_nonblock_is_not_inherited)
{
    struct sockaddr_in at;
    int fd, c, l = listener(&at);

    unwilling(l);
    fd = (int)MUST(make(AF_INET));
    MUST(connect_to(fd, &at, sizeof at));
    until_readable(l);
    c = (int)MUST(accept_from(l, NULL, NULL, 0));
    TELL(control(c, F_GETFL, 0) & O_NONBLOCK);
}
BEHAVIOUR(accept_limited_in_time)
{
    struct sockaddr_in at;
    struct timeval t = {0, 20000};
    int l = listener(&at);

    MUST(set(l, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    TELL(accept_from(l, NULL, NULL, 0));
}
BEHAVIOUR(data_on_a_listener)
{
    struct sockaddr_in at;
    int l = listener(&at);

    TELL(transmit(l, buf, 1, MSG_NOSIGNAL));
    TELL(receive(l, buf, 1, 0));
}
BEHAVIOUR(connections_wait_in_the_backlog)
{
    struct sockaddr_in at;
    int i, fd[3], l = listener(&at);

    for (i = 0; i < 3; i++) {
        fd[i] = (int)MUST(make(AF_INET));
        TELL(connect_to(fd[i], &at, sizeof at));
        TELL(transmit(fd[i], &"abc"[i], 1, 0));
    }
    for (i = 0; i < 3; i++) {
        int c = (int)MUST(accept_from(l, NULL, NULL, 0));

        TELL(receive(c, buf, 1, 0));
        say("%c", buf[0]);
    }
}
BEHAVIOUR(a_caller_that_has_gone_is_accepted)
{
    struct sockaddr_in at;
    int c, fd, l = listener(&at);

    fd = (int)MUST(make(AF_INET));
    MUST(connect_to(fd, &at, sizeof at));
    MUST(transmit(fd, "bye", 3, 0));
    if (over_exs)
        MUST(exs_shutdown(fd, SHUT_WR, EXS_QHANDLE_INVALID, 0));
    MUST(close(fd));
    c = (int)MUST(accept_from(l, NULL, NULL, 0));
    TELL(receive(c, buf, 9, 0));
    TELL(receive(c, buf, 9, 0));
}
static void taking(struct worker *w) { w->result = accept_from(w->fd, NULL, NULL, 0); }
BEHAVIOUR(shutdown_of_a_listener_wakes_an_accept)
{
    struct sockaddr_in at;
    struct worker w;
    int l = listener(&at);

    begin(&w, taking, l);
    await_sleep(&w);
    TELL(end_way(l, SHUT_RD));
    done(&w);
    errno = w.error;
    tell(w.result);
    TELL(accept_from(l, NULL, NULL, 0));
    TELL(int_of(l, SOL_SOCKET, SO_ACCEPTCONN));
}
BEHAVIOUR(shutdown_of_both_ways_of_a_listener)
{
    struct sockaddr_in at;
    int fd, l = listener(&at);

    TELL(end_way(l, SHUT_RDWR));
    TELL(accept_from(l, NULL, NULL, 0));
    fd = (int)MUST(make(AF_INET));
    TELL(connect_to(fd, &at, sizeof at));
}
BEHAVIOUR(shutdown_of_a_listeners_sending)
{
    struct sockaddr_in at;
    int fd, l = listener(&at);

    TELL(end_way(l, SHUT_WR));
    fd = (int)MUST(make(AF_INET));
    TELL(connect_to(fd, &at, sizeof at));
    TELL(accept_from(l, NULL, NULL, 0) >= 0);
}
BEHAVIOUR(a_listener_listens_again_after_its_shutdown)
{
    struct sockaddr_in at, again;
    socklen_t len = sizeof again;
    int fd, l = listener(&at);

    MUST(end_way(l, SHUT_RD));
    TELL(listen_on(l, 5));
    MUST(name_of(l, &again, &len));
    say("%d", at.sin_port == again.sin_port);
    fd = (int)MUST(make(AF_INET));
    TELL(connect_to(fd, &again, sizeof again));
    TELL(accept_from(l, NULL, NULL, 0) >= 0);
}
BEHAVIOUR(the_backlog_of_a_listener_that_is_shut_down)
{
    struct sockaddr_in at;
    int fd, l = listener(&at);

    fd = (int)MUST(make(AF_INET));
    MUST(connect_to(fd, &at, sizeof at));
    until_readable(l);
    MUST(end_way(l, SHUT_RD));
    TELL(receive(fd, buf, 1, 0));
}
BEHAVIOUR(the_backlog_of_a_listener_that_is_closed)
{
    struct sockaddr_in at;
    int fd, l = listener(&at);

    fd = (int)MUST(make(AF_INET));
    MUST(connect_to(fd, &at, sizeof at));
    MUST(finish(l));
    TELL(receive(fd, buf, 1, 0));
    TELL(receive(fd, buf, 1, 0));
}
BEHAVIOUR(the_backlog_of_a_listener_that_close2_closes)
{
    struct sockaddr_in at;
    int fd, l = listener(&at);

    fd = (int)MUST(make(AF_INET));
    MUST(connect_to(fd, &at, sizeof at));
    MUST(close(l));
    TELL(receive(fd, buf, 1, 0));
}
