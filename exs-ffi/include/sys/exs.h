/* <sys/exs.h>: Extended Sockets (EXS) for C and C++.
 *
 * Sockets whose operations are asynchronous: a call that posts an operation returns at
 * once, and an event on a queue reports how the operation ended. Memory may be
 * registered ahead, so that RDMA devices read and write it without a copy.
 *
 *     cc program.c $(pkg-config --cflags --libs exs)
 *
 * The names are those of the Extended Sockets API (ES-API, The Open Group, 2005).
 * spec-notes/es-api.md and exs(7) say for each name whether it was verified against
 * programs written for ES-API, is recollected, or is this library's own choice.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef EXS_SYS_EXS_H
#define EXS_SYS_EXS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>

/* Declarations that are this library's own and no part of ES-API are visible too,
 * unless the program defines EXS_STRICT before it includes this header. Members of
 * structures and values of events are always there, so that the layout does not change. */
#if !defined(EXS_EXTENSIONS) && !defined(EXS_STRICT)
#define EXS_EXTENSIONS 1
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- How calls behave -------------------------------------------------------
 * Posting. A call that takes a queue and an ahandle posts an operation.
 *   0    accepted: exactly one event will come to the queue, whatever happens.
 *   -1   refused: errno says why, nothing was done, and no event will come.
 * EAGAIN means that too many operations are in flight: dequeue events, then try again.
 * A queue bounds the operations in flight and the events not yet dequeued together
 * (exs_qcreate).
 *
 * Memory. The memory of a call (buffers, and the structures that its description calls
 * kept) must stay valid from the call until its event is dequeued. Meanwhile the
 * program must not change memory that is being sent, and must neither read nor change
 * memory that is being received into. The lists themselves (exs_msghdr_t and its
 * exs_iovec_t, exs_xferfile_t, addresses that go in) are read during the call only,
 * except where a result is stored (noted there). The library checks memory against NULL
 * and ranges that wrap (EFAULT). Only registration checks that memory is mapped.
 *
 * Blocking. EXS_QHANDLE_INVALID in place of a queue makes a call block and return what
 * its socket twin returns: bytes, a descriptor, or 0; or -1 and errno. A signal handler
 * that runs before anything was moved ends the call with EINTR, whatever SA_RESTART
 * says. One call moves at most 0x7ffff000 bytes (a longer message is EMSGSIZE).
 * O_NONBLOCK on the descriptor, or MSG_DONTWAIT, makes the call fail with EAGAIN
 * instead of waiting; neither affects calls with a queue. A send that does not wait
 * copies its data, up to 256 KiB for each socket. If the connection ends before such
 * data have left, SO_ERROR reports it, or else exs_close. exs_shutdown ends the
 * direction behind such data, and returns at once. exs_read and exs_write wait in any
 * case: they are complete when the peer has answered.
 *
 * Descriptors. An EXS socket is a real descriptor, closed on exec: dup(2), fcntl(2),
 * fstat(2) and close(2) work. So do poll(2), select(2) and epoll, until a queue is
 * first given to exs_recv or exs_accept. Use exs_qfd() for sockets that receive through
 * a queue. The descriptor polls like that of a TCP socket: POLLIN; POLLOUT; POLLRDHUP
 * when the peer sends nothing more; POLLHUP when both directions have ended; POLLERR
 * after a reset. EPOLLET has an edge for everything that arrives (while fewer than some
 * 250 arrivals are unread), and for room after a send that found too little. After a
 * failed connect the descriptor shows POLLIN and POLLOUT, because the socket may
 * connect again; SO_ERROR says what happened. ioctl(2) with FIONREAD returns how many
 * bytes a receive would get; of more than 4096, at least 4096. A message costs two
 * wake-ups, one of the library's thread and one of the program's, where a call that
 * waits in exs_recv costs at most one.
 * When close(2) closes the last copy of the descriptor, the library ends the connection
 * in order, in the background. Data go through exs_ calls only: read(2) and write(2) do
 * not reach the peer. The exs_ calls also take descriptors from socket(2) and its
 * relatives. The peer of such a kernel socket needs no EXS, memory handles are checked
 * but not needed, and the socket's flags and its owner's calls on it stay as they are.
 *
 * Threads. Any thread may make any call at any time, but a signal handler must not.
 *
 * Processes. The library does not survive fork(2): in a child of a process that has
 * used it, each call fails with EPERM until exec. A process that has not used the
 * library may fork, and use it in both.
 *
 * Watching. With EXS_STATS=on in its environment, a process shows what its sockets do to
 * exs-top(1), and to other readers of the same user and of root.
 *
 * Errors common to the calls, not repeated with each:
 *   EBADF       the number is no open descriptor
 *   ENOTSOCK    the descriptor is no socket
 *   EINVAL      the handle of a queue or of memory is not valid (any more), a length is
 *               negative, or flags or attributes are unknown
 *   EFAULT      NULL, or a range beyond the end of the address space or outside of the
 *               registration that its handle names
 *   EAGAIN      too many operations are in flight
 *   ENOMEM      no memory
 *   EPERM       in a child after fork
 *   EIO         a fault of the library itself
 */

/* The argument of exs_init. */
#define EXS_VERSION1 1
#define EXS_VERSION  EXS_VERSION1

/* ---- Handles --------------------------------------------------------------- */

/* A program's own name for an operation, which comes back with the event. A pointer or
 * any integer, cast: (exs_ahandle_t)ptr, (exs_ahandle_t)-1. */
typedef uintptr_t exs_ahandle_t;

/* An event queue. Prints with %d. The handle of a deleted queue does not soon become
 * valid again: calls refuse it with EINVAL. */
typedef int exs_qhandle_t;

/* A registration of memory. Prints with %d. */
typedef int exs_mhandle_t;

#define EXS_QHANDLE_INVALID      (-1) /* no queue; given to a call: block */
#define EXS_MHANDLE_INVALID      (-1) /* no registration */
#define EXS_MHANDLE_UNREGISTERED (-2) /* given to a call: this memory has none */

/* ---- Memory and files in lists --------------------------------------------- */

/* A piece of memory. */
typedef struct exs_iovec {
    void         *exs_iov_base;    /* first byte */
    size_t        exs_iov_len;     /* bytes */
    exs_mhandle_t exs_iov_mhandle; /* its registration, or EXS_MHANDLE_UNREGISTERED */
    int           exs_iov_reserved;
} exs_iovec_t;

/* A piece of a file. */
typedef struct exs_fdvec {
    int      exs_fdv_fd;     /* a regular file, open for reading; may be closed after the call */
    int      exs_fdv_reserved;
    int64_t  exs_fdv_offset; /* first byte; the file's own position is not used */
    uint64_t exs_fdv_length; /* bytes; 0: up to the end that the file has at the call */
} exs_fdvec_t;

/* Kinds of elements for exs_sendfile. */
#define EXS_IOVEC 1
#define EXS_FDVEC 2

/* An element for exs_sendfile. */
typedef struct exs_xferfile {
    int exs_xf_type; /* EXS_IOVEC or EXS_FDVEC */
    int exs_xf_reserved;
    union {
        exs_iovec_t exs_xf_iovec; /* EXS_IOVEC */
        exs_fdvec_t exs_xf_fdvec; /* EXS_FDVEC */
    } exs_xf_union;
} exs_xferfile_t;

/* A message in pieces. */
typedef struct exs_msghdr {
    void        *exs_msg_name;       /* kernel sockets (UDP): the peer's address; kept until
                                        the event of exs_recvmsg, which stores it. Else NULL */
    socklen_t    exs_msg_namelen;    /* its size; stored by exs_recvmsg */
    int          exs_msg_iovlen;     /* pieces: up to EXS_IOV_MAX */
    exs_iovec_t *exs_msg_iov;        /* the pieces, in order */
    void        *exs_msg_control;    /* NULL: there is no ancillary data */
    size_t       exs_msg_controllen; /* 0 */
    int          exs_msg_flags;      /* stored by exs_recvmsg: MSG_TRUNC, MSG_EOR */
    int          exs_msg_reserved;
} exs_msghdr_t;

#define EXS_IOV_MAX 1024 /* most elements of one list */

/* ---- Addresses, readiness, signals ----------------------------------------- */

/* The place where exs_accept stores the address of the peer. Kept until the event. */
typedef struct exs_acceptaddr {
    struct sockaddr_storage exs_aa_addr;    /* stored before the event comes */
    socklen_t               exs_aa_addrlen; /* its size, stored likewise */
    int                     exs_aa_reserved;
} exs_acceptaddr_t;

/* The condition that exs_poll waits for. */
typedef struct exs_pollfd {
    int exs_pfd_fd;      /* any descriptor that can be polled */
    int exs_pfd_events;  /* EXS_POLLIN, EXS_POLLOUT, or both */
    int exs_pfd_revents; /* blocking use: what was found is stored here */
    int exs_pfd_reserved;
} exs_pollfd_t;

#define EXS_POLLIN  0x0001 /* data, the end of the data, or a connection to accept is there */
#define EXS_POLLOUT 0x0004 /* a send would not have to wait */
#define EXS_POLLERR 0x0008 /* found only: an error */
#define EXS_POLLHUP 0x0010 /* found only: the connection is over */

/* The signal that announces events: see EXS_QATTR_SIGNAL. */
typedef struct exs_signal {
    int       exs_sig_action; /* EXS_SIG_ENABLE or EXS_SIG_DISABLE */
    int       exs_sig_signo;  /* which: SIGUSR1, SIGRTMIN, ... */
    uintptr_t exs_sig_value;  /* comes with it: si_value.sival_ptr; si_code is SI_QUEUE */
    uint64_t  exs_sig_reserved[2];
} exs_signal_t;

#define EXS_SIG_DISABLE 0
#define EXS_SIG_ENABLE  1

/* ---- Events ---------------------------------------------------------------- */

/* Kinds: the call that an event completes. */
#define EXS_EVT_POLL        1
#define EXS_EVT_CONNECT     2
#define EXS_EVT_ACCEPT      3
#define EXS_EVT_SEND        4
#define EXS_EVT_RECV        5
#define EXS_EVT_SENDMSG     6
#define EXS_EVT_RECVMSG     7
#define EXS_EVT_SENDFILE    8
#define EXS_EVT_SENDTIMEOUT 9  /* instead of SEND, SENDMSG, SENDFILE: SO_ASYNC_SEND_TIMEOUT is over */
#define EXS_EVT_RECVTIMEOUT 10 /* instead of RECV, RECVMSG: SO_ASYNC_RECV_TIMEOUT is over */
#define EXS_EVT_SHUTDOWN    11
#define EXS_EVT_CLOSE       12
#define EXS_EVT_READ        0x1001 /* extension: exs_read */
#define EXS_EVT_WRITE       0x1002 /* extension: exs_write */
#define EXS_EVT_REVOKE      0x1003 /* extension: exs_revoke */
#define EXS_EVT_FETCH_ADD   0x1004 /* extension: exs_fetch_add */
#define EXS_EVT_COMPARE_SWAP 0x1005 /* extension: exs_compare_swap */

/* exs_evt_flags (extension). */
#define EXS_EVF_EOF   0x1 /* a receive: the peer has ended its direction, and there is no more */
#define EXS_EVF_TRUNC 0x2 /* a receive: the message was longer than the memory */

/* SEND, RECV, READ, WRITE, REVOKE. */
typedef struct exs_evt_xfer {
    size_t   exs_evt_length; /* bytes moved; also of an operation that failed on its way */
    void    *exs_evt_buffer; /* the memory, as it was given to the call */
    uint64_t exs_evt_total;  /* seqpacket receive: the message's true length */
} exs_evt_xfer_t;

/* SENDMSG, RECVMSG. */
typedef struct exs_evt_xfermsg {
    size_t        exs_evt_length; /* bytes moved, all pieces together */
    exs_msghdr_t *exs_evt_msghdr; /* as it was given to the call */
    uint64_t      exs_evt_total;  /* as in exs_evt_xfer_t */
} exs_evt_xfermsg_t;

/* SENDFILE. */
typedef struct exs_evt_xferfile {
    size_t          exs_evt_length;   /* bytes moved, all elements together */
    exs_xferfile_t *exs_evt_xferfile; /* as it was given to the call */
} exs_evt_xferfile_t;

/* ACCEPT. */
typedef struct exs_evt_accept {
    int               exs_evt_newsocket;  /* the connection: a descriptor; -1 if it failed */
    int               exs_evt_reserved;
    exs_acceptaddr_t *exs_evt_acceptaddr; /* as it was given to the call, filled */
} exs_evt_accept_t;

/* POLL. */
typedef struct exs_evt_poll {
    int           exs_evt_revents; /* EXS_POLLIN, EXS_POLLOUT, EXS_POLLERR, EXS_POLLHUP */
    int           exs_evt_reserved;
    exs_pollfd_t *exs_evt_pollfd;  /* as it was given to the call */
} exs_evt_poll_t;

/* FETCH_ADD, COMPARE_SWAP. */
typedef struct exs_evt_atomic {
    size_t    exs_evt_length; /* 8; of an operation that was not done, or may not have been: 0 */
    uint64_t *exs_evt_place;  /* as it was given to the call, filled if the operation was done */
    uint64_t  exs_evt_old;    /* the value that was there before */
} exs_evt_atomic_t;

/* The completion of an operation. */
typedef struct exs_event {
    int           exs_evt_type;    /* EXS_EVT_... */
    int           exs_evt_errno;   /* 0, or why it failed: ECANCELED, ECONNRESET, ... */
    int           exs_evt_socket;  /* the descriptor that the call was given */
    unsigned      exs_evt_flags;   /* EXS_EVF_... */
    exs_ahandle_t exs_evt_ahandle; /* the program's name for it */
    union {
        exs_evt_xfer_t     exs_evt_xfer;
        exs_evt_xfermsg_t  exs_evt_xfermsg;
        exs_evt_xferfile_t exs_evt_xferfile;
        exs_evt_accept_t   exs_evt_accept;
        exs_evt_poll_t     exs_evt_poll;
        exs_evt_atomic_t   exs_evt_atomic;
        uint64_t           exs_evt_reserved[6];
    } exs_evt_union;
} exs_event_t;

#define EXS_EVTVEC_MAX 4096 /* most events of one exs_qdequeue */

/* ---- Starting, queues ------------------------------------------------------ */

/* Starts EXS in this process. May be called again. Other calls start EXS too, but this
 * one reports whether it can start. version: EXS_VERSION.
 * Returns 0, or -1: EINVAL (this library does not know the version, or an environment
 * variable has an invalid value), or the kernel's errno if EXS cannot start. */
int exs_init(int version);

/* Makes an event queue for depth operations: those in flight and those whose events
 * were not dequeued, together. depth: 1 to EXS_QDEPTH_MAX.
 * Threads with a queue each use a processor each: give each thread one of its own,
 * and connect and accept with it. Threads may share a listener.
 * Returns a handle, or EXS_QHANDLE_INVALID: EINVAL (depth), ENOMEM, EMFILE. */
exs_qhandle_t exs_qcreate(int depth);

#define EXS_QDEPTH_MAX (1 << 20)

/* Deletes a queue. Discards its events that were not dequeued, and closes the
 * connections that they carry.
 * Returns 0, or -1: EBUSY (operations are in flight, and no event could tell when their
 * memory is free: cancel them and dequeue their events first; or a thread waits in
 * exs_qdequeue). */
int exs_qdelete(exs_qhandle_t queue);

/* Reads or changes an attribute of a queue. Returns 0, or -1 with EINVAL or EFAULT.
 *   EXS_QATTR_DEPTH   int           a new depth; operations in flight beyond it stay
 *   EXS_QATTR_EVENTS  int *         stores how many events can be dequeued now
 *   EXS_QATTR_WAIT    int           how exs_qdequeue waits: EXS_WAIT_...
 *   EXS_QATTR_SIGNAL  exs_signal_t *  sends a signal to the process each time that the
 *                     queue gets an event while it is empty; at once if it has events
 *                     when this is enabled */
int exs_qmodify(exs_qhandle_t queue, int attribute, ...);

#define EXS_QATTR_DEPTH  1
#define EXS_QATTR_SIGNAL 2
#define EXS_QATTR_EVENTS 3
#define EXS_QATTR_WAIT   4

#define EXS_WAIT_ADAPTIVE  0 /* spin for a moment where that has paid recently, then sleep (default) */
#define EXS_WAIT_NOTIFY    1 /* sleep at once */
#define EXS_WAIT_BUSY_POLL 2 /* spin for as long as it takes */

/* Takes events off a queue.
 *   count > 0   waits for one event, then takes up to count
 *   count < 0   waits until there are -count events, then takes up to -count
 *   count = 0   takes nothing, does not wait, and returns 0
 * |count| is at most EXS_EVTVEC_MAX. -count is at most the depth of the queue (EINVAL
 * otherwise, because such a wait could not end). timeout: NULL waits for ever, zero
 * does not wait; the call does not change it. When the time is up, the call takes the
 * events that are there, up to |count|: perhaps 0.
 * Returns how many events it stored in vec, or -1 and errno:
 *   EINTR    a signal handler ran while the thread waited. No event is lost. The wait
 *            never restarts by itself, whatever SA_RESTART says
 *   EINVAL   count, or a timeout that is negative or has tv_usec outside of 0..999999
 *   EFAULT   vec is NULL */
int exs_qdequeue(exs_qhandle_t queue, exs_event_t *vec, int count, struct timeval *timeout);

/* ---- Memory ---------------------------------------------------------------- */

/* Registers memory of the program for all sockets and threads, so that devices can use
 * it without further steps. The memory must stay mapped until the handle is
 * deregistered and every operation that uses it has had its event. flags: 0 or
 * EXS_MRF_SHARED, which changes nothing, because every registration can be shared.
 * Registrations may overlap. Mapped files and huge pages do as well; of a file that is
 * mapped shared, a device without paging on demand takes tmpfs and hugetlbfs only.
 * Returns a handle, or EXS_MHANDLE_INVALID: EINVAL (len is 0), EFAULT (not all of it is
 * mapped), ENOMEM (too many). If a device refuses the memory (RLIMIT_MEMLOCK), the
 * first call that uses it there fails. */
exs_mhandle_t exs_mregister(void *addr, size_t len, int flags);

#define EXS_MRF_SHARED 0x1

/* Ends a registration. Operations that use it go on, and hold the memory until their
 * events. Returns 0, or -1 with EINVAL. */
int exs_mderegister(exs_mhandle_t mhandle);

/* ---- Connections ----------------------------------------------------------- */

/* As socket(2). domain: AF_INET or AF_INET6. type: SOCK_STREAM (bytes in order) or
 * SOCK_SEQPACKET (messages in order), optionally with SOCK_NONBLOCK and SOCK_CLOEXEC
 * (which is always on). protocol: 0, or IPPROTO_TCP for a stream.
 * Returns a descriptor, or -1: EAFNOSUPPORT (AF_IB, ...), ESOCKTNOSUPPORT (SOCK_DGRAM,
 * ...), EINVAL (no type of sockets), EPROTONOSUPPORT, EMFILE, ENFILE. */
int exs_socket(int domain, int type, int protocol);

/* As bind(2). Port 0 chooses a free port. Returns 0, or -1: EADDRINUSE, EADDRNOTAVAIL,
 * EACCES (for RDMA devices exs_listen and exs_connect report these), EAFNOSUPPORT,
 * EINVAL (bound, connected or listening already). */
int exs_bind(int fd, const struct sockaddr *addr, socklen_t addrlen);

/* As listen(2). On a listener it sets another backlog. When the listener is closed,
 * connections that the program has not accepted are reset. Returns 0, or -1:
 * EADDRINUSE, EACCES, EADDRNOTAVAIL, EMFILE, EINVAL (connected, or connecting). */
int exs_listen(int fd, int backlog);

/* Connects. flags: 0. The event is CONNECT. Its errno is ECONNREFUSED, ETIMEDOUT,
 * ENETUNREACH, EPROTO (the peer does not speak EXS), EMFILE (of this process), ...; the
 * program may then use the socket for another attempt. An address of all zeros is this
 * host's own. The call refuses with EISCONN, EALREADY, EAFNOSUPPORT. With O_NONBLOCK
 * and no queue it fails with EINPROGRESS; exs_poll or poll(2) (POLLOUT) reports the end of
 * the attempt, and SO_ERROR its result. */
int exs_connect(int fd, const struct sockaddr *addr, socklen_t addrlen, int flags,
                exs_qhandle_t queue, exs_ahandle_t ahandle);

/* Accepts a connection. acceptaddr: the place for the peer's address, or NULL; kept
 * until the event. flags: 0, or SOCK_NONBLOCK and SOCK_CLOEXEC for the new descriptor
 * (that of an EXS socket is always closed on exec). The event is ACCEPT and carries the
 * new descriptor; without a queue the call returns it. The call refuses with EINVAL
 * (not listening, or shut down meanwhile), EMFILE, ENFILE. */
int exs_accept(int fd, exs_acceptaddr_t *acceptaddr, int flags, exs_qhandle_t queue,
               exs_ahandle_t ahandle);

/* Ends one direction of a connection, or both. how: SHUT_RD, SHUT_WR, SHUT_RDWR. The
 * peer sees the end after all data that were sent. The event is SHUTDOWN: all data sent
 * before have left. On a listener SHUT_RD ends the listening, and waiting accepts end
 * with EINVAL. The call refuses with ENOTCONN. */
int exs_shutdown(int fd, int how, exs_qhandle_t queue, exs_ahandle_t ahandle);

/* Closes a descriptor. The descriptor is gone when the call returns 0. If it was the
 * last copy, the library ends the connection: it delivers sent data first (for at most
 * 10 s, see SO_LINGER), cancels waiting receives, and revokes exports. The event is
 * CLOSE: the connection is over. Its errno is set if some data could not be delivered.
 * Without a queue the call waits for that end; like close(2), it does not fail if the
 * peer has cut the connection. flags: 0, or EXS_CLOSE_ABORT to cut the connection at
 * once. close(2) does the same without reporting the end. If another copy is left (of
 * dup(2) or a forked process), the event comes at once.
 * exit(3) closes all open sockets, and waits until sent data are delivered, as long as
 * a close would. Calls of other threads do not return meanwhile. If the process still
 * exists a second later, they return (EBADF). */
int exs_close(int fd, int flags, exs_qhandle_t queue, exs_ahandle_t ahandle);

#define EXS_CLOSE_ABORT 0x1 /* extension */

/* As getsockname(2), getpeername(2). Return 0, or -1: ENOTCONN, EINVAL (not bound). */
int exs_getsockname(int fd, struct sockaddr *addr, socklen_t *addrlen);
int exs_getpeername(int fd, struct sockaddr *addr, socklen_t *addrlen);

/* As fcntl(2): F_GETFL and F_SETFL (O_NONBLOCK), F_GETFD, F_SETFD, F_DUPFD,
 * F_DUPFD_CLOEXEC. */
int exs_fcntl(int fd, int command, ...);

/* As getsockopt(2), setsockopt(2). For EXS sockets:
 *   SOL_SOCKET   SO_ERROR SO_TYPE SO_DOMAIN SO_ACCEPTCONN (read only)
 *                SO_LINGER            on with 0: exs_close cuts the connection
 *                SO_SNDTIMEO SO_RCVTIMEO  as SO_ASYNC_..., for calls without a queue
 *                SO_KEEPALIVE SO_SNDBUF SO_RCVBUF SO_REUSEADDR SO_REUSEPORT SO_OOBINLINE
 *                SO_BROADCAST         accepted; SO_RCVBUF sizes the receive ring
 *                SO_RCVLOWAT SO_SNDLOWAT  1 (read only)
 *                SO_ASYNC_...         see below
 *   IPPROTO_TCP  TCP_NODELAY; TCP_CORK TCP_QUICKACK (accepted, without effect);
 *                TCP_MAXSEG (read only): most data that travel in one message
 *                TCP_INFO (read only): tcpi_state, and that size; the rest is 0
 *   IPPROTO_IP   IP_TOS        before connect or listen: DSCP times 4, on RDMA devices too;
 *                              without effect on shared memory
 *   IPPROTO_IPV6 IPV6_V6ONLY; IPV6_TCLASS as IP_TOS
 *   SOL_EXS      EXS_SO_...           extensions, see below
 * On kernel sockets SO_ASYNC_... and SOL_EXS are EXS's, the rest is the kernel's.
 * 0, or -1: ENOPROTOOPT, EINVAL, EFAULT. */
int exs_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int exs_setsockopt(int fd, int level, int name, const void *value, socklen_t len);

/* At SOL_SOCKET. The value of both timeouts is an exs_timeout_t, or a struct timeval
 * (no flags). A time of zero, which is the default, means no timeout. An operation that
 * is posted while the option is set, and has not ended when its time is up, ends with
 * SENDTIMEOUT or RECVTIMEOUT, ETIMEDOUT, and the bytes that were moved. */
#define SO_ASYNC_SEND_TIMEOUT 0x45580001
#define SO_ASYNC_RECV_TIMEOUT 0x45580002
/* int: receives complete in the order in which they were posted. This is always on: the
 * option reads as 1, and a program may set either value. */
#define SO_ASYNC_RECV_ORDERED 0x45580003

/* The value of a timeout option. */
typedef struct exs_timeout {
    struct timeval exs_to_time;
    int            exs_to_flags; /* 0, or EXS_TIMEOUT_ONCE: for the next operation only */
    int            exs_to_reserved;
} exs_timeout_t;

#define EXS_TIMEOUT_ONCE 0x1

/* ---- Data ------------------------------------------------------------------ */

/* Sends len bytes; on a seqpacket socket they are one message. mhandle: the
 * registration of the memory, or EXS_MHANDLE_UNREGISTERED (then the library copies up
 * to 4 KiB, and registers more for the operation). flags: MSG_DONTWAIT, MSG_NOSIGNAL
 * (always on). Other flags have no effect, except MSG_OOB (EOPNOTSUPP). The event is
 * SEND: the memory is the program's again, and the bytes are on their way, in order.
 * From the fifth send of a burst on, small sends may wait for the next ones, until a
 * thread dequeues, and for some milliseconds at most; so may all sends of up to 256 KiB
 * on streams of kernel sockets. The call refuses with ENOTCONN, EPIPE (shut down),
 * ECONNRESET, EMSGSIZE (the message is longer than the peer takes), EOPNOTSUPP. Without
 * a queue the error of a broken connection is reported once, by SO_ERROR or by the call
 * that finds it. After that sends fail with EPIPE, and receives return 0. */
int exs_send(int fd, void *buf, size_t len, int flags, exs_qhandle_t queue,
             exs_ahandle_t ahandle, exs_mhandle_t mhandle);

/* Receives into len bytes: as many as are there, but at least one; or one message.
 * flags: MSG_WAITALL (until the memory is full, or the stream ends), MSG_PEEK (leaves
 * the data there), MSG_DONTWAIT, MSG_NOSIGNAL. With MSG_TRUNC and without a queue, the
 * call returns a message's true length, and discards bytes of a stream. Other flags
 * have no effect, except MSG_OOB (EINVAL) and MSG_ERRQUEUE (EAGAIN). The event is RECV;
 * 0 bytes with EXS_EVF_EOF is the end of the data. Receives are filled in the order of
 * posting. The call refuses with ENOTCONN. */
int exs_recv(int fd, void *buf, size_t len, int flags, exs_qhandle_t queue,
             exs_ahandle_t ahandle, exs_mhandle_t mhandle);

/* Sends the pieces of a message, each with its own mhandle, as one stretch of bytes or
 * one message. flags as for exs_send. The event is SENDMSG. */
int exs_sendmsg(int fd, exs_msghdr_t *msg, int flags, exs_qhandle_t queue,
                exs_ahandle_t ahandle);

/* Receives into pieces, each with its own mhandle, filled one after the other. flags as
 * for exs_recv. The event is RECVMSG. msg (but not its list) is kept until the event,
 * because exs_msg_flags, and for kernel sockets the address, are stored there. */
int exs_recvmsg(int fd, exs_msghdr_t *msg, int flags, exs_qhandle_t queue,
                exs_ahandle_t ahandle);

/* Sends memory and pieces of files, in order, as one stretch of bytes of a stream. On a
 * seqpacket socket: memory only, or one piece of a file. count: 1 to EXS_IOV_MAX.
 * flags: 0, or EXS_SHUT_WR to end the sending direction after it. The event is
 * SENDFILE. If a file is shorter than its piece, the event has the bytes that were sent
 * and EIO, the rest of the list is not sent, and the direction does not end. If the
 * file is truncated while it is being sent, the rest of the list may already have been
 * sent. Without a queue a call may send less than all, and then does not end the
 * direction: the call that sends the last byte does. */
int exs_sendfile(int fd, exs_xferfile_t *vec, int count, int flags, exs_qhandle_t queue,
                 exs_ahandle_t ahandle);

#define EXS_SHUT_WR 0x1

/* Waits once for readiness of an EXS socket, or of any descriptor that poll(2) can wait
 * for. flags: 0. The event is POLL. Without a queue, the call stores exs_pfd_revents
 * and returns 1. pollfd is not kept, but its address comes with the event. */
int exs_poll(exs_pollfd_t *pollfd, int flags, exs_qhandle_t queue, exs_ahandle_t ahandle);

/* Asks operations of a socket to end: all (EXS_CAF_FILDES), or those with this ahandle
 * (EXS_CAF_AHANDLE; both flags mean the same). Returns how many there were. Each still
 * has its event: ECANCELED, with the bytes that were moved; or its ordinary result, if
 * it was faster. */
int exs_cancel(int fd, int flags, exs_ahandle_t ahandle);

#define EXS_CAF_FILDES  0x1
#define EXS_CAF_AHANDLE 0x2

/* ---- Extensions ------------------------------------------------------------
 * The library's own; no part of ES-API. */
#ifdef EXS_EXTENSIONS

/* Describes the last error in a sentence: that of the calling thread's last exs_ call
 * that failed, or of the last event with an error that its exs_qdequeue returned. Empty
 * if there was none. Valid until the thread's next exs_ call. Never NULL. */
const char *exs_strerror(void);

/* The library's version, "major.minor.patch". */
const char *exs_version(void);

/* Returns the queue's descriptor, for poll(2), epoll(7) and their relatives: readable
 * while events wait, and while there is something to do that may bring events
 * (level-triggered). When it is readable, dequeue with a timeout of zero until no event
 * comes: these calls move the data, and the last one lets peers know that the program
 * sleeps. A program that sleeps without that last one may learn of an event some
 * milliseconds late. The descriptor belongs to the library: do not read from it or
 * close it.
 * -1: EINVAL. */
int exs_qfd(exs_qhandle_t queue);

/* One-sided operations: the peer's memory, without its program (RDMA READ, WRITE).
 *
 * The descriptor of exported memory: plain bytes, which the program sends to the peer
 * in a message of its own. The same in every process and on every machine. */
#define EXS_REMOTE_SIZE 24
typedef struct exs_remote {
    unsigned char exs_remote_bytes[EXS_REMOTE_SIZE];
} exs_remote_t;

#define EXS_RIGHT_READ   0x1
#define EXS_RIGHT_WRITE  0x2
#define EXS_RIGHT_ATOMIC 0x4

/* Opens memory to the peer of this connection only, until the export is revoked, its
 * lifetime (milliseconds; 0: unlimited) is over, or the connection ends. rights:
 * EXS_RIGHT_READ, EXS_RIGHT_WRITE and EXS_RIGHT_ATOMIC (exs_fetch_add and
 * exs_compare_swap; addr must be a multiple of 8 then), or several. Stores the
 * descriptor in remote. Until the event of exs_revoke (or of exs_close), the memory must
 * stay, and the peer may change it at any moment if it has the right.
 * Returns 0, or -1: EINVAL (len is 0, rights, alignment), ENOTCONN, EOPNOTSUPP (a kernel
 * socket, or EXS_RIGHT_ATOMIC on a device without atomic operations), EAGAIN (RDMA devices: the peer holds up earlier data, and with them many exports). */
int exs_export(int fd, void *addr, size_t len, int rights, unsigned lifetime_ms,
               exs_mhandle_t mhandle, exs_remote_t *remote);

/* Closes exported memory to the peer. The event is REVOKE: the memory is the program's
 * again. -1: EINVAL (this socket did not export it). */
int exs_revoke(int fd, const exs_remote_t *remote, exs_qhandle_t queue, exs_ahandle_t ahandle);

/* Reads the bytes and the rights from a descriptor. Either pointer may be NULL. -1:
 * EINVAL (no descriptor). */
int exs_remote_info(const exs_remote_t *remote, uint64_t *len, int *rights);

/* RDMA READ: fills len bytes from the peer's memory at offset. The event is READ.
 * flags: 0. The call refuses with EINVAL (outside of the range, or no right). If the
 * peer has revoked the memory, the connection ends. */
int exs_read(int fd, void *buf, size_t len, const exs_remote_t *remote, uint64_t offset,
             int flags, exs_qhandle_t queue, exs_ahandle_t ahandle, exs_mhandle_t mhandle);

/* RDMA WRITE: copies len bytes into the peer's memory at offset. The event is WRITE:
 * the bytes are in the peer's memory. */
int exs_write(int fd, void *buf, size_t len, const exs_remote_t *remote, uint64_t offset,
              int flags, exs_qhandle_t queue, exs_ahandle_t ahandle, exs_mhandle_t mhandle);

/* Adds to the 8 bytes at offset of the peer's memory, in one step; the sum wraps at
 * 2^64 (RFC 7306 FetchAdd, IBV_WR_ATOMIC_FETCH_AND_ADD). The event is FETCH_ADD, with
 * the value that was there before. When it is dequeued, or when a call without a queue
 * returns, old has that value, too; old may be NULL. The value is a number in the byte
 * order of the peer's processor. offset: a multiple of 8. flags: 0.
 *
 * Atomic operations of all connections that reach these bytes through one device are
 * atomic among each other. EXS_SO_PEER_ATOMICS says whether the processor of the peer
 * may take part. exs_read, exs_write and the peer's own plain accesses do not. The
 * operation is done once or not at all. An event with an error of the connection
 * (ECONNRESET, ETIMEDOUT) leaves open whether it was done; ECANCELED says that it was
 * not.
 *
 * Returns 0 (without a queue: when it was done), or -1: EINVAL (outside of the range, not
 * aligned, no right), EOPNOTSUPP (the device of either side has no atomic operations, the
 * peer's EXS is older, or a kernel socket), ENOTCONN. Nothing was sent then. If the peer
 * has revoked the memory, the connection ends (EACCES). */
int exs_fetch_add(int fd, const exs_remote_t *remote, uint64_t offset, uint64_t add,
                  uint64_t *old, int flags, exs_qhandle_t queue, exs_ahandle_t ahandle);

/* Stores desired in the 8 bytes at offset of the peer's memory if they are expected, in
 * one step (RFC 7306 CmpSwap, IBV_WR_ATOMIC_CMP_AND_SWP). The event is COMPARE_SWAP, with
 * the value that was found: desired was stored if this is expected. Otherwise as
 * exs_fetch_add. */
int exs_compare_swap(int fd, const exs_remote_t *remote, uint64_t offset, uint64_t expected,
                     uint64_t desired, uint64_t *old, int flags, exs_qhandle_t queue,
                     exs_ahandle_t ahandle);

/* Posts count sends (0 to EXS_IOV_MAX), as exs_send one after the other: the i-th sends
 * the i-th piece, and its event is SEND with the i-th ahandle. Returns how many were
 * posted: fewer than count if the queue has no more room, or if one is refused; the next
 * call gives the reason. -1: not even the first was posted, for the reasons of exs_send.
 * flags as for exs_send. A queue is needed (EINVAL), and an EXS socket (EOPNOTSUPP).
 *
 * The library does once for all what it does for a call. Sends of at most 1 KiB that
 * follow each other on a stream also travel together: with 64 bytes each, that is
 * several times as fast as a call for each. A time limit for the next operation is that
 * of all. */
int exs_send_batch(int fd, const exs_iovec_t *pieces, const exs_ahandle_t *ahandles, int count,
                   int flags, exs_qhandle_t queue);

/* Posts count receives, as exs_recv one after the other. The events are RECV. flags as
 * for exs_recv. Otherwise as exs_send_batch. */
int exs_recv_batch(int fd, const exs_iovec_t *pieces, const exs_ahandle_t *ahandles, int count,
                   int flags, exs_qhandle_t queue);

/* Figures for tuning: of a socket, or of the whole process (fd -1). */
typedef struct exs_counters_s { /* (not exs_counters: in C++ that would be the function's name, too) */
    uint64_t sends, recvs, one_sided;            /* operations that ended */
    uint64_t sent_direct;                        /* bytes sent into posted receives, without a copy */
    uint64_t sent_indirect, sent_inline;         /* into the peer's ring; inside of messages */
    uint64_t received_direct;
    uint64_t received_indirect, received_inline;
    uint64_t read_bytes, write_bytes;            /* of RDMA READs and WRITEs */
    uint64_t copies, copied_bytes;               /* made by the library */
    uint64_t adverts_sent, adverts_received, adverts_stale;
    uint64_t credit_stalls, queue_stalls;        /* waits for the peer, and for the send queue */
    uint64_t messages_sent, messages_received;
    uint64_t events, engine_runs, sleeps, in_flight; /* of the process only */
    uint64_t receives_added, receives_dropped;   /* beyond the usual ones, for a busy peer */
} exs_counters_t;

/* Stores the figures. size: sizeof(exs_counters_t). A library with more figures stores
 * those that fit; one with fewer sets the rest to 0. */
int exs_counters(int fd, exs_counters_t *counters, size_t size);

/* Offers the figures of this process to readers of the same user and of root, such as
 * exs-top, until the process ends. EXS_STATS=on in the environment does the same when EXS
 * starts. The library starts if need be, and listens on a Unix socket in the directory that
 * EXS_STATS names, or in that of the user, such as /run/user/1000/exs. Each connection to
 * the socket gets one snapshot as lines of JSON. Further calls change nothing.
 * path: the place for the path of the socket, as text, with room for size bytes. size 0: the
 * program does not want the path.
 * Returns 0; or -1: ERANGE (size is too small; the figures are offered all the same), EFAULT
 * (path is NULL), EACCES, ENOENT, ENOSPC and others of the directory. A later call tries
 * again. */
int exs_offer_stats(char *path, size_t size);

/* epoll_ctl(2), for every descriptor. Beside a socket of exs_socket or exs_accept the epoll
 * set gets the socket's arrival descriptor, which makes epoll_wait(2) return for data without
 * another thread of the process: over the software RNIC the TCP stream of the connection, over
 * shared memory a descriptor at which the peer rings. With epoll_ctl(2) alone a thread of the
 * library moves the data first. All else is as with epoll_ctl(2): op, fd, event, the errors.
 * For programs that receive without a queue, from sockets that do not block. It serves EPOLLIN,
 * level-triggered and EPOLLET. Sockets over RDMA devices, and those registered with
 * EPOLLONESHOT, are as with epoll_ctl(2).
 * - An event can find nothing to receive: exs_recv then fails with EAGAIN.
 * - One call of epoll_wait(2) can return two events of a socket. A program that closes the
 *   socket at the first keeps what event->data names until it has handled the others.
 *   exs_epoll_wait joins them where it finds the data itself.
 * - A program that closes the socket by close(2), not by exs_close, takes it out of the epoll set
 *   first.
 * - An event can have EPOLLHUP or EPOLLERR while there are still data: exs_recv gives these first.
 * - If the program does not come for an event within 50 ms, a thread of the library moves the data.
 * Returns 0; or -1: the errors of epoll_ctl(2), EFAULT (event is NULL). */
struct epoll_event;
int exs_epoll_ctl(int epfd, int op, int fd, struct epoll_event *event);

/* epoll_wait(2), for a set in which sockets are registered by exs_epoll_ctl; for other sets it is
 * epoll_wait(2) itself. It moves the data of the sockets, and finds those with data in memory: over
 * shared memory from 24 sockets in the set on, over RDMA devices always. So a message takes no
 * wake-up, and no system call for its descriptor. Over the software RNIC, many connections to one
 * address share a TCP connection (EXS_LINK_GROUP) if both ends connect and accept in threads that
 * wait so. Small sends may leave with others, at the latest when the thread waits again. All else
 * is as with epoll_wait(2): events, maxevents, timeout in milliseconds, the errors, signals, other
 * descriptors in the set, several threads.
 * - From the first call on, the program waits for this set by exs_epoll_wait only: epoll_wait(2)
 *   would return events that are for the library.
 * - Events with the same event->data are joined to one, so each socket has data of its own.
 * - Before Linux 6.10 it is epoll_wait(2) in all sets, and arrival descriptors wake it.
 * - Data that it has reported show in poll(2) within 20 to 200 ms if the program does not receive
 *   them.
 * Returns the number of events; or -1: the errors of epoll_wait(2), EFAULT (events is NULL). */
int exs_epoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout);

/* Registers len bytes of a dma-buf, from offset on: memory of another device, such as a GPU,
 * which RDMA devices reach by its descriptor (ibv_reg_dmabuf_mr). fd is duplicated. addr:
 * the place for the address by which operations name the first byte, with the handle. The
 * memory is mapped there if its exporter allows it, and then used like any other.
 * Otherwise the call refuses with EOPNOTSUPP; but with the flag EXS_MRF_UNMAPPED it
 * succeeds, the program may not touch the address, and the memory takes part in
 * exs_export, exs_read and exs_write over RDMA devices only: other calls fail with
 * EOPNOTSUPP. A device that does not take dma-bufs fails the operation that first uses
 * the memory there, mostly with EOPNOTSUPP. Ended by exs_mderegister.
 * Returns a handle, or EXS_MHANDLE_INVALID: EBADF, EFAULT (addr is NULL), EINVAL (len is 0,
 * the dma-buf is shorter, or flags are unknown), ENOMEM. */
exs_mhandle_t exs_mregister_dmabuf(int fd, uint64_t offset, size_t len, int flags, void **addr);

#define EXS_MRF_UNMAPPED 0x2

/* Connects to a host by its name: "server.example:7471", "server.example:http",
 * "192.0.2.1:7471", "[2001:db8::1]:7471" or "[fe80::1%eth0]:7471". The call does not wait
 * for name servers if it has a queue, or O_NONBLOCK: a thread of the library resolves the
 * name, and then tries all its addresses by Happy Eyeballs (RFC 8305). A socket of AF_INET
 * tries those of IPv4; one of AF_INET6 tries all, and shows an IPv4 address as
 * ::ffff:a.b.c.d. flags: 0. The event is CONNECT, and all else is as of exs_connect. Its
 * errno is also EHOSTUNREACH (no such name), EINVAL (no such service), ETIMEDOUT (no name
 * server answers) or EAFNOSUPPORT (no address of the family); exs_strerror has the reason
 * at each address.
 * The call refuses with EINVAL (no HOST:PORT), EAFNOSUPPORT, ENAMETOOLONG, EFAULT (host is
 * NULL), EISCONN, EALREADY, and EOPNOTSUPP (a kernel socket). */
int exs_connect_host(int fd, const char *host, int flags, exs_qhandle_t queue,
                     exs_ahandle_t ahandle);

/* Options at the level SOL_EXS. */
#define SOL_EXS 0x455853
#define EXS_SO_TRANSPORT       1  /* text: "auto", "shm", "soft", "verbs". Read on a connection: the one in use */
#define EXS_SO_DEVICE          2  /* text: the RDMA device to use; "": any */
#define EXS_SO_RING_SIZE       3  /* size_t: bytes that a peer may send ahead of receives */
#define EXS_SO_INLINE          4  /* size_t: data up to this many bytes travel inside of messages; unless set, 4 KiB (8 KiB by shared memory) */
#define EXS_SO_MAX_MESSAGE     5  /* uint64_t: longest message that a seqpacket socket takes */
#define EXS_SO_CONNECT_TIMEOUT 6  /* struct timeval: give up connecting */
#define EXS_SO_KEEP_ALIVE      7  /* struct timeval: how often a silent peer is asked; zero: never */
#define EXS_SO_DEAD_AFTER      8  /* struct timeval: a peer silent for this long is dead; zero: never */
#define EXS_SO_CRC             9  /* int: protect sent data by CRC32C */
#define EXS_SO_ROUTE           10 /* text, read only: the connection's device, and the reason for it */
#define EXS_SO_POLLABLE        11 /* int: poll(2) on the descriptor works as on a TCP socket.
                                     1 until a queue is given to exs_recv or exs_accept.
                                     Costs some system calls for each change of readiness;
                                     exs_poll and exs_qfd cost less */
/* Of InfiniBand and RoCE, before connect or listen; other transports ignore them. */
#define EXS_SO_RETRY_COUNT     12 /* int: how often a device sends again, 0 to 7; -1: the default */
#define EXS_SO_RNR_RETRY_COUNT 13 /* int: the same for a peer without a receive; 7: for ever */
#define EXS_SO_RNR_TIMER       14 /* struct timeval: 10 us to 655.36 ms before that; zero: the default */
#define EXS_SO_ACK_TIMEOUT     15 /* struct timeval: wait for an acknowledgement; zero: the default */
#define EXS_SO_ATOMICS         16 /* int, read only: how the connection's device executes the peer's
                                     atomic operations, EXS_ATOMICS_...; NONE if not connected */
#define EXS_SO_PEER_ATOMICS    17 /* int, read only: how the peer's device executes this side's */
/* The route of InfiniBand and RoCE, before connect, for both sides. A connect by an iWARP device, or
   by a port that lacks it, fails with EINVAL; other transports ignore them. -1: the network chooses. */
#define EXS_SO_PKEY            18 /* int: the partition, a P_Key that the port has, 1 to 0xffff */
#define EXS_SO_SERVICE_LEVEL   19 /* int: 0 to 15 */
#define EXS_SO_PATH_MTU        20 /* int: most bytes of data in a packet, 256, 512, 1024, 2048, 4096 */

#define EXS_ATOMICS_NONE   0 /* it executes none */
#define EXS_ATOMICS_DEVICE 1 /* atomic among those that the device executes, not with processors */
#define EXS_ATOMICS_HOST   2 /* also with atomic operations of the host's processors */

#endif /* EXS_EXTENSIONS */

#ifdef __cplusplus
}
#endif

#endif /* EXS_SYS_EXS_H */
