/* exs_mregister, exs_mderegister. */
#include "net.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>

CASE("mregister-1", handles_are_distinct_and_print_as_ints, NOWHERE)
{
    static char memory[8192];
    exs_mhandle_t a = exs_mregister(memory, sizeof memory, 0);
    exs_mhandle_t b = exs_mregister(memory, sizeof memory, EXS_MRF_SHARED);
    char text[32];

    CHECK(a != EXS_MHANDLE_INVALID && a != EXS_MHANDLE_UNREGISTERED);
    CHECK(b != EXS_MHANDLE_INVALID && b != EXS_MHANDLE_UNREGISTERED && a != b);
    snprintf(text, sizeof text, "%d", a);
    GIVES(a, atoi(text));
    GIVES(0, exs_mderegister(a));
    GIVES(0, exs_mderegister(b));
}

CASE("mregister-2 all-6", what_is_no_memory_is_refused, NOWHERE)
{
    char byte;

    FAILS(EFAULT, exs_mregister(NULL, 1, 0));
    FAILS(EFAULT, exs_mregister((void *)(UINTPTR_MAX - 15), 64, 0));
    FAILS(EFAULT, exs_mregister(&byte, SIZE_MAX, 0));
    /* where the kernel maps nothing (vm.mmap_min_addr) */
    FAILS(EFAULT, exs_mregister((void *)4096, 1, 0));
    FAILS(EINVAL, exs_mregister(&byte, 0, 0));
    FAILS(EINVAL, exs_mregister(&byte, 1, 2));
    FAILS(EINVAL, exs_mregister(&byte, 1, -1));
}

CASE("all-7", operations_stay_inside_of_it, SOCKETS)
{
    static char memory[10000];
    struct pair p = connection();
    exs_qhandle_t q = new_queue(8);
    exs_mhandle_t m = exs_mregister(memory + 1000, 1000, 0);

    CHECK(m != EXS_MHANDLE_INVALID);
    FAILS(EFAULT, exs_send(p.a, memory + 999, 1, 0, q, 0, m));
    FAILS(EFAULT, exs_send(p.a, memory + 1999, 2, 0, q, 0, m));
    FAILS(EFAULT, exs_recv(p.a, memory + 1000, 1001, 0, q, 0, m));
    FAILS(EFAULT, exs_recv(p.a, memory + 2000, 1, 0, q, 0, m));
    FAILS(EFAULT, exs_recv(p.a, memory, sizeof memory, 0, BLOCK, m));
    nothing(q);
    fill(memory + 1000, 500, 0);
    GIVES(0, exs_recv(p.b, memory + 1500, 500, 0, q, 1, m));
    GIVES(0, exs_send(p.a, memory + 1000, 500, 0, q, 2, m));
    next_any(q);
    next_any(q);
    VERIFY(memory + 1500, 500, 0);
    GIVES(0, exs_mderegister(m));
    end(p);
    end_queue(q);
}

struct job {
    struct pair p;
    exs_mhandle_t m;
    char *memory;
};

/* Each thread its own connection and part of the registration. */
static void exchange(void *arg)
{
    struct job *j = arg;
    exs_qhandle_t q = new_queue(4);
    exs_event_t e[2];
    int i;

    for (i = 0; i < 20; i++) {
        fill(j->memory, 5000, (size_t)i);
        GIVES(0, exs_recv(j->p.b, j->memory + 5000, 5000, MSG_WAITALL, q, 1, j->m));
        GIVES(0, exs_send(j->p.a, j->memory, 5000, 0, q, 2, j->m));
        GIVES(2, exs_qdequeue(q, e, -2, NULL));
        VERIFY(j->memory + 5000, 5000, (size_t)i);
    }
    end_queue(q);
}

CASE("mregister-4", one_serves_all_sockets_and_threads, CONNECTED)
{
    static char memory[4 * 10000];
    exs_mhandle_t m = exs_mregister(memory, sizeof memory, EXS_MRF_SHARED);
    struct thread *t[4];
    struct job j[4];
    int i;

    CHECK(m != EXS_MHANDLE_INVALID);
    for (i = 0; i < 4; i++) {
        j[i] = (struct job){connection(), m, memory + i * 10000};
        t[i] = start(exchange, &j[i]);
    }
    for (i = 0; i < 4; i++) {
        join(t[i]);
        end(j[i].p);
    }
    GIVES(0, exs_mderegister(m));
}

CASE("mregister-3", registrations_may_overlap, SOCKETS)
{
    static char memory[4000];
    struct pair p = connection();
    exs_mhandle_t a = exs_mregister(memory, 3000, 0), b = exs_mregister(memory + 1000, 3000, 0);

    CHECK(a != EXS_MHANDLE_INVALID && b != EXS_MHANDLE_INVALID);
    fill(memory, 1000, 0);
    GIVES(1000, exs_send(p.a, memory, 1000, 0, BLOCK, a));
    GIVES(1000, exs_recv(p.b, memory + 1500, 1000, MSG_WAITALL, BLOCK, b));
    VERIFY(memory + 1500, 1000, 0);
    GIVES(0, exs_mderegister(a));
    VERIFY(memory + 1500, 1000, 0);
    GIVES(0, exs_mderegister(b));
    end(p);
}

CASE("mderegister-1 all-7", what_is_no_registration_is_refused, SOCKETS)
{
    static const int BAD[] = {0, EXS_MHANDLE_INVALID, EXS_MHANDLE_UNREGISTERED, 1, 77, INT_MAX, INT_MIN};
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char byte = 'x';
    exs_mhandle_t m = exs_mregister(&byte, 1, 0);
    size_t i;

    GIVES(0, exs_mderegister(m));
    FAILS(EINVAL, exs_mderegister(m));
    FAILS(EINVAL, exs_send(p.a, &byte, 1, 0, q, 0, m));
    for (i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        FAILS(EINVAL, exs_mderegister(BAD[i]));
        if (BAD[i] == EXS_MHANDLE_UNREGISTERED)
            continue;
        FAILS(EINVAL, exs_send(p.a, &byte, 1, 0, q, 0, BAD[i]));
        FAILS(EINVAL, exs_recv(p.a, &byte, 1, 0, q, 0, BAD[i]));
        FAILS(EINVAL, exs_recv(p.a, &byte, 1, 0, BLOCK, BAD[i]));
    }
    nothing(q);
    end(p);
    end_queue(q);
}

CASE("mderegister-1", operations_in_flight_go_on, SOCKETS)
{
    static char memory[20000];
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    exs_mhandle_t m = exs_mregister(memory, sizeof memory, 0);
    char out[1000];

    fill(out, sizeof out, 0);
    GIVES(0, exs_recv(p.b, memory, sizeof out, 0, q, 1, m));
    GIVES(0, exs_mderegister(m));
    send_all(p.a, out, sizeof out);
    GIVES(sizeof out, LENGTH(next(q, EXS_EVT_RECV)));
    VERIFY(memory, sizeof out, 0);
    end(p);
    end_queue(q);
}

/* A memfd stands for a dma-buf. Of one that is open for reading only, no writable mapping exists. */
CASE("dma-1", memory_of_a_descriptor_is_registered, EXS | EXSMSG)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    int fd = memfd_create("dma", MFD_CLOEXEC), locked;
    exs_mhandle_t m, u;
    exs_remote_t remote;
    void *addr = NULL, *name = NULL;
    char path[64], in[5];

    GIVES(0, ftruncate(fd, 8192));
    m = exs_mregister_dmabuf(fd, 100, 8092, 0, &addr);
    CHECK(m != EXS_MHANDLE_INVALID && addr != NULL);
    memcpy(addr, "hello", 5);
    GIVES(0, exs_send(p.a, addr, 5, 0, q, 1, m));
    GIVES(5, exs_recv(p.b, in, 5, MSG_WAITALL, BLOCK, UNREG));
    CHECK(memcmp(in, "hello", 5) == 0);
    next(q, EXS_EVT_SEND);
    GIVES(5, pread(fd, in, 5, 100));
    CHECK(memcmp(in, "hello", 5) == 0);
    FAILS(EFAULT, exs_send(p.a, (char *)addr + 8091, 2, 0, q, 1, m));

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    locked = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(locked >= 0);
    FAILS(EOPNOTSUPP, exs_mregister_dmabuf(locked, 0, 4096, 0, &name));
    u = exs_mregister_dmabuf(locked, 0, 4096, EXS_MRF_UNMAPPED, &name);
    CHECK(u != EXS_MHANDLE_INVALID && name != NULL);
    FAILS(EOPNOTSUPP, exs_send(p.a, name, 5, 0, q, 1, u));
    FAILS(EOPNOTSUPP, exs_recv(p.a, name, 5, 0, BLOCK, u));
    FAILS(EOPNOTSUPP, exs_export(p.b, name, 4096, EXS_RIGHT_READ, 0, u, &remote));
    CHECK(strstr(exs_strerror(), "processor") != NULL || strstr(exs_strerror(), "dma-buf") != NULL);

    FAILS(EBADF, exs_mregister_dmabuf(-1, 0, 4096, 0, &name));
    FAILS(EFAULT, exs_mregister_dmabuf(fd, 0, 4096, 0, NULL));
    FAILS(EINVAL, exs_mregister_dmabuf(fd, 0, 0, 0, &name));
    FAILS(EINVAL, exs_mregister_dmabuf(fd, 0, 8193, 0, &name));
    FAILS(EINVAL, exs_mregister_dmabuf(fd, 0, 4096, EXS_MRF_SHARED, &name));
    GIVES(0, exs_mderegister(m));
    GIVES(0, exs_mderegister(u));
    close(locked);
    close(fd);
    nothing(q);
    end(p);
    end_queue(q);
}
