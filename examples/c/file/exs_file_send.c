/* Sends a file over EXS: header, file and end in one exs_sendfile.
 *
 *     exs_file_send [-k] FILE ADDRESS:PORT      -k: a kernel socket
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/exs_util.h"
#include "incoming.h"

enum { SENDING = 1, ANSWER = 2 };

int main(int argc, char **argv)
{
    begin(argv);
    enum kind kind = STREAM;
    for (int option; (option = getopt(argc, argv, "k")) != -1;) {
        if (option != 'k')
            usage("[-k] FILE ADDRESS:PORT   (-k: a kernel socket)");
        kind = KERNEL;
    }
    if (argc != optind + 2)
        usage("[-k] FILE ADDRESS:PORT   (-k: a kernel socket)");
    const char *path = argv[optind];
    struct stat st;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &st) < 0)
        fail_errno("%s", path);
    if (!S_ISREG(st.st_mode))
        fail("%s is no ordinary file", path);
    char header[HEADER_MOST], answer[ANSWER_MOST] = "";
    size_t len = outgoing_header(header, path, (uint64_t)st.st_size);
    if (exs_init(EXS_VERSION) < 0)
        fail_exs("exs_init");
    exs_qhandle_t queue = exs_qcreate(2);
    if (queue == EXS_QHANDLE_INVALID)
        fail_exs("exs_qcreate");
    int fd = new_connection(argv[optind + 1], kind);
    double began = now();

    /* The answer may come before all is sent, if the receiver refuses. */
    if (exs_recv(fd, answer, sizeof(answer) - 1, MSG_WAITALL, queue, ANSWER,
                 EXS_MHANDLE_UNREGISTERED) < 0)
        fail_exs("exs_recv");
    exs_xferfile_t parts[2] = {
        {.exs_xf_type = EXS_IOVEC,
         .exs_xf_union.exs_xf_iovec = {header, len, EXS_MHANDLE_UNREGISTERED, 0}},
        /* An empty file is left out: a length of 0 would mean "up to the end of the file". */
        {.exs_xf_type = EXS_FDVEC,
         .exs_xf_union.exs_xf_fdvec = {file, 0, 0, (uint64_t)st.st_size}},
    };
    if (exs_sendfile(fd, parts, st.st_size > 0 ? 2 : 1, EXS_SHUT_WR, queue, SENDING) < 0)
        fail_exs("exs_sendfile");
    close(file); /* the library has its own */

    const char *trouble = NULL;
    for (int pending = 2; pending > 0;) {
        exs_event_t event;
        int n = exs_qdequeue(queue, &event, 1, NULL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            fail_exs("exs_qdequeue");
        pending--;
        if (event.exs_evt_errno && !trouble)
            trouble = strerror(event.exs_evt_errno);
        /* If the file has become shorter the receiver still waits for the rest: there is
         * nothing to be said any more. Otherwise the connection is lost, and the receive ends
         * by itself, with what the receiver may have said before. */
        if (event.exs_evt_errno == EIO && event.exs_evt_ahandle == SENDING)
            fail("%s cannot be read to its end", path);
    }
    answer[strcspn(answer, "\n")] = 0;
    if (strncmp(answer, "received: ", 10) != 0)
        fail("the receiver: %s", *answer ? answer : trouble ? trouble : "has gone");
    double took = now() - began;
    printf("%s, %.1f MB/s\n", answer, (double)st.st_size / took / 1e6);
    if (exs_close(fd, 0, EXS_QHANDLE_INVALID, 0) < 0)
        fail_exs("exs_close");
    exs_qdelete(queue);
    return 0;
}
