/* See request.h. SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "request.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

size_t request_length(const char *bytes, size_t have)
{
    const char *end = have >= 4 ? memmem(bytes, have, "\r\n\r\n", 4) : NULL;
    return end ? (size_t)(end - bytes) + 4 : 0;
}

static const char *reason(int status)
{
    switch (status) {
    case 200: return "OK";
    case 206: return "Partial Content";
    case 400: return "Bad Request";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 416: return "Range Not Satisfiable";
    case 431: return "Request Header Fields Too Large";
    case 505: return "HTTP Version Not Supported";
    default: return "Internal Server Error";
    }
}

static const char *type_of(const char *path)
{
    static const char *const types[][2] = {
        {".html", "text/html; charset=utf-8"}, {".css", "text/css"}, {".js", "text/javascript"},
        {".txt", "text/plain; charset=utf-8"}, {".json", "application/json"},
        {".png", "image/png"}, {".jpg", "image/jpeg"}, {".svg", "image/svg+xml"},
        {".pdf", "application/pdf"},
    };
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot && i < sizeof(types) / sizeof(types[0]); i++)
        if (strcasecmp(dot, types[i][0]) == 0)
            return types[i][1];
    return "application/octet-stream";
}

/* An answer without a file. A HEAD gets the same without its text. */
static void refuse(struct response *out, int status, bool head_only, const char *more)
{
    char text[128];
    int n = snprintf(text, sizeof(text), "%d %s\n", status, reason(status));
    out->status = status;
    out->head_len = (size_t)snprintf(
        out->head, sizeof(out->head),
        "HTTP/1.1 %d %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n%sConnection: %s\r\n"
        "\r\n%s",
        status, reason(status), n, more, out->keep_alive ? "keep-alive" : "close",
        head_only ? "" : text);
}

/* Undoes %XX in place and cuts off the query. False if it is malformed. */
static bool decode(char *path)
{
    char *to = path;
    for (char *from = path; *from && *from != '?' && *from != '#'; from++) {
        if (*from != '%') {
            *to++ = *from;
            continue;
        }
        char hex[3] = {from[1], from[1] ? from[2] : 0, 0}, *end;
        long byte = strtol(hex, &end, 16);
        if (end != hex + 2 || byte <= 0 || hex[0] == '+' || hex[0] == '-' || hex[0] == ' ')
            return false;
        *to++ = (char)byte;
        from += 2;
    }
    *to = 0;
    return true;
}

/* Opens what lies at the path below the root, step by step, so that no ".." and no symbolic
 * link leads out of it, even if the tree changes meanwhile. -1 and the status if there is
 * nothing to be had. */
static int open_below(int root, char *path, struct stat *st, int *status, const char **type)
{
    *type = type_of(path);
    int at = fcntl(root, F_DUPFD_CLOEXEC, 0);
    char *rest = path, *step;
    *status = 404;
    while (at >= 0 && (step = strsep(&rest, "/"))) {
        if (*step == 0 || strcmp(step, ".") == 0)
            continue;
        int next = -1;
        if (strcmp(step, "..") == 0)
            *status = 403;
        else /* O_NONBLOCK: the open of a pipe without a writer would wait */
            next = openat(at, step, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (next < 0 && (errno == EACCES || errno == ELOOP))
            *status = 403;
        close(at);
        at = next;
    }
    if (at >= 0 && fstat(at, st) == 0 && S_ISDIR(st->st_mode)) {
        int index = openat(at, "index.html", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        close(at);
        at = index;
        *type = type_of("index.html");
    }
    if (at >= 0 && (fstat(at, st) < 0 || !S_ISREG(st->st_mode))) {
        close(at);
        at = -1;
    }
    return at;
}

/* "bytes=A-B", "bytes=A-", "bytes=-N" of a file of this size. 1: a range; 0: to be ignored, as
 * the standard wants of what is not understood; -1: there is nothing in it. */
static int parse_range(const char *value, off_t size, off_t *offset, off_t *length)
{
    long long first, last = -1;
    int used = 0;
    if (strncmp(value, "bytes=", 6) != 0 || strchr(value, ',') || strchr(value, ' '))
        return 0;
    value += 6;
    if (value[0] == '-') {
        if (sscanf(value, "-%lld%n", &last, &used) != 1 || value[used] || last < 0)
            return 0;
        first = last > size ? 0 : size - last;
        last = size - 1;
    } else {
        if (sscanf(value, "%lld-%n", &first, &used) != 1 || used == 0 || first < 0)
            return 0;
        if (value[used]) {
            char *end;
            last = strtoll(value + used, &end, 10);
            if (*end || last < first)
                return 0;
        }
        if (last < 0 || last >= size)
            last = size - 1;
    }
    if (first >= size)
        return -1;
    *offset = first;
    *length = last - first + 1;
    return 1;
}

struct fields {
    const char *range;
    bool        host, body, close, keep_alive, if_range;
};

/* The lines after the first. False if one is none. */
static bool parse_fields(char *rest, struct fields *f)
{
    char *line;
    while ((line = strsep(&rest, "\n")) && *line && strcmp(line, "\r") != 0) {
        line[strcspn(line, "\r")] = 0;
        char *colon = strchr(line, ':');
        if (!colon || colon == line || strcspn(line, " \t") < (size_t)(colon - line))
            return false;
        *colon = 0;
        char *value = colon + 1 + strspn(colon + 1, " \t");
        size_t n = strlen(value);
        while (n > 0 && (value[n - 1] == ' ' || value[n - 1] == '\t'))
            value[--n] = 0;
        if (strcasecmp(line, "Range") == 0)
            f->range = value;
        else if (strcasecmp(line, "If-Range") == 0)
            f->if_range = true; /* of a version that we do not tell: so all of it is sent */
        else if (strcasecmp(line, "Host") == 0)
            f->host = true;
        else if (strcasecmp(line, "Transfer-Encoding") == 0)
            f->body = true;
        else if (strcasecmp(line, "Content-Length") == 0)
            f->body |= strcmp(value, "0") != 0;
        else if (strcasecmp(line, "Connection") == 0) {
            f->close |= strcasestr(value, "close") != NULL;
            f->keep_alive |= strcasestr(value, "keep-alive") != NULL;
        }
    }
    return true;
}

static void answer_file(struct response *out, const struct stat *st, const char *type,
                        const struct fields *f, bool head_only)
{
    char range[80] = "", date[64];
    struct tm tm;
    gmtime_r(&st->st_mtime, &tm);
    strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", &tm);
    out->status = 200;
    out->length = st->st_size;
    int partial = f->range && !f->if_range
                      ? parse_range(f->range, st->st_size, &out->offset, &out->length)
                      : 0;
    if (partial < 0) {
        snprintf(range, sizeof(range), "Content-Range: bytes */%lld\r\n", (long long)st->st_size);
        close(out->file);
        out->file = -1;
        out->length = 0;
        refuse(out, 416, head_only, range);
        return;
    }
    if (partial) {
        out->status = 206;
        snprintf(range, sizeof(range), "Content-Range: bytes %lld-%lld/%lld\r\n",
                 (long long)out->offset, (long long)(out->offset + out->length - 1),
                 (long long)st->st_size);
    }
    out->head_len = (size_t)snprintf(
        out->head, sizeof(out->head),
        "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %lld\r\n%sAccept-Ranges: bytes\r\n"
        "Last-Modified: %s\r\nConnection: %s\r\n\r\n",
        out->status, reason(out->status), type, (long long)out->length, range, date,
        out->keep_alive ? "keep-alive" : "close");
    if (head_only || out->length == 0) {
        close(out->file);
        out->file = -1;
        out->length = 0;
    }
}

void respond(int root, char *request, size_t len, struct response *out)
{
    struct fields f = {0};
    *out = (struct response){.file = -1};
    if (len == 0) {
        refuse(out, 431, false, "");
        return;
    }
    bool is_text = memchr(request, 0, len) == NULL;
    request[len - 1] = 0; /* its last newline: now it is a string */
    char *rest = request, *line = strsep(&rest, "\n");
    char *method = strsep(&line, " "), *path = strsep(&line, " "), *version = line;
    bool head_only = strcmp(method, "HEAD") == 0, old = false;
    if (version)
        version[strcspn(version, "\r")] = 0;
    if (!is_text || !version || !rest || !parse_fields(rest, &f)) {
        refuse(out, 400, head_only, "");
        return;
    }
    old = strcmp(version, "HTTP/1.0") == 0;
    if (!old && strcmp(version, "HTTP/1.1") != 0) {
        refuse(out, 505, head_only, "");
        return;
    }
    if ((!old && !f.host) || path[0] != '/' || !decode(path)) {
        refuse(out, 400, head_only, "");
        return;
    }
    /* A body would be taken for the next request, so with one the connection ends. */
    out->keep_alive = !f.body && (old ? f.keep_alive : !f.close);
    if (!head_only && strcmp(method, "GET") != 0) {
        refuse(out, 405, false, "Allow: GET, HEAD\r\n");
        return;
    }
    struct stat st;
    int status;
    const char *type;
    out->file = open_below(root, path, &st, &status, &type);
    if (out->file < 0)
        refuse(out, status, head_only, "");
    else
        answer_file(out, &st, type, &f, head_only);
}
