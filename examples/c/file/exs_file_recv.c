/* Receives files over EXS, one after the other, into a directory.
 *
 *     exs_file_recv [-k] [-1] ADDRESS:PORT [DIRECTORY]      -k: kernel sockets; -1: ends after one
 *
 * Two receives are always under way, so that the next bytes come in while those before are
 * written to the disk: what a thread would be needed for with sockets.
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
#include "incoming.h"

#define USAGE "[-k] [-1] ADDRESS:PORT [DIRECTORY]   (-k: kernel sockets; -1: end after one)"

enum { BUFFERS = 2, BUFFER = 1 << 20 };

static exs_qhandle_t queue;
static exs_mhandle_t memory;
static char         *buffers;

static bool post(int fd, char *buffer)
{
    /* WAITALL: as few events as can be, and the data go straight into the memory. */
    return exs_recv(fd, buffer, BUFFER, MSG_WAITALL, queue, (exs_ahandle_t)buffer, memory) == 0;
}

/* Takes the file; true if it is there. When this returns no receive is under way. */
static bool receive(int fd, struct incoming *in)
{
    bool going = true, well = false;
    int pending = 0;
    for (int i = 0; i < BUFFERS; i++)
        pending += post(fd, buffers + i * BUFFER);
    while (pending > 0) {
        exs_event_t event;
        int n = exs_qdequeue(queue, &event, 1, NULL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            fail_exs("exs_qdequeue");
        pending--;
        if (!going)
            continue; /* what was posted ahead ends too, and means nothing */
        char *buffer = (char *)event.exs_evt_ahandle;
        size_t got = event.exs_evt_union.exs_evt_xfer.exs_evt_length;
        if (got > 0)
            going = incoming_take(in, buffer, got);
        if (going && event.exs_evt_errno) {
            warn("the connection is lost: %s", exs_strerror());
            going = false;
        } else if (going && event.exs_evt_flags & EXS_EVF_EOF) {
            well = incoming_finish(in);
            going = false;
        } else if (going) {
            going = post(fd, buffer);
            pending += going;
        }
        if (!going && pending > 0)
            exs_cancel(fd, EXS_CAF_FILDES, 0);
    }
    return well;
}

static void answer(int fd, struct incoming *in, bool well)
{
    size_t len = strlen(in->answer);
    if (len && exs_send(fd, in->answer, len, 0, EXS_QHANDLE_INVALID, 0,
                        EXS_MHANDLE_UNREGISTERED) < 0)
        warn_exs("the answer");
    if (!well && exs_shutdown(fd, SHUT_WR, EXS_QHANDLE_INVALID, 0) == 0) {
        /* Reads the rest, as closing before it would cut off the answer. */
        while (exs_recv(fd, buffers, BUFFER, 0, EXS_QHANDLE_INVALID, 0, memory) > 0) {}
    }
    if (exs_close(fd, 0, EXS_QHANDLE_INVALID, 0) < 0 && well)
        warn_exs("exs_close");
}

int main(int argc, char **argv)
{
    begin(argv);
    enum kind kind = STREAM;
    bool once = false;
    for (int option; (option = getopt(argc, argv, "k1")) != -1;) {
        if (option == 'k')
            kind = KERNEL;
        else if (option == '1')
            once = true;
        else
            usage(USAGE);
    }
    if (argc < optind + 1 || argc > optind + 2)
        usage(USAGE);
    const char *path = argc > optind + 1 ? argv[optind + 1] : ".";
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        fail_errno("%s", path);
    if (exs_init(EXS_VERSION) < 0)
        fail_exs("exs_init");
    queue = exs_qcreate(BUFFERS);
    buffers = allocate(BUFFERS, BUFFER);
    memory = exs_mregister(buffers, (size_t)BUFFERS * BUFFER, 0);
    if (queue == EXS_QHANDLE_INVALID || memory == EXS_MHANDLE_INVALID)
        fail_exs("exs_qcreate, exs_mregister");
    int listener = new_listener(argv[optind], kind);
    bool well;
    do {
        int fd = exs_accept(listener, NULL, 0, EXS_QHANDLE_INVALID, 0);
        if (fd < 0)
            fail_exs("exs_accept");
        struct incoming in;
        incoming_begin(&in, dir);
        well = receive(fd, &in);
        incoming_drop(&in);
        printf("%s: %s", well ? in.name : "nothing", *in.answer ? in.answer : "it broke off\n");
        answer(fd, &in, well);
    } while (!once);
    close(listener);
    close(dir);
    exs_mderegister(memory);
    exs_qdelete(queue);
    free(buffers);
    return well ? 0 : 1;
}
