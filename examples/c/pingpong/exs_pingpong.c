/* ibv_rc_pingpong's twin over EXS: the same options, the same pattern of work requests, the
 * same output.
 *
 *     exs_pingpong [options]            the server, for one client
 *     exs_pingpong [options] HOST       the client
 *
 *     -p PORT     (18515)    -d DEVICE  an RDMA device, by name; else whatever reaches HOST
 *     -s SIZE     (4096)     -r DEPTH   receives posted ahead (500, within 64 MiB)
 *     -n ROUNDS   (1000)     -e         sleep while there is nothing to do; else it spins
 *     -c          look at each byte that comes
 *     -k          a kernel socket, for a peer without EXS (pingpong.c)
 *
 * -i, -m, -l and -g of ibv_rc_pingpong are taken, but mean nothing here: port, MTU, service
 * level and GID are found when the connection is made. The server learns -s, -n and -c from
 * its client. Messages are those of a seqpacket socket, as those of a reliable connection are.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <unistd.h>

#include "../common/exs_util.h"
#include "hello.h"

#define USAGE                                                                                      \
    "[-p PORT] [-d DEVICE] [-s SIZE] [-n ROUNDS] [-r DEPTH] [-e] [-c] [-k] [HOST]\n"               \
    "       (without HOST: the server; -k: a kernel socket)"

static int           fd;
static exs_qhandle_t queue;
static exs_mhandle_t memory;
static enum kind     kind = SEQPACKET;
static struct job    job = {4096, 1000, 0};

/* A block to send from, and a ring of blocks to receive into: `depth` receives are under way,
 * and are filled in the order in which they were posted. */
static char         *block;
static unsigned long depth = 500, posted, received, sent, sends_posted;
static bool          sending;

static char *slot(unsigned long i)
{
    return block + (1 + i % depth) * job.size;
}

/* ibv_post_recv. A stream (of a kernel socket) has no messages: there WAITALL makes them. */
static void post_receives(void)
{
    while (posted < job.rounds && posted < received + depth) {
        if (exs_recv(fd, slot(posted), job.size, kind == KERNEL ? MSG_WAITALL : 0, queue, 0,
                     memory) < 0)
            fail_exs("exs_recv");
        posted++;
    }
}

/* ibv_post_send. */
static void post_send(void)
{
    if (job.check)
        memset(block, (int)(sends_posted & 0xff), job.size);
    if (exs_send(fd, block, job.size, 0, queue, 0, memory) < 0)
        fail_exs("exs_send");
    sends_posted++;
    sending = true;
}

/* A completion. */
static void handle(const exs_event_t *event)
{
    if (event->exs_evt_errno)
        fail("round %lu: %s (%s)", received, event_trouble(event), exs_strerror());
    if (event->exs_evt_type == EXS_EVT_SEND) {
        sent++;
        sending = false;
        return;
    }
    if (event->exs_evt_union.exs_evt_xfer.exs_evt_length != job.size)
        fail("the other side has ended after %lu rounds", received);
    for (size_t i = 0; job.check && i < job.size; i++)
        if (slot(received)[i] != (char)received)
            fail("round %lu: byte %zu is not what was sent", received, i);
    received++;
    /* As ibv_rc_pingpong: not one by one, but when few are left. */
    if (posted - received <= 1)
        post_receives();
}

static void measure(bool client)
{
    double began = now();
    if (client)
        post_send();
    while (received < job.rounds || sent < job.rounds) {
        exs_event_t events[64];
        int n = exs_qdequeue(queue, events, 64, NULL);
        if (n < 0 && errno != EINTR)
            fail_exs("exs_qdequeue");
        for (int i = 0; i < n; i++)
            handle(&events[i]);
        /* The answer to what came; the one block is sent from once at a time. */
        if (!sending && sends_posted < job.rounds && sends_posted < received + client)
            post_send();
    }
    print_result(job, now() - began);
}

/* Both ends wait in calls without a queue here: nothing else is going on. */
static void exchange(bool client)
{
    char hello[HELLO_BYTES];
    if (client) {
        hello_write(hello, job);
        if (exs_send(fd, hello, HELLO_BYTES, 0, EXS_QHANDLE_INVALID, 0,
                     EXS_MHANDLE_UNREGISTERED) != HELLO_BYTES)
            fail_exs("exs_send");
        return;
    }
    int n = exs_recv(fd, hello, HELLO_BYTES, MSG_WAITALL, EXS_QHANDLE_INVALID, 0,
                     EXS_MHANDLE_UNREGISTERED);
    if (n < 0)
        fail_exs("exs_recv");
    if (n != HELLO_BYTES || !hello_read(hello, &job))
        fail("the client does not speak ping-pong");
}

/* rdma_resolve_addr and rdma_connect; or rdma_listen and rdma_accept. */
static void come_together(const char *host, unsigned long port, const char *device)
{
    char text[300];
    snprintf(text, sizeof(text), "%s:%lu", host ? host : "", port);
    struct endpoint at = resolve(text, !host);
    int first = new_socket(&at, kind);
    if (device && (exs_setsockopt(first, SOL_EXS, EXS_SO_TRANSPORT, "verbs", 6) < 0 ||
                   exs_setsockopt(first, SOL_EXS, EXS_SO_DEVICE, device,
                                  (socklen_t)strlen(device) + 1) < 0))
        fail_exs("device %s", device);
    if (host) {
        fd = first;
        if (exs_connect(fd, (struct sockaddr *)&at.addr, at.len, 0, EXS_QHANDLE_INVALID, 0) < 0)
            fail_exs("cannot connect to %s", text);
    } else {
        listen_there(first, text, at);
        if ((fd = exs_accept(first, NULL, 0, EXS_QHANDLE_INVALID, 0)) < 0)
            fail_exs("exs_accept");
        close(first);
    }
    int on = 1;
    if (exs_setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0)
        fail_exs("exs_setsockopt, TCP_NODELAY");
    char route[256];
    socklen_t len = sizeof(route);
    if (kind != KERNEL && exs_getsockopt(fd, SOL_EXS, EXS_SO_ROUTE, route, &len) == 0)
        printf("by way of %.*s\n", (int)len, route);
}

int main(int argc, char **argv)
{
    begin(argv);
    unsigned long port = 18515;
    const char *device = NULL;
    bool sleeping = false;
    for (int option; (option = getopt(argc, argv, "p:d:s:n:r:ecki:m:l:g:")) != -1;) {
        switch (option) {
        case 'p': port = number(optarg, 0, 65535, "PORT"); break;
        case 'd': device = optarg; break;
        case 's': job.size = size(optarg, 1, MOST_BYTES, "SIZE"); break;
        case 'n': job.rounds = number(optarg, 1, MOST_ROUNDS, "ROUNDS"); break;
        case 'r': depth = number(optarg, 1, 4096, "DEPTH"); break;
        case 'e': sleeping = true; break;
        case 'c': job.check = true; break;
        case 'k': kind = KERNEL; break;
        case 'i': case 'm': case 'l': case 'g': break;
        default: usage(USAGE);
        }
    }
    if (argc > optind + 1)
        usage(USAGE);
    const char *host = argc > optind ? argv[optind] : NULL;
    if (exs_init(EXS_VERSION) < 0)
        fail_exs("exs_init");
    come_together(host, port, device);
    exchange(host != NULL);

    if (depth * job.size > MOST_BYTES)
        depth = MOST_BYTES / job.size > 0 ? MOST_BYTES / job.size : 1;
    block = allocate(depth + 1, job.size);
    memory = exs_mregister(block, (depth + 1) * job.size, 0); /* ibv_reg_mr */
    queue = exs_qcreate((int)depth + 1);                      /* ibv_create_cq */
    if (queue == EXS_QHANDLE_INVALID || memory == EXS_MHANDLE_INVALID)
        fail_exs("exs_qcreate, exs_mregister");
    /* With -e ibv_rc_pingpong sleeps in ibv_get_cq_event, else it calls ibv_poll_cq for ever. */
    if (exs_qmodify(queue, EXS_QATTR_WAIT, sleeping ? EXS_WAIT_NOTIFY : EXS_WAIT_BUSY_POLL) < 0)
        fail_exs("exs_qmodify");
    post_receives();
    measure(host != NULL);
    if (exs_close(fd, 0, EXS_QHANDLE_INVALID, 0) < 0)
        fail_exs("exs_close");
    exs_mderegister(memory);
    exs_qdelete(queue);
    free(block);
    return 0;
}
