/* The echo client over plain sockets: sends its input, prints what comes back.
 *
 *     echo_client ADDRESS:PORT < input > output
 *
 * Both directions go at once, as a server that echoes stops reading while its client does not
 * read. Exit status 1 if less came back than was sent.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "../common/net.h"

int main(int argc, char **argv)
{
    begin(argv);
    if (argc != 2 || argv[1][0] == '-')
        usage("ADDRESS:PORT");
    int fd = tcp_connection(argv[1]);
    static char out[65536], in[65536];
    size_t have = 0, sent = 0; /* of out */
    unsigned long long total_sent = 0, total_back = 0;
    bool input = true; /* there may be more */

    for (;;) {
        struct pollfd polled[2] = {
            {.fd = input && sent == have ? STDIN_FILENO : -1, .events = POLLIN},
            {.fd = fd, .events = (short)(POLLIN | (sent < have ? POLLOUT : 0))},
        };
        if (poll(polled, 2, -1) < 0) {
            if (errno == EINTR)
                continue;
            fail_errno("poll");
        }
        if (polled[0].revents) {
            ssize_t n = read(STDIN_FILENO, out, sizeof(out));
            if (n < 0)
                fail_errno("reading the input");
            have = (size_t)n;
            sent = 0;
            input = n > 0;
            /* The server is told that there is no more; what is on its way still comes back. */
            if (!input && shutdown(fd, SHUT_WR) < 0)
                fail_errno("shutdown");
        }
        if (sent < have) {
            ssize_t n = send(fd, out + sent, have - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (n < 0 && errno != EAGAIN && errno != EINTR)
                fail_errno("send");
            if (n > 0) {
                sent += (size_t)n;
                total_sent += (size_t)n;
            }
        }
        if (polled[1].revents & ~POLLOUT) {
            ssize_t n = recv(fd, in, sizeof(in), MSG_DONTWAIT);
            if (n < 0 && (errno == EAGAIN || errno == EINTR))
                continue;
            if (n < 0)
                fail_errno("recv");
            if (n == 0)
                break;
            if (!write_all(STDOUT_FILENO, in, (size_t)n))
                fail_errno("writing the output");
            total_back += (size_t)n;
        }
    }
    close(fd);
    if (input || total_back != total_sent)
        fail("the server has closed the connection: %llu bytes sent, %llu came back", total_sent,
             total_back);
    return 0;
}
