/* See store.h. SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "store.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* FNV-1a. A client that knows it can fill one bucket, and slow the others down; a server
 * for strangers takes a keyed hash. */
static struct entry **bucket(struct store *store, const char *key)
{
    unsigned hash = 2166136261u;
    for (const char *p = key; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 16777619u;
    return &store->buckets[hash % (sizeof(store->buckets) / sizeof(store->buckets[0]))];
}

/* Where the entry hangs, or would. */
static struct entry **find(struct store *store, const char *key)
{
    struct entry **at = bucket(store, key);
    while (*at && strcmp((*at)->key, key) != 0)
        at = &(*at)->next;
    return at;
}

static size_t size_of(const char *key, const char *value)
{
    return sizeof(struct entry) + strlen(key) + 1 + strlen(value) + 1;
}

static void erase(struct store *store, struct entry **at)
{
    struct entry *gone = *at;
    *at = gone->next;
    store->bytes -= size_of(gone->key, gone->value);
    store->count--;
    free(gone);
}

static bool set(struct store *store, const char *key, const char *value)
{
    size_t size = size_of(key, value), key_size = strlen(key) + 1;
    struct entry **old = find(store, key);
    if (*old)
        erase(store, old);
    struct entry *e = store->bytes + size <= STORE_MAX_BYTES ? malloc(size) : NULL;
    if (!e)
        return false;
    memcpy(e->key, key, key_size);
    e->value = e->key + key_size;
    strcpy(e->value, value);
    struct entry **head = bucket(store, key);
    e->next = *head;
    *head = e;
    store->bytes += size;
    store->count++;
    return true;
}

void store_clear(struct store *store)
{
    for (size_t i = 0; i < sizeof(store->buckets) / sizeof(store->buckets[0]); i++)
        while (store->buckets[i])
            erase(store, &store->buckets[i]);
}

/* An answer always fits: session_run has seen to it. */
static void answer(struct session *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t room = sizeof(s->out) - s->out_have;
    int n = vsnprintf(s->out + s->out_have, room, format, args);
    va_end(args);
    if (n > 0)
        s->out_have += (size_t)n < room ? (size_t)n : room - 1;
}

static void request(struct session *s, struct store *store, char *line)
{
    store->requests++;
    char *rest = line;
    const char *verb = strsep(&rest, " "), *key = rest ? strsep(&rest, " ") : NULL;
    bool one_word = key && *key && !rest;
    if (strcmp(verb, "SET") == 0 && key && *key && rest) {
        if (set(store, key, rest))
            answer(s, "OK\n");
        else
            answer(s, "ERROR the store is full: DEL something\n");
    } else if (strcmp(verb, "GET") == 0 && one_word) {
        struct entry *e = *find(store, key);
        if (e)
            answer(s, "VALUE %s\n", e->value);
        else
            answer(s, "NONE\n");
    } else if (strcmp(verb, "DEL") == 0 && one_word) {
        struct entry **at = find(store, key);
        answer(s, *at ? "OK\n" : "NONE\n");
        if (*at)
            erase(store, at);
    } else if (strcmp(verb, "COUNT") == 0 && !key) {
        answer(s, "COUNT %zu\n", store->count);
    } else {
        answer(s, "ERROR a request is SET key value, GET key, DEL key or COUNT\n");
    }
}

bool session_run(struct session *s, struct store *store)
{
    size_t used = 0;
    bool well = true;
    /* A value that was set by a line is shorter than it, so a longest line is room enough. */
    while (sizeof(s->out) - s->out_have > LINE_MAX_BYTES) {
        char *line = s->in + used, *end = memchr(line, '\n', s->in_have - used);
        if (!end)
            break;
        *end = 0;
        used += (size_t)(end - line) + 1;
        if (end > line && end[-1] == '\r') /* telnet's */
            end[-1] = 0;
        request(s, store, line);
    }
    memmove(s->in, s->in + used, s->in_have - used);
    s->in_have -= used;
    if (s->in_have == sizeof(s->in) && !memchr(s->in, '\n', s->in_have)) {
        answer(s, "ERROR a line has at most %d bytes\n", LINE_MAX_BYTES);
        s->in_have = 0; /* whatever follows is the rest of it */
        well = false;
    }
    return well;
}
