/* A small HTTP/1.1 file server over plain sockets: a thread for each connection, send(2) for
 * heads and sendfile(2) for files.
 *
 *     http_server [ADDRESS:PORT [DIRECTORY]]
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "../common/net.h"
#include "request.h"

enum { MOST = 256 };

static int        root;
static atomic_int count;

/* Sends an answer; false if the connection cannot be used any more. */
static bool answer(int fd, const struct response *r)
{
    size_t sent = 0;
    while (sent < r->head_len) {
        int more = r->file >= 0 ? MSG_MORE : 0; /* head and file in one segment, if they fit */
        ssize_t n = send(fd, r->head + sent, r->head_len - sent, MSG_NOSIGNAL | more);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        sent += (size_t)n;
    }
    off_t at = r->offset, end = r->offset + r->length;
    while (r->file >= 0 && at < end) {
        ssize_t n = sendfile(fd, r->file, &at, (size_t)(end - at));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) /* 0: the file has become shorter, and the answer cannot be what it says */
            return false;
    }
    return r->keep_alive;
}

static void *serve(void *argument)
{
    int fd = (int)(intptr_t)argument, on = 1;
    char bytes[REQUEST_MOST];
    size_t have = 0;
    struct timeval patience = {30, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    for (bool going = true; going;) {
        size_t len = request_length(bytes, have);
        if (len == 0 && have < sizeof(bytes)) {
            ssize_t n = recv(fd, bytes + have, sizeof(bytes) - have, 0);
            if (n < 0 && errno == EINTR)
                continue;
            if (n <= 0)
                break; /* it has gone, or has been silent for too long */
            have += (size_t)n;
            continue;
        }
        struct response r;
        respond(root, bytes, len, &r);
        going = answer(fd, &r);
        if (r.file >= 0)
            close(r.file);
        have -= len;
        memmove(bytes, bytes + len, have);
    }
    close(fd);
    count--;
    return NULL;
}

int main(int argc, char **argv)
{
    begin(argv);
    if (argc > 3 || (argc > 1 && argv[1][0] == '-'))
        usage("[ADDRESS:PORT [DIRECTORY]]   (default 127.0.0.1:8000, here)");
    const char *path = argc > 2 ? argv[2] : ".";
    root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        fail_errno("%s", path);
    allow_many_files();
    int signals = ending_descriptor();
    int listener = tcp_listener(argc > 1 ? argv[1] : "127.0.0.1:8000");
    struct pollfd polled[2] = {{.fd = signals, .events = POLLIN}, {.fd = listener, .events = POLLIN}};
    while (poll(polled, 2, -1) >= 0 || errno == EINTR) {
        if (polled[0].revents)
            return 0; /* and so all threads end */
        int fd = polled[1].revents ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (fd < 0)
            continue;
        pthread_t thread;
        if (++count > MOST || pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd) != 0) {
            close(fd); /* too many; the client may try again */
            count--;
        } else {
            pthread_detach(thread);
        }
    }
    fail_errno("poll");
}
