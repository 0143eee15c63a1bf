/* See exs_util.h. SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "exs_util.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(const char *format, va_list args, int error)
{
    char what[256];
    vsnprintf(what, sizeof(what), format, args);
    /* exs_strerror's text is this thread's, and stays until its next exs_ call. */
    const char *detail = exs_strerror();
    warn("%s: %s", what, *detail ? detail : strerror(error));
}

void fail_exs(const char *format, ...)
{
    int error = errno;
    va_list args;
    va_start(args, format);
    say(format, args, error);
    va_end(args);
    exit(1);
}

void warn_exs(const char *format, ...)
{
    int error = errno;
    va_list args;
    va_start(args, format);
    say(format, args, error);
    va_end(args);
}

int new_socket(const struct endpoint *at, enum kind kind)
{
    int family = at->addr.ss_family;
    int fd = kind == KERNEL ? socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)
                            : exs_socket(family, kind == STREAM ? SOCK_STREAM : SOCK_SEQPACKET, 0);
    if (fd < 0)
        fail_exs("%s", kind == KERNEL ? "socket" : "exs_socket");
    return fd;
}

void listen_there(int fd, const char *text, struct endpoint at)
{
    int on = 1;
    if (exs_setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0)
        fail_exs("exs_setsockopt, SO_REUSEADDR");
    if (exs_bind(fd, (struct sockaddr *)&at.addr, at.len) < 0 || exs_listen(fd, SOMAXCONN) < 0)
        fail_exs("cannot listen on %s", text);
    at.len = sizeof(at.addr);
    if (exs_getsockname(fd, (struct sockaddr *)&at.addr, &at.len) < 0)
        fail_exs("exs_getsockname");
    printf("listening on %s\n", address_text(&at.addr, at.len));
}

int new_listener(const char *text, enum kind kind)
{
    struct endpoint at = resolve(text, true);
    int fd = new_socket(&at, kind);
    listen_there(fd, text, at);
    return fd;
}

int new_connection(const char *text, enum kind kind)
{
    struct endpoint at = resolve(text, false);
    int fd = new_socket(&at, kind);
    /* Without a queue a call waits, as its socket twin does. */
    if (exs_connect(fd, (struct sockaddr *)&at.addr, at.len, 0, EXS_QHANDLE_INVALID, 0) < 0)
        fail_exs("cannot connect to %s", text);
    return fd;
}

const char *event_trouble(const exs_event_t *event)
{
    return strerror(event->exs_evt_errno);
}
