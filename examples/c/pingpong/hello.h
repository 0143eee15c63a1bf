/* What the two sides of a ping-pong agree on before they measure: the client tells, by a
 * message of one fixed length.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef EXAMPLES_HELLO_H
#define EXAMPLES_HELLO_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { HELLO_BYTES = 48, MOST_BYTES = 64 << 20, MOST_ROUNDS = 1000000000 };

struct job {
    unsigned long size, rounds;
    int           check; /* each message is filled with its round's number, and looked at */
};

static inline void hello_write(char bytes[HELLO_BYTES], struct job job)
{
    memset(bytes, ' ', HELLO_BYTES);
    int n = snprintf(bytes, HELLO_BYTES, "ping-pong %010lu %010lu %d", job.size, job.rounds,
                     job.check);
    bytes[n] = ' ';
    bytes[HELLO_BYTES - 1] = '\n';
}

/* False if it is none, or asks for too much. */
static inline bool hello_read(const char bytes[HELLO_BYTES], struct job *job)
{
    char text[HELLO_BYTES + 1] = {0};
    memcpy(text, bytes, HELLO_BYTES);
    return sscanf(text, "ping-pong %10lu %10lu %1d", &job->size, &job->rounds, &job->check) == 3 &&
           job->size >= 1 && job->size <= MOST_BYTES && job->rounds >= 1 &&
           job->rounds <= MOST_ROUNDS;
}

/* The two lines of ibv_rc_pingpong, and a third for those who think in megabytes. */
static inline void print_result(struct job job, double seconds)
{
    double bytes = (double)job.size * (double)job.rounds * 2;
    printf("%.0f bytes in %.2f seconds = %.2f Mbit/sec\n", bytes, seconds,
           bytes * 8 / seconds / 1e6);
    printf("%lu iters in %.2f seconds = %.2f usec/iter\n", job.rounds, seconds,
           seconds * 1e6 / (double)job.rounds);
    printf("half a round trip: %.2f usec; %.2f MB/s\n", seconds * 1e6 / 2 / (double)job.rounds,
           bytes / seconds / 1e6);
}

#endif
