/* What cases share: sockets of the world that they are in, events, bytes. */
#ifndef CONFORMANCE_NET_H
#define CONFORMANCE_NET_H

#include "harness.h"

#include <netinet/in.h>
#include <sys/un.h>

/* An address of any family. */
struct place {
    struct sockaddr_storage addr;
    socklen_t len;
};

#define ADDR(place) ((struct sockaddr *)&(place).addr)

/* A place to bind to: of this machine, with a port or name to be chosen. */
struct place any_place(void);
/* A new socket of this world. */
int new_socket(void);
/* A listening one, and where it listens. */
int listener(struct place *at);

/* A connection: both ends. */
struct pair {
    int a, b;
};

struct pair connection(void);
/* From now on its calls do not wait. */
void nonblocking(int fd);
/* Ends it at once, with whatever is in flight. */
void end(struct pair p);
void end_one(int fd);

/* A queue; and its end, at which it must be possible to delete it. */
exs_qhandle_t new_queue(int depth);
void end_queue(exs_qhandle_t q);

/* The next event. It must come (the harness waits), be of this kind, and a success. */
exs_event_t next(exs_qhandle_t q, int type);
/* The next event, which must be of this kind and have failed with this errno. */
exs_event_t next_failed(exs_qhandle_t q, int type, int error);
/* The next event, whatever it is. */
exs_event_t next_any(exs_qhandle_t q);
/* No event waits. */
void nothing(exs_qhandle_t q);

#define LENGTH(event) ((event).exs_evt_union.exs_evt_xfer.exs_evt_length)
#define BUFFER(event) ((event).exs_evt_union.exs_evt_xfer.exs_evt_buffer)

/* Bytes that tell where they belong: of a stretch that begins at this offset. */
void fill(void *buf, size_t len, size_t offset);
void verify_at(const char *file, int line, const void *buf, size_t len, size_t offset);
#define VERIFY(buf, len, offset) verify_at(__FILE__, __LINE__, buf, len, offset)

/* Sends or receives all of a stretch without a queue, by the world's own blocking calls. */
void send_all(int fd, const void *buf, size_t len);
void recv_all(int fd, void *buf, size_t len);

/* A process of its own that connects to us, and then does `body`. Returns our end. It must be made
 * before the library is used, so a case has one visitor. */
int visitor(pid_t *child, void (*body)(int fd));
/* It has ended by itself, with this status. */
void gone(pid_t child, int status_wanted);

/* The TCP connections of this process to a port, as the kernel lists them. While others come and go, it
 * may list one twice. */
int tcp_connections(const struct sockaddr *to);

/* A file without a name that holds the bytes of `fill`, from offset 0. */
int new_file(size_t len);

/* Runs `body` in a thread. */
struct thread;
struct thread *start(void (*body)(void *), void *arg);
void join(struct thread *t);

/* Waits until a thread, of this process or of another, sleeps in the kernel, so that it can
 * be told that it waits for something. `tid` as gettid(2) has it. */
void await_sleeper(int tid);

#endif
