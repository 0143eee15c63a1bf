/* The way in which netperf uses ES-API, with the names of ES-API alone: an ordinary TCP
 * socket, 16 sends in flight, half of them awaited by a threshold, a SIGALRM that ends
 * the run; then the rest of the events, shutdown(2) and a blocking recv(2) on the same
 * socket. The peer is a process with a recv(2) loop, which knows nothing of EXS.
 *
 *   netperf_like [MILLISECONDS]
 */
#define _GNU_SOURCE
#define EXS_STRICT /* nothing of this library's own */
#include <sys/exs.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEND_SIZE = 65536, SENDS_MAX = 16 };

static volatile sig_atomic_t times_up;

static void catcher(int signo)
{
    (void)signo;
    times_up = 1;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* The peer: counts what comes, and tells the count over the pipe. */
static void receive_all(int listener, int report)
{
    static char buffer[SEND_SIZE];
    unsigned long long total = 0;
    int s = accept(listener, NULL, NULL);
    ssize_t n;

    if (s < 0)
        die("accept");
    while ((n = recv(s, buffer, sizeof buffer, 0)) > 0)
        total += (unsigned long long)n;
    if (n < 0)
        die("recv");
    if (write(report, &total, sizeof total) != sizeof total)
        die("write");
    close(s);
    _exit(0);
}

static int to_the_peer(int report)
{
    struct sockaddr_in addr;
    socklen_t len = sizeof addr;
    int l = socket(AF_INET, SOCK_STREAM, 0), s = socket(AF_INET, SOCK_STREAM, 0);
    pid_t child;

    memset(&addr, 0, sizeof addr);
    addr.sin_family = AF_INET;
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (l < 0 || s < 0 || bind(l, (struct sockaddr *)&addr, len) || listen(l, 1) ||
        getsockname(l, (struct sockaddr *)&addr, &len))
        die("listener");
    child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        close(s); /* or it would wait for its own end */
        receive_all(l, report);
    }
    close(l);
    if (connect(s, (struct sockaddr *)&addr, len))
        die("connect");
    return s;
}

/* Takes events off the queue; how many sends are still in flight afterwards. */
static int take(exs_qhandle_t queue, int wanted, int pending, unsigned long long *bytes)
{
    exs_event_t vec[SENDS_MAX];
    int i, n = exs_qdequeue(queue, vec, wanted, NULL);

    if (n < 0 && errno == EINTR)
        return pending;
    if (n < 0)
        die("exs_qdequeue");
    for (i = 0; i < n; i++) {
        if (vec[i].exs_evt_type != EXS_EVT_SEND || vec[i].exs_evt_errno != 0 ||
            vec[i].exs_evt_ahandle != (exs_ahandle_t)-1) {
            fprintf(stderr, "an event of type %d, errno %d\n", vec[i].exs_evt_type,
                    vec[i].exs_evt_errno);
            exit(1);
        }
        *bytes += vec[i].exs_evt_union.exs_evt_xfer.exs_evt_length;
    }
    return pending - n;
}

int main(int argc, char **argv)
{
    unsigned long long sent = 0, taken = 0, counted = 0;
    long ms = argc > 1 ? atol(argv[1]) : 100;
    struct itimerval timer = {{0, 0}, {ms / 1000, ms % 1000 * 1000}};
    struct sigaction action;
    exs_qhandle_t queue;
    exs_mhandle_t memory;
    int report[2], s, pending = 0, status;
    char *ring, byte;

    if (pipe(report))
        die("pipe");
    s = to_the_peer(report[1]);
    ring = malloc((size_t)SEND_SIZE * SENDS_MAX);
    if (!ring)
        die("malloc");
    memset(ring, 'n', (size_t)SEND_SIZE * SENDS_MAX);
    if (exs_init(EXS_VERSION) < 0)
        die("exs_init");
    queue = exs_qcreate(SENDS_MAX);
    if (queue == EXS_QHANDLE_INVALID)
        die("exs_qcreate");
    memory = exs_mregister(ring, (size_t)SEND_SIZE * SENDS_MAX, 0);
    if (memory == EXS_MHANDLE_INVALID)
        die("exs_mregister");

    memset(&action, 0, sizeof action);
    action.sa_handler = catcher;
    if (sigaction(SIGALRM, &action, NULL) || setitimer(ITIMER_REAL, &timer, NULL))
        die("timer");
    while (!times_up) {
        /* as many as there may be, then wait for half of them */
        while (!times_up && pending < SENDS_MAX) {
            char *block = ring + sent / SEND_SIZE % SENDS_MAX * SEND_SIZE;

            if (exs_send(s, block, SEND_SIZE, 0, queue, (exs_ahandle_t)-1, memory) < 0) {
                if (errno == EAGAIN || errno == EINTR)
                    break;
                die("exs_send");
            }
            sent += SEND_SIZE;
            pending++;
        }
        pending = take(queue, -(pending >> 1), pending, &taken);
    }
    while (pending > 0)
        pending = take(queue, -pending, pending, &taken);

    /* The socket is as it was: its owner ends it in the usual way. */
    if (shutdown(s, SHUT_WR) < 0)
        die("shutdown");
    if (recv(s, &byte, 1, 0) != 0)
        die("recv");
    close(s);
    if (read(report[0], &counted, sizeof counted) != sizeof counted || wait(&status) < 0)
        die("the peer");
    printf("sent %llu bytes, events of %llu, the peer has %llu (queue %d, memory %d)\n", sent,
           taken, counted, queue, memory);
    free(ring);
    return sent == 0 || sent != taken || sent != counted || status != 0;
}
