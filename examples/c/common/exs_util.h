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

/* A socket for this address. All the calls that follow are the same for both kinds: a kernel
 * socket (option -k of the examples) is one whose peer need not know of EXS. */
int new_socket(const struct endpoint *at, bool kernel);

/* A socket that listens there; "listening on ADDRESS:PORT" is printed once it does. */
int new_listener(const char *text, bool kernel);

/* A socket that is connected to there, by a call that waits. */
int new_connection(const char *text, bool kernel);

/* What an operation's event says went wrong: errno's text, for a line of a log. */
const char *event_trouble(const exs_event_t *event);

#endif
