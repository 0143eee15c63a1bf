/* The harness of the conformance suite: cases, checks, and the worlds that they run in.
 *
 * A case names the claim of spec-notes/es-api.md that it checks:
 *
 *     CASE("send-3", a_send_of_nothing_has_its_event, STREAMS | SEQPACKETS) { ... }
 *
 * It runs in a process of its own, which a failed check ends; so it finds the library
 * unused, and need not clean up for others (it does, where leaks are looked for). Nothing
 * in a case sleeps to put things in order, and none depends on speed: what hangs is ended
 * by the harness after PATIENCE seconds. */
#ifndef CONFORMANCE_HARNESS_H
#define CONFORMANCE_HARNESS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sys/exs.h>

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Worlds: what the sockets of a case are -----------------------------------------
 *
 * The same case runs on sockets of the kernel's (socket(2), whose peers know nothing of
 * EXS) and of EXS's, over whatever EXS_TRANSPORT says. */
enum {
    NOWHERE = 1, /* no sockets: handles, memory, queues */
    TCP = 2,     /* kernel: stream */
    LOCAL = 4,   /* kernel: UNIX-domain, stream or seqpacket */
    UDP = 8,     /* kernel: datagrams */
    EXS = 16,    /* EXS: stream */
    EXSMSG = 32, /* EXS: seqpacket */
    STREAMS = TCP | LOCAL | EXS,
    MESSAGES = UDP | EXSMSG,
    KERNEL = TCP | LOCAL | UDP,
    CONNECTED = STREAMS | EXSMSG, /* connections, of whatever kind */
    SOCKETS = CONNECTED | UDP,
    /* Flags of a case. */
    ALONE = 1 << 8, /* never shares a process (fork, exec, limits, environment) */
    NATIVE = 1 << 9, /* not under a tool that plays the processor: ptrace, 8 threads at
                      * once, a child that has lost its parent's threads (a leak to it) */
    HEAVY = 1 << 10 /* moves gigabytes: not with --light */
};

/* The world that the running case is in: one of the above. */
extern int world;

/* True on EXS's own sockets. */
#define ON_EXS (world == EXS || world == EXSMSG)

/* ---- Cases --------------------------------------------------------------------------- */

typedef void (*case_body)(void);

void add_case(const char *claim, const char *name, int worlds, case_body body);

/* How often a case repeats what it would repeat `n` times: less on a slow machine. */
int repeats(int n);

#define CASE(claim, name, worlds)                                                           \
    static void name(void);                                                                 \
    __attribute__((constructor)) static void add_##name(void)                               \
    {                                                                                       \
        add_case(claim, #name, worlds, name);                                               \
    }                                                                                       \
    static void name(void)

/* ---- Checks --------------------------------------------------------------------------- */

/* Ends the case. */
__attribute__((noreturn, format(printf, 3, 4))) void failed(const char *file, int line,
                                                            const char *how, ...);
/* Ends the case without judging it: the machine lacks something. */
__attribute__((noreturn)) void skip(const char *why);

#define CHECK(what)                                                                         \
    do {                                                                                    \
        if (!(what))                                                                        \
            failed(__FILE__, __LINE__, "%s; errno %d (%s); exs: %s", #what, errno,          \
                   strerror(errno), exs_strerror());                                        \
    } while (0)

/* The call returns this number. */
#define GIVES(number, call)                                                                 \
    do {                                                                                    \
        long long wanted_ = (number), got_ = (call);                                        \
        if (got_ != wanted_)                                                                \
            failed(__FILE__, __LINE__, "%s gave %lld, not %lld; errno %d (%s); exs: %s",    \
                   #call, got_, wanted_, errno, strerror(errno), exs_strerror());           \
    } while (0)

/* The call fails, with this errno. */
#define FAILS(number, call)                                                                 \
    do {                                                                                    \
        int wanted_ = (number);                                                             \
        long long got_;                                                                     \
        errno = 0;                                                                          \
        got_ = (call);                                                                      \
        if (got_ != -1 || errno != wanted_)                                                 \
            failed(__FILE__, __LINE__, "%s gave %lld, errno %d (%s), not -1, errno %d (%s)", \
                   #call, got_, errno, strerror(errno), wanted_, strerror(wanted_));        \
    } while (0)

/* ---- Short forms ----------------------------------------------------------------------- */

#define UNREG EXS_MHANDLE_UNREGISTERED
#define BLOCK EXS_QHANDLE_INVALID, 0 /* the last two arguments: without a queue */
#define NOW (&(struct timeval){0, 0})

#endif
