/* The echo server over EXS, ported call by call: where poll(2) said what is ready, exs_poll
 * does, by events on a queue.
 *
 *     exs_echo_server [-k] [ADDRESS:PORT]       -k: kernel sockets, for peers without EXS
 *
 * This is the smallest change that a program with a poll loop needs. The next step, in which
 * receives and sends are posted and no readiness is asked for, is in exs_echo_client.c and in
 * the key-value server.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/exs_util.h"

enum { MAX_CLIENTS = 256 };

struct client {
    int            fd;
    size_t         have, sent; /* bytes received, and of these sent back */
    struct client *next, *before;
    char           bytes[16384];
};

static exs_qhandle_t  queue;
static struct client *clients;
static int            count;
/* Names of the two descriptors that are no clients: any address that is ours will do. */
static char signals_name, listener_name;

/* poll(2) gets all descriptors in each call. exs_poll gets one, and says once
 * that it is ready: so it is asked again after each event. */
static void watch(int fd, int events, void *name)
{
    exs_pollfd_t p = {.exs_pfd_fd = fd, .exs_pfd_events = events};
    if (exs_poll(&p, 0, queue, (exs_ahandle_t)name) < 0)
        fail_exs("exs_poll");
}

static void enter(int listener)
{
    /* The listener is O_NONBLOCK, so that this does not wait if the client has gone again. */
    int fd = exs_accept(listener, NULL, 0, EXS_QHANDLE_INVALID, 0);
    if (fd < 0) {
        if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
            warn_exs("exs_accept");
        return;
    }
    struct client *c = allocate(1, sizeof(*c));
    c->fd = fd;
    c->next = clients;
    if (clients)
        clients->before = c;
    clients = c;
    count++;
    watch(fd, EXS_POLLIN, c);
}

static void leave(struct client *c)
{
    /* close(2) ends the connection in the background: what was sent is still delivered. A
     * program that must know whether it was posts an exs_close, and looks at its event. */
    close(c->fd);
    if (c->before)
        c->before->next = c->next;
    else
        clients = c->next;
    if (c->next)
        c->next->before = c->before;
    free(c);
    count--;
}

/* Moves what can be moved; false once the client is done with. */
static bool serve(struct client *c)
{
    if (c->sent == c->have) {
        int n = exs_recv(c->fd, c->bytes, sizeof(c->bytes), MSG_DONTWAIT, EXS_QHANDLE_INVALID, 0,
                         EXS_MHANDLE_UNREGISTERED);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return false; /* at the end all has been sent back before */
        c->have = n > 0 ? (size_t)n : 0;
        c->sent = 0;
    }
    if (c->sent < c->have) {
        int n = exs_send(c->fd, c->bytes + c->sent, c->have - c->sent,
                         MSG_DONTWAIT | MSG_NOSIGNAL, EXS_QHANDLE_INVALID, 0,
                         EXS_MHANDLE_UNREGISTERED);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        if (n > 0)
            c->sent += (size_t)n;
    }
    /* The rest must leave before more comes in. */
    watch(c->fd, c->sent < c->have ? EXS_POLLOUT : EXS_POLLIN, c);
    return true;
}

int main(int argc, char **argv)
{
    begin(argv);
    enum kind kind = STREAM;
    for (int option; (option = getopt(argc, argv, "k")) != -1;) {
        if (option != 'k')
            usage("[-k] [ADDRESS:PORT]   (default 127.0.0.1:7007; -k: kernel sockets)");
        kind = KERNEL;
    }
    if (argc > optind + 1)
        usage("[-k] [ADDRESS:PORT]   (default 127.0.0.1:7007; -k: kernel sockets)");
    allow_many_files();
    int signals = ending_descriptor();
    if (exs_init(EXS_VERSION) < 0)
        fail_exs("exs_init");
    /* At most one poll of each descriptor is under way, and none is without an event. */
    queue = exs_qcreate(2 + MAX_CLIENTS);
    if (queue == EXS_QHANDLE_INVALID)
        fail_exs("exs_qcreate");
    int listener = new_listener(argc > optind ? argv[optind] : "127.0.0.1:7007", kind);
    if (exs_fcntl(listener, F_SETFL, O_NONBLOCK) < 0)
        fail_exs("exs_fcntl");
    watch(signals, EXS_POLLIN, &signals_name);
    watch(listener, EXS_POLLIN, &listener_name);

    bool ending = false, listening = true;
    while (!ending) {
        exs_event_t events[64];
        int n = exs_qdequeue(queue, events, 64, NULL);
        if (n < 0 && errno != EINTR)
            fail_exs("exs_qdequeue");
        for (int i = 0; i < n; i++) {
            void *name = (void *)events[i].exs_evt_ahandle;
            if (name == &signals_name) {
                ending = true;
            } else if (name == &listener_name) {
                enter(listener);
                listening = false;
            } else if (!serve(name)) {
                leave(name);
            }
        }
        /* With no room for another client the listener is left alone; its backlog holds them. */
        if (!listening && count < MAX_CLIENTS) {
            watch(listener, EXS_POLLIN, &listener_name);
            listening = true;
        }
    }
    while (clients)
        leave(clients);
    close(listener);
    close(signals);
    return 0;
}
