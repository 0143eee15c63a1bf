/* A file that comes in: what both receivers do with the bytes, which knows nothing of sockets.
 *
 * A transfer is a header (struct file_header, then the name) and the file's bytes; then the
 * sender ends its direction, and gets an answer of one line when all is safe on the disk.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef EXAMPLES_INCOMING_H
#define EXAMPLES_INCOMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NAME_MOST = 255, ANSWER_MOST = 200 };

/* In network byte order. */
struct file_header {
    unsigned char magic[4]; /* "FILE" */
    unsigned char name_length[4];
    unsigned char size[8];
};

struct incoming {
    int      dir;    /* where it goes */
    int      fd;     /* -1 until the header is whole */
    uint64_t size;   /* as the header says */
    uint64_t have;   /* bytes of the file that came */
    size_t   header; /* bytes of header and name that came */
    struct file_header head;
    char     name[NAME_MOST + 1], partial[64];
    char     answer[ANSWER_MOST]; /* for the sender; also if something goes wrong */
};

/* dir: a directory's descriptor. */
void incoming_begin(struct incoming *in, int dir);
/* Takes the next bytes. False: it is over, and the answer says why. */
bool incoming_take(struct incoming *in, const char *bytes, size_t len);
/* The sender has ended. True if the file is there, under its name; the answer says so. A file
 * that is there already is not replaced. */
bool incoming_finish(struct incoming *in);
/* Throws away what is there of it. */
void incoming_drop(struct incoming *in);

/* The sender's side: the header for a file; returns its bytes, the name's included. */
size_t outgoing_header(char *to, const char *path, uint64_t size);
enum { HEADER_MOST = sizeof(struct file_header) + NAME_MOST };

#endif
