/* HTTP/1.1 requests for files, and the heads of their answers: bytes in, bytes out. Nothing
 * here knows of sockets; both servers use it.
 *
 * GET and HEAD, keep-alive, pipelining, one Range. A request may reach ordinary files below the
 * root, without symbolic links.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef EXAMPLES_REQUEST_H
#define EXAMPLES_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { REQUEST_MOST = 8192, HEAD_MOST = 1024 };

/* An answer: head_len bytes of head, then length bytes of the file from offset. */
struct response {
    char   head[HEAD_MOST];
    size_t head_len;
    int    file; /* -1: the head is all. The caller closes it after sending */
    off_t  offset;
    off_t  length;
    bool   keep_alive;
    int    status;
};

/* The length of the first whole request among the bytes, or 0: more must come. If there is no
 * room for more, it is too long: respond() with len 0 says so. */
size_t request_length(const char *bytes, size_t have);

/* Answers the request of len bytes, which it changes. root: the directory's descriptor. */
void respond(int root, char *request, size_t len, struct response *out);

#endif
