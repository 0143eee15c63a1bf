/* The key-value servers' store and protocol, which know nothing of sockets: bytes in,
 * bytes out.
 *
 * A request is a line, and so is its answer:
 *
 *     SET key value     OK
 *     GET key           VALUE value, or NONE
 *     DEL key           OK, or NONE
 *     COUNT             COUNT number
 *
 * and ERROR with the reason. A key has no blanks; a value may.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef EXAMPLES_STORE_H
#define EXAMPLES_STORE_H

#include <stdbool.h>
#include <stddef.h>

enum {
    LINE_MAX_BYTES = 4096,     /* longest request, its end included */
    STORE_MAX_BYTES = 64 << 20 /* keys and values together: clients cannot have more of us */
};

struct entry {
    struct entry *next;
    char         *value; /* within the same piece of memory as the key */
    char          key[];
};

struct store {
    struct entry *buckets[4096];
    size_t        count, bytes;
    unsigned long requests;
};

/* Frees what the store holds. */
void store_clear(struct store *store);

/* One client's bytes. The server receives at in + in_have, and sends out[0..out_have]. */
struct session {
    size_t in_have, out_have;
    char   in[LINE_MAX_BYTES];
    char   out[2 * LINE_MAX_BYTES];
};

/* Answers the whole lines that are there, for as long as answers fit. To be called when bytes
 * came, and again when out was sent (then with out_have 0), until there are no answers.
 * False: a line is too long; the caller must send the client the bytes in out, and close it. */
bool session_run(struct session *session, struct store *store);

#endif
