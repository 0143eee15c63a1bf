/* Sending and receiving. */
#include "diff.h"

static void word(struct pair p, const char *text) { MUST(transmit(p.a, text, strlen(text), 0)); }
/* Waits until it is there. */

BEHAVIOUR(bytes_arrive)
{
    struct pair p = pair();

    TELL(transmit(p.a, "hello", 5, 0));
    TELL(receive(p.b, buf, 100, 0));
    say("%.5s", buf);
    TELL(transmit(p.b, "back", 4, 0));
    TELL(receive(p.a, buf, 100, 0));
}
BEHAVIOUR(a_send_of_nothing)
{
    struct pair p = pair();

    TELL(transmit(p.a, buf, 0, 0));
    TELL(transmit(p.a, NULL, 0, 0));
    word(p, "x");
    TELL(receive(p.b, buf, 9, 0));
}
BEHAVIOUR(a_receive_of_nothing)
{
    struct pair p = pair();

    word(p, "x");
    until_readable(p.b);
    TELL(receive(p.b, buf, 0, 0));
    TELL(receive(p.b, NULL, 0, 0));
    TELL(receive(p.b, buf, 9, 0));
}
BEHAVIOUR(a_receive_of_nothing_where_nothing_is)
{
    struct pair p = pair();

    TELL(receive(p.b, buf, 0, MSG_DONTWAIT));
}
BEHAVIOUR(a_send_at_null) { TELL(transmit(pair().a, NULL, 5, 0)); }
BEHAVIOUR(a_receive_at_null)
{
    struct pair p = pair();

    word(p, "hello");
    until_readable(p.b);
    TELL(receive(p.b, NULL, 5, 0));
    TELL(receive(p.b, buf, 9, 0));
}
BEHAVIOUR(a_send_without_connection)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(transmit(fd, buf, 1, MSG_NOSIGNAL));
    TELL(receive(fd, buf, 1, 0));
}
BEHAVIOUR(a_receive_without_connection)
{
    int fd = (int)MUST(make(AF_INET));

    TELL(receive(fd, buf, 1, 0));
    TELL(receive(fd, buf, 1, MSG_DONTWAIT));
}
BEHAVIOUR(a_receive_that_would_wait)
{
    struct pair p = pair();

    TELL(receive(p.b, buf, 1, MSG_DONTWAIT));
    unwilling(p.b);
    TELL(receive(p.b, buf, 1, 0));
}
BEHAVIOUR(a_receive_limited_in_time)
{
    struct pair p = pair();
    struct timeval t = {0, 20000};

    MUST(set(p.b, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    TELL(receive(p.b, buf, 1, 0));
    TELL(receive(p.b, buf, 1, MSG_WAITALL));
    word(p, "ab");
    TELL(receive(p.b, buf, 9, MSG_WAITALL));
}
BEHAVIOUR(a_send_limited_in_time)
{
    struct pair p = pair();
    struct timeval t = {0, 20000};

    fill_up(p.a);
    MUST(set(p.a, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    TELL(transmit(p.a, buf, sizeof buf, 0));
}
BEHAVIOUR(a_send_that_would_wait)
{
    struct pair p = pair();

    say("%d", fill_up(p.a) > 4096);
    TELL(transmit(p.a, buf, sizeof buf, MSG_DONTWAIT));
    unwilling(p.a);
    TELL(transmit(p.a, buf, sizeof buf, 0));
}
BEHAVIOUR(there_is_room_again)
{
    struct pair p = pair();
    size_t all = fill_up(p.a);

    while (all > 0)
        all -= (size_t)MUST(receive(p.b, buf, all < sizeof buf ? all : sizeof buf, 0));
    say("%d", (await(p.a, POLLOUT) & POLLOUT) != 0);
    TELL(transmit(p.a, buf, 1, MSG_DONTWAIT));
}
BEHAVIOUR(peek_leaves_what_it_sees)
{
    struct pair p = pair();

    word(p, "hello");
    TELL(receive(p.b, buf, 2, MSG_PEEK));
    TELL(receive(p.b, buf, 9, MSG_PEEK));
    TELL(receive(p.b, buf, 9, 0));
    TELL(receive(p.b, buf, 9, MSG_PEEK | MSG_DONTWAIT));
}
BEHAVIOUR(peek_sees_the_end)
{
    struct pair p = pair();

    MUST(end_way(p.a, SHUT_WR));
    TELL(receive(p.b, buf, 9, MSG_PEEK));
    TELL(receive(p.b, buf, 9, MSG_PEEK));
    TELL(receive(p.b, buf, 9, 0));
}
BEHAVIOUR(waitall_waits_for_all)
{
    struct pair p = pair();

    word(p, "ab");
    word(p, "cd");
    TELL(receive(p.b, buf, 4, MSG_WAITALL));
    word(p, "ef");
    MUST(end_way(p.a, SHUT_WR));
    TELL(receive(p.b, buf, 4, MSG_WAITALL));
    TELL(receive(p.b, buf, 4, MSG_WAITALL));
}
BEHAVIOUR(waitall_that_does_not_wait)
{
    struct pair p = pair();

    word(p, "ab");
    until_readable(p.b);
    TELL(receive(p.b, buf, 4, MSG_WAITALL | MSG_DONTWAIT));
    TELL(receive(p.b, buf, 4, MSG_WAITALL | MSG_DONTWAIT));
}
BEHAVIOUR(trunc_throws_bytes_away)
{
    struct pair p = pair();

    word(p, "hello");
    until_readable(p.b);
    memset(buf, 'z', 5);
    TELL(receive(p.b, buf, 2, MSG_TRUNC)); /* tcp(7): the bytes are discarded */
    say("%.2s", buf);
    TELL(receive(p.b, NULL, 2, MSG_TRUNC));
    TELL(receive(p.b, buf, 9, 0));
    say("%.1s", buf);
}
BEHAVIOUR(peek_with_trunc)
{
    struct pair p = pair();

    word(p, "hello");
    until_readable(p.b);
    TELL(receive(p.b, buf, 2, MSG_TRUNC | MSG_PEEK));
    TELL(receive(p.b, buf, 9, 0));
}
/* Flags that send(2) takes, and a TCP socket does nothing for. */
#define IGNORED_BY_SEND(name, flag)                                                         \
    BEHAVIOUR(name)                                                                         \
    {                                                                                       \
        struct pair p = pair();                                                             \
                                                                                            \
        TELL(transmit(p.a, "hello", 5, flag));                                              \
        MUST(end_way(p.a, SHUT_WR));                                                        \
        TELL(receive(p.b, buf, 9, 0));                                                      \
    }
IGNORED_BY_SEND(send_with_waitall, MSG_WAITALL)
IGNORED_BY_SEND(send_with_confirm, MSG_CONFIRM)
IGNORED_BY_SEND(send_with_dontroute, MSG_DONTROUTE)
IGNORED_BY_SEND(send_with_eor, MSG_EOR)
IGNORED_BY_SEND(send_with_nosignal, MSG_NOSIGNAL)
IGNORED_BY_SEND(send_with_peek, MSG_PEEK)
IGNORED_BY_SEND(send_with_trunc, MSG_TRUNC)
IGNORED_BY_SEND(send_with_ctrunc, MSG_CTRUNC)
IGNORED_BY_SEND(send_with_syn, MSG_SYN)
IGNORED_BY_SEND(send_with_fin, MSG_FIN)
IGNORED_BY_SEND(send_with_rst, MSG_RST)
IGNORED_BY_SEND(send_with_errqueue, MSG_ERRQUEUE)
IGNORED_BY_SEND(send_with_waitforone, MSG_WAITFORONE)
IGNORED_BY_SEND(send_with_zerocopy, MSG_ZEROCOPY) /* without SO_ZEROCOPY */
IGNORED_BY_SEND(send_with_a_flag_that_is_none, 0x00800000)
IGNORED_BY_SEND(send_with_cloexec, MSG_CMSG_CLOEXEC)
BEHAVIOUR(send_with_more)
{
    struct pair p = pair();

    TELL(transmit(p.a, "hel", 3, MSG_MORE));
    TELL(transmit(p.a, "lo", 2, 0));
    TELL(receive(p.b, buf, 5, MSG_WAITALL));
}
BEHAVIOUR(send_with_oob) { TELL(transmit(pair().a, "x", 1, MSG_OOB)); }
/* And recv(2). */
#define IGNORED_BY_RECV(name, flag)                                                         \
    BEHAVIOUR(name)                                                                         \
    {                                                                                       \
        struct pair p = pair();                                                             \
                                                                                            \
        word(p, "hello");                                                                   \
        TELL(receive(p.b, buf, 9, flag));                                                   \
    }
IGNORED_BY_RECV(receive_with_nosignal, MSG_NOSIGNAL)
IGNORED_BY_RECV(receive_with_confirm, MSG_CONFIRM)
IGNORED_BY_RECV(receive_with_dontroute, MSG_DONTROUTE)
IGNORED_BY_RECV(receive_with_eor, MSG_EOR)
IGNORED_BY_RECV(receive_with_more, MSG_MORE)
IGNORED_BY_RECV(receive_with_ctrunc, MSG_CTRUNC)
IGNORED_BY_RECV(receive_with_cloexec, MSG_CMSG_CLOEXEC)
IGNORED_BY_RECV(receive_with_waitforone, MSG_WAITFORONE)
IGNORED_BY_RECV(receive_with_a_flag_that_is_none, 0x00800000)
BEHAVIOUR(receive_with_oob)
{
    struct pair p = pair();

    TELL(receive(p.b, buf, 1, MSG_OOB));
    word(p, "x");
    until_readable(p.b);
    TELL(receive(p.b, buf, 1, MSG_OOB));
}
BEHAVIOUR(receive_from_the_error_queue)
{
    TELL(receive(pair().b, buf, 1, MSG_ERRQUEUE));
}
BEHAVIOUR(pieces_are_gathered_and_scattered)
{
    struct pair p = pair();
    struct iovec out[3] = {{"ab", 2}, {NULL, 0}, {"cde", 3}}, in[2] = {{buf, 1}, {buf + 10, 99}};
    int flags = 0;

    TELL(transmit_pieces(p.a, out, 3, 0));
    until_readable(p.b);
    TELL(receive_pieces(p.b, in, 2, 0, &flags));
    say("%c%.4s flags %x", buf[0], buf + 10, (unsigned)flags);
}
BEHAVIOUR(no_pieces)
{
    struct pair p = pair();
    int flags;

    TELL(transmit_pieces(p.a, NULL, 0, 0));
    word(p, "x");
    until_readable(p.b);
    TELL(receive_pieces(p.b, NULL, 0, 0, &flags));
}
BEHAVIOUR(pieces_at_null)
{
    struct pair p = pair();
    struct iovec out[2] = {{"ab", 2}, {NULL, 3}};

    TELL(transmit_pieces(p.a, &out[1], 1, 0));
    TELL(transmit_pieces(p.a, NULL, 1, 0));
}
BEHAVIOUR(pieces_that_peek)
{
    struct pair p = pair();
    struct iovec in[2] = {{buf, 1}, {buf + 10, 99}};
    int flags;

    word(p, "hello");
    until_readable(p.b);
    TELL(receive_pieces(p.b, in, 2, MSG_PEEK, &flags));
    TELL(receive_pieces(p.b, in, 2, 0, &flags));
}

/* ---- Signals ----------------------------------------------------------------------------- */

static void handler(int s) { (void)s; }

static void handle(int flags)
{
    struct sigaction sa = {.sa_handler = handler, .sa_flags = flags};

    sigaction(SIGUSR1, &sa, NULL);
}
static void get_one(struct worker *w) { w->result = receive(w->fd, buf, 1, 0); }
static void send_many(struct worker *w) { w->result = transmit(w->fd, buf, sizeof buf, 0); }
static void take_one(struct worker *w) { w->result = accept_from(w->fd, NULL, NULL, 0); }

static void interrupted(void (*body)(struct worker *), int fd)
{
    struct worker w;

    begin(&w, body, fd);
    await_sleep(&w);
    pthread_kill(w.thread, SIGUSR1);
    done(&w);
    errno = w.error;
    tell(w.result);
}
BEHAVIOUR(a_signal_ends_a_receive)
{
    handle(0);
    interrupted(get_one, pair().b);
}
BEHAVIOUR(a_signal_ends_an_accept)
{
    struct sockaddr_in at;

    handle(0);
    interrupted(take_one, listener(&at));
}
BEHAVIOUR(a_signal_ends_a_send)
{
    struct pair p = pair();

    handle(0);
    fill_up(p.a);
    interrupted(send_many, p.a);
}
BEHAVIOUR(a_signal_with_restart_and_a_receive)
{
    struct pair p = pair();
    struct worker w;

    handle(SA_RESTART);
    begin(&w, get_one, p.b);
    await_sleep(&w);
    pthread_kill(w.thread, SIGUSR1);
    await_sleep(&w);
    word(p, "x");
    done(&w);
    errno = w.error;
    tell(w.result);
}
BEHAVIOUR(a_signal_and_a_receive_limited_in_time)
{
    struct pair p = pair();
    struct timeval t = {60, 0};

    handle(SA_RESTART); /* signal(7): with a time limit there is no restart */
    MUST(set(p.b, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    interrupted(get_one, p.b);
}

/* ---- The descriptor as the kernel has it ---------------------------------------------------- */

BEHAVIOUR(fionread_tells_what_is_there)
{
    struct pair p = pair();
    int n = -1;

    word(p, "hello");
    until_readable(p.b);
    TELL(ioctl(p.b, FIONREAD, &n));
    say("%d", n);
    MUST(receive(p.b, buf, 2, 0));
    MUST(ioctl(p.b, FIONREAD, &n));
    say("%d", n);
    MUST(receive(p.b, buf, 3, 0));
    MUST(ioctl(p.b, FIONREAD, &n));
    say("%d", n);
}
BEHAVIOUR(siocoutq_tells_what_has_not_left)
{
    struct pair p = pair();
    int n = -1;

    TELL(ioctl(p.a, TIOCOUTQ, &n));
    say("%d", n);
}
BEHAVIOUR(siocatmark_without_urgent_data)
{
    struct pair p = pair();

    word(p, "x");
    until_readable(p.b);
    TELL(sockatmark(p.b));
}
BEHAVIOUR(fionbio_sets_o_nonblock)
{
    struct pair p = pair();
    int on = 1;

    TELL(ioctl(p.b, FIONBIO, &on));
    TELL(receive(p.b, buf, 1, 0));
}
BEHAVIOUR(seek_and_stat)
{
    struct pair p = pair();

    TELL(lseek(p.a, 0, SEEK_CUR));
    TELL(isatty(p.a) == 1 ? 1 : 0);
}
BEHAVIOUR(read_and_write)
{
    struct pair p = pair();

    TELL(write(p.a, "hello", 5));
    unwilling(p.b);
    (void)!poll(&(struct pollfd){.fd = p.b, .events = POLLIN}, 1, 100);
    TELL(read(p.b, buf, 9));
}
