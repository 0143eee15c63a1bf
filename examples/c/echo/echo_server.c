/* The echo server over plain sockets: poll(2) says what is ready, and calls that do not wait
 * move it.
 *
 *     echo_server [ADDRESS:PORT]
 *
 * One thread and many clients. A client that does not read its echo stops being read itself,
 * and costs the other clients nothing.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/net.h"

enum { MAX_CLIENTS = 256, SIGNALS = 0, LISTENER = 1, FIRST = 2 };

struct client {
    size_t have, sent; /* bytes received, and of these sent back */
    char   bytes[16384];
};

static struct pollfd  polled[FIRST + MAX_CLIENTS];
static struct client *clients[FIRST + MAX_CLIENTS];
static nfds_t         used = FIRST;

static void enter(int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) {
        /* The client may have gone again; what else there is may pass. */
        if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
            warn_errno("accept");
        return;
    }
    clients[used] = allocate(1, sizeof(struct client));
    polled[used++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

static void leave(nfds_t i)
{
    close(polled[i].fd);
    free(clients[i]);
    used--;
    polled[i] = polled[used]; /* the last one takes its place */
    clients[i] = clients[used];
}

/* Moves what can be moved; false once the client is done with. */
static bool serve(struct pollfd *p, struct client *c)
{
    if (c->sent == c->have) {
        ssize_t n = recv(p->fd, c->bytes, sizeof(c->bytes), MSG_DONTWAIT);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        if (n == 0)
            return false; /* all has been sent back before */
        c->have = (size_t)n;
        c->sent = 0;
    }
    ssize_t n = send(p->fd, c->bytes + c->sent, c->have - c->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        return false;
    if (n > 0)
        c->sent += (size_t)n;
    /* The rest must leave before more comes in. */
    p->events = c->sent < c->have ? POLLOUT : POLLIN;
    return true;
}

int main(int argc, char **argv)
{
    begin(argv);
    if (argc > 2 || (argc == 2 && argv[1][0] == '-'))
        usage("[ADDRESS:PORT]   (default 127.0.0.1:7007)");
    allow_many_files();
    polled[SIGNALS] = (struct pollfd){.fd = ending_descriptor(), .events = POLLIN};
    int listener = tcp_listener(argc > 1 ? argv[1] : "127.0.0.1:7007");
    if (fcntl(listener, F_SETFL, O_NONBLOCK) < 0)
        fail_errno("fcntl");
    polled[LISTENER] = (struct pollfd){.fd = listener};

    for (;;) {
        /* With no room for another client the listener is left alone; its backlog holds them. */
        polled[LISTENER].events = used < FIRST + MAX_CLIENTS ? POLLIN : 0;
        if (poll(polled, used, -1) < 0) {
            if (errno == EINTR)
                continue;
            fail_errno("poll");
        }
        if (polled[SIGNALS].revents)
            break;
        /* From the end: when a client leaves, the last one takes its place, and that was served already. */
        for (nfds_t i = used; i-- > FIRST;)
            if (polled[i].revents && !serve(&polled[i], clients[i]))
                leave(i);
        if (polled[LISTENER].revents)
            enter(listener);
    }
    while (used > FIRST)
        leave(used - 1);
    close(listener);
    close(polled[SIGNALS].fd);
    return 0;
}
