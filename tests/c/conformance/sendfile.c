/* exs_sendfile. */
#include "net.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>

static exs_xferfile_t memory(void *base, size_t len, exs_mhandle_t m)
{
    exs_xferfile_t x;

    memset(&x, 0, sizeof x);
    x.exs_xf_type = EXS_IOVEC;
    x.exs_xf_union.exs_xf_iovec.exs_iov_base = base;
    x.exs_xf_union.exs_xf_iovec.exs_iov_len = len;
    x.exs_xf_union.exs_xf_iovec.exs_iov_mhandle = m;
    return x;
}

static exs_xferfile_t file(int fd, int64_t offset, uint64_t len)
{
    exs_xferfile_t x;

    memset(&x, 0, sizeof x);
    x.exs_xf_type = EXS_FDVEC;
    x.exs_xf_union.exs_xf_fdvec.exs_fdv_fd = fd;
    x.exs_xf_union.exs_xf_fdvec.exs_fdv_offset = offset;
    x.exs_xf_union.exs_xf_fdvec.exs_fdv_length = len;
    return x;
}

#define SENT(event) ((event).exs_evt_union.exs_evt_xferfile.exs_evt_length)

CASE("sendfile-1 sendfile-3", memory_and_files_are_one_stretch, STREAMS)
{
    enum { LEN = 300000 };
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char *all = malloc(LEN), *in = malloc(LEN);
    exs_mhandle_t m;
    int fd = new_file(LEN);
    exs_xferfile_t x[4];
    exs_event_t e;
    int i, n;

    CHECK(all && in);
    fill(all, LEN, 0);
    m = exs_mregister(all, LEN, 0);
    x[0] = memory(all, 1000, m);
    x[1] = file(fd, 1000, 250000);
    x[2] = memory(all + 251000, 9, UNREG);
    x[3] = file(fd, 251009, 0); /* to its end */
    GIVES(0, exs_recv(p.b, in, LEN, MSG_WAITALL, q, 2, UNREG));
    GIVES(0, exs_sendfile(p.a, x, 4, 0, q, 13));
    for (i = 0; i < 2; i++) {
        e = next_any(q);
        CHECK(e.exs_evt_errno == 0);
        if (e.exs_evt_type == EXS_EVT_RECV)
            continue;
        GIVES(EXS_EVT_SENDFILE, e.exs_evt_type);
        GIVES(13, e.exs_evt_ahandle);
        GIVES(LEN, SENT(e));
        CHECK(e.exs_evt_union.exs_evt_xferfile.exs_evt_xferfile == x);
    }
    VERIFY(in, LEN, 0);
    GIVES(LEN, lseek(fd, 0, SEEK_CUR)); /* where new_file left it */
    n = fcntl(fd, F_GETFL);
    CHECK((n & O_ACCMODE) == O_RDWR);
    GIVES(0, exs_mderegister(m));
    close(fd);
    free(all);
    free(in);
    end(p);
    end_queue(q);
}

CASE("sendfile-2 sendfile-3", shut_wr_ends_the_direction, STREAMS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    int fd = new_file(5000);
    exs_xferfile_t x = file(fd, 0, 0);
    char in[6000];

    GIVES(0, exs_sendfile(p.a, &x, 1, EXS_SHUT_WR, q, 1));
    close(fd); /* may be closed after the call */
    GIVES(5000, exs_recv(p.b, in, sizeof in, MSG_WAITALL, BLOCK, UNREG));
    VERIFY(in, 5000, 0);
    GIVES(0, exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG));
    GIVES(5000, SENT(next(q, EXS_EVT_SENDFILE)));
    if (exs_send(p.a, in, 1, 0, q, 0, UNREG) == 0)
        next_failed(q, EXS_EVT_SEND, EPIPE);
    else
        GIVES(EPIPE, errno);
    /* the other direction goes on */
    send_all(p.b, "x", 1);
    GIVES(1, exs_recv(p.a, in, 1, 0, BLOCK, UNREG));
    end(p);
    end_queue(q);
}

CASE("sendfile-4", a_file_that_is_shorter_is_reported, STREAMS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    int fd = new_file(5000);
    exs_xferfile_t x[2] = {file(fd, 1000, 5000), memory((char *)"never", 5, UNREG)};
    char in[5000];
    exs_event_t e;

    GIVES(0, exs_sendfile(p.a, x, 2, EXS_SHUT_WR, q, 1));
    e = next_failed(q, EXS_EVT_SENDFILE, EIO);
    GIVES(4000, SENT(e));
    recv_all(p.b, in, 4000);
    VERIFY(in, 4000, 1000);
    /* nothing followed, and the direction goes on */
    send_all(p.a, "x", 1);
    GIVES(1, exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG));
    GIVES('x', in[0]);
    close(fd);
    end(p);
    end_queue(q);
}

CASE("all-3", without_a_queue_it_returns_the_bytes, STREAMS)
{
    struct pair p = connection();
    int fd = new_file(3000);
    exs_xferfile_t x[2] = {memory((char *)"head", 4, UNREG), file(fd, 500, 1500)};
    char in[3000];

    GIVES(1504, exs_sendfile(p.a, x, 2, EXS_SHUT_WR, BLOCK));
    GIVES(1504, exs_recv(p.b, in, sizeof in, MSG_WAITALL, BLOCK, UNREG));
    CHECK(memcmp(in, "head", 4) == 0);
    VERIFY(in + 4, 1500, 500);
    close(fd);
    end(p);
}

/* Receives until the end of the stream, and counts. */
struct sink {
    int fd;
    long long got;
    char last;
};

static void take_all(void *arg)
{
    struct sink *s = arg;
    static char in[1 << 20];
    int n;

    while ((n = exs_recv(s->fd, in, sizeof in, 0, BLOCK, UNREG)) > 0) {
        s->got += n;
        s->last = in[n - 1];
    }
    GIVES(0, n);
}

CASE("sendfile-2 all-10", the_end_comes_after_the_last_byte_of_several_calls,
     LOCAL | EXS | NATIVE | HEAVY)
{
    static const long long most = 0x7ffff000;
    struct pair p = connection();
    struct sink s = {p.b, 0, 0};
    char name[] = "/tmp/exs-conformance-XXXXXX";
    int fd = mkstemp(name);
    exs_xferfile_t x = file(fd, 0, 0);
    struct thread *t;

    /* a hole, and one byte more than a call moves */
    CHECK(fd >= 0 && unlink(name) == 0);
    GIVES(1, pwrite(fd, "e", 1, most));
    t = start(take_all, &s);
    GIVES(most, exs_sendfile(p.a, &x, 1, EXS_SHUT_WR, BLOCK));
    x = file(fd, most, 0);
    GIVES(1, exs_sendfile(p.a, &x, 1, EXS_SHUT_WR, BLOCK));
    join(t);
    GIVES(most + 1, s.got);
    GIVES('e', s.last);
    close(fd);
    end(p);
}

CASE("sendfile-7", a_gone_peer_is_an_error_without_a_signal, STREAMS)
{
    struct pair p = connection();
    int fd = new_file(5000), i;
    exs_xferfile_t x = file(fd, 0, 0);
    sigset_t pipe_only, now;

    end_one(p.b);
    /* SIGPIPE would end this process. The kernel takes bytes until it knows of the end. */
    while (exs_sendfile(p.a, &x, 1, 0, BLOCK) >= 0)
        ;
    CHECK(errno == EPIPE || errno == ECONNRESET);
    /* A thread that had it blocked, and pending, still has. */
    CHECK(sigemptyset(&pipe_only) == 0 && sigaddset(&pipe_only, SIGPIPE) == 0);
    for (i = 0; i < 2; i++) {
        CHECK(exs_sendfile(p.a, &x, 1, 0, BLOCK) == -1);
        CHECK(errno == EPIPE || errno == ECONNRESET);
        GIVES(0, sigpending(&now));
        GIVES(i, sigismember(&now, SIGPIPE));
        CHECK(pthread_sigmask(SIG_BLOCK, &pipe_only, &now) == 0);
        GIVES(i, sigismember(&now, SIGPIPE));
        GIVES(0, raise(SIGPIPE));
    }
    GIVES(SIGPIPE, sigwaitinfo(&pipe_only, NULL));
    CHECK(pthread_sigmask(SIG_UNBLOCK, &pipe_only, NULL) == 0);
    close(fd);
    end_one(p.a);
}

/* Sends a file of which the peer does not take all. */
struct source {
    int fd, file;
    volatile int thread;
};

static void send_much(void *arg)
{
    struct source *s = arg;
    exs_xferfile_t x = file(s->file, 0, 0);
    int n;

    __atomic_store_n(&s->thread, (int)syscall(SYS_gettid), __ATOMIC_RELEASE);
    n = exs_sendfile(s->fd, &x, 1, 0, BLOCK);
    CHECK(n > 0 || errno == EPIPE || errno == ECONNRESET);
}

CASE("sendfile-7", a_peer_that_goes_while_it_waits_is_an_error_without_a_signal, STREAMS)
{
    struct pair p = connection();
    char name[] = "/tmp/exs-conformance-XXXXXX";
    struct source s = {p.a, mkstemp(name), 0};
    struct thread *t;
    int tid;

    CHECK(s.file >= 0 && unlink(name) == 0);
    GIVES(0, ftruncate(s.file, 256 << 20));
    t = start(send_much, &s);
    while ((tid = __atomic_load_n(&s.thread, __ATOMIC_ACQUIRE)) == 0)
        sched_yield();
    await_sleeper(tid);
    /* With data left unread a close would be another error, which has no signal. */
    if (world == LOCAL)
        GIVES(0, exs_shutdown(p.b, SHUT_RD, BLOCK));
    else
        end_one(p.b);
    join(t);
    close(s.file);
    end_one(p.a);
    if (world == LOCAL)
        end_one(p.b);
}

CASE("sendfile-5", lists_without_sense_are_refused, STREAMS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    int fd = new_file(100), null = open("/dev/null", O_RDONLY), write_only, pipe_[2];
    char name[] = "/tmp/exs-conformance-XXXXXX";
    exs_xferfile_t *many = calloc(EXS_IOV_MAX + 1, sizeof *many), x;
    int i, tmp;

    CHECK(many && null >= 0 && pipe(pipe_) == 0);
    for (i = 0; i <= EXS_IOV_MAX; i++)
        many[i] = memory(name, 1, UNREG);
    tmp = mkstemp(name);
    CHECK(tmp >= 0);
    write_only = open(name, O_WRONLY);
    CHECK(write_only >= 0 && unlink(name) == 0);
    FAILS(EINVAL, exs_sendfile(p.a, many, 0, 0, q, 1));
    FAILS(EINVAL, exs_sendfile(p.a, many, -1, 0, q, 1));
    FAILS(EINVAL, exs_sendfile(p.a, many, INT_MIN, 0, BLOCK));
    FAILS(EINVAL, exs_sendfile(p.a, many, EXS_IOV_MAX + 1, 0, q, 1));
    FAILS(EFAULT, exs_sendfile(p.a, NULL, 1, 0, q, 1));
    FAILS(EINVAL, exs_sendfile(p.a, many, 1, 2, q, 1));
    FAILS(EBADF, exs_sendfile(-1, many, 1, 0, q, 1));
    FAILS(EINVAL, exs_sendfile(p.a, many, 1, 0, 4242, 1));
    x = memory(NULL, 1, UNREG);
    FAILS(EFAULT, exs_sendfile(p.a, &x, 1, 0, q, 1));
    x = memory(name, 1, 4242);
    FAILS(EINVAL, exs_sendfile(p.a, &x, 1, 0, q, 1));
    x = file(-1, 0, 1);
    FAILS(EBADF, exs_sendfile(p.a, &x, 1, 0, q, 1));
    x = file(write_only, 0, 1);
    FAILS(EBADF, exs_sendfile(p.a, &x, 1, 0, q, 1));
    x = file(pipe_[0], 0, 1);
    FAILS(EINVAL, exs_sendfile(p.a, &x, 1, 0, q, 1));
    x = file(null, 0, 1);
    FAILS(EINVAL, exs_sendfile(p.a, &x, 1, 0, q, 1));
    x = file(fd, -1, 1);
    FAILS(EINVAL, exs_sendfile(p.a, &x, 1, 0, q, 1));
    x = file(fd, INT64_MAX, 2);
    FAILS(EINVAL, exs_sendfile(p.a, &x, 1, 0, q, 1));
    x = file(fd, 0, UINT64_MAX);
    FAILS(EINVAL, exs_sendfile(p.a, &x, 1, 0, q, 1));
    x.exs_xf_type = 7;
    FAILS(EINVAL, exs_sendfile(p.a, &x, 1, 0, q, 1));
    nothing(q);
    free(many);
    close(tmp);
    close(write_only);
    close(null);
    close(fd);
    close(pipe_[0]);
    close(pipe_[1]);
    end(p);
    end_queue(q);
}

CASE("sendfile-1", it_keeps_its_place_among_sends, STREAMS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(8);
    int fd = new_file(200000), i;
    exs_xferfile_t x = file(fd, 10, 100000);
    static char all[100020], in[100020];
    exs_event_t e;

    fill(all, sizeof all, 0);
    GIVES(0, exs_send(p.a, all, 10, 0, q, 0, UNREG));
    GIVES(0, exs_sendfile(p.a, &x, 1, 0, q, 1));
    GIVES(0, exs_send(p.a, all + 100010, 10, 0, q, 2, UNREG));
    recv_all(p.b, in, sizeof in);
    VERIFY(in, sizeof in, 0);
    for (i = 0; i < 3; i++) {
        e = next_any(q);
        GIVES(i, e.exs_evt_ahandle);
        GIVES(0, e.exs_evt_errno);
    }
    close(fd);
    end(p);
    end_queue(q);
}

CASE("sendfile-6", a_file_or_memory_can_be_a_message, EXSMSG)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(8);
    int fd = new_file(5000);
    exs_xferfile_t x = file(fd, 100, 4000), v[2];
    char text[] = "0123456789", in[5000];

    GIVES(0, exs_sendfile(p.a, &x, 1, 0, q, 1));
    GIVES(4000, exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG));
    VERIFY(in, 4000, 100);
    GIVES(4000, SENT(next(q, EXS_EVT_SENDFILE)));
    v[0] = memory(text, 4, UNREG);
    v[1] = memory(text + 4, 6, UNREG);
    GIVES(0, exs_sendfile(p.a, v, 2, 0, q, 1));
    GIVES(10, exs_recv(p.b, in, sizeof in, 0, BLOCK, UNREG));
    CHECK(memcmp(in, text, 10) == 0);
    GIVES(10, SENT(next(q, EXS_EVT_SENDFILE)));
    /* both together cannot be one message */
    v[1] = x;
    CHECK(exs_sendfile(p.a, v, 2, 0, q, 1) == -1);
    CHECK(errno == EINVAL || errno == EOPNOTSUPP);
    nothing(q);
    close(fd);
    end(p);
    end_queue(q);
}
