/* Runs the cases, each in a process of its own, and prints lines as TAP has them.
 *
 *   conformance [--transport NAME] [--together] [--emulated] [--light] [--slow] [WORD]...
 *       runs the cases of that transport whose claim or name contains one of the words
 *   conformance --list
 *       prints claims, name and worlds of each case, for the coverage table
 *
 * NAME is none, tcp, unix or udp for the kernel's sockets, or whatever EXS_TRANSPORT
 * takes: soft, shm, verbs. --together puts as many cases as can be into one process: for
 * tools that take long to start one. --emulated leaves out what such tools cannot do.
 * --light leaves out cases that move gigabytes. --slow repeats less, for machines on which a
 * system call takes as long as hundreds do elsewhere: a line `# less: CASE` names each case that did. */
#include "harness.h"

#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

enum { CASES_MAX = 1024, PATIENCE = 60 };

struct test {
    const char *claim, *name;
    int worlds;
    case_body body;
};

enum state { WAITING, RUNNING, PASSED, FAILED, SKIPPED };

/* What the processes share. */
struct shared {
    int running; /* the case that runs now */
    struct result {
        enum state state;
        int less; /* it repeated less than it does on other machines */
        char why[1024];
    } results[CASES_MAX];
};

int world;
static struct test tests[CASES_MAX];
static int count, together, emulated, light, slow;
static struct shared *shared;

void add_case(const char *claim, const char *name, int worlds, case_body body)
{
    if (count == CASES_MAX)
        abort();
    tests[count++] = (struct test){claim, name, worlds, body};
}

int repeats(int n)
{
    if (!slow || n <= 20)
        return n;
    shared->results[shared->running].less = 1;
    return n / 20;
}

/* A helper process of a case fails its case, too. */
void failed(const char *file, int line, const char *how, ...)
{
    struct result *r = &shared->results[shared->running];
    const char *base = strrchr(file, '/');
    va_list args;
    int n;

    n = snprintf(r->why, sizeof r->why, "%s:%d: ", base ? base + 1 : file, line);
    va_start(args, how);
    vsnprintf(r->why + n, sizeof r->why - (size_t)n, how, args);
    va_end(args);
    r->state = FAILED;
    _exit(1);
}

void skip(const char *why)
{
    struct result *r = &shared->results[shared->running];

    snprintf(r->why, sizeof r->why, "%s", why);
    r->state = SKIPPED;
    _exit(77);
}

/* ---- Choosing ---------------------------------------------------------------------------- */

static int chosen(const struct test *t, int argc, char **argv)
{
    int i, words = 0;

    if ((emulated && (t->worlds & NATIVE)) || (light && (t->worlds & HEAVY)))
        return 0;
    for (i = 1; i < argc; i++) {
        if (argv[i][0] == '-')
            continue;
        words++;
        if (strstr(t->claim, argv[i]) || strstr(t->name, argv[i]))
            return 1;
    }
    return words == 0;
}

static int worlds_of(const char *transport)
{
    if (strcmp(transport, "none") == 0)
        return NOWHERE;
    if (strcmp(transport, "tcp") == 0)
        return TCP;
    if (strcmp(transport, "unix") == 0)
        return LOCAL;
    if (strcmp(transport, "udp") == 0)
        return UDP;
    setenv("EXS_TRANSPORT", transport, 1);
    return EXS | EXSMSG;
}

static const char *name_of(int w)
{
    switch (w) {
    case NOWHERE: return "none";
    case TCP: return "tcp";
    case LOCAL: return "unix";
    case UDP: return "udp";
    case EXS: return "stream";
    default: return "seqpacket";
    }
}

static void list(void)
{
    int i, w;

    for (i = 0; i < count; i++) {
        printf("%s: %s", tests[i].claim, tests[i].name);
        for (w = NOWHERE; w <= EXSMSG; w <<= 1)
            if (tests[i].worlds & w)
                printf(" %s", name_of(w));
        printf("\n");
    }
}

/* ---- Running ----------------------------------------------------------------------------- */

/* A case in one world. */
struct run {
    int test, world;
};

static struct run runs[CASES_MAX];
static int run_count;

/* The child: this run, and those after it that may share its process. */
static void play(int first)
{
    int i;

    for (i = first; i < run_count; i++) {
        const struct test *t = &tests[runs[i].test];

        if (i > first && (!together || (t->worlds & ALONE)))
            break;
        shared->running = i;
        shared->results[i].state = RUNNING;
        world = runs[i].world;
        t->body();
        shared->results[i].state = PASSED;
        if (t->worlds & ALONE)
            break;
    }
    /* As a program ends: what looks for leaks does so here. */
    exit(0);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* How many times PATIENCE a case may take. */
static int patience(int test)
{
    return emulated || (tests[test].worlds & HEAVY) ? 4 : 1;
}

/* Waits for the child. A case that runs for too long is killed, with all that it started. */
static int watch(pid_t child)
{
    struct timespec second = {1, 0};
    sigset_t set;
    int status, last = -1;
    double since = now();

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (;;) {
        if (waitpid(child, &status, WNOHANG) == child)
            return status;
        sigtimedwait(&set, NULL, &second);
        if (shared->running != last) {
            last = shared->running;
            since = now();
        }
        if (now() - since > PATIENCE * patience(runs[last].test)) {
            kill(-child, SIGKILL);
            waitpid(child, &status, 0);
            return -1;
        }
    }
}

/* What the child's end says of the last case that it ran. */
static void judge(int i, int status)
{
    struct result *r = &shared->results[i];

    if (status == -1) {
        r->state = FAILED;
        snprintf(r->why, sizeof r->why, "not done within %d s", PATIENCE * patience(runs[i].test));
    } else if (WIFSIGNALED(status)) {
        r->state = FAILED;
        snprintf(r->why, sizeof r->why, "ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    } else if (WEXITSTATUS(status) != 0 && r->state != FAILED && r->state != SKIPPED) {
        r->state = FAILED;
        snprintf(r->why, sizeof r->why, "ended with status %d", WEXITSTATUS(status));
    } else if (r->state == RUNNING) {
        r->state = FAILED;
        snprintf(r->why, sizeof r->why, "the program ended in the middle");
    }
}

static int print(int i, const char *transport)
{
    static const char *const words[] = {"not ok", "not ok", "ok", "not ok", "ok"};
    const struct result *r = &shared->results[i];
    const struct test *t = &tests[runs[i].test];

    printf("%s %d %s %s %s%s%s", words[r->state], i + 1, t->claim, t->name, transport,
           runs[i].world & (EXS | EXSMSG) ? "-" : "",
           runs[i].world & (EXS | EXSMSG) ? name_of(runs[i].world) : "");
    if (r->state == SKIPPED)
        printf(" # SKIP %s", r->why);
    printf("\n");
    if (r->state == FAILED)
        printf("# %s\n", r->why);
    if (r->less)
        printf("# less: %s\n", t->name);
    fflush(stdout);
    return r->state == PASSED || r->state == SKIPPED ? 0 : 1;
}

static void choose(int worlds, int argc, char **argv)
{
    int i, w;

    for (i = 0; i < count; i++) {
        if (!chosen(&tests[i], argc, argv))
            continue;
        for (w = NOWHERE; w <= EXSMSG; w <<= 1)
            if (tests[i].worlds & worlds & w && run_count < CASES_MAX)
                runs[run_count++] = (struct run){i, w};
    }
}

int main(int argc, char **argv)
{
    const char *transport = "none";
    int i, status, failures = 0;
    sigset_t set;
    pid_t child;

    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--list") == 0) {
            list();
            return 0;
        }
        together |= strcmp(argv[i], "--together") == 0;
        emulated |= strcmp(argv[i], "--emulated") == 0;
        light |= strcmp(argv[i], "--light") == 0;
        slow |= strcmp(argv[i], "--slow") == 0;
        if (strcmp(argv[i], "--transport") == 0 && i + 1 < argc) {
            transport = argv[i + 1];
            memmove(&argv[i], &argv[i + 2], (size_t)(argc - i - 1) * sizeof argv[0]);
            argc -= 2;
            i--;
        }
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 2;
    choose(worlds_of(transport), argc, argv);
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    printf("1..%d\n", run_count);
    fflush(stdout);
    for (i = 0; i < run_count;) {
        int first = i;

        shared->running = i;
        child = fork();
        if (child == 0) {
            setpgid(0, 0);
            sigprocmask(SIG_UNBLOCK, &set, NULL);
            play(i);
        }
        status = child < 0 ? -1 : watch(child);
        i = shared->running + 1;
        judge(i - 1, status);
        for (; first < i; first++)
            failures += print(first, transport);
    }
    return failures || run_count == 0;
}
