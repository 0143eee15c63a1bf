/* See incoming.h. SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "incoming.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../common/net.h"

static uint64_t from_big_endian(const unsigned char *bytes, int count)
{
    uint64_t n = 0;
    for (int i = 0; i < count; i++)
        n = n << 8 | bytes[i];
    return n;
}

static void to_big_endian(unsigned char *bytes, int count, uint64_t n)
{
    for (int i = count; i-- > 0; n >>= 8)
        bytes[i] = (unsigned char)n;
}

void incoming_begin(struct incoming *in, int dir)
{
    *in = (struct incoming){.dir = dir, .fd = -1};
}

static bool refuse(struct incoming *in, const char *why, int error)
{
    snprintf(in->answer, sizeof(in->answer), "refused: %s%s%s\n", why, error ? ": " : "",
             error ? strerror(error) : "");
    return false;
}

/* A name within the directory that is safe to print on a terminal. The sender is not trusted
 * with any other. */
static bool is_plain(const char *name, size_t len)
{
    if (len == 0 || name[0] == '.')
        return false;
    for (size_t i = 0; i < len; i++)
        if (name[i] == '/' || (unsigned char)name[i] < ' ' || name[i] == 127)
            return false;
    return true;
}

/* Makes a file under a name of its own. A receiver that was killed leaves such files behind, and
 * a later process can have the same number: a name that exists is passed over. */
static int make_partial(struct incoming *in)
{
    static unsigned number;
    int fd;
    do {
        snprintf(in->partial, sizeof(in->partial), ".incoming-%ld-%u", (long)getpid(), number++);
        fd = openat(in->dir, in->partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    } while (fd < 0 && errno == EEXIST);
    return fd;
}

/* Takes the header's part of the bytes; *used counts these bytes. */
static bool take_header(struct incoming *in, const char *bytes, size_t len, size_t *used)
{
    while (*used < len && in->fd < 0) {
        if (in->header < sizeof(in->head)) {
            ((char *)&in->head)[in->header++] = bytes[(*used)++];
            continue;
        }
        uint64_t name = from_big_endian(in->head.name_length, 4);
        if (memcmp(in->head.magic, "FILE", 4) != 0 || name < 1 || name > NAME_MOST)
            return refuse(in, "this is no file transfer", 0);
        in->name[in->header++ - sizeof(in->head)] = bytes[(*used)++];
        if (in->header < sizeof(in->head) + name)
            continue;
        if (!is_plain(in->name, name))
            return refuse(in, "a file's name has no '/', no control characters, no '.' first", 0);
        in->size = from_big_endian(in->head.size, 8);
        in->fd = make_partial(in);
        if (in->fd < 0)
            return refuse(in, "cannot make the file", errno);
    }
    return true;
}

bool incoming_take(struct incoming *in, const char *bytes, size_t len)
{
    size_t used = 0;
    if (!take_header(in, bytes, len, &used))
        return false;
    if (len - used > in->size - in->have)
        return refuse(in, "there is more than the header says", 0);
    if (!write_all(in->fd, bytes + used, len - used))
        return refuse(in, "cannot write", errno);
    in->have += len - used;
    return true;
}

bool incoming_finish(struct incoming *in)
{
    if (in->fd < 0 || in->have < in->size)
        return refuse(in, "the transfer has ended in the middle", 0);
    /* The data reach the disk before the file gets its name: a name means a whole file, also
     * after a power cut. */
    if (fsync(in->fd) < 0)
        return refuse(in, "cannot write", errno);
    if (linkat(in->dir, in->partial, in->dir, in->name, 0) < 0)
        return refuse(in, "cannot name the file", errno);
    incoming_drop(in);
    /* The name is on the disk before the sender is told so. Some file systems cannot sync a
     * directory, and need not. */
    if (fsync(in->dir) < 0 && errno != EINVAL && errno != EOPNOTSUPP) {
        int error = errno;
        unlinkat(in->dir, in->name, 0);
        return refuse(in, "cannot sync the directory", error);
    }
    snprintf(in->answer, sizeof(in->answer), "received: %llu bytes\n",
             (unsigned long long)in->have);
    return true;
}

void incoming_drop(struct incoming *in)
{
    if (in->fd < 0)
        return;
    unlinkat(in->dir, in->partial, 0);
    close(in->fd);
    in->fd = -1;
}

size_t outgoing_header(char *to, const char *path, uint64_t size)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t len = strlen(name);
    if (len < 1 || len > NAME_MOST)
        fail("%s: a file's name has 1 to %d bytes", path, NAME_MOST);
    struct file_header head = {.magic = {'F', 'I', 'L', 'E'}};
    to_big_endian(head.name_length, 4, len);
    to_big_endian(head.size, 8, size);
    memcpy(to, &head, sizeof(head));
    memcpy(to + sizeof(head), name, len);
    return sizeof(head) + len;
}
