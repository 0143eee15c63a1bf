/* What the examples share, and what says nothing about EXS: words for the user,
 * addresses, signals as a descriptor. The plain programs use this header alone.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef EXAMPLES_NET_H
#define EXAMPLES_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#if defined(__GNUC__)
#define PRINTF_LIKE(text, first) __attribute__((format(printf, text, first)))
#else
#define PRINTF_LIKE(text, first)
#endif

/* These end the program with status 1; what it holds the kernel takes back. */
_Noreturn void fail(const char *format, ...) PRINTF_LIKE(1, 2);       /* a sentence */
_Noreturn void fail_errno(const char *format, ...) PRINTF_LIKE(1, 2); /* ... and errno's text */
void warn(const char *format, ...) PRINTF_LIKE(1, 2); /* the same, but the program goes on */
void warn_errno(const char *format, ...) PRINTF_LIKE(1, 2);

/* The name that messages start with; from argv[0]. Also ignores SIGPIPE, so that a peer that
 * has gone is an error of write(2) and not the end of the program. */
void begin(char **argv);

/* How the program is called, and exit status 2. */
_Noreturn void usage(const char *text);

/* A number from least to most; else a message, and exit status 2. */
unsigned long number(const char *text, unsigned long least, unsigned long most, const char *what);
/* The same of bytes, which may have a unit: 64, 4k, 1MiB. */
unsigned long size(const char *text, unsigned long least, unsigned long most, const char *what);

/* An address for bind(2) and connect(2). */
struct endpoint {
    struct sockaddr_storage addr;
    socklen_t               len;
};

/* "HOST:PORT", "[::1]:PORT", ":PORT" (any address; to listen). Ends the program with a
 * message if there is no such address. */
struct endpoint resolve(const char *text, bool to_listen);

/* The plain programs' sockets: a listener, which prints "listening on ADDRESS:PORT" once it
 * listens, and a connection. */
int tcp_listener(const char *text);
int tcp_connection(const char *text);

/* An address as text: "127.0.0.1:80", "[::1]:80". In one buffer of the library's. */
const char *address_text(const struct sockaddr_storage *addr, socklen_t len);

/* A descriptor that becomes readable when the user (SIGINT) or the system (SIGTERM) wants the
 * program to end: a signal that is waited for like everything else needs no handler, and no
 * thought about what a handler may do. To be called before there are threads. */
int ending_descriptor(void);

/* Servers: as many open files as the system allows. */
void allow_many_files(void);

/* Reads what there is of the program's own input, and hands each whole line to obey, until that
 * returns false. */
enum console { CONSOLE_OPEN, CONSOLE_ENDED, CONSOLE_STOPPED };
enum console read_console(bool (*obey)(const char *line));

/* Writes all of it, however many write(2)s it takes. False: errno says why not. */
bool write_all(int fd, const void *bytes, size_t len);

/* Memory, or the end of the program. */
void *allocate(size_t count, size_t size);

/* Seconds of the monotonic clock. */
double now(void);

#endif
