/* What the examples over EXS share.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef EXAMPLES_EXS_UTIL_H
#define EXAMPLES_EXS_UTIL_H

#include <sys/exs.h>

#include "net.h"

/* As fail_errno, with exs_strerror's sentence in place of errno's: it says what to do. */
_Noreturn void fail_exs(const char *format, ...) PRINTF_LIKE(1, 2);
void warn_exs(const char *format, ...) PRINTF_LIKE(1, 2);

/* Which sockets. All the calls that follow are the same: a kernel socket (option -k of the
 * examples) is one whose peer need not know of EXS. */
enum kind {
    STREAM,    /* EXS: bytes in order */
    SEQPACKET, /* EXS: whole messages in order */
    KERNEL     /* TCP */
};

/* A socket for this address. */
int new_socket(const struct endpoint *at, enum kind kind);

/* A socket that listens there; "listening on ADDRESS:PORT" is printed once it does. */
int new_listener(const char *text, enum kind kind);

/* The same for a socket of new_socket's. */
void listen_there(int fd, const char *text, struct endpoint at);

/* A socket that is connected to there, by a call that waits. */
int new_connection(const char *text, enum kind kind);

/* What an operation's event says went wrong: errno's text, for a line of a log. */
const char *event_trouble(const exs_event_t *event);

#endif
