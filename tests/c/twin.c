/* The other half of exs-pingpong, in C: it serves the Rust client, or is the client of
 * the Rust server. Control messages are a length (4 bytes, big-endian) and JSON.
 *
 *   twin serve ADDRESS                       one client; prints "listening on ADDRESS:PORT"
 *   twin client ADDRESS PORT stream|seqpacket SIZE COUNT
 */
#define _GNU_SOURCE
#include <sys/exs.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK EXS_QHANDLE_INVALID, 0

static void check(int good, const char *what)
{
    if (good)
        return;
    perror(what);
    fprintf(stderr, "exs: %s\n", exs_strerror());
    exit(1);
}

static struct sockaddr_in address(const char *host, int port)
{
    struct sockaddr_in a;

    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_port = htons((unsigned short)port);
    check(inet_pton(AF_INET, host, &a.sin_addr) == 1, "address");
    return a;
}

static int new_socket(int type)
{
    int fd = exs_socket(AF_INET, type, 0);

    check(fd >= 0, "exs_socket");
    return fd;
}

/* A listener, and its port. */
static int listen_at(const char *host, int type, int *port)
{
    struct sockaddr_in a = address(host, 0);
    socklen_t len = sizeof a;
    int fd = new_socket(type);

    check(exs_bind(fd, (struct sockaddr *)&a, sizeof a) == 0, "exs_bind");
    check(exs_listen(fd, 4) == 0, "exs_listen");
    check(exs_getsockname(fd, (struct sockaddr *)&a, &len) == 0, "exs_getsockname");
    *port = ntohs(a.sin_port);
    return fd;
}

static int connect_to(const char *host, int port, int type)
{
    struct sockaddr_in a = address(host, port);
    int fd = new_socket(type);

    check(exs_connect(fd, (struct sockaddr *)&a, sizeof a, 0, BLOCK) == 0, "exs_connect");
    return fd;
}

/* ---- Control ------------------------------------------------------------------------- */

static void say(int fd, const char *text)
{
    unsigned len = (unsigned)strlen(text), head = htonl(len);
    char frame[512];

    check(len < sizeof frame - 4, "a frame");
    memcpy(frame, &head, 4);
    memcpy(frame + 4, text, len);
    check(exs_send(fd, frame, len + 4, 0, BLOCK, EXS_MHANDLE_UNREGISTERED) == (int)len + 4, "control");
}

/* The next frame; false at the end. */
static int hear(int fd, char *text, size_t room)
{
    unsigned head;
    int n = exs_recv(fd, &head, 4, MSG_WAITALL, BLOCK, EXS_MHANDLE_UNREGISTERED);

    if (n == 0)
        return 0;
    check(n == 4 && ntohl(head) < room, "control");
    n = exs_recv(fd, text, ntohl(head), MSG_WAITALL, BLOCK, EXS_MHANDLE_UNREGISTERED);
    check(n == (int)ntohl(head), "control");
    text[n] = 0;
    return 1;
}

static long number_after(const char *text, const char *key)
{
    const char *at = strstr(text, key);

    check(at != NULL, key);
    return atol(at + strlen(key));
}

/* ---- Messages ------------------------------------------------------------------------ */

/* Sends each message back: one receive ahead, as fast as events come. */
static void echo(int fd, char *memory, exs_mhandle_t m, size_t size, long count, int control)
{
    exs_qhandle_t q = exs_qcreate(8);
    exs_event_t e;
    long posted = 0, sent = 0;

    check(q != EXS_QHANDLE_INVALID, "exs_qcreate");
    for (; posted < 2 && posted < count; posted++)
        check(exs_recv(fd, memory + (size_t)posted * size, size, MSG_WAITALL, q, 1, m) == 0, "exs_recv");
    say(control, "\"Ready\"");
    while (sent < count) {
        check(exs_qdequeue(q, &e, 1, NULL) == 1 && e.exs_evt_errno == 0, "exs_qdequeue");
        if (e.exs_evt_type == EXS_EVT_RECV) {
            check(e.exs_evt_union.exs_evt_xfer.exs_evt_length == size, "a whole message");
            check(exs_send(fd, e.exs_evt_union.exs_evt_xfer.exs_evt_buffer, size, 0, q, 2, m) == 0, "exs_send");
            continue;
        }
        sent++;
        if (posted++ < count)
            check(exs_recv(fd, e.exs_evt_union.exs_evt_xfer.exs_evt_buffer, size, MSG_WAITALL, q, 1, m) == 0, "exs_recv");
    }
    check(exs_qdelete(q) == 0, "exs_qdelete");
}

/* Takes all messages, and confirms the last with one byte. */
static void drink(int fd, char *memory, exs_mhandle_t m, size_t size, long count, int control)
{
    say(control, "\"Ready\"");
    while (count-- > 0)
        check(exs_recv(fd, memory, size, MSG_WAITALL, BLOCK, m) == (int)size, "exs_recv");
    check(exs_send(fd, memory, 1, 0, BLOCK, m) == 1, "exs_send");
}

static void serve(const char *host)
{
    int port, l = listen_at(host, SOCK_STREAM, &port), control, link[16], links = 0, i;
    char text[4096];

    printf("listening on %s:%d\n", host, port);
    fflush(stdout);
    control = exs_accept(l, NULL, 0, BLOCK);
    check(control >= 0, "exs_accept");
    while (hear(control, text, sizeof text)) {
        if (strstr(text, "\"Open\"")) {
            int type = strstr(text, "seqpacket") ? SOCK_SEQPACKET : SOCK_STREAM;
            int at = listen_at(host, type, &port);

            check(links < 16, "too many links");
            snprintf(text, sizeof text, "{\"Opened\":{\"port\":%d}}", port);
            say(control, text);
            link[links] = exs_accept(at, NULL, 0, BLOCK);
            check(link[links] >= 0, "exs_accept");
            links++;
            check(exs_close(at, 0, BLOCK) == 0, "exs_close");
        } else {
            size_t size = (size_t)number_after(text, "\"size\":");
            long count = number_after(text, "\"iters\":"), which = number_after(text, "\"link\":");
            char *memory = malloc(size * 2);
            exs_mhandle_t m = exs_mregister(memory, size * 2, 0);

            check(memory && m != EXS_MHANDLE_INVALID && which < links, "exs_mregister");
            if (strstr(text, "Latency"))
                echo(link[which], memory, m, size, count, control);
            else
                drink(link[which], memory, m, size, count, control);
            say(control, "\"Done\"");
            check(exs_mderegister(m) == 0, "exs_mderegister");
            free(memory);
        }
    }
    for (i = 0; i < links; i++)
        check(exs_close(link[i], 0, BLOCK) == 0, "exs_close");
    check(exs_close(control, 0, BLOCK) == 0 && exs_close(l, 0, BLOCK) == 0, "exs_close");
}

static void client(char **argv)
{
    const char *host = argv[2], *kind = argv[4];
    size_t size = (size_t)atol(argv[5]);
    long count = atol(argv[6]), i;
    int control = connect_to(host, atoi(argv[3]), SOCK_STREAM), fd;
    char text[4096], *out = malloc(size), *in = malloc(size);

    check(out && in, "malloc");
    snprintf(text, sizeof text, "{\"Open\":{\"Exs\":{\"kind\":\"%s\",\"wait\":\"adaptive\",\"crc\":false}}}", kind);
    say(control, text);
    check(hear(control, text, sizeof text), "the server's answer");
    fd = connect_to(host, (int)number_after(text, "\"port\":"),
                    strcmp(kind, "stream") ? SOCK_SEQPACKET : SOCK_STREAM);
    snprintf(text, sizeof text,
             "{\"Run\":{\"link\":0,\"job\":{\"what\":\"Latency\",\"size\":%zu,\"iters\":%ld,\"depth\":1}}}",
             size, count);
    say(control, text);
    check(hear(control, text, sizeof text) && strcmp(text, "\"Ready\"") == 0, "Ready");
    for (i = 0; i < count; i++) {
        memset(out, (int)i, size);
        check(exs_send(fd, out, size, 0, BLOCK, EXS_MHANDLE_UNREGISTERED) == (int)size, "exs_send");
        check(exs_recv(fd, in, size, MSG_WAITALL, BLOCK, EXS_MHANDLE_UNREGISTERED) == (int)size, "exs_recv");
        check(memcmp(in, out, size) == 0, "the same bytes");
    }
    check(hear(control, text, sizeof text) && strcmp(text, "\"Done\"") == 0, "Done");
    check(exs_close(fd, 0, BLOCK) == 0 && exs_close(control, 0, BLOCK) == 0, "exs_close");
    free(out);
    free(in);
    printf("%ld messages of %zu bytes, there and back\n", count, size);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "serve") == 0) {
        serve(argv[2]);
    } else if (argc == 7 && strcmp(argv[1], "client") == 0) {
        client(argv);
    } else {
        fprintf(stderr, "usage: twin serve ADDRESS | client ADDRESS PORT stream|seqpacket SIZE COUNT\n");
        return 2;
    }
    return 0;
}
