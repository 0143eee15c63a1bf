/* The echo client over EXS: sends its input, prints what comes back.
 *
 *     exs_echo_client [-k] ADDRESS:PORT < input > output      -k: a kernel socket
 *
 * The socket is not asked whether it is ready: a receive is posted before there is anything to
 * receive, a send when there is something to send, and an event says when each is done. The
 * input, which is no socket, is waited for on the same queue by exs_poll.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "../common/exs_util.h"

static exs_qhandle_t queue;
static exs_mhandle_t memory;
static int           fd;

/* Registered once, and then used for every operation without a copy. While an operation that
 * was given one of them is under way, the program leaves it alone. */
static struct {
    char out[65536], in[65536];
} buffers;

static unsigned long long total_sent, total_back;
static bool               input = true; /* there may be more */

static void await_input(void)
{
    exs_pollfd_t p = {.exs_pfd_fd = STDIN_FILENO, .exs_pfd_events = EXS_POLLIN};
    if (exs_poll(&p, 0, queue, 0) < 0)
        fail_exs("exs_poll");
}

static void await_echo(void)
{
    if (exs_recv(fd, buffers.in, sizeof(buffers.in), 0, queue, 0, memory) < 0)
        fail_exs("exs_recv");
}

/* The input is ready. */
static void send_input(void)
{
    ssize_t n = read(STDIN_FILENO, buffers.out, sizeof(buffers.out));
    if (n < 0)
        fail_errno("reading the input");
    if (n > 0) {
        /* All of it is sent, however long that takes: there is no half a send to go on with. */
        if (exs_send(fd, buffers.out, (size_t)n, 0, queue, 0, memory) < 0)
            fail_exs("exs_send");
        return;
    }
    /* The server is told that there is no more; what is on its way still comes back. */
    input = false;
    if (exs_shutdown(fd, SHUT_WR, queue, 0) < 0)
        fail_exs("exs_shutdown");
}

/* Takes one event; false at the end of the echo. */
static bool handle(const exs_event_t *event)
{
    size_t n = event->exs_evt_union.exs_evt_xfer.exs_evt_length;
    if (event->exs_evt_errno)
        fail("the connection is lost: %s (%s)", event_trouble(event), exs_strerror());
    switch (event->exs_evt_type) {
    case EXS_EVT_POLL:
        send_input();
        return true;
    case EXS_EVT_SEND:
        total_sent += n;
        await_input(); /* the buffer is free for more */
        return true;
    case EXS_EVT_RECV:
        if (n == 0 && event->exs_evt_flags & EXS_EVF_EOF)
            return false;
        if (!write_all(STDOUT_FILENO, buffers.in, n))
            fail_errno("writing the output");
        total_back += n;
        await_echo();
        return true;
    default: /* EXS_EVT_SHUTDOWN */
        return true;
    }
}

int main(int argc, char **argv)
{
    begin(argv);
    enum kind kind = STREAM;
    for (int option; (option = getopt(argc, argv, "k")) != -1;) {
        if (option != 'k')
            usage("[-k] ADDRESS:PORT   (-k: a kernel socket)");
        kind = KERNEL;
    }
    if (argc != optind + 1)
        usage("[-k] ADDRESS:PORT   (-k: a kernel socket)");
    if (exs_init(EXS_VERSION) < 0)
        fail_exs("exs_init");
    /* A poll, a send or a shutdown, and a receive. */
    queue = exs_qcreate(4);
    if (queue == EXS_QHANDLE_INVALID)
        fail_exs("exs_qcreate");
    memory = exs_mregister(&buffers, sizeof(buffers), 0);
    if (memory == EXS_MHANDLE_INVALID)
        fail_exs("exs_mregister");
    fd = new_connection(argv[optind], kind);

    await_echo();
    await_input();
    for (bool going = true; going;) {
        exs_event_t events[4];
        int n = exs_qdequeue(queue, events, 4, NULL);
        if (n < 0 && errno != EINTR)
            fail_exs("exs_qdequeue");
        for (int i = 0; i < n && going; i++)
            going = handle(&events[i]);
    }
    if (input || total_back != total_sent)
        fail("the server has closed the connection: %llu bytes sent, %llu came back", total_sent,
             total_back);
    if (exs_close(fd, 0, EXS_QHANDLE_INVALID, 0) < 0)
        fail_exs("exs_close");
    exs_mderegister(memory);
    return 0;
}
