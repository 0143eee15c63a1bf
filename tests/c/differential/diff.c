/* Runs the behaviours, and prints one line for each: its name and what it told.
 *
 *   differential --over tcp|soft|shm|verbs [NAME]...
 */
#include "diff.h"

#include <stdarg.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { MOST = 400, TEXT = 1000, AT_ONCE = 6, PATIENCE = 60, WORDS = 3000 };

int over_exs;
char buf[1 << 16];

static struct {
    const char *name;
    void (*body)(void);
} list[MOST];
static int count;
static char (*told)[TEXT]; /* shared with the children */
static char *mine;

void add_behaviour(const char *name, void (*body)(void))
{
    if (count == MOST)
        abort();
    list[count].name = name;
    list[count++].body = body;
}

void say(const char *how, ...)
{
    size_t n = strlen(mine);
    va_list args;

    if (n && n + 1 < TEXT)
        mine[n++] = ' ';
    va_start(args, how);
    vsnprintf(mine + n, TEXT - n, how, args);
    va_end(args);
}

void tell(long result)
{
    const char *name = strerrorname_np(errno);

    if (result == -1)
        say("%s", name ? name : "?");
    else
        say("%ld", result);
}

/* A behaviour that hangs, or dies, is told as such. */
static void judge(int i, int status)
{
    mine = told[i];
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        say("hangs");
    else if (WIFSIGNALED(status))
        say("SIG%s", sigabbrev_np(WTERMSIG(status)));
}

static int wanted(int i, int argc, char **argv)
{
    int j, words = 0;

    for (j = 3; j < argc; j++, words++)
        if (strcmp(argv[j], list[i].name) == 0)
            return 1;
    return words == 0;
}

int main(int argc, char **argv)
{
    pid_t children[MOST] = {0};
    int i, j, running = 0, status;

    if (argc < 3 || strcmp(argv[1], "--over") != 0)
        return 2;
    over_exs = strcmp(argv[2], "tcp") != 0;
    if (over_exs)
        setenv("EXS_TRANSPORT", argv[2], 1);
    told = mmap(NULL, sizeof *told * MOST, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (told == MAP_FAILED)
        return 2;
    for (i = 0; i < count || running > 0;) {
        if (i < count && running < AT_ONCE) {
            if (wanted(i, argc, argv)) {
                children[i] = fork();
                if (children[i] == 0) {
                    mine = told[i];
                    alarm(PATIENCE);
                    list[i].body();
                    /* Connections that are left are cut: no thread waits for their ends. */
                    _exit(0);
                }
                running++;
            }
            i++;
            continue;
        }
        pid_t gone = wait(&status);

        for (j = 0; j < count; j++)
            if (children[j] == gone)
                judge(j, status);
        running--;
    }
    for (i = 0; i < count; i++)
        if (wanted(i, argc, argv))
            printf("%s: %s\n", list[i].name, told[i]);
    return 0;
}

/* ---- What behaviours share ------------------------------------------------------------------ */

struct sockaddr_in v4(const char *ip, int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

    inet_pton(AF_INET, ip, &a.sin_addr);
    return a;
}

struct sockaddr_in6 v6(const char *ip, int port)
{
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};

    inet_pton(AF_INET6, ip, &a.sin6_addr);
    return a;
}

/* Where the device is, in the test bed. */
static const char *here(void)
{
    const char *where = over_exs ? getenv("EXS_TEST_RDMA_ADDR") : NULL;

    return where ? where : "127.0.0.1";
}

int listener(struct sockaddr_in *at)
{
    struct sockaddr_in any = v4(here(), 0);
    socklen_t len = sizeof *at;
    int fd = (int)MUST(make(AF_INET));

    MUST(bind_to(fd, &any, sizeof any));
    MUST(listen_on(fd, 16));
    MUST(name_of(fd, at, &len));
    return fd;
}

static void accepting(struct worker *w) { w->result = accept_from(w->fd, NULL, NULL, 0); }

struct pair pair_at(int listening, const void *addr, socklen_t len, int family)
{
    struct worker w;
    struct pair p;

    begin(&w, accepting, listening);
    p.a = (int)MUST(make(family));
    MUST(connect_to(p.a, addr, len));
    done(&w);
    errno = w.error;
    p.b = (int)MUST(w.result);
    return p;
}

struct pair pair(void)
{
    struct sockaddr_in at;
    int l = listener(&at);
    struct pair p = pair_at(l, &at, sizeof at, AF_INET);

    MUST(finish(l));
    return p;
}

int int_of(int fd, int level, int name)
{
    int value = 0;
    socklen_t len = sizeof value;

    return get(fd, level, name, &value, &len) < 0 ? -1 : value;
}

int set_int(int fd, int level, int name, int value)
{
    return set(fd, level, name, &value, sizeof value);
}

void unwilling(int fd) { MUST(control(fd, F_SETFL, O_NONBLOCK)); }

void cut(int fd)
{
    struct linger now = {1, 0};

    MUST(set(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    MUST(finish(fd));
}

int await(int fd, int events)
{
    struct pollfd p = {.fd = fd, .events = (short)events};
    int n;

    do
        n = poll(&p, 1, WORDS);
    while (n < 0 && errno == EINTR);
    return n > 0 ? p.revents : 0;
}

/* Without a limit of its own: the machine may be busy, and the watchdog ends a hang. A reset that
 * just happens may show POLLERR alone at first. */
void until_readable(int fd)
{
    while (!(await(fd, POLLIN) & POLLIN))
        ;
}

void say_events(int r)
{
    char text[64] = "";

    strcat(text, r & POLLIN ? "IN," : "");
    strcat(text, r & POLLOUT ? "OUT," : "");
    strcat(text, r & POLLRDHUP ? "RDHUP," : "");
    strcat(text, r & POLLHUP ? "HUP," : "");
    strcat(text, r & POLLERR ? "ERR," : "");
    strcat(text, r & POLLPRI ? "PRI," : "");
    if (*text)
        text[strlen(text) - 1] = 0;
    say("%s", *text ? text : "nothing");
}

void say_addr(const struct sockaddr_storage *addr, socklen_t len, int port)
{
    char text[INET6_ADDRSTRLEN] = "?";
    int found = 0;

    if (addr->ss_family == AF_INET) {
        const struct sockaddr_in *a = (const struct sockaddr_in *)addr;

        inet_ntop(AF_INET, &a->sin_addr, text, sizeof text);
        found = ntohs(a->sin_port);
    } else if (addr->ss_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)addr;

        inet_ntop(AF_INET6, &a->sin6_addr, text, sizeof text);
        found = ntohs(a->sin6_port);
    }
    say("%s/%u/%s", text, len, found == 0 ? "none" : port && found != port ? "other" : "port");
}

size_t fill_up(int fd)
{
    size_t all = 0;
    int misses = 0;
    long n;

    /* A size of its own does not grow while it is filled. */
    MUST(set_int(fd, SOL_SOCKET, SO_SNDBUF, 65536));
    while (misses < 3) {
        n = transmit(fd, buf, sizeof buf, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0)
            all += (size_t)n;
        else if (errno != EAGAIN || all > (64u << 20))
            return all;
        else if (poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, 20) == 0)
            misses++;
    }
    return all;
}

static void *run(void *arg)
{
    struct worker *w = arg;

    __atomic_store_n(&w->tid, gettid(), __ATOMIC_RELEASE);
    errno = 0;
    w->body(w);
    w->error = errno;
    return NULL;
}

void begin(struct worker *w, void (*body)(struct worker *), int fd)
{
    memset(w, 0, sizeof *w);
    w->body = body;
    w->fd = fd;
    if (pthread_create(&w->thread, NULL, run, w) != 0)
        abort();
}

void done(struct worker *w) { pthread_join(w->thread, NULL); }

void await_sleep(struct worker *w)
{
    char path[64], text[512];
    int tid, slept = 0;
    char *state;
    FILE *f;

    while ((tid = __atomic_load_n(&w->tid, __ATOMIC_ACQUIRE)) == 0)
        sched_yield();
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    /* Twice in a row: a lock that it sleeps for on its way is not what is meant. */
    while (slept < 20) {
        f = fopen(path, "r");
        if (!f)
            return; /* it has ended */
        if (!fgets(text, sizeof text, f)) {
            fclose(f);
            return;
        }
        fclose(f);
        state = strrchr(text, ')');
        slept = state && state[2] == 'S' ? slept + 1 : 0;
        sched_yield();
    }
}
