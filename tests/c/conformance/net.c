#include "net.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

/* ---- Sockets -------------------------------------------------------------------------- */

static int is_local(void) { return world == LOCAL; }

struct place any_place(void)
{
    static int names;
    struct place p;
    /* In the test bed, where the device is. */
    const char *where = ON_EXS ? getenv("EXS_TEST_RDMA_ADDR") : NULL;

    memset(&p, 0, sizeof p);
    if (is_local()) {
        struct sockaddr_un *un = (struct sockaddr_un *)&p.addr;
        int n;

        un->sun_family = AF_UNIX;
        /* a name that is in no file system */
        n = snprintf(un->sun_path + 1, sizeof un->sun_path - 1, "exs-conformance-%d-%d", getpid(),
                     names++);
        p.len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    } else {
        struct sockaddr_in *in = (struct sockaddr_in *)&p.addr;

        in->sin_family = AF_INET;
        CHECK(inet_pton(AF_INET, where ? where : "127.0.0.1", &in->sin_addr) == 1);
        p.len = sizeof *in;
    }
    return p;
}

int new_socket(void)
{
    int fd;

    switch (world) {
    case EXS: fd = exs_socket(AF_INET, SOCK_STREAM, 0); break;
    case EXSMSG: fd = exs_socket(AF_INET, SOCK_SEQPACKET, 0); break;
    case LOCAL: fd = socket(AF_UNIX, SOCK_STREAM, 0); break;
    case UDP: fd = socket(AF_INET, SOCK_DGRAM, 0); break;
    default: fd = socket(AF_INET, SOCK_STREAM, 0); break;
    }
    CHECK(fd >= 0);
    return fd;
}

static int bound(struct place *at)
{
    int fd = new_socket();

    *at = any_place();
    GIVES(0, exs_bind(fd, ADDR(*at), at->len));
    return fd;
}

static void learn(int fd, struct place *at)
{
    at->len = sizeof at->addr;
    GIVES(0, exs_getsockname(fd, ADDR(*at), &at->len));
}

int listener(struct place *at)
{
    int fd = bound(at);

    GIVES(0, exs_listen(fd, 64));
    learn(fd, at);
    return fd;
}

static struct pair datagrams(void)
{
    struct place a, b;
    struct pair p;

    p.a = bound(&a);
    p.b = bound(&b);
    learn(p.a, &a);
    learn(p.b, &b);
    GIVES(0, exs_connect(p.a, ADDR(b), b.len, 0, BLOCK));
    GIVES(0, exs_connect(p.b, ADDR(a), a.len, 0, BLOCK));
    return p;
}

struct pair connection(void)
{
    struct place at;
    struct pair p;
    exs_qhandle_t q;
    exs_event_t e;
    int i, l;

    if (world == UDP)
        return datagrams();
    l = listener(&at);
    q = new_queue(2);
    p.a = new_socket();
    p.b = -1;
    GIVES(0, exs_accept(l, NULL, 0, q, 1));
    GIVES(0, exs_connect(p.a, ADDR(at), at.len, 0, q, 2));
    for (i = 0; i < 2; i++) {
        e = next_any(q);
        CHECK(e.exs_evt_errno == 0);
        if (e.exs_evt_type == EXS_EVT_ACCEPT)
            p.b = e.exs_evt_union.exs_evt_accept.exs_evt_newsocket;
    }
    CHECK(p.b >= 0);
    end_queue(q);
    end_one(l);
    return p;
}

void nonblocking(int fd) { GIVES(0, exs_fcntl(fd, F_SETFL, O_NONBLOCK)); }

void end_one(int fd) { GIVES(0, exs_close(fd, EXS_CLOSE_ABORT, BLOCK)); }

void end(struct pair p)
{
    end_one(p.a);
    end_one(p.b);
}

/* ---- Events ----------------------------------------------------------------------------- */

exs_qhandle_t new_queue(int depth)
{
    exs_qhandle_t q = exs_qcreate(depth);

    CHECK(q != EXS_QHANDLE_INVALID);
    return q;
}

void end_queue(exs_qhandle_t q) { GIVES(0, exs_qdelete(q)); }

exs_event_t next_any(exs_qhandle_t q)
{
    exs_event_t e;

    GIVES(1, exs_qdequeue(q, &e, 1, NULL));
    return e;
}

exs_event_t next_failed(exs_qhandle_t q, int type, int error)
{
    exs_event_t e = next_any(q);

    if (e.exs_evt_type != type || e.exs_evt_errno != error)
        failed(__FILE__, __LINE__, "an event of type %d, errno %d (%s), not type %d, errno %d",
               e.exs_evt_type, e.exs_evt_errno, exs_strerror(), type, error);
    return e;
}

exs_event_t next(exs_qhandle_t q, int type) { return next_failed(q, type, 0); }

void nothing(exs_qhandle_t q)
{
    exs_event_t e;

    GIVES(0, exs_qdequeue(q, &e, 1, NOW));
}

/* ---- Bytes ------------------------------------------------------------------------------ */

static unsigned char byte_at(size_t i) { return (unsigned char)(i * 7 + (i >> 8) * 13 + (i >> 16)); }

void fill(void *buf, size_t len, size_t offset)
{
    unsigned char *b = buf;
    size_t i;

    for (i = 0; i < len; i++)
        b[i] = byte_at(offset + i);
}

void verify_at(const char *file, int line, const void *buf, size_t len, size_t offset)
{
    const unsigned char *b = buf;
    size_t i;

    for (i = 0; i < len; i++)
        if (b[i] != byte_at(offset + i))
            failed(file, line, "byte %zu of %zu is %#x, not %#x", i, len, b[i], byte_at(offset + i));
}

void send_all(int fd, const void *buf, size_t len)
{
    size_t done = 0;

    while (done < len) {
        int n = exs_send(fd, (char *)(uintptr_t)buf + done, len - done, 0, BLOCK, UNREG);

        CHECK(n > 0);
        done += (size_t)n;
    }
}

void recv_all(int fd, void *buf, size_t len)
{
    size_t done = 0;

    while (done < len) {
        int n = exs_recv(fd, (char *)buf + done, len - done, 0, BLOCK, UNREG);

        CHECK(n > 0);
        done += (size_t)n;
    }
}

int new_file(size_t len)
{
    int fd = memfd_create("conformance", MFD_CLOEXEC);
    char *bytes = malloc(len ? len : 1);

    CHECK(fd >= 0 && bytes);
    fill(bytes, len, 0);
    GIVES((long long)len, write(fd, bytes, len));
    free(bytes);
    return fd;
}

/* ---- Threads ---------------------------------------------------------------------------- */

struct thread {
    pthread_t id;
    void (*body)(void *);
    void *arg;
};

static void *run(void *t)
{
    struct thread *self = t;

    self->body(self->arg);
    return NULL;
}

struct thread *start(void (*body)(void *), void *arg)
{
    struct thread *t = malloc(sizeof *t);

    CHECK(t);
    t->body = body;
    t->arg = arg;
    GIVES(0, pthread_create(&t->id, NULL, run, t));
    return t;
}

void join(struct thread *t)
{
    GIVES(0, pthread_join(t->id, NULL));
    free(t);
}

void await_sleeper(int tid)
{
    char path[64], text[512];
    char *state;
    FILE *f;

    for (;;) {
        snprintf(path, sizeof path, "/proc/%d/stat", tid);
        f = fopen(path, "r");
        CHECK(f);
        CHECK(fgets(text, sizeof text, f));
        fclose(f);
        state = strrchr(text, ')');
        if (state && state[2] == 'S')
            return;
        sched_yield();
    }
}

int visitor(pid_t *child, void (*body)(int fd))
{
    int say[2], l, fd;
    struct place at;

    CHECK(pipe(say) == 0);
    *child = fork();
    CHECK(*child >= 0);
    if (*child == 0) {
        GIVES(sizeof at, read(say[0], &at, sizeof at));
        fd = new_socket();
        GIVES(0, exs_connect(fd, ADDR(at), at.len, 0, BLOCK));
        body(fd);
        _exit(3);
    }
    l = listener(&at);
    GIVES(sizeof at, write(say[1], &at, sizeof at));
    fd = exs_accept(l, NULL, 0, BLOCK);
    CHECK(fd >= 0);
    end_one(l);
    close(say[0]);
    close(say[1]);
    return fd;
}

void gone(pid_t child, int status_wanted)
{
    int status;

    GIVES(child, waitpid(child, &status, 0));
    CHECK(WIFEXITED(status));
    GIVES(status_wanted, WEXITSTATUS(status));
}

/* ---- What the kernel says ---------------------------------------------------------------- */

int tcp_connections(const struct sockaddr *to)
{
    unsigned wanted = ntohs(((const struct sockaddr_in *)to)->sin_port), from[64], mine, port, state;
    FILE *list = fopen("/proc/self/net/tcp", "r");
    char line[256];
    int n = 0, i;

    CHECK(list);
    while (fgets(line, sizeof line, list)) {
        if (sscanf(line, " %*d: %*x:%x %*x:%x %x", &mine, &port, &state) != 3)
            continue;
        if (port != wanted || state != 1 /* TCP_ESTABLISHED */)
            continue;
        for (i = 0; i < n && from[i] != mine; i++)
            ;
        if (i == n && n < 64)
            from[n++] = mine;
    }
    fclose(list);
    return n;
}
