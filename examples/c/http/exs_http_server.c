/* The HTTP/1.1 file server over EXS: one thread, and exs_sendfile for head and file together.
 *
 *     exs_http_server [-k] [ADDRESS:PORT [DIRECTORY]]
 *
 * -k: kernel sockets, which browsers and curl reach. Without, clients come by EXS, or by TCP
 * through exs-gateway.
 *
 * Each connection has one operation under way: the receive of a request, the sendfile of its
 * answer, or the close. The kind of its next event takes the place of a thread that waits.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/exs_util.h"
#include "request.h"

#define USAGE "[-k] [ADDRESS:PORT [DIRECTORY]]   (default 127.0.0.1:8000, here; -k: kernel sockets)"

enum { MOST = 256, PIECE = 4 << 20 };

struct connection {
    int                fd;
    size_t             have; /* bytes of requests */
    struct response    response;
    struct connection *next; /* of those that are free */
    char               bytes[REQUEST_MOST];
};

static struct connection  connections[MOST]; /* registered in one piece */
static struct connection *unused;
static int                root, listener, count;
static exs_qhandle_t      queue;
static exs_mhandle_t      memory;
static bool               accepting, ending;

static void accept_more(void)
{
    if (accepting || ending || !unused)
        return;
    if (exs_accept(listener, NULL, 0, queue, 0) < 0)
        fail_exs("exs_accept");
    accepting = true;
}

static void close_file(struct connection *c)
{
    if (c->response.file >= 0)
        close(c->response.file);
    c->response.file = -1;
}

static void leave(struct connection *c)
{
    close_file(c);
    if (exs_close(c->fd, 0, queue, (exs_ahandle_t)c) < 0)
        fail_exs("exs_close");
}

/* Head and file, in one operation: a long file in pieces, each of which has its time. */
static bool answer(struct connection *c)
{
    struct response *r = &c->response;
    off_t piece = r->length < PIECE ? r->length : PIECE;
    exs_xferfile_t parts[2] = {
        {.exs_xf_type = EXS_IOVEC,
         .exs_xf_union.exs_xf_iovec = {r->head, r->head_len, memory, 0}},
        {.exs_xf_type = EXS_FDVEC,
         .exs_xf_union.exs_xf_fdvec = {r->file, 0, r->offset, (uint64_t)piece}},
    };
    int first = r->head_len > 0 ? 0 : 1, end = piece > 0 ? 2 : 1;
    /* The rest is for the pieces that follow. The list is read during the call only; the
     * memory that it names, the head, stays as it is until the event. */
    r->head_len = 0;
    r->offset += piece;
    r->length -= piece;
    return exs_sendfile(c->fd, parts + first, end - first, 0, queue, (exs_ahandle_t)c) == 0;
}

/* Posts what is next: the answer to a request that is there, or the receive of one. False if
 * that is refused, as the peer has gone. */
static bool go_on(struct connection *c)
{
    size_t len = request_length(c->bytes, c->have);
    if (len == 0 && c->have < sizeof(c->bytes))
        return exs_recv(c->fd, c->bytes + c->have, sizeof(c->bytes) - c->have, 0, queue,
                        (exs_ahandle_t)c, memory) == 0;
    respond(root, c->bytes, len, &c->response);
    c->have -= len;
    memmove(c->bytes, c->bytes + len, c->have);
    return answer(c);
}

static void enter(const exs_event_t *event)
{
    accepting = false;
    if (event->exs_evt_errno == 0) {
        struct connection *c = unused;
        unused = c->next;
        count++;
        c->fd = event->exs_evt_union.exs_evt_accept.exs_evt_newsocket;
        c->have = 0;
        c->response.file = -1;
        /* An operation that takes longer than 30 seconds, as the client is silent or does not
         * read, ends with an event that says so. */
        exs_timeout_t patience = {.exs_to_time = {30, 0}};
        int on = 1;
        exs_setsockopt(c->fd, SOL_SOCKET, SO_ASYNC_RECV_TIMEOUT, &patience, sizeof(patience));
        exs_setsockopt(c->fd, SOL_SOCKET, SO_ASYNC_SEND_TIMEOUT, &patience, sizeof(patience));
        exs_setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        if (!go_on(c))
            leave(c);
    } else if (event->exs_evt_errno != ECANCELED) {
        warn("accepting: %s", event_trouble(event));
    }
    accept_more();
}

/* A receive or an answer has ended; false once the connection is done with. */
static bool serve(struct connection *c, const exs_event_t *event)
{
    if (event->exs_evt_errno || ending)
        return false; /* gone, timed out, or cancelled; or the file has become shorter */
    if (event->exs_evt_type == EXS_EVT_SENDFILE) {
        if (c->response.length > 0)
            return answer(c);
        close_file(c);
        return c->response.keep_alive && go_on(c);
    }
    size_t n = event->exs_evt_union.exs_evt_xfer.exs_evt_length;
    c->have += n;
    return n > 0 && go_on(c);
}

static void handle(const exs_event_t *event)
{
    struct connection *c = (struct connection *)event->exs_evt_ahandle;
    switch (event->exs_evt_type) {
    case EXS_EVT_POLL: /* a signal: what is under way is cancelled, and closed by its event */
        ending = true;
        exs_cancel(listener, EXS_CAF_FILDES, 0);
        for (int i = 0; i < MOST; i++)
            if (connections[i].fd >= 0)
                exs_cancel(connections[i].fd, EXS_CAF_FILDES, 0);
        break;
    case EXS_EVT_ACCEPT:
        enter(event);
        break;
    case EXS_EVT_CLOSE:
        c->fd = -1;
        c->next = unused;
        unused = c;
        count--;
        accept_more();
        break;
    default:
        if (!serve(c, event))
            leave(c);
    }
}

static void start(const char *text, enum kind kind, int signals)
{
    if (exs_init(EXS_VERSION) < 0)
        fail_exs("exs_init");
    /* One operation of each connection, an accept, and the poll of signals. */
    queue = exs_qcreate(MOST + 2);
    memory = exs_mregister(connections, sizeof(connections), 0);
    if (queue == EXS_QHANDLE_INVALID || memory == EXS_MHANDLE_INVALID)
        fail_exs("exs_qcreate, exs_mregister");
    for (int i = MOST; i-- > 0;) {
        connections[i].fd = -1;
        connections[i].next = unused;
        unused = &connections[i];
    }
    listener = new_listener(text, kind);
    exs_pollfd_t poll_signals = {.exs_pfd_fd = signals, .exs_pfd_events = EXS_POLLIN};
    if (exs_poll(&poll_signals, 0, queue, 0) < 0)
        fail_exs("exs_poll");
    accept_more();
}

int main(int argc, char **argv)
{
    begin(argv);
    enum kind kind = STREAM;
    for (int option; (option = getopt(argc, argv, "k")) != -1;) {
        if (option != 'k')
            usage(USAGE);
        kind = KERNEL;
    }
    if (argc > optind + 2)
        usage(USAGE);
    const char *path = argc > optind + 1 ? argv[optind + 1] : ".";
    root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        fail_errno("%s", path);
    allow_many_files();
    int signals = ending_descriptor();
    start(argc > optind ? argv[optind] : "127.0.0.1:8000", kind, signals);
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
    close(root);
    return 0;
}
