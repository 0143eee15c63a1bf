/* What the key-value clients' load is: client C sets and gets its own key, again and again, and
 * looks at each answer.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef EXAMPLES_LOAD_H
#define EXAMPLES_LOAD_H

#include <stdio.h>
#include <string.h>

enum { ANSWER_MAX = 64 };

/* Request number `step` of a client; even ones set, odd ones get. */
static inline int load_request(char *to, size_t room, unsigned long client, unsigned long step)
{
    if (step % 2)
        return snprintf(to, room, "GET load-%lu\n", client);
    return snprintf(to, room, "SET load-%lu value %lu of %lu\n", client, step, client);
}

/* Whether this is its answer. */
static inline int load_answered(const char *answer, size_t len, unsigned long client,
                                unsigned long step)
{
    char due[ANSWER_MAX] = "OK\n";
    if (step % 2)
        snprintf(due, sizeof(due), "VALUE value %lu of %lu\n", step - 1, client);
    return len == strlen(due) && memcmp(answer, due, len) == 0;
}

#endif
