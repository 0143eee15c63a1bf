/* What signals do to calls that wait. */
#include "net.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/user.h>
#include <sys/wait.h>

static volatile sig_atomic_t handled;

static void handler(int signo)
{
    (void)signo;
    handled++;
}

/* A handler, with SA_RESTART: which changes nothing. */
static void handle(int signo)
{
    struct sigaction action;

    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    GIVES(0, sigaction(signo, &action, NULL));
    handled = 0;
}

/* Again and again, so that one comes while the call waits, however slow the machine is;
 * 0 ends it. */
static void alarm_every(int milliseconds)
{
    struct itimerval t = {{0, milliseconds * 1000}, {0, milliseconds * 1000}};

    GIVES(0, setitimer(ITIMER_REAL, &t, NULL));
}

CASE("qdequeue-5", a_timer_interrupts_a_dequeue, NOWHERE | ALONE)
{
    static const int WAYS[] = {EXS_WAIT_ADAPTIVE, EXS_WAIT_NOTIFY, EXS_WAIT_BUSY_POLL};
    exs_qhandle_t q = new_queue(4);
    struct timeval hour = {3600, 0};
    exs_event_t e;
    int i;

    handle(SIGALRM);
    for (i = 0; i < 3; i++) {
        GIVES(0, exs_qmodify(q, EXS_QATTR_WAIT, WAYS[i]));
        alarm_every(5);
        FAILS(EINTR, exs_qdequeue(q, &e, 1, NULL));
        CHECK(handled > 0);
        FAILS(EINTR, exs_qdequeue(q, &e, -2, &hour));
        FAILS(EINTR, exs_qdequeue(q, &e, 1, &hour));
        CHECK(hour.tv_sec == 3600 && hour.tv_usec == 0);
        alarm_every(0);
        handled = 0;
    }
    end_queue(q);
}

CASE("qdequeue-5", an_interrupted_dequeue_loses_nothing, SOCKETS | ALONE)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char byte = 'x';
    exs_event_t e[4];

    handle(SIGALRM);
    GIVES(0, exs_send(p.a, &byte, 1, 0, q, 1, UNREG));
    alarm_every(5);
    /* one is there, two are waited for */
    FAILS(EINTR, exs_qdequeue(q, e, -2, NULL));
    alarm_every(0);
    GIVES(0, exs_send(p.a, &byte, 1, 0, q, 2, UNREG));
    GIVES(2, exs_qdequeue(q, e, -2, NULL));
    GIVES(1, e[0].exs_evt_ahandle);
    GIVES(2, e[1].exs_evt_ahandle);
    end(p);
    end_queue(q);
}

CASE("qdequeue-5", signals_without_a_handler_do_not_interrupt, NOWHERE | ALONE)
{
    exs_qhandle_t q = new_queue(4);
    struct timeval t = {0, 50000};
    exs_event_t e;
    sigset_t set, pending;

    signal(SIGALRM, SIG_IGN);
    alarm_every(5);
    GIVES(0, exs_qdequeue(q, &e, 1, &t));
    handle(SIGALRM);
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    alarm_every(5);
    GIVES(0, exs_qdequeue(q, &e, 1, &t));
    GIVES(0, handled);
    do
        sigpending(&pending);
    while (!sigismember(&pending, SIGALRM));
    alarm_every(0);
    /* and it is still to come: the mask is the caller's */
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    GIVES(1, handled);
    end_queue(q);
}

static void wait_once(exs_qhandle_t q)
{
    exs_event_t e;
    int n;

    errno = 0;
    n = exs_qdequeue(q, &e, 1, NULL);
    _exit(n != -1 ? 10 : errno != EINTR ? 20 : handled != 1 ? 30 + handled : 0);
}

/* The child is traced by its parent, waits once, and says by its status how that ended. */
static pid_t traced_child(int way)
{
    pid_t child = fork();
    exs_qhandle_t q;

    CHECK(child >= 0);
    if (child)
        return child;
    handle(SIGUSR1);
    q = new_queue(4);
    GIVES(0, exs_qmodify(q, EXS_QATTR_WAIT, way));
    exs_qdequeue(q, &(exs_event_t){0}, 1, NOW); /* whatever is made at the first use */
    CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
    kill(getpid(), SIGSTOP); /* (raise(3) changes the mask) */
    wait_once(q);
    return 0;
}

/* Stops the child at the `n`-th border between it and the kernel within the call that
 * waits, and sends a signal there. False if it blocked before the n-th. */
static int signal_at(int way, int n)
{
    pid_t child = traced_child(way);
    int status, stop = 0, masked = 0, sent = 0;

    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    GIVES(0, ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)));
    GIVES(0, ptrace(PTRACE_SYSCALL, child, NULL, NULL));
    for (;;) {
        int deliver = 0;

        CHECK(waitpid(child, &status, 0) == child);
        if (WIFEXITED(status))
            break;
        CHECK(WIFSTOPPED(status));
        if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
            struct user_regs_struct regs;

            /* From the first change of the mask on, the call watches for signals. */
            GIVES(0, ptrace(PTRACE_GETREGS, child, NULL, &regs));
            masked |= regs.orig_rax == SYS_rt_sigprocmask;
            if (!sent && masked && stop++ == n) {
                GIVES(0, syscall(SYS_tgkill, child, child, SIGUSR1));
                sent = 1;
            }
            /* It is about to sleep for good, as nothing was sent. */
            if (!sent && masked && regs.rax == (unsigned long long)-ENOSYS &&
                (regs.orig_rax == SYS_epoll_pwait || regs.orig_rax == SYS_epoll_wait ||
                 regs.orig_rax == SYS_epoll_pwait2 || regs.orig_rax == SYS_ppoll)) {
                GIVES(0, syscall(SYS_tgkill, child, child, SIGUSR1));
                sent = 2;
            }
        } else if (WSTOPSIG(status) == SIGUSR1) {
            deliver = SIGUSR1;
        }
        GIVES(0, ptrace(PTRACE_SYSCALL, child, NULL, (void *)(uintptr_t)deliver));
    }
    GIVES(0, WEXITSTATUS(status));
    return sent == 1;
}

/* The library blocks signals, looks for events, and sleeps with the caller's mask: so no
 * signal falls between the look and the sleep. */
CASE("qdequeue-5", a_signal_at_any_moment_of_the_wait_ends_it, NOWHERE | ALONE | NATIVE)
{
    static const int WAYS[] = {EXS_WAIT_NOTIFY, EXS_WAIT_ADAPTIVE};
    int way, n;

#ifndef __x86_64__
    skip("written for the registers of x86-64");
#endif
    for (way = 0; way < 2; way++) {
        for (n = 0; n < 100 && signal_at(WAYS[way], n); n++) {
        }
        CHECK(n > 1);
    }
}

CASE("all-8", calls_without_a_queue_are_interrupted, SOCKETS | ALONE)
{
    struct pair p = connection();
    exs_pollfd_t poll = {p.b, EXS_POLLIN, 0, 0};
    char in[4];

    handle(SIGALRM);
    alarm_every(5);
    if (ON_EXS) {
        FAILS(EINTR, exs_recv(p.b, in, 4, 0, BLOCK, UNREG));
        FAILS(EINTR, exs_poll(&poll, 0, BLOCK));
    } /* of kernel sockets it is the system call itself, which SA_RESTART takes up again */
    alarm_every(0);
    send_all(p.a, "x", 1);
    GIVES(1, exs_recv(p.b, in, 4, 0, BLOCK, UNREG));
    end(p);
}

/* A thread that answers on a connection of its own. */
struct answerer {
    int fd;
    pthread_t thread;
    volatile int interrupted;
};

static void *answers(void *arg)
{
    struct answerer *own = arg;
    char in[8];
    int n;

    while ((n = exs_recv(own->fd, in, sizeof in, 0, BLOCK, UNREG)) != 0) {
        if (n == -1) {
            CHECK(errno == EINTR);
            own->interrupted++;
        } else {
            send_all(own->fd, in, (size_t)n);
        }
    }
    return NULL;
}

static void ask(int fd, const char *what)
{
    char in[8];

    send_all(fd, what, 8);
    recv_all(fd, in, 8);
    CHECK(memcmp(in, what, 8) == 0);
}

CASE("all-8", threads_that_block_on_connections_of_their_own_are_interrupted, EXS | ALONE | NATIVE)
{
    enum { THREADS = 3 };
    struct answerer own[THREADS];
    struct pair p[THREADS];
    int i, round;

    handle(SIGUSR1);
    for (i = 0; i < THREADS; i++) {
        p[i] = connection();
        own[i].fd = p[i].b;
        own[i].interrupted = 0;
        CHECK(pthread_create(&own[i].thread, NULL, answers, &own[i]) == 0);
    }
    for (round = 0; round < 20; round++) {
        int n;

        /* small messages, after which the threads receive without the library's engine */
        for (n = 0; n < 20; n++)
            for (i = 0; i < THREADS; i++)
                ask(p[i].a, "question");
        for (i = 0; i < THREADS; i++) {
            int before = own[i].interrupted;

            while (own[i].interrupted == before) {
                GIVES(0, pthread_kill(own[i].thread, SIGUSR1));
                sched_yield();
            }
        }
    }
    for (i = 0; i < THREADS; i++) {
        ask(p[i].a, "the last");
        GIVES(0, exs_shutdown(p[i].a, SHUT_WR, BLOCK));
        CHECK(pthread_join(own[i].thread, NULL) == 0);
        end(p[i]);
    }
}

CASE("all-8", bytes_moved_before_a_signal_are_returned, EXS | ALONE)
{
    struct pair p = connection();
    char in[10];
    int n;

    handle(SIGALRM);
    send_all(p.a, "01234", 5);
    alarm_every(5);
    do
        n = exs_recv(p.b, in, sizeof in, MSG_WAITALL, BLOCK, UNREG);
    while (n == -1 && errno == EINTR);
    alarm_every(0);
    GIVES(5, n);
    CHECK(memcmp(in, "01234", 5) == 0);
    send_all(p.a, "56789", 5);
    GIVES(5, exs_recv(p.b, in, 5, MSG_WAITALL, BLOCK, UNREG));
    CHECK(memcmp(in, "56789", 5) == 0);
    end(p);
}

/* Valgrind is not done with one signal when the next comes. */
CASE("all-8", bytes_of_a_sendfile_before_a_signal_are_returned, TCP | LOCAL | ALONE | NATIVE)
{
    enum { LEN = 32 << 20 };
    char *all = malloc(LEN), *in = malloc(LEN);
    int fd = new_file(LEN), way;

    CHECK(all && in);
    fill(all, LEN, 0);
    handle(SIGALRM);
    for (way = 0; way < 2; way++) {
        struct pair p = connection();
        exs_xferfile_t x;
        int n;

        memset(&x, 0, sizeof x);
        x.exs_xf_type = way == 0 ? EXS_FDVEC : EXS_IOVEC;
        if (way == 0) {
            x.exs_xf_union.exs_xf_fdvec.exs_fdv_fd = fd;
        } else {
            x.exs_xf_union.exs_xf_iovec.exs_iov_base = all;
            x.exs_xf_union.exs_xf_iovec.exs_iov_len = LEN;
            x.exs_xf_union.exs_xf_iovec.exs_iov_mhandle = UNREG;
        }
        /* the peer does not receive: a wait of which nothing was moved is taken up again (SA_RESTART) */
        alarm_every(5);
        n = exs_sendfile(p.a, &x, 1, EXS_SHUT_WR, BLOCK);
        alarm_every(0);
        CHECK(n > 0 && n < LEN);
        recv_all(p.b, in, (size_t)n);
        VERIFY(in, (size_t)n, 0);
        /* the rest can follow: the direction has not ended */
        GIVES(1, exs_send(p.a, "x", 1, 0, BLOCK, UNREG));
        GIVES(1, exs_recv(p.b, in, 1, 0, BLOCK, UNREG));
        GIVES('x', in[0]);
        end(p);
    }
    close(fd);
    free(all);
    free(in);
}

CASE("all-8", an_accept_and_a_connect_are_interrupted, EXS | EXSMSG | ALONE)
{
    struct place at;
    int l = listener(&at), fd = new_socket(), other;

    handle(SIGALRM);
    alarm_every(5);
    FAILS(EINTR, exs_accept(l, NULL, 0, BLOCK));
    alarm_every(0);
    GIVES(0, exs_connect(fd, ADDR(at), at.len, 0, BLOCK));
    other = exs_accept(l, NULL, 0, BLOCK);
    CHECK(other >= 0);
    end_one(fd);
    end_one(other);
    end_one(l);
}
