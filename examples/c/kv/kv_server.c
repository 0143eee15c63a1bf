/* A key-value server for many clients over plain sockets: epoll(7) and calls that do not wait.
 *
 *     kv_server [-c CLIENTS] [-i SECONDS] [ADDRESS:PORT]
 *
 * Every SECONDS (default 10) it prints a line of figures. Its own input is a console: "stats"
 * and "quit". The protocol is told in store.h.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "../common/net.h"
#include "store.h"

#define USAGE "[-c CLIENTS] [-i SECONDS] [ADDRESS:PORT]   (default 127.0.0.1:7070)"

struct client {
    int            fd;
    size_t         sent;    /* of the answers */
    bool           leaving; /* to be closed when they are sent */
    struct client *next;    /* of those that are free */
    struct session session;
};

static struct store   store;
static struct client *clients, *unused;
static unsigned long  most = 1024, count;
static int            epoll, listener;
/* What epoll names the descriptors that are no clients. */
static char signals_name, timer_name, console_name, listener_name;

static void watch(int fd, int operation, uint32_t events, void *name)
{
    struct epoll_event event = {.events = events, .data.ptr = name};
    /* A file, which the console may be, is always ready and cannot be waited for. */
    if (epoll_ctl(epoll, operation, fd, &event) < 0 && !(errno == EPERM && name == &console_name))
        fail_errno("epoll_ctl");
}

static void print_figures(void)
{
    printf("%lu clients, %zu keys, %zu bytes, %lu requests\n", count, store.count, store.bytes,
           store.requests);
}

static void enter(void)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) {
        if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
            warn_errno("accept");
        return;
    }
    struct client *c = unused;
    unused = c->next;
    c->fd = fd;
    c->sent = c->session.in_have = c->session.out_have = 0;
    c->leaving = false;
    watch(fd, EPOLL_CTL_ADD, EPOLLIN, c);
    if (++count == most) /* the others wait in the backlog */
        watch(listener, EPOLL_CTL_MOD, 0, &listener_name);
}

static void leave(struct client *c)
{
    close(c->fd);
    c->fd = -1;
    c->next = unused;
    unused = c;
    if (count-- == most)
        watch(listener, EPOLL_CTL_MOD, EPOLLIN, &listener_name);
}

/* Sends what there is to send; false if the connection is lost. */
static bool push(struct client *c)
{
    struct session *s = &c->session;
    while (c->sent < s->out_have) {
        ssize_t n = send(c->fd, s->out + c->sent, s->out_have - c->sent,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        c->sent += (size_t)n;
        if (c->sent == s->out_have) {
            /* There may be requests whose answers had no room. */
            c->sent = s->out_have = 0;
            c->leaving |= !session_run(s, &store);
        }
    }
    return true;
}

/* Something can be done for the client; false once it is done with. */
static bool serve(struct client *c, uint32_t events)
{
    struct session *s = &c->session;
    if (events & ~(uint32_t)EPOLLOUT && s->out_have == 0) {
        ssize_t n = recv(c->fd, s->in + s->in_have, sizeof(s->in) - s->in_have, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        s->in_have += n > 0 ? (size_t)n : 0;
        c->leaving |= !session_run(s, &store);
    }
    if (!push(c) || (c->leaving && s->out_have == 0))
        return false;
    watch(c->fd, EPOLL_CTL_MOD, s->out_have > 0 ? EPOLLOUT : EPOLLIN, c);
    return true;
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
        watch(STDIN_FILENO, EPOLL_CTL_DEL, 0, &console_name);
    return state != CONSOLE_STOPPED;
}

int main(int argc, char **argv)
{
    begin(argv);
    unsigned long seconds = 10;
    for (int option; (option = getopt(argc, argv, "c:i:")) != -1;) {
        if (option == 'c')
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
    clients = allocate(most, sizeof(*clients));
    for (unsigned long i = 0; i < most; i++) {
        clients[i].fd = -1;
        clients[i].next = i + 1 < most ? &clients[i + 1] : NULL;
    }
    unused = clients;
    epoll = epoll_create1(EPOLL_CLOEXEC);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct itimerspec every = {{(time_t)seconds, 0}, {(time_t)seconds, 0}};
    if (epoll < 0 || timer < 0 || timerfd_settime(timer, 0, &every, NULL) < 0)
        fail_errno("epoll_create1, timerfd_create");
    listener = tcp_listener(argc > optind ? argv[optind] : "127.0.0.1:7070");
    if (fcntl(listener, F_SETFL, O_NONBLOCK) < 0)
        fail_errno("fcntl");
    watch(signals, EPOLL_CTL_ADD, EPOLLIN, &signals_name);
    watch(timer, EPOLL_CTL_ADD, EPOLLIN, &timer_name);
    watch(STDIN_FILENO, EPOLL_CTL_ADD, EPOLLIN, &console_name);
    watch(listener, EPOLL_CTL_ADD, EPOLLIN, &listener_name);

    for (bool going = true; going;) {
        struct epoll_event events[64];
        int n = epoll_wait(epoll, events, 64, -1);
        if (n < 0 && errno != EINTR)
            fail_errno("epoll_wait");
        for (int i = 0; i < n && going; i++) {
            void *name = events[i].data.ptr;
            uint64_t ticks;
            if (name == &signals_name)
                going = false;
            else if (name == &timer_name && read(timer, &ticks, sizeof(ticks)) > 0)
                print_figures();
            else if (name == &console_name)
                going = console();
            else if (name == &listener_name)
                enter();
            else if (name != &timer_name && !serve(name, events[i].events))
                leave(name);
        }
    }
    for (unsigned long i = 0; i < most; i++)
        if (clients[i].fd >= 0)
            close(clients[i].fd);
    print_figures();
    store_clear(&store);
    free(clients);
    return 0;
}
