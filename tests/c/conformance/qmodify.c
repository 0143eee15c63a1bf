/* exs_qmodify: all attributes. */
#include "net.h"

#include <limits.h>
#include <signal.h>

CASE("qmodify-1", a_new_depth_holds, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(1);
    char in[3];

    GIVES(0, exs_recv(p.a, &in[0], 1, 0, q, 0, UNREG));
    FAILS(EAGAIN, exs_recv(p.a, &in[1], 1, 0, q, 1, UNREG));
    GIVES(0, exs_qmodify(q, EXS_QATTR_DEPTH, 2));
    GIVES(0, exs_recv(p.a, &in[1], 1, 0, q, 1, UNREG));
    FAILS(EAGAIN, exs_recv(p.a, &in[2], 1, 0, q, 2, UNREG));
    /* what is in flight beyond it stays */
    GIVES(0, exs_qmodify(q, EXS_QATTR_DEPTH, 1));
    GIVES(2, exs_cancel(p.a, EXS_CAF_FILDES, 0));
    next_failed(q, EXS_EVT_RECV, ECANCELED);
    next_failed(q, EXS_EVT_RECV, ECANCELED);
    end(p);
    end_queue(q);
}

CASE("qmodify-2", events_are_counted, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char byte = 'x';
    int waiting = -1;

    GIVES(0, exs_qmodify(q, EXS_QATTR_EVENTS, &waiting));
    GIVES(0, waiting);
    GIVES(0, exs_send(p.a, &byte, 1, 0, q, 1, UNREG));
    GIVES(0, exs_send(p.a, &byte, 1, 0, q, 2, UNREG));
    while (waiting < 2)
        GIVES(0, exs_qmodify(q, EXS_QATTR_EVENTS, &waiting));
    next(q, EXS_EVT_SEND);
    GIVES(0, exs_qmodify(q, EXS_QATTR_EVENTS, &waiting));
    GIVES(1, waiting);
    next(q, EXS_EVT_SEND);
    end(p);
    end_queue(q);
}

static void echo_100(void *fd)
{
    char byte;
    int i;

    for (i = 0; i < 100; i++) {
        recv_all(*(int *)fd, &byte, 1);
        send_all(*(int *)fd, &byte, 1);
    }
}

CASE("qmodify-3", each_way_to_wait_gets_its_events, CONNECTED)
{
    static const int WAYS[] = {EXS_WAIT_ADAPTIVE, EXS_WAIT_NOTIFY, EXS_WAIT_BUSY_POLL};
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    struct thread *t;
    char byte = 'x';
    int way, i;

    for (way = 0; way < 3; way++) {
        GIVES(0, exs_qmodify(q, EXS_QATTR_WAIT, WAYS[way]));
        t = start(echo_100, &p.b);
        for (i = 0; i < 100; i++) {
            exs_event_t e[2];

            GIVES(0, exs_recv(p.a, &byte, 1, 0, q, 1, UNREG));
            GIVES(0, exs_send(p.a, "x", 1, 0, q, 2, UNREG));
            GIVES(2, exs_qdequeue(q, e, -2, NULL));
            CHECK(e[0].exs_evt_errno == 0 && e[1].exs_evt_errno == 0);
        }
        join(t);
    }
    end(p);
    end_queue(q);
}

static exs_signal_t signal_of(int action, int signo, uintptr_t value)
{
    exs_signal_t s;

    memset(&s, 0, sizeof s);
    s.exs_sig_action = action;
    s.exs_sig_signo = signo;
    s.exs_sig_value = value;
    return s;
}

CASE("qmodify-4", a_signal_announces_events, SOCKETS | ALONE)
{
    exs_signal_t on = signal_of(EXS_SIG_ENABLE, SIGRTMIN + 1, 0x1234);
    exs_signal_t off = signal_of(EXS_SIG_DISABLE, 0, 0);
    struct pair p = connection();
    exs_qhandle_t q;
    siginfo_t info;
    sigset_t set;
    int waiting = 0, i;
    char byte = 'x';

    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 1);
    /* (the library's threads have all signals blocked) */
    GIVES(0, sigprocmask(SIG_BLOCK, &set, NULL));
    q = new_queue(8);
    GIVES(0, exs_qmodify(q, EXS_QATTR_SIGNAL, &on));
    for (i = 0; i < 3; i++) {
        GIVES(0, exs_send(p.a, &byte, 1, 0, q, 1, UNREG));
        GIVES(SIGRTMIN + 1, sigwaitinfo(&set, &info));
        GIVES(SI_QUEUE, info.si_code);
        CHECK(info.si_value.sival_ptr == (void *)0x1234);
        next(q, EXS_EVT_SEND);
    }
    /* switched off, none comes; switched on again, one comes for what waits */
    GIVES(0, exs_qmodify(q, EXS_QATTR_SIGNAL, &off));
    GIVES(0, exs_send(p.a, &byte, 1, 0, q, 1, UNREG));
    while (waiting < 1)
        GIVES(0, exs_qmodify(q, EXS_QATTR_EVENTS, &waiting));
    FAILS(EAGAIN, sigtimedwait(&set, &info, &(struct timespec){0, 0}));
    on.exs_sig_value = 0x77;
    GIVES(0, exs_qmodify(q, EXS_QATTR_SIGNAL, &on));
    GIVES(SIGRTMIN + 1, sigwaitinfo(&set, &info));
    CHECK(info.si_value.sival_ptr == (void *)0x77);
    next(q, EXS_EVT_SEND);
    end(p);
    end_queue(q);
}

CASE("qmodify-5", what_makes_no_sense_is_refused, NOWHERE)
{
    exs_signal_t s = signal_of(5, SIGUSR1, 0);
    exs_qhandle_t q = new_queue(1);

    FAILS(EINVAL, exs_qmodify(q, 0, 1));
    FAILS(EINVAL, exs_qmodify(q, 99, 1));
    FAILS(EINVAL, exs_qmodify(q, -1, 1));
    FAILS(EINVAL, exs_qmodify(q, EXS_QATTR_DEPTH, 0));
    FAILS(EINVAL, exs_qmodify(q, EXS_QATTR_DEPTH, EXS_QDEPTH_MAX + 1));
    FAILS(EINVAL, exs_qmodify(q, EXS_QATTR_WAIT, 3));
    FAILS(EINVAL, exs_qmodify(q, EXS_QATTR_WAIT, -1));
    FAILS(EFAULT, exs_qmodify(q, EXS_QATTR_EVENTS, (int *)NULL));
    FAILS(EFAULT, exs_qmodify(q, EXS_QATTR_SIGNAL, (exs_signal_t *)NULL));
    FAILS(EINVAL, exs_qmodify(q, EXS_QATTR_SIGNAL, &s));
    s = signal_of(EXS_SIG_ENABLE, 0, 0);
    FAILS(EINVAL, exs_qmodify(q, EXS_QATTR_SIGNAL, &s));
    s = signal_of(EXS_SIG_ENABLE, INT_MAX, 0);
    FAILS(EINVAL, exs_qmodify(q, EXS_QATTR_SIGNAL, &s));
    end_queue(q);
}
