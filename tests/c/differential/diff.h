/* The differential suite: what a program sees of a descriptor, over kernel TCP and over EXS.
 *
 * A behaviour makes calls and tells what they gave, as text. The same list runs over the
 * kernel's TCP (`--over tcp`: socket(2) and its kin) and over EXS (`--over NAME`: the calls
 * with `exs_`, and NAME for EXS_TRANSPORT); a comparison of the outputs shows what differs.
 *
 *     BEHAVIOUR(a_receive_of_nothing)
 *     {
 *         struct pair p = pair();
 *         TELL(receive(p.a, buf, 0, 0));
 *     }
 *
 * Each runs in a process of its own. None orders things by sleeping: it waits for the thing
 * itself, by blocking calls or by poll(2), and reports a thing that never comes. */
#ifndef DIFFERENTIAL_DIFF_H
#define DIFFERENTIAL_DIFF_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sys/exs.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* True over EXS. */
extern int over_exs;

void add_behaviour(const char *name, void (*body)(void));

#define BEHAVIOUR(name)                                                                     \
    static void name(void);                                                                 \
    __attribute__((constructor)) static void add_##name(void)                               \
    {                                                                                       \
        add_behaviour(#name, name);                                                         \
    }                                                                                       \
    static void name(void)

/* ---- Telling --------------------------------------------------------------------------- */

/* Adds words to what this behaviour tells. */
void say(const char *how, ...) __attribute__((format(printf, 1, 2)));
/* Adds a result: the number, or of -1 the name of errno. */
void tell(long result);

#define TELL(call)                                                                          \
    do {                                                                                    \
        errno = 0;                                                                          \
        tell((long)(call));                                                                 \
    } while (0)

/* What must work for the behaviour to be seen at all. */
#define MUST(call)                                                                          \
    ({                                                                                      \
        long must_ = (long)(call);                                                          \
        if (must_ < 0) {                                                                    \
            say("[%s:%d %s: %s]", __FILE__, __LINE__, #call, strerrorname_np(errno));       \
            _exit(0);                                                                       \
        }                                                                                   \
        must_;                                                                              \
    })

/* ---- Calls of either world ---------------------------------------------------------------- */

int make(int family);
int make_as(int family, int type, int protocol);
int bind_to(int fd, const void *addr, socklen_t len);
int listen_on(int fd, int backlog);
int connect_to(int fd, const void *addr, socklen_t len);
/* `from` and `len` as of accept4(2); both may be NULL. */
int accept_from(int fd, void *from, socklen_t *len, int flags);
long transmit(int fd, const void *buf, size_t len, int flags);
long receive(int fd, void *buf, size_t len, int flags);
long transmit_pieces(int fd, struct iovec *iov, int count, int flags);
long receive_pieces(int fd, struct iovec *iov, int count, int flags, int *msg_flags);
int end_way(int fd, int how);
int finish(int fd);
int get(int fd, int level, int name, void *value, socklen_t *len);
int set(int fd, int level, int name, const void *value, socklen_t len);
int name_of(int fd, void *addr, socklen_t *len);
int peer_of(int fd, void *addr, socklen_t *len);
int control(int fd, int command, long argument);

/* ---- What behaviours share ------------------------------------------------------------------ */

struct pair {
    int a, b; /* the end that has connected, and the one that was accepted */
};

/* An address of this host, port 0 unless said otherwise. */
struct sockaddr_in v4(const char *ip, int port);
struct sockaddr_in6 v6(const char *ip, int port);
/* A listener on the loopback address, and its address. */
int listener(struct sockaddr_in *at);
/* Connections: made by a thread that accepts, so that blocking calls do for both. */
struct pair pair(void);
struct pair pair_at(int listening, const void *addr, socklen_t len, int family);
/* Both ends reset at once: what is left is of no interest. */
int int_of(int fd, int level, int name);
int set_int(int fd, int level, int name, int value);
void unwilling(int fd); /* O_NONBLOCK */
/* Cuts the connection as SO_LINGER of 0 and close do. */
void cut(int fd);
/* Waits until poll(2) says one of these events, and returns what it says (0: it never did). */
int await(int fd, int events);
/* Waits until there is something to read, or an end. */
void until_readable(int fd);
/* The same events in words. */
void say_events(int revents);
/* Tells family, address, and whether the port is the one expected (0: any but 0). */
void say_addr(const struct sockaddr_storage *addr, socklen_t len, int port);
/* Sends until nothing more is taken; how much that was. */
size_t fill_up(int fd);

extern char buf[1 << 16];

/* Runs `body` in a thread, which is joined by `done`. */
struct worker {
    pthread_t thread;
    void (*body)(struct worker *);
    int fd, tid;
    long result;
    int error;
};
void begin(struct worker *w, void (*body)(struct worker *), int fd);
void done(struct worker *w);
/* Waits until it sleeps in the kernel. */
void await_sleep(struct worker *w);

#endif
