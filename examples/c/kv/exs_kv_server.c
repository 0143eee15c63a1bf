/* The key-value server over EXS: operations are posted ahead, and the queue's descriptor sits
 * in epoll(7) beside those of signals, a timer and the console.
 *
 *     exs_kv_server [-k] [-c CLIENTS] [-i SECONDS] [ADDRESS:PORT]      -k: kernel sockets
 *
 * Each client has exactly one operation under way: a receive, or the send of its answers, or
 * at last the close. So its state is the kind of the event that comes for it, and its memory is
 * free when its CLOSE event has come.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "../common/exs_util.h"
#include "store.h"

#define USAGE "[-k] [-c CLIENTS] [-i SECONDS] [ADDRESS:PORT]   (default 127.0.0.1:7070)"

struct client {
    int            fd;
    bool           leaving; /* to be closed when the answers are sent */
    struct client *next;    /* of those that are free */
    struct session session;
};

static struct store   store;
static struct client *clients, *unused;
static unsigned long  most = 1024, count;
static int            epoll, listener;
static exs_qhandle_t  queue;
static exs_mhandle_t  memory; /* all clients, registered in one piece */
static bool           accepting, ending;
static char           signals_name, timer_name, console_name, queue_name;

static void watch(int fd, int operation, void *name)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = name};
    /* A file, which the console may be, is always ready and cannot be waited for. */
    if (epoll_ctl(epoll, operation, fd, &event) < 0 && !(errno == EPERM && name == &console_name))
        fail_errno("epoll_ctl");
}

static void print_figures(void)
{
    printf("%lu clients, %zu keys, %zu bytes, %lu requests\n", count, store.count, store.bytes,
           store.requests);
}

/* Has one accept under way while there is room for a client; the others wait in the backlog. */
static void accept_more(void)
{
    if (accepting || ending || !unused)
        return;
    if (exs_accept(listener, NULL, 0, queue, (exs_ahandle_t)&listener) < 0)
        fail_exs("exs_accept");
    accepting = true;
}

/* The connection is over, for good or ill: its CLOSE event frees the client. */
static void leave(struct client *c)
{
    if (exs_close(c->fd, 0, queue, (exs_ahandle_t)c) < 0)
        fail_exs("exs_close");
}

/* Posts what is next for a client: its answers, or the receive of more requests. False if
 * there is nothing, or the call is refused, as the peer may be gone by now. The
 * queue was made for all clients, so it always has room. */
static bool go_on(struct client *c)
{
    struct session *s = &c->session;
    if (s->out_have > 0)
        return exs_send(c->fd, s->out, s->out_have, 0, queue, (exs_ahandle_t)c, memory) == 0;
    if (c->leaving || ending)
        return false;
    return exs_recv(c->fd, s->in + s->in_have, sizeof(s->in) - s->in_have, 0, queue,
                    (exs_ahandle_t)c, memory) == 0;
}

static void enter(const exs_event_t *event)
{
    accepting = false;
    if (event->exs_evt_errno == 0) {
        struct client *c = unused;
        unused = c->next;
        c->fd = event->exs_evt_union.exs_evt_accept.exs_evt_newsocket;
        c->leaving = false;
        c->session.in_have = c->session.out_have = 0;
        count++;
        if (!go_on(c))
            leave(c);
    } else if (event->exs_evt_errno != ECANCELED) {
        fprintf(stderr, "accepting: %s\n", event_trouble(event));
    }
    accept_more();
}

/* A receive or a send has ended; false once the client is done with. */
static bool serve(struct client *c, const exs_event_t *event)
{
    size_t n = event->exs_evt_union.exs_evt_xfer.exs_evt_length;
    if (event->exs_evt_errno)
        return false; /* the client has died, or we are ending */
    if (event->exs_evt_type == EXS_EVT_RECV) {
        if (n == 0)
            return false;
        c->session.in_have += n;
    } else {
        c->session.out_have = 0; /* all is sent, or there would be an error */
    }
    /* After a send too: there may be requests whose answers had no room. */
    c->leaving |= !session_run(&c->session, &store);
    return go_on(c);
}

static void handle(const exs_event_t *event)
{
    struct client *c = (struct client *)event->exs_evt_ahandle;
    if (event->exs_evt_type == EXS_EVT_ACCEPT) {
        enter(event);
    } else if (event->exs_evt_type == EXS_EVT_CLOSE) {
        c->fd = -1;
        c->next = unused;
        unused = c;
        count--;
        accept_more();
    } else if (!serve(c, event)) {
        leave(c);
    }
}

/* Takes all events that wait. epoll says that there are some, and says so until they are
 * taken. */
static void drain(void)
{
    exs_event_t events[64];
    struct timeval at_once = {0, 0};
    int n;
    while ((n = exs_qdequeue(queue, events, 64, &at_once)) > 0)
        for (int i = 0; i < n; i++)
            handle(&events[i]);
    if (n < 0 && errno != EINTR)
        fail_exs("exs_qdequeue");
}

/* A line from the console; false for the end. */
static bool obey(const char *line)
{
    if (strcmp(line, "quit") == 0)
        return false;
    if (strcmp(line, "stats") == 0)
        print_figures();
    else
        printf("the console knows: stats, quit\n");
    return true;
}

/* False for the end. */
static bool console(void)
{
    enum console state = read_console(obey);
    if (state == CONSOLE_ENDED) /* no console: the server goes on */
        watch(STDIN_FILENO, EPOLL_CTL_DEL, &console_name);
    return state != CONSOLE_STOPPED;
}

/* Cancels all operations. Each then has its event, and the last event of a connection closes it.
 * Memory may be given back only when no operation has it any more. */
static void end(void)
{
    ending = true;
    exs_cancel(listener, EXS_CAF_FILDES, 0);
    for (unsigned long i = 0; i < most; i++)
        if (clients[i].fd >= 0)
            exs_cancel(clients[i].fd, EXS_CAF_FILDES, 0);
    while (count > 0 || accepting) {
        exs_event_t event;
        if (exs_qdequeue(queue, &event, 1, NULL) == 1)
            handle(&event);
        else if (errno != EINTR)
            fail_exs("exs_qdequeue");
    }
    if (exs_close(listener, 0, EXS_QHANDLE_INVALID, 0) < 0 || exs_qdelete(queue) < 0)
        fail_exs("exs_close, exs_qdelete");
    exs_mderegister(memory);
}

static void start(const char *text, enum kind kind)
{
    if (exs_init(EXS_VERSION) < 0)
        fail_exs("exs_init");
    /* One operation of each client, and an accept. */
    queue = exs_qcreate((int)most + 1);
    if (queue == EXS_QHANDLE_INVALID)
        fail_exs("exs_qcreate");
    clients = allocate(most, sizeof(*clients));
    memory = exs_mregister(clients, most * sizeof(*clients), 0);
    if (memory == EXS_MHANDLE_INVALID)
        fail_exs("exs_mregister");
    for (unsigned long i = 0; i < most; i++) {
        clients[i].fd = -1;
        clients[i].next = i + 1 < most ? &clients[i + 1] : NULL;
    }
    unused = clients;
    listener = new_listener(text, kind);
    accept_more();
}

int main(int argc, char **argv)
{
    begin(argv);
    enum kind kind = STREAM;
    unsigned long seconds = 10;
    for (int option; (option = getopt(argc, argv, "kc:i:")) != -1;) {
        if (option == 'k')
            kind = KERNEL;
        else if (option == 'c')
            most = number(optarg, 1, 100000, "CLIENTS");
        else if (option == 'i')
            seconds = number(optarg, 1, 86400, "SECONDS");
        else
            usage(USAGE);
    }
    if (argc > optind + 1)
        usage(USAGE);
    allow_many_files();
    int signals = ending_descriptor();
    epoll = epoll_create1(EPOLL_CLOEXEC);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct itimerspec every = {{(time_t)seconds, 0}, {(time_t)seconds, 0}};
    if (epoll < 0 || timer < 0 || timerfd_settime(timer, 0, &every, NULL) < 0)
        fail_errno("epoll_create1, timerfd_create");
    start(argc > optind ? argv[optind] : "127.0.0.1:7070", kind);
    watch(signals, EPOLL_CTL_ADD, &signals_name);
    watch(timer, EPOLL_CTL_ADD, &timer_name);
    watch(STDIN_FILENO, EPOLL_CTL_ADD, &console_name);
    int qfd = exs_qfd(queue);
    if (qfd < 0)
        fail_exs("exs_qfd");
    watch(qfd, EPOLL_CTL_ADD, &queue_name);

    for (bool going = true; going;) {
        struct epoll_event events[8];
        int n = epoll_wait(epoll, events, 8, -1);
        if (n < 0 && errno != EINTR)
            fail_errno("epoll_wait");
        for (int i = 0; i < n && going; i++) {
            void *name = events[i].data.ptr;
            uint64_t ticks;
            if (name == &queue_name)
                drain();
            else if (name == &signals_name)
                going = false;
            else if (name == &console_name)
                going = console();
            else if (read(timer, &ticks, sizeof(ticks)) > 0)
                print_figures();
        }
    }
    print_figures();
    end();
    store_clear(&store);
    free(clients);
    return 0;
}
