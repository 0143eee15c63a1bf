/* Pairs of threads, each with a connection, that ask and answer 64 bytes with calls that block. One
 * line: answers in a second, of all pairs.
 *
 *   pairs PAIRS tcp|soft|shm SECONDS
 *
 * tcp: kernel sockets and the kernel's own calls. */
#define _GNU_SOURCE
#include <sys/exs.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIZE = 64, MOST = 1000 };
#define BLOCK EXS_QHANDLE_INVALID, 0
#define UNREG EXS_MHANDLE_UNREGISTERED

static int kernel;
/* Set when the time is over. */
static int over;

/* One of the two ends, and its thread. */
struct end {
    int fd;
    pthread_t thread;
    long answers;
};

static void check(int good, const char *what)
{
    if (good)
        return;
    perror(what);
    exit(1);
}

static void put(int fd, char *bytes)
{
    ssize_t n = kernel ? send(fd, bytes, SIZE, 0) : exs_send(fd, bytes, SIZE, 0, BLOCK, UNREG);

    check(n == SIZE, "send");
}

/* Returns 0 at the end. */
static int get(int fd, char *bytes)
{
    size_t have = 0;

    while (have < SIZE) {
        size_t left = SIZE - have;
        ssize_t n = kernel ? recv(fd, bytes + have, left, 0)
                           : exs_recv(fd, bytes + have, left, 0, BLOCK, UNREG);

        check(n >= 0, "recv");
        if (n == 0)
            return 0;
        have += (size_t)n;
    }
    return 1;
}

static void *ask(void *arg)
{
    struct end *own = arg;
    char bytes[SIZE] = "";

    while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
        put(own->fd, bytes);
        check(get(own->fd, bytes), "an answer");
        own->answers++;
    }
    check((kernel ? shutdown(own->fd, SHUT_WR) : exs_shutdown(own->fd, SHUT_WR, BLOCK)) == 0,
          "shutdown");
    return NULL;
}

static void *answer(void *arg)
{
    struct end *own = arg;
    char bytes[SIZE];

    while (get(own->fd, bytes))
        put(own->fd, bytes);
    return NULL;
}

static int new_socket(void)
{
    int fd = kernel ? socket(AF_INET, SOCK_STREAM, 0) : exs_socket(AF_INET, SOCK_STREAM, 0);

    check(fd >= 0, "socket");
    return fd;
}

static void without_delay(int fd)
{
    int on = 1;

    if (kernel)
        check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0, "TCP_NODELAY");
}

/* Both ends of a new connection. */
static void connection(int l, const struct sockaddr *to, socklen_t len, int *asker, int *answerer)
{
    *asker = new_socket();
    check((kernel ? connect(*asker, to, len) : exs_connect(*asker, to, len, 0, BLOCK)) == 0, "connect");
    *answerer = kernel ? accept(l, NULL, NULL) : exs_accept(l, NULL, 0, BLOCK);
    check(*answerer >= 0, "accept");
    without_delay(*asker);
    without_delay(*answerer);
}

int main(int argc, char **argv)
{
    static struct end askers[MOST], answerers[MOST];
    struct sockaddr_in at = {.sin_family = AF_INET};
    struct timespec seconds = {0, 0};
    socklen_t len = sizeof at;
    long answers = 0;
    int pairs, l, i;

    pairs = argc == 4 ? atoi(argv[1]) : 0;
    if (pairs < 1 || pairs > MOST) {
        fprintf(stderr, "usage: pairs PAIRS tcp|soft|shm SECONDS (at most %d pairs)\n", MOST);
        return 2;
    }
    kernel = strcmp(argv[2], "tcp") == 0;
    seconds.tv_sec = atoi(argv[3]);
    if (!kernel) {
        check(setenv("EXS_TRANSPORT", argv[2], 1) == 0, "setenv");
        check(exs_init(EXS_VERSION) == 0, "exs_init");
    }
    l = new_socket();
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check((kernel ? bind(l, (void *)&at, len) : exs_bind(l, (void *)&at, len)) == 0, "bind");
    check((kernel ? listen(l, 64) : exs_listen(l, 64)) == 0, "listen");
    check((kernel ? getsockname(l, (void *)&at, &len) : exs_getsockname(l, (void *)&at, &len)) == 0,
          "getsockname");
    for (i = 0; i < pairs; i++)
        connection(l, (void *)&at, len, &askers[i].fd, &answerers[i].fd);
    for (i = 0; i < pairs; i++) {
        check(pthread_create(&answerers[i].thread, NULL, answer, &answerers[i]) == 0, "a thread");
        check(pthread_create(&askers[i].thread, NULL, ask, &askers[i]) == 0, "a thread");
    }
    nanosleep(&seconds, NULL);
    __atomic_store_n(&over, 1, __ATOMIC_RELAXED);
    for (i = 0; i < pairs; i++) {
        check(pthread_join(askers[i].thread, NULL) == 0, "the end of a thread");
        check(pthread_join(answerers[i].thread, NULL) == 0, "the end of a thread");
        answers += askers[i].answers;
    }
    printf("%.0f\n", (double)answers / (double)seconds.tv_sec);
    return 0;
}
