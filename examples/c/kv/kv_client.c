/* A client of the key-value server over plain sockets.
 *
 *     kv_client ADDRESS:PORT                          lines of its input are requests
 *     kv_client -n CLIENTS -r ROUNDS ADDRESS:PORT     a load: each client sets and gets
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "../common/net.h"
#include "load.h"

#define USAGE "[-n CLIENTS [-r ROUNDS]] ADDRESS:PORT"

/* Sends what the user types, line by line, and prints the answers. */
static void converse(int fd)
{
    char *line = NULL, answer[8192];
    size_t room = 0;
    ssize_t len;
    while ((len = getline(&line, &room, stdin)) > 0) {
        if (!write_all(fd, line, (size_t)len) || (line[len - 1] != '\n' && !write_all(fd, "\n", 1)))
            fail_errno("send");
        size_t have = 0;
        do {
            ssize_t n = recv(fd, answer + have, sizeof(answer) - have, 0);
            if (n < 0 && errno == EINTR)
                continue;
            if (n < 0)
                fail_errno("recv");
            if (n == 0 || (have += (size_t)n) == sizeof(answer))
                fail("the server has closed the connection");
        } while (have == 0 || answer[have - 1] != '\n');
        fwrite(answer, 1, have, stdout);
    }
    free(line);
}

struct client {
    unsigned long step; /* the request whose answer is awaited */
    size_t        have;
    char          answer[ANSWER_MAX];
};

static void ask(struct pollfd *p, struct client *c, unsigned long i)
{
    char request[128];
    int len = load_request(request, sizeof(request), i, c->step);
    c->have = 0;
    /* So short that it always goes at once: nothing else is under way. */
    if (!write_all(p->fd, request, (size_t)len))
        fail_errno("client %lu: send", i);
}

static void load(const char *server, unsigned long n, unsigned long rounds)
{
    struct pollfd *polled = allocate(n, sizeof(*polled));
    struct client *clients = allocate(n, sizeof(*clients));
    unsigned long going = n;
    double began = now();
    for (unsigned long i = 0; i < n; i++) {
        polled[i] = (struct pollfd){.fd = tcp_connection(server), .events = POLLIN};
        ask(&polled[i], &clients[i], i);
    }
    while (going > 0) {
        if (poll(polled, n, -1) < 0 && errno != EINTR)
            fail_errno("poll");
        for (unsigned long i = 0; i < n; i++) {
            struct pollfd *p = &polled[i];
            struct client *c = &clients[i];
            if (p->fd < 0 || !p->revents)
                continue;
            ssize_t got = recv(p->fd, c->answer + c->have, sizeof(c->answer) - c->have, 0);
            if (got <= 0)
                fail_errno("client %lu: the answer to request %lu does not come", i, c->step);
            c->have += (size_t)got;
            if (c->answer[c->have - 1] != '\n' && c->have < sizeof(c->answer))
                continue;
            if (!load_answered(c->answer, c->have, i, c->step))
                fail("client %lu: a wrong answer to request %lu", i, c->step);
            if (++c->step < 2 * rounds) {
                ask(p, c, i);
            } else {
                close(p->fd);
                p->fd = -1; /* poll passes over it */
                going--;
            }
        }
    }
    double took = now() - began;
    printf("%lu clients, %lu requests each: %.0f requests/s\n", n, 2 * rounds,
           (double)(n * 2 * rounds) / took);
    free(polled);
    free(clients);
}

int main(int argc, char **argv)
{
    begin(argv);
    unsigned long clients = 0, rounds = 10;
    for (int option; (option = getopt(argc, argv, "n:r:")) != -1;) {
        if (option == 'n')
            clients = number(optarg, 1, 100000, "CLIENTS");
        else if (option == 'r')
            rounds = number(optarg, 1, 100000000, "ROUNDS");
        else
            usage(USAGE);
    }
    if (argc != optind + 1)
        usage(USAGE);
    allow_many_files();
    if (clients) {
        load(argv[optind], clients, rounds);
        return 0;
    }
    int fd = tcp_connection(argv[optind]);
    converse(fd);
    close(fd);
    return 0;
}
