/* Ping-pong over plain TCP, with the options and the output of ibv_rc_pingpong.
 *
 *     pingpong [-p PORT] [-e]                                       the server, for one client
 *     pingpong [-p PORT] [-s SIZE] [-n ROUNDS] [-e] [-c] HOST       the client
 *
 * -e: sleep while there is nothing to do; else it spins. -c: look at each byte that comes.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <unistd.h>

#include "../common/net.h"
#include "hello.h"

#define USAGE                                                                                      \
    "[-p PORT] [-s SIZE] [-n ROUNDS] [-e] [-c] [HOST]   (without HOST: the server)"

static int        fd;
static bool       sleeping;
static struct job job = {4096, 1000, 0};

static void receive(char *bytes, size_t len)
{
    for (size_t have = 0; have < len;) {
        ssize_t n = recv(fd, bytes + have, len - have, sleeping ? MSG_WAITALL : MSG_DONTWAIT);
        if (n == 0)
            fail("the other side has closed the connection");
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            fail_errno("recv");
        have += n > 0 ? (size_t)n : 0;
    }
}

static void transmit(const char *bytes, size_t len)
{
    if (!write_all(fd, bytes, len))
        fail_errno("send");
}

static void check(const char *bytes, size_t len, unsigned long round)
{
    for (size_t i = 0; job.check && i < len; i++)
        if (bytes[i] != (char)round)
            fail("round %lu: byte %zu is not what was sent", round, i);
}

int main(int argc, char **argv)
{
    begin(argv);
    unsigned long port = 18515;
    for (int option; (option = getopt(argc, argv, "p:s:n:ec")) != -1;) {
        switch (option) {
        case 'p': port = number(optarg, 0, 65535, "PORT"); break;
        case 's': job.size = size(optarg, 1, MOST_BYTES, "SIZE"); break;
        case 'n': job.rounds = number(optarg, 1, MOST_ROUNDS, "ROUNDS"); break;
        case 'e': sleeping = true; break;
        case 'c': job.check = true; break;
        default: usage(USAGE);
        }
    }
    if (argc > optind + 1)
        usage(USAGE);
    bool client = argc > optind;
    char text[300], hello[HELLO_BYTES];
    snprintf(text, sizeof(text), "%s:%lu", client ? argv[optind] : "", port);
    if (client) {
        fd = tcp_connection(text);
        hello_write(hello, job);
        transmit(hello, HELLO_BYTES);
    } else {
        int listener = tcp_listener(text);
        if ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0)
            fail_errno("accept");
        close(listener);
        receive(hello, HELLO_BYTES);
        if (!hello_read(hello, &job))
            fail("the client does not speak ping-pong");
    }
    int on = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0)
        fail_errno("setsockopt, TCP_NODELAY");

    char *out = allocate(1, job.size), *in = allocate(1, job.size);
    double began = now();
    for (unsigned long round = 0; round < job.rounds; round++) {
        if (!client) {
            receive(in, job.size);
            check(in, job.size, round);
        }
        if (job.check)
            memset(out, (int)(round & 0xff), job.size);
        transmit(out, job.size);
        if (client) {
            receive(in, job.size);
            check(in, job.size, round);
        }
    }
    print_result(job, now() - began);
    free(out);
    free(in);
    close(fd);
    return 0;
}
