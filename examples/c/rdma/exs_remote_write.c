/* The newcomer's RDMA WRITE: the server writes a string into the client's memory, and the
 * client's processor takes no part in it.
 *
 *     exs_remote_write serve ADDRESS:PORT [TEXT]      writes TEXT to each client
 *     exs_remote_write ADDRESS:PORT                   a client, whose memory is written to
 *
 * Both talk to the program exs-rdma-write too: the client exports memory and sends its
 * descriptor (24 bytes) as a message; the server writes there, and says "written: LENGTH" by a
 * message, as a WRITE alone tells the client nothing. A client of this program lets its memory
 * be read as well, and the server looks by an RDMA READ at what it has written.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/exs_util.h"

enum { ROOM = 4096 };

/* Waits for the one operation that is under way. NULL if it ended well, else why not. */
static const char *wait_for(exs_qhandle_t queue, exs_event_t *event)
{
    int n;
    do
        n = exs_qdequeue(queue, event, 1, NULL);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        fail_exs("exs_qdequeue");
    return event->exs_evt_errno ? exs_strerror() : NULL;
}

/* A step of the client's: a call that was accepted, and its event. */
static size_t done(exs_qhandle_t queue, int status, const char *what)
{
    exs_event_t event;
    if (status < 0)
        fail_exs("%s", what);
    const char *trouble = wait_for(queue, &event);
    if (trouble)
        fail("%s: %s", what, trouble);
    return event.exs_evt_union.exs_evt_xfer.exs_evt_length;
}

static void client(const char *server)
{
    exs_qhandle_t queue = exs_qcreate(4);
    char *memory = allocate(1, ROOM);
    exs_mhandle_t handle = exs_mregister(memory, ROOM, 0); /* ibv_reg_mr */
    if (queue == EXS_QHANDLE_INVALID || handle == EXS_MHANDLE_INVALID)
        fail_exs("exs_qcreate, exs_mregister");
    int fd = new_connection(server, SEQPACKET);

    /* A memory window: these bytes, this connection, these rights, until they are revoked.
     * From here on the memory may change at any moment. */
    exs_remote_t remote;
    if (exs_export(fd, memory, ROOM, EXS_RIGHT_READ | EXS_RIGHT_WRITE, 0, handle, &remote) < 0)
        fail_exs("exs_export");
    done(queue,
         exs_send(fd, &remote, sizeof(remote), 0, queue, 0, EXS_MHANDLE_UNREGISTERED),
         "sending the descriptor");
    printf("lent: %d bytes\n", ROOM);

    char message[64];
    size_t n = done(queue,
                    exs_recv(fd, message, sizeof(message) - 1, 0, queue, 0,
                             EXS_MHANDLE_UNREGISTERED),
                    "waiting for the server's message");
    message[n] = 0;
    unsigned length;
    if (sscanf(message, "written: %u", &length) != 1 || length > ROOM)
        fail("the server has closed the connection, or said something unexpected");

    /* After this event the memory is ours again: the key is worth nothing any more. */
    done(queue, exs_revoke(fd, &remote, queue, 0), "exs_revoke");
    printf("found: %.*s\n", (int)length, memory);
    if (exs_close(fd, 0, EXS_QHANDLE_INVALID, 0) < 0)
        fail_exs("exs_close");
    exs_mderegister(handle);
    exs_qdelete(queue);
    free(memory);
}

/* One client; NULL, or what went wrong. A queue of its own, so that what a lost client leaves
 * behind does not come up with the next one. */
static const char *write_to(int fd, exs_qhandle_t queue, char *text)
{
    size_t length = strlen(text);
    exs_event_t event;
    exs_remote_t remote;
    const char *trouble;
    if (exs_recv(fd, &remote, sizeof(remote), 0, queue, 0, EXS_MHANDLE_UNREGISTERED) < 0)
        return exs_strerror();
    if ((trouble = wait_for(queue, &event)))
        return trouble;
    uint64_t room;
    int rights;
    if (event.exs_evt_union.exs_evt_xfer.exs_evt_length != sizeof(remote) ||
        exs_remote_info(&remote, &room, &rights) < 0)
        return "what it sent is no descriptor of memory";
    if (room < length || !(rights & EXS_RIGHT_WRITE))
        return "it lends too little";

    /* When the event comes the bytes are in the client's memory. */
    if (exs_write(fd, text, length, &remote, 0, 0, queue, 0, EXS_MHANDLE_UNREGISTERED) < 0)
        return exs_strerror();
    if ((trouble = wait_for(queue, &event)))
        return trouble;
    printf("written: %zu bytes\n", length);

    if (rights & EXS_RIGHT_READ) {
        char back[ROOM];
        if (exs_read(fd, back, length, &remote, 0, 0, queue, 0, EXS_MHANDLE_UNREGISTERED) < 0)
            return exs_strerror();
        if ((trouble = wait_for(queue, &event)))
            return trouble;
        if (memcmp(back, text, length) != 0)
            return "its memory does not hold what was written there";
        printf("read back: %zu bytes\n", length);
    }
    char message[64];
    int n = snprintf(message, sizeof(message), "written: %zu", length);
    if (exs_send(fd, message, (size_t)n, 0, queue, 0, EXS_MHANDLE_UNREGISTERED) < 0)
        return exs_strerror();
    return wait_for(queue, &event);
}

static void serve(const char *listen, char *text)
{
    int listener = new_listener(listen, SEQPACKET);
    for (;;) {
        int fd = exs_accept(listener, NULL, 0, EXS_QHANDLE_INVALID, 0);
        if (fd < 0 && errno == EINTR)
            continue;
        if (fd < 0)
            fail_exs("exs_accept");
        exs_qhandle_t queue = exs_qcreate(4);
        if (queue == EXS_QHANDLE_INVALID)
            fail_exs("exs_qcreate");
        const char *trouble = write_to(fd, queue, text);
        if (trouble)
            warn("a client: %s", trouble);
        /* Each operation has had its event, so the queue can go. */
        if (exs_close(fd, 0, EXS_QHANDLE_INVALID, 0) < 0 && !trouble)
            warn_exs("exs_close");
        exs_qdelete(queue);
    }
}

int main(int argc, char **argv)
{
    begin(argv);
    char hello[] = "Hello from the other side, by RDMA WRITE";
    char *text = argc == 4 ? argv[3] : hello;
    bool is_client = argc == 2 && argv[1][0] != '-' && strcmp(argv[1], "serve") != 0;
    bool is_server = argc >= 3 && argc <= 4 && strcmp(argv[1], "serve") == 0;
    if (!(is_client || is_server) || strlen(text) > ROOM || !*text)
        usage("serve ADDRESS:PORT [TEXT]   or   ADDRESS:PORT");
    if (exs_init(EXS_VERSION) < 0)
        fail_exs("exs_init");
    if (is_client)
        client(argv[1]);
    else
        serve(argv[2], text);
    return 0;
}
