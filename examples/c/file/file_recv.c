/* Receives files over plain TCP, one after the other, into a directory.
 *
 *     file_recv [-1] ADDRESS:PORT [DIRECTORY]      -1: ends after one
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../common/net.h"
#include "incoming.h"

static bool receive(int fd, struct incoming *in)
{
    static char bytes[1 << 20];
    for (;;) {
        ssize_t n = recv(fd, bytes, sizeof(bytes), 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            warn_errno("recv");
            return false;
        }
        if (n == 0)
            return incoming_finish(in);
        if (!incoming_take(in, bytes, (size_t)n))
            return false;
    }
}

int main(int argc, char **argv)
{
    begin(argv);
    bool once = false;
    for (int option; (option = getopt(argc, argv, "1")) != -1;) {
        if (option != '1')
            usage("[-1] ADDRESS:PORT [DIRECTORY]");
        once = true;
    }
    if (argc < optind + 1 || argc > optind + 2)
        usage("[-1] ADDRESS:PORT [DIRECTORY]");
    const char *path = argc > optind + 1 ? argv[optind + 1] : ".";
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        fail_errno("%s", path);
    int listener = tcp_listener(argv[optind]);
    bool well;
    do {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            fail_errno("accept");
        struct incoming in;
        incoming_begin(&in, dir);
        well = receive(fd, &in);
        incoming_drop(&in);
        printf("%s: %s", well ? in.name : "nothing", *in.answer ? in.answer : "it broke off\n");
        if (!write_all(fd, in.answer, strlen(in.answer)))
            warn_errno("send");
        if (!well) {
            /* Reads the rest, as closing before it would cut off the answer. */
            char rest[4096];
            shutdown(fd, SHUT_WR);
            while (recv(fd, rest, sizeof(rest), 0) > 0) {}
        }
        close(fd);
    } while (!once);
    close(listener);
    close(dir);
    return well ? 0 : 1;
}
