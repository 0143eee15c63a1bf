/* exs-gateway: joins a TCP port to an EXS port.
 *
 *     exs-gateway LISTEN TARGET         takes TCP connections, hands each on over EXS
 *     exs-gateway -r LISTEN TARGET      takes EXS connections, hands each on over TCP
 *
 * With it a program that knows nothing of EXS (curl, a browser) reaches a program that uses EXS.
 * With a gateway at each end, the two programs' TCP goes over RDMA devices in between.
 *
 *     exs-gateway    127.0.0.1:8080  server:7080       here
 *     exs-gateway -r 0.0.0.0:7080    127.0.0.1:80      there
 *
 * The same exs_ calls serve both sides, on one queue. A connection has two flows, one for each
 * direction, and a flow one buffer, which is received into and then sent from. The end of a
 * direction is handed on as such; and what breaks on one side is cut on the other, so that
 * no side takes half a transfer for a whole one.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../common/exs_util.h"

#define USAGE "[-r] [-c CONNECTIONS] LISTEN TARGET   (-r: listen over EXS, connect by TCP)"

enum { BUFFER = 128 << 10 };

struct pair;

/* One direction: from the pair's socket `from` to its other one. */
struct flow {
    struct pair *pair;
    int          from;
    char        *bytes;
};

struct pair {
    int          fd[2];   /* the one accepted, the one connected */
    int          pending; /* operations under way */
    bool         failed, cancelled, closing;
    struct flow  flows[2];
    struct pair *next; /* of those that are free */
};

static exs_qhandle_t   queue;
static exs_mhandle_t   memory;
static struct pair    *pairs, *unused;
static unsigned long   most = 64, count;
static int             listener;
static struct endpoint target;
static bool            reverse, accepting, ending;

static void wind_up(struct pair *p);

/* What a call returned that posts an operation of the pair. */
static void posted(struct pair *p, int status)
{
    if (status == 0)
        p->pending++;
    else
        p->failed = true; /* the peer has gone */
}

static void receive(struct flow *f)
{
    posted(f->pair, exs_recv(f->pair->fd[f->from], f->bytes, BUFFER, 0, queue, (exs_ahandle_t)f,
                             memory));
}

static void accept_more(void)
{
    if (accepting || ending || !unused)
        return;
    if (exs_accept(listener, NULL, 0, queue, (exs_ahandle_t)&listener) < 0)
        fail_exs("exs_accept");
    accepting = true;
}

/* A connection came: makes the other one. */
static void join(int fd)
{
    int family = target.addr.ss_family;
    int other = reverse ? socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)
                        : exs_socket(family, SOCK_STREAM, 0);
    if (other < 0) { /* too many open files, most likely: that will pass */
        warn_exs("a connection is turned away");
        close(fd);
        return;
    }
    struct pair *p = unused;
    unused = p->next;
    count++;
    p->failed = p->cancelled = p->closing = false;
    p->pending = 0;
    p->fd[0] = fd;
    p->fd[1] = other;
    posted(p, exs_connect(other, (struct sockaddr *)&target.addr, target.len, 0, queue,
                          (exs_ahandle_t)p));
    if (p->failed) {
        warn_exs("connecting to %s", address_text(&target.addr, target.len));
        wind_up(p);
    }
}

static void enter(const exs_event_t *event)
{
    accepting = false;
    if (event->exs_evt_errno == 0) {
        join(event->exs_evt_union.exs_evt_accept.exs_evt_newsocket);
    } else if (event->exs_evt_errno != ECANCELED) {
        warn("accepting: %s", event_trouble(event));
    }
    accept_more();
}

/* A flow's operation has ended well: posts the next one. */
static void go_on(struct flow *f, const exs_event_t *event)
{
    struct pair *p = f->pair;
    size_t n = event->exs_evt_union.exs_evt_xfer.exs_evt_length;
    int to = p->fd[!f->from];
    if (event->exs_evt_type == EXS_EVT_SEND)
        receive(f);
    else if (event->exs_evt_type == EXS_EVT_RECV && n > 0)
        posted(p, exs_send(to, f->bytes, n, 0, queue, (exs_ahandle_t)f, memory));
    else if (event->exs_evt_type == EXS_EVT_RECV)
        /* The end of this direction; the other one may go on. This fails only
         * if the peer is gone, and then it need not be told. */
        p->pending += exs_shutdown(to, SHUT_WR, queue, (exs_ahandle_t)f) == 0;
}

/* Takes the next step of a pair's end, if it is at its end. */
static void wind_up(struct pair *p)
{
    if ((p->failed || ending) && !p->cancelled && !p->closing) {
        p->cancelled = true;
        for (int i = 0; i < 2; i++)
            exs_cancel(p->fd[i], EXS_CAF_FILDES, 0);
    }
    if (p->pending > 0)
        return;
    if (!p->closing) {
        p->closing = true;
        for (int i = 0; i < 2; i++) {
            struct linger cut = {1, 0};
            if (p->cancelled)
                exs_setsockopt(p->fd[i], SOL_SOCKET, SO_LINGER, &cut, sizeof(cut));
            if (exs_close(p->fd[i], 0, queue, (exs_ahandle_t)p) < 0)
                fail_exs("exs_close");
            p->pending++;
        }
        return;
    }
    p->fd[0] = p->fd[1] = -1;
    p->next = unused;
    unused = p;
    count--;
    accept_more();
}

static void handle(const exs_event_t *event)
{
    void *name = (void *)event->exs_evt_ahandle;
    struct pair *p = name;
    if (event->exs_evt_type == EXS_EVT_POLL) {
        ending = true; /* a signal */
        exs_cancel(listener, EXS_CAF_FILDES, 0);
        for (unsigned long i = 0; i < most; i++)
            if (pairs[i].fd[0] >= 0)
                wind_up(&pairs[i]);
        return;
    }
    if (event->exs_evt_type == EXS_EVT_ACCEPT) {
        enter(event);
        return;
    }
    bool of_pair = event->exs_evt_type == EXS_EVT_CONNECT || event->exs_evt_type == EXS_EVT_CLOSE;
    struct flow *f = of_pair ? NULL : name;
    if (f)
        p = f->pair;
    p->pending--;
    if (event->exs_evt_type == EXS_EVT_CONNECT && event->exs_evt_errno &&
        event->exs_evt_errno != ECANCELED)
        warn("connecting to %s: %s", address_text(&target.addr, target.len), exs_strerror());
    if (event->exs_evt_errno && event->exs_evt_type != EXS_EVT_CLOSE &&
        event->exs_evt_type != EXS_EVT_SHUTDOWN)
        p->failed = true;
    if (!p->failed && !ending) {
        if (f) {
            go_on(f, event);
        } else if (event->exs_evt_type == EXS_EVT_CONNECT) {
            receive(&p->flows[0]);
            receive(&p->flows[1]);
        }
    }
    wind_up(p);
}

static void start(const char *text, int signals)
{
    if (exs_init(EXS_VERSION) < 0)
        fail_exs("exs_init");
    /* One operation of each flow (or one for each close), an accept, and the poll of signals. */
    queue = exs_qcreate((int)(2 * most) + 2);
    char *buffers = allocate(2 * most, BUFFER);
    memory = exs_mregister(buffers, 2 * most * BUFFER, 0);
    if (queue == EXS_QHANDLE_INVALID || memory == EXS_MHANDLE_INVALID)
        fail_exs("exs_qcreate, exs_mregister");
    pairs = allocate(most, sizeof(*pairs));
    for (unsigned long i = 0; i < most; i++) {
        struct pair *p = &pairs[i];
        p->fd[0] = p->fd[1] = -1;
        for (int from = 0; from < 2; from++)
            p->flows[from] = (struct flow){p, from, buffers + (2 * i + (unsigned)from) * BUFFER};
        p->next = i + 1 < most ? &pairs[i + 1] : NULL;
    }
    unused = pairs;
    listener = new_listener(text, reverse ? STREAM : KERNEL);
    exs_pollfd_t poll_signals = {.exs_pfd_fd = signals, .exs_pfd_events = EXS_POLLIN};
    if (exs_poll(&poll_signals, 0, queue, 0) < 0)
        fail_exs("exs_poll");
    accept_more();
}

int main(int argc, char **argv)
{
    begin(argv);
    for (int option; (option = getopt(argc, argv, "rc:")) != -1;) {
        if (option == 'r')
            reverse = true;
        else if (option == 'c')
            most = number(optarg, 1, 10000, "CONNECTIONS");
        else
            usage(USAGE);
    }
    if (argc != optind + 2)
        usage(USAGE);
    allow_many_files();
    int signals = ending_descriptor();
    target = resolve(argv[optind + 1], false);
    start(argv[optind], signals);

    while (!ending || count > 0 || accepting) {
        exs_event_t events[64];
        int n = exs_qdequeue(queue, events, 64, NULL);
        if (n < 0 && errno != EINTR)
            fail_exs("exs_qdequeue");
        for (int i = 0; i < n; i++)
            handle(&events[i]);
    }
    if (exs_close(listener, 0, EXS_QHANDLE_INVALID, 0) < 0 || exs_qdelete(queue) < 0)
        fail_exs("exs_close, exs_qdelete");
    exs_mderegister(memory);
    free(pairs[0].flows[0].bytes); /* the buffers of all */
    free(pairs);
    return 0;
}
