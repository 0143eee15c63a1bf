/* exs_qdequeue: counts, timeouts, errors. What signals do to it: signals.c. */
#include "net.h"

#include <limits.h>

/* Posts `n` sends of a byte, named 0 to n - 1. */
static void post(struct pair p, exs_qhandle_t q, int n)
{
    static char byte = 'x';
    int i;

    for (i = 0; i < n; i++)
        GIVES(0, exs_send(p.a, &byte, 1, 0, q, (exs_ahandle_t)i, UNREG));
}

/* Waits, without taking any, until `n` events are there. */
static void await(exs_qhandle_t q, int n)
{
    int waiting = 0;

    while (waiting < n)
        GIVES(0, exs_qmodify(q, EXS_QATTR_EVENTS, &waiting));
}

CASE("qdequeue-1 qdequeue-8", a_count_takes_what_is_there_up_to_it, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(8);
    exs_event_t e[8];
    int i;

    post(p, q, 5);
    await(q, 5);
    GIVES(3, exs_qdequeue(q, e, 3, NULL));
    for (i = 0; i < 3; i++)
        GIVES(i, e[i].exs_evt_ahandle);
    GIVES(2, exs_qdequeue(q, e, 8, NULL));
    for (i = 0; i < 2; i++)
        GIVES(i + 3, e[i].exs_evt_ahandle);
    end(p);
    end_queue(q);
}

CASE("qdequeue-2", a_negative_count_is_a_threshold, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(16);
    exs_event_t e[16];

    post(p, q, 16);
    GIVES(8, exs_qdequeue(q, e, -8, NULL));
    GIVES(8, exs_qdequeue(q, e, -8, NULL));
    GIVES(15, e[7].exs_evt_ahandle);
    nothing(q);
    end(p);
    end_queue(q);
}

CASE("qdequeue-3", a_count_of_none_takes_none, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    exs_event_t e;

    GIVES(0, exs_qdequeue(q, &e, 0, NULL));
    GIVES(0, exs_qdequeue(q, NULL, 0, NULL));
    post(p, q, 1);
    await(q, 1);
    GIVES(0, exs_qdequeue(q, &e, 0, NULL));
    next(q, EXS_EVT_SEND);
    end(p);
    end_queue(q);
}

CASE("qdequeue-4", no_time_is_no_wait, NOWHERE)
{
    exs_qhandle_t q = new_queue(4);
    exs_event_t e[4];

    GIVES(0, exs_qdequeue(q, e, 1, NOW));
    GIVES(0, exs_qdequeue(q, e, -4, NOW));
    end_queue(q);
}

CASE("qdequeue-4", when_the_time_is_up_what_is_there_is_taken, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    struct timeval t = {0, 20000};
    exs_event_t e[4];

    post(p, q, 1);
    await(q, 1);
    GIVES(1, exs_qdequeue(q, e, -4, &t));
    GIVES(0, exs_qdequeue(q, e, 4, &t));
    post(p, q, 2);
    await(q, 2);
    GIVES(2, exs_qdequeue(q, e, -3, NOW));
    end(p);
    end_queue(q);
}

CASE("qdequeue-4", the_timeout_is_not_changed, NOWHERE)
{
    exs_qhandle_t q = new_queue(4);
    struct timeval t = {0, 5000};
    exs_event_t e;

    GIVES(0, exs_qdequeue(q, &e, 1, &t));
    CHECK(t.tv_sec == 0 && t.tv_usec == 5000);
    end_queue(q);
}

static void send_a_byte(void *fd) { send_all(*(int *)fd, "x", 1); }

CASE("qdequeue-4", without_a_timeout_it_waits, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    struct thread *t;
    char byte;

    GIVES(0, exs_recv(p.a, &byte, 1, 0, q, 1, UNREG));
    nothing(q);
    t = start(send_a_byte, &p.b);
    GIVES(1, LENGTH(next(q, EXS_EVT_RECV)));
    join(t);
    end(p);
    end_queue(q);
}

CASE("qdequeue-6", the_count_has_bounds, NOWHERE)
{
    exs_event_t *e = calloc(EXS_EVTVEC_MAX, sizeof *e);
    exs_qhandle_t q = new_queue(EXS_EVTVEC_MAX), small = new_queue(3);

    CHECK(e && EXS_EVTVEC_MAX >= 16);
    GIVES(0, exs_qdequeue(q, e, EXS_EVTVEC_MAX, NOW));
    GIVES(0, exs_qdequeue(q, e, -EXS_EVTVEC_MAX, NOW));
    FAILS(EINVAL, exs_qdequeue(q, e, EXS_EVTVEC_MAX + 1, NOW));
    FAILS(EINVAL, exs_qdequeue(q, e, -EXS_EVTVEC_MAX - 1, NOW));
    FAILS(EINVAL, exs_qdequeue(q, e, INT_MAX, NOW));
    FAILS(EINVAL, exs_qdequeue(q, e, INT_MIN, NOW));
    /* more than can ever be there */
    FAILS(EINVAL, exs_qdequeue(small, e, -4, NULL));
    GIVES(0, exs_qdequeue(small, e, -3, NOW));
    GIVES(0, exs_qdequeue(small, e, 4, NOW));
    end_queue(q);
    end_queue(small);
    free(e);
}

CASE("qdequeue-7", a_time_without_sense_is_refused, NOWHERE)
{
    static const struct timeval BAD[] = {{-1, 0}, {0, -1}, {0, 1000000}, {1, INT_MAX}};
    exs_qhandle_t q = new_queue(4);
    exs_event_t e;
    size_t i;

    for (i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        struct timeval t = BAD[i];

        FAILS(EINVAL, exs_qdequeue(q, &e, 1, &t));
    }
    end_queue(q);
}

CASE("qdequeue-7", events_need_a_place, NOWHERE)
{
    exs_qhandle_t q = new_queue(4);

    FAILS(EFAULT, exs_qdequeue(q, NULL, 1, NOW));
    FAILS(EFAULT, exs_qdequeue(q, NULL, -1, NOW));
    end_queue(q);
}

CASE("qdequeue-4", a_very_long_time_is_one, SOCKETS)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    struct timeval t = {LONG_MAX, 999999};
    exs_event_t e;

    post(p, q, 1);
    GIVES(1, exs_qdequeue(q, &e, 1, &t));
    end(p);
    end_queue(q);
}
