/* Processes that end with connections open. */
#include "net.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

enum { MUCH = 1 << 20 };
static char much[MUCH];

static volatile sig_atomic_t unchecked;

/* LeakSanitizer calls this. It must be off in a child of fork(2), which has lost the pointers of its
 * parent's threads, and where an interrupted thread may hold the locks that the check needs. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return unchecked;
}

/* Of what a visitor that exits has sent, all comes, and then the end, as after a close. */
static void all_arrives(void (*sends)(int fd), size_t len)
{
    pid_t child;
    int fd = visitor(&child, sends);
    char in;

    recv_all(fd, much, len);
    VERIFY(much, len, 0);
    GIVES(0, exs_recv(fd, &in, 1, 0, BLOCK, UNREG));
    gone(child, 0);
    end_one(fd);
}

static void sends_and_exits(int fd)
{
    fill(much, MUCH, 0);
    send_all(fd, much, MUCH);
    exit(0);
}

CASE("exit-1", what_was_sent_arrives_and_its_end, CONNECTED | ALONE)
{
    all_arrives(sends_and_exits, MUCH);
}

enum { POSTS = 8, LITTLE = 100 };

static void post_and_exit(int fd, size_t each)
{
    exs_qhandle_t q = new_queue(POSTS);
    int i;

    fill(much, POSTS * each, 0);
    for (i = 0; i < POSTS; i++)
        GIVES(0, exs_send(fd, much + (size_t)i * each, each, 0, q, 1, UNREG));
    exit(0);
}

static void posts_and_exits(int fd)
{
    post_and_exit(fd, MUCH / POSTS);
}

CASE("exit-1", what_is_still_being_sent_arrives, EXS | EXSMSG | ALONE)
{
    all_arrives(posts_and_exits, MUCH);
}

static void posts_little_and_exits(int fd)
{
    post_and_exit(fd, LITTLE);
}

CASE("exit-1", what_waits_for_others_arrives, CONNECTED | ALONE)
{
    all_arrives(posts_little_and_exits, POSTS * LITTLE);
}

static void *waits_for_data(void *arg)
{
    static char in;

    exs_recv(*(int *)arg, &in, 1, 0, BLOCK, UNREG);
    _exit(10);
}

static void *waits_for_events(void *arg)
{
    exs_event_t e;

    exs_qdequeue(*(exs_qhandle_t *)arg, &e, 1, NULL);
    _exit(11);
}

static void *sends_on_and_on(void *arg)
{
    while (exs_send(*(int *)arg, "x", 1, 0, BLOCK, UNREG) == 1)
        ;
    _exit(12);
}

static void exits_beside_threads(int fd)
{
    static int conn;
    static exs_qhandle_t q;
    static char in[2];
    pthread_t t;

    conn = fd;
    q = new_queue(8);
    GIVES(0, exs_recv(fd, in, 1, 0, q, 1, UNREG));
    CHECK(pthread_create(&t, NULL, waits_for_events, &q) == 0);
    CHECK(pthread_create(&t, NULL, waits_for_data, &conn) == 0);
    CHECK(pthread_create(&t, NULL, sends_on_and_on, &conn) == 0);
    exit(0);
}

/* They would say so by the child's status. */
CASE("exit-2", other_threads_hear_nothing_of_it, CONNECTED | ALONE)
{
    static char in[1 << 12];
    pid_t child;
    int fd = visitor(&child, exits_beside_threads), n;

    while ((n = exs_recv(fd, in, sizeof in, 0, BLOCK, UNREG)) > 0)
        ;
    GIVES(0, n);
    gone(child, 0);
    end_one(fd);
}

/* Nothing that holds an exit up goes unseen. */
static void linger_for_an_hour(int fd)
{
    struct linger l = {1, 3600};

    GIVES(0, exs_setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
}

enum { CONVERSATIONS = 4, ROUNDS = 200, SHORT = 64 };
static int rounds;

static int receives_short(int fd, char *bytes)
{
    int have = 0, n;

    while (have < SHORT) {
        n = exs_recv(fd, bytes + have, (size_t)(SHORT - have), 0, BLOCK, UNREG);
        if (n <= 0)
            return 0;
        have += n;
    }
    return 1;
}

static void *asks(void *arg)
{
    char bytes[SHORT] = "";
    int fd = *(int *)arg;

    for (;;) {
        if (exs_send(fd, bytes, SHORT, 0, BLOCK, UNREG) != SHORT)
            _exit(13);
        if (!receives_short(fd, bytes))
            _exit(14);
        __atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
    }
}

static void *answers(void *arg)
{
    char bytes[SHORT];
    int fd = *(int *)arg;

    for (;;) {
        if (!receives_short(fd, bytes))
            _exit(15);
        if (exs_send(fd, bytes, SHORT, 0, BLOCK, UNREG) != SHORT)
            _exit(16);
    }
}

/* Threads that ask and answer on connections within the process. They have borrowed these by then. */
static void begin_conversations(void)
{
    static struct pair p[CONVERSATIONS];
    pthread_t t;
    int i;

    for (i = 0; i < CONVERSATIONS; i++) {
        p[i] = connection();
        linger_for_an_hour(p[i].a);
        linger_for_an_hour(p[i].b);
        CHECK(pthread_create(&t, NULL, answers, &p[i].b) == 0);
        CHECK(pthread_create(&t, NULL, asks, &p[i].a) == 0);
    }
    while (__atomic_load_n(&rounds, __ATOMIC_RELAXED) < CONVERSATIONS * ROUNDS)
        sched_yield();
}

static void exits_amid_conversations(int fd)
{
    linger_for_an_hour(fd);
    begin_conversations();
    exit(0);
}

/* Both ends of each are closed, one after the other. */
CASE("exit-2", threads_that_converse_hear_nothing_of_it, EXS | ALONE | NATIVE)
{
    pid_t child;
    int fd = visitor(&child, exits_amid_conversations);
    char in;

    GIVES(0, exs_recv(fd, &in, 1, 0, BLOCK, UNREG));
    gone(child, 0);
    end_one(fd);
}

static int last;
static pthread_t joined[3];

/* An exit handler that runs after the library's. */
static void joins_its_threads(void)
{
    size_t i;

    for (i = 0; last && i < sizeof joined / sizeof *joined; i++)
        CHECK(pthread_join(joined[i], NULL) == 0);
}

static void is_closed(int fd)
{
    char byte = 'x';

    FAILS(EBADF, exs_send(fd, &byte, 1, 0, BLOCK, UNREG));
    FAILS(EBADF, exs_recv(fd, &byte, 1, MSG_DONTWAIT, BLOCK, UNREG));
}

static void *receives_until_it_fails(void *arg)
{
    char in;

    CHECK(exs_recv(*(int *)arg, &in, 1, 0, BLOCK, UNREG) == -1);
    CHECK(errno == ECANCELED || errno == EBADF);
    is_closed(*(int *)arg);
    return NULL;
}

static void *sends_until_it_fails(void *arg)
{
    while (exs_send(*(int *)arg, "x", 1, 0, BLOCK, UNREG) == 1)
        ;
    CHECK(errno == ECANCELED || errno == EBADF);
    is_closed(*(int *)arg);
    return NULL;
}

static exs_qhandle_t events;

static void *dequeues_the_last_event(void *arg)
{
    exs_event_t e = next_any(events);

    GIVES(EXS_EVT_RECV, e.exs_evt_type);
    GIVES(ECANCELED, e.exs_evt_errno);
    is_closed(*(int *)arg);
    return NULL;
}

static void exits_and_joins(int fd)
{
    static int conn;
    static char in;

    conn = fd;
    last = 1;
    events = new_queue(8);
    GIVES(0, exs_recv(fd, &in, 1, 0, events, 1, UNREG));
    CHECK(pthread_create(&joined[0], NULL, dequeues_the_last_event, &conn) == 0);
    CHECK(pthread_create(&joined[1], NULL, receives_until_it_fails, &conn) == 0);
    CHECK(pthread_create(&joined[2], NULL, sends_until_it_fails, &conn) == 0);
    exit(0);
}

CASE("exit-6", a_process_that_joins_its_threads_ends, EXS | EXSMSG | ALONE)
{
    static char in[1 << 12];
    pid_t child;
    int fd, n;

    CHECK(atexit(joins_its_threads) == 0);
    fd = visitor(&child, exits_and_joins);
    while ((n = exs_recv(fd, in, sizeof in, 0, BLOCK, UNREG)) > 0)
        ;
    GIVES(0, n);
    gone(child, 0);
    end_one(fd);
}

static void on_term(int signal)
{
    (void)signal;
    unchecked = 1;
    exit(0);
}

static void waits_until_it_is_told(int fd)
{
    exs_event_t e;
    exs_qhandle_t q = new_queue(8);

    linger_for_an_hour(fd);
    signal(SIGTERM, on_term);
    fill(much, 1, 0);
    send_all(fd, much, 1);
    exs_qdequeue(q, &e, 1, NULL);
    _exit(10);
}

/* The interrupted wait may hold locks that exit(3) needs. */
CASE("exit-1", a_signal_handler_ends_it_in_a_wait, CONNECTED | ALONE | NATIVE)
{
    pid_t child;
    int fd = visitor(&child, waits_until_it_is_told);

    recv_all(fd, much, 1);
    await_sleeper(child);
    GIVES(0, kill(child, SIGTERM));
    GIVES(0, exs_recv(fd, much, 1, 0, BLOCK, UNREG));
    gone(child, 0);
    end_one(fd);
}

static void receives_until_it_is_told(int fd)
{
    sigset_t term;
    char byte = 'x';
    int i;

    /* Another thread must not get the signal. */
    CHECK(sigemptyset(&term) == 0 && sigaddset(&term, SIGTERM) == 0);
    CHECK(pthread_sigmask(SIG_BLOCK, &term, NULL) == 0);
    linger_for_an_hour(fd);
    begin_conversations();
    signal(SIGTERM, on_term);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &term, NULL) == 0);
    for (i = 0; i < ROUNDS; i++) {
        send_all(fd, &byte, 1);
        recv_all(fd, &byte, 1);
    }
    send_all(fd, &byte, 1);
    exs_recv(fd, &byte, 1, 0, BLOCK, UNREG);
    _exit(10);
}

/* The thread has borrowed the connection, and reads it itself. */
CASE("exit-1", a_signal_handler_ends_it_in_a_receive, EXS | ALONE | NATIVE)
{
    pid_t child;
    int fd = visitor(&child, receives_until_it_is_told), i;
    char byte;

    for (i = 0; i < ROUNDS; i++) {
        recv_all(fd, &byte, 1);
        send_all(fd, &byte, 1);
    }
    recv_all(fd, &byte, 1);
    await_sleeper(child);
    GIVES(0, kill(child, SIGTERM));
    GIVES(0, exs_recv(fd, &byte, 1, 0, BLOCK, UNREG));
    gone(child, 0);
    end_one(fd);
}

enum { BUSY = 8 };

static void is_busy_until_it_is_told(struct place *at)
{
    int fd = new_socket();
    struct pair own;
    char in;

    signal(SIGTERM, on_term);
    GIVES(0, exs_connect(fd, ADDR(*at), at->len, 0, BLOCK));
    own = connection();
    linger_for_an_hour(fd);
    linger_for_an_hour(own.a);
    linger_for_an_hour(own.b);
    send_all(fd, "x", 1);
    for (;;) {
        send_all(own.a, "x", 1);
        recv_all(own.b, &in, 1);
    }
}

/* Wherever the signal meets them, they end: with a close, unless it was in the library. */
CASE("exit-5", a_signal_handler_ends_it_anywhere, CONNECTED | ALONE | NATIVE)
{
    pid_t child[BUSY];
    int fd[BUSY], say[2], l, i, n;
    struct place at;
    char in;

    CHECK(pipe(say) == 0);
    for (i = 0; i < BUSY; i++) {
        child[i] = fork();
        CHECK(child[i] >= 0);
        if (child[i] == 0) {
            GIVES(sizeof at, read(say[0], &at, sizeof at));
            is_busy_until_it_is_told(&at);
        }
    }
    l = listener(&at);
    for (i = 0; i < BUSY; i++)
        GIVES(sizeof at, write(say[1], &at, sizeof at));
    for (i = 0; i < BUSY; i++) {
        CHECK((fd[i] = exs_accept(l, NULL, 0, BLOCK)) >= 0);
        recv_all(fd[i], &in, 1);
    }
    for (i = 0; i < BUSY; i++)
        GIVES(0, kill(child[i], SIGTERM));
    for (i = 0; i < BUSY; i++) {
        n = exs_recv(fd[i], &in, 1, 0, BLOCK, UNREG);
        CHECK(n == 0 || (n == -1 && errno == ECONNRESET));
        end_one(fd[i]);
    }
    for (i = 0; i < BUSY; i++)
        gone(child[i], 0);
    end_one(l);
}

CASE("exit-3", a_child_that_exits_ends_nothing, CONNECTED | ALONE | NATIVE)
{
    struct pair p = connection();
    pid_t child = fork();
    int i;

    CHECK(child >= 0);
    if (child == 0) {
        unchecked = 1;
        exit(0);
    }
    gone(child, 0);
    for (i = 0; i < 100; i++) {
        fill(much, 64, 0);
        send_all(p.a, much, 64);
        recv_all(p.b, much, 64);
    }
    end(p);
}

static int told[2], ready[2];

static void lingers(int fd)
{
    struct linger l = {1, 1};
    char in;

    GIVES(0, exs_setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    GIVES(1, write(ready[1], "r", 1));
    GIVES(1, read(told[0], &in, 1));
    exit(0);
}

CASE("exit-4", a_peer_that_stands_still_holds_it_up_for_linger_at_most, EXS | EXSMSG | ALONE)
{
    pid_t peer, child;
    int status, to_us[2];
    char in;

    CHECK(pipe(told) == 0 && pipe(ready) == 0 && pipe(to_us) == 0);
    peer = fork();
    CHECK(peer >= 0);
    if (peer == 0) {
        visitor(&child, lingers);
        close(ready[1]);
        GIVES(sizeof child, write(to_us[1], &child, sizeof child));
        for (;;)
            pause();
    }
    GIVES(sizeof child, read(to_us[0], &child, sizeof child));
    GIVES(1, read(ready[0], &in, 1));
    GIVES(0, kill(peer, SIGSTOP));
    CHECK(waitpid(peer, &status, WUNTRACED) == peer && WIFSTOPPED(status));
    GIVES(1, write(told[1], "e", 1));
    /* It is not our child: what is closed with it tells that it has ended. */
    close(ready[1]);
    while (read(ready[0], &in, 1) > 0)
        ;
    GIVES(0, kill(peer, SIGKILL));
    GIVES(peer, waitpid(peer, &status, 0));
}
