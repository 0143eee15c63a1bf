/* A client of the key-value server over EXS.
 *
 *     exs_kv_client [-k] ADDRESS:PORT                          lines of its input are requests
 *     exs_kv_client [-k] -n CLIENTS -r ROUNDS ADDRESS:PORT     a load: each client sets and gets
 *
 * The conversation uses calls without a queue, which wait like those of sockets. The load has
 * all its clients on one queue.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "../common/exs_util.h"
#include "load.h"

#define USAGE "[-k] [-n CLIENTS [-r ROUNDS]] ADDRESS:PORT   (-k: kernel sockets)"

/* Without a queue exs_send returns how many bytes it has sent: fewer than asked for only if it
 * was interrupted. */
static void send_all(int fd, char *bytes, size_t len)
{
    while (len > 0) {
        int n = exs_send(fd, bytes, len, 0, EXS_QHANDLE_INVALID, 0, EXS_MHANDLE_UNREGISTERED);
        if (n < 0 && errno != EINTR)
            fail_exs("exs_send");
        bytes += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
}

/* Sends what the user types, line by line, and prints the answers. */
static void converse(int fd)
{
    char *line = NULL, answer[8192], newline[] = "\n";
    size_t room = 0;
    ssize_t len;
    while ((len = getline(&line, &room, stdin)) > 0) {
        send_all(fd, line, (size_t)len);
        if (line[len - 1] != '\n')
            send_all(fd, newline, 1);
        size_t have = 0;
        do {
            int n = exs_recv(fd, answer + have, sizeof(answer) - have, 0, EXS_QHANDLE_INVALID, 0,
                             EXS_MHANDLE_UNREGISTERED);
            if (n < 0 && errno == EINTR)
                continue;
            if (n < 0)
                fail_exs("exs_recv");
            if (n == 0 || (have += (size_t)n) == sizeof(answer))
                fail("the server has closed the connection");
        } while (have == 0 || answer[have - 1] != '\n');
        fwrite(answer, 1, have, stdout);
    }
    free(line);
}

/* A send may end after the answer to it has come. So a client's request and answer are left
 * alone until the events of both are there. */
struct client {
    int           fd;
    bool          sent, answered;
    unsigned long step; /* the request whose answer is awaited */
    size_t        have;
    char          request[128], answer[ANSWER_MAX];
};

static exs_qhandle_t  queue;
static exs_mhandle_t  memory;
static struct client *clients;

static void await_answer(struct client *c)
{
    if (exs_recv(c->fd, c->answer + c->have, sizeof(c->answer) - c->have, 0, queue,
                 (exs_ahandle_t)c, memory) < 0)
        fail_exs("client %td: exs_recv", c - clients);
}

static void ask(struct client *c)
{
    int len = load_request(c->request, sizeof(c->request), (unsigned long)(c - clients), c->step);
    c->have = 0;
    c->sent = c->answered = false;
    /* The receive first: data that find one are not copied. */
    await_answer(c);
    if (exs_send(c->fd, c->request, (size_t)len, 0, queue, (exs_ahandle_t)c, memory) < 0)
        fail_exs("client %td: exs_send", c - clients);
}

/* Takes a client's event; true if that was its last. */
static bool handle(struct client *c, const exs_event_t *event, unsigned long rounds)
{
    size_t n = event->exs_evt_union.exs_evt_xfer.exs_evt_length;
    unsigned long i = (unsigned long)(c - clients);
    if (event->exs_evt_errno)
        fail("client %lu, request %lu: %s (%s)", i, c->step, event_trouble(event), exs_strerror());
    switch (event->exs_evt_type) {
    case EXS_EVT_CLOSE:
        return true;
    case EXS_EVT_CONNECT:
        ask(c);
        return false;
    case EXS_EVT_SEND:
        c->sent = true;
        break;
    default: /* EXS_EVT_RECV */
        if (n == 0)
            fail("client %lu: the server has closed the connection", i);
        c->have += n;
        if (c->answer[c->have - 1] != '\n' && c->have < sizeof(c->answer)) {
            await_answer(c);
            return false;
        }
        if (!load_answered(c->answer, c->have, i, c->step))
            fail("client %lu: a wrong answer to request %lu", i, c->step);
        c->answered = true;
    }
    if (c->sent && c->answered) {
        if (++c->step < 2 * rounds)
            ask(c);
        else if (exs_close(c->fd, 0, queue, (exs_ahandle_t)c) < 0)
            fail_exs("client %lu: exs_close", i);
    }
    return false;
}

static void load(const char *server, unsigned long n, unsigned long rounds, enum kind kind)
{
    struct endpoint at = resolve(server, false);
    clients = allocate(n, sizeof(*clients));
    /* A send and a receive of each. */
    queue = exs_qcreate((int)(2 * n));
    memory = exs_mregister(clients, n * sizeof(*clients), 0);
    if (queue == EXS_QHANDLE_INVALID || memory == EXS_MHANDLE_INVALID)
        fail_exs("exs_qcreate, exs_mregister");
    double began = now();
    /* All connect at once, and none is waited for. */
    for (unsigned long i = 0; i < n; i++) {
        clients[i].fd = new_socket(&at, kind);
        if (exs_connect(clients[i].fd, (struct sockaddr *)&at.addr, at.len, 0, queue,
                        (exs_ahandle_t)&clients[i]) < 0)
            fail_exs("client %lu: exs_connect", i);
    }
    for (unsigned long ended = 0; ended < n;) {
        exs_event_t events[64];
        int got = exs_qdequeue(queue, events, 64, NULL);
        if (got < 0 && errno != EINTR)
            fail_exs("exs_qdequeue");
        for (int i = 0; i < got; i++)
            ended += handle((struct client *)events[i].exs_evt_ahandle, &events[i], rounds);
    }
    double took = now() - began;
    printf("%lu clients, %lu requests each: %.0f requests/s\n", n, 2 * rounds,
           (double)(n * 2 * rounds) / took);
    exs_mderegister(memory);
    exs_qdelete(queue);
    free(clients);
}

int main(int argc, char **argv)
{
    begin(argv);
    unsigned long n = 0, rounds = 10;
    enum kind kind = STREAM;
    for (int option; (option = getopt(argc, argv, "kn:r:")) != -1;) {
        if (option == 'k')
            kind = KERNEL;
        else if (option == 'n')
            n = number(optarg, 1, 100000, "CLIENTS");
        else if (option == 'r')
            rounds = number(optarg, 1, 100000000, "ROUNDS");
        else
            usage(USAGE);
    }
    if (argc != optind + 1)
        usage(USAGE);
    allow_many_files();
    if (exs_init(EXS_VERSION) < 0)
        fail_exs("exs_init");
    if (n) {
        load(argv[optind], n, rounds, kind);
        return 0;
    }
    int fd = new_connection(argv[optind], kind);
    converse(fd);
    if (exs_close(fd, 0, EXS_QHANDLE_INVALID, 0) < 0)
        fail_exs("exs_close");
    return 0;
}
