/* Writing into another program's memory, over plain sockets: the other program must help.
 *
 *     remote_write serve ADDRESS:PORT [TEXT]      writes TEXT to each client
 *     remote_write ADDRESS:PORT                   a client, whose memory is written to
 *
 * The twin of exs_remote_write.c: the client tells how much room it has, the server sends an
 * offset, a length and bytes, and the client's processor puts them there. All the while it must
 * receive and copy; with RDMA it need not even know.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../common/net.h"

enum { ROOM = 4096 };

/* What travels before the bytes; in network byte order. */
struct frame {
    uint32_t offset, length;
};

/* False at the end, or if the connection is lost. */
static bool receive(int fd, void *bytes, size_t len)
{
    char *at = bytes;
    while (len > 0) {
        ssize_t n = recv(fd, at, len, MSG_WAITALL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

static void client(const char *server)
{
    int fd = tcp_connection(server);
    static char memory[ROOM];
    uint32_t room = htonl(ROOM);
    if (!write_all(fd, &room, sizeof(room)))
        fail_errno("send");
    printf("lent: %d bytes\n", ROOM);
    struct frame f;
    if (!receive(fd, &f, sizeof(f)))
        fail("the server has closed the connection before it wrote anything");
    uint32_t offset = ntohl(f.offset), length = ntohl(f.length);
    /* Nothing but this stands between the server and the rest of our memory. */
    if (offset > ROOM || length > ROOM - offset)
        fail("the server wants to write outside of what was lent");
    if (!receive(fd, memory + offset, length))
        fail("the server has closed the connection in the middle");
    char done = 1;
    if (!write_all(fd, &done, 1))
        fail_errno("send");
    printf("found: %.*s\n", (int)length, memory);
    close(fd);
}

static void write_to(int fd, const char *text)
{
    uint32_t room, length = (uint32_t)strlen(text);
    char done;
    if (!receive(fd, &room, sizeof(room)) || ntohl(room) < length) {
        warn("the client lends too little, or has gone");
        return;
    }
    struct frame f = {htonl(0), htonl(length)};
    if (!write_all(fd, &f, sizeof(f)) || !write_all(fd, text, length) || !receive(fd, &done, 1))
        warn("the client has gone");
    else
        printf("written: %u bytes\n", length);
}

int main(int argc, char **argv)
{
    begin(argv);
    if (argc == 2 && argv[1][0] != '-' && strcmp(argv[1], "serve") != 0) {
        client(argv[1]);
        return 0;
    }
    const char *text = argc == 4 ? argv[3] : "Hello from the other side, by RDMA WRITE";
    if (argc < 3 || argc > 4 || strcmp(argv[1], "serve") != 0 || strlen(text) > ROOM || !*text)
        usage("serve ADDRESS:PORT [TEXT]   or   ADDRESS:PORT");
    int listener = tcp_listener(argv[2]);
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            fail_errno("accept");
        write_to(fd, text);
        close(fd);
    }
}
