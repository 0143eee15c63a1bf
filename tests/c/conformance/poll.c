/* exs_poll. */
#include "net.h"

#include <fcntl.h>
#include <sys/timerfd.h>

#define REVENTS(event) ((event).exs_evt_union.exs_evt_poll.exs_evt_revents)

static exs_pollfd_t of(int fd, int events)
{
    exs_pollfd_t p;

    memset(&p, 0, sizeof p);
    p.exs_pfd_fd = fd;
    p.exs_pfd_events = events;
    return p;
}

CASE("poll-1", data_make_it_readable_once, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    exs_pollfd_t poll = of(p.b, EXS_POLLIN);
    exs_event_t e;
    char byte;

    GIVES(0, exs_poll(&poll, 0, q, 5));
    nothing(q);
    send_all(p.a, "x", 1);
    e = next(q, EXS_EVT_POLL);
    GIVES(p.b, e.exs_evt_socket);
    GIVES(5, e.exs_evt_ahandle);
    GIVES(EXS_POLLIN, REVENTS(e));
    CHECK(e.exs_evt_union.exs_evt_poll.exs_evt_pollfd == &poll);
    /* it took nothing, and was for once */
    send_all(p.a, "y", 1);
    nothing(q);
    GIVES(1, exs_recv(p.b, &byte, 1, MSG_DONTWAIT, BLOCK, UNREG));
    GIVES('x', byte);
    GIVES(0, exs_poll(&poll, 0, q, 6));
    GIVES(6, next(q, EXS_EVT_POLL).exs_evt_ahandle);
    end(p);
    end_queue(q);
}

CASE("poll-1", an_idle_connection_is_writable, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    exs_pollfd_t poll = of(p.a, EXS_POLLOUT);

    GIVES(0, exs_poll(&poll, 0, q, 5));
    GIVES(EXS_POLLOUT, REVENTS(next(q, EXS_EVT_POLL)));
    poll = of(p.a, EXS_POLLIN | EXS_POLLOUT);
    GIVES(0, exs_poll(&poll, 0, q, 5));
    GIVES(EXS_POLLOUT, REVENTS(next(q, EXS_EVT_POLL)));
    end(p);
    end_queue(q);
}

CASE("poll-1", a_connection_to_accept_makes_it_readable, CONNECTED)
{
    struct place at;
    int l = listener(&at), fd = new_socket(), other;
    exs_qhandle_t q = new_queue(4);
    exs_pollfd_t poll = of(l, EXS_POLLIN);

    GIVES(0, exs_poll(&poll, 0, q, 5));
    nothing(q);
    GIVES(0, exs_connect(fd, ADDR(at), at.len, 0, BLOCK));
    GIVES(EXS_POLLIN, REVENTS(next(q, EXS_EVT_POLL)));
    other = exs_accept(l, NULL, 0, BLOCK);
    CHECK(other >= 0);
    end_one(other);
    end_one(fd);
    end_one(l);
    end_queue(q);
}

CASE("poll-1", the_end_of_the_data_is_readable, CONNECTED)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    exs_pollfd_t poll = of(p.b, EXS_POLLIN);
    char byte;

    GIVES(0, exs_poll(&poll, 0, q, 5));
    GIVES(0, exs_shutdown(p.a, SHUT_WR, BLOCK));
    CHECK(REVENTS(next(q, EXS_EVT_POLL)) & EXS_POLLIN);
    GIVES(0, exs_recv(p.b, &byte, 1, 0, BLOCK, UNREG));
    end_one(p.a);
    GIVES(0, exs_poll(&poll, 0, q, 5));
    CHECK(REVENTS(next(q, EXS_EVT_POLL)) & (EXS_POLLIN | EXS_POLLHUP));
    end_one(p.b);
    end_queue(q);
}

CASE("poll-2", any_descriptor_can_be_waited_for, NOWHERE)
{
    exs_qhandle_t q = new_queue(4);
    struct itimerspec soon = {{0, 0}, {0, 1000000}};
    int pipe_[2], timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC), file = new_file(1);
    exs_pollfd_t p;
    char byte;

    CHECK(pipe(pipe_) == 0 && timer >= 0);
    p = of(pipe_[0], EXS_POLLIN);
    GIVES(0, exs_poll(&p, 0, q, 1));
    nothing(q);
    GIVES(1, write(pipe_[1], "x", 1));
    GIVES(EXS_POLLIN, REVENTS(next(q, EXS_EVT_POLL)));
    GIVES(1, read(pipe_[0], &byte, 1));
    GIVES(0, exs_poll(&p, 0, q, 1));
    nothing(q);
    close(pipe_[1]);
    CHECK(REVENTS(next(q, EXS_EVT_POLL)) & EXS_POLLHUP);
    p = of(timer, EXS_POLLIN);
    GIVES(0, exs_poll(&p, 0, q, 2));
    nothing(q);
    GIVES(0, timerfd_settime(timer, 0, &soon, NULL));
    GIVES(EXS_POLLIN, REVENTS(next(q, EXS_EVT_POLL)));
    /* a file is always ready */
    p = of(file, EXS_POLLIN | EXS_POLLOUT);
    GIVES(0, exs_poll(&p, 0, q, 3));
    GIVES(EXS_POLLIN | EXS_POLLOUT, REVENTS(next(q, EXS_EVT_POLL)));
    close(pipe_[0]);
    close(timer);
    close(file);
    end_queue(q);
}

CASE("all-3", without_a_queue_it_stores_what_it_found, SOCKETS)
{
    struct pair p = connection();
    exs_pollfd_t poll = of(p.b, EXS_POLLIN);

    send_all(p.a, "x", 1);
    GIVES(1, exs_poll(&poll, 0, BLOCK));
    GIVES(EXS_POLLIN, poll.exs_pfd_revents);
    poll = of(p.b, EXS_POLLOUT);
    GIVES(1, exs_poll(&poll, 0, BLOCK));
    GIVES(EXS_POLLOUT, poll.exs_pfd_revents);
    end(p);
}

CASE("cancel-1", it_can_be_cancelled, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    exs_pollfd_t a = of(p.b, EXS_POLLIN), b = of(p.b, EXS_POLLIN);

    GIVES(0, exs_poll(&a, 0, q, 1));
    GIVES(0, exs_poll(&b, 0, q, 2));
    GIVES(1, exs_cancel(p.b, EXS_CAF_AHANDLE, 2));
    GIVES(2, next_failed(q, EXS_EVT_POLL, ECANCELED).exs_evt_ahandle);
    send_all(p.a, "x", 1);
    GIVES(1, next(q, EXS_EVT_POLL).exs_evt_ahandle);
    end(p);
    end_queue(q);
}

CASE("poll-3", what_makes_no_sense_is_refused, NOWHERE)
{
    exs_qhandle_t q = new_queue(4);
    exs_pollfd_t p = of(0, EXS_POLLIN);

    FAILS(EFAULT, exs_poll(NULL, 0, q, 1));
    FAILS(EINVAL, exs_poll(&p, 1, q, 1));
    FAILS(EINVAL, exs_poll(&p, 0, 4242, 1));
    p = of(0, 0);
    FAILS(EINVAL, exs_poll(&p, 0, q, 1));
    p = of(0, 0x40);
    FAILS(EINVAL, exs_poll(&p, 0, q, 1));
    p = of(-1, EXS_POLLIN);
    FAILS(EBADF, exs_poll(&p, 0, q, 1));
    FAILS(EBADF, exs_poll(&p, 0, BLOCK));
    nothing(q);
    end_queue(q);
}
