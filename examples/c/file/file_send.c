/* Sends a file over plain TCP: send(2) for the header, sendfile(2) for the file.
 *
 *     file_send FILE ADDRESS:PORT
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/net.h"
#include "incoming.h"

int main(int argc, char **argv)
{
    begin(argv);
    if (argc != 3 || argv[1][0] == '-')
        usage("FILE ADDRESS:PORT");
    struct stat st;
    int file = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &st) < 0)
        fail_errno("%s", argv[1]);
    if (!S_ISREG(st.st_mode))
        fail("%s is no ordinary file", argv[1]);
    char header[HEADER_MOST];
    size_t len = outgoing_header(header, argv[1], (uint64_t)st.st_size);
    int fd = tcp_connection(argv[2]);
    double began = now();

    /* A receiver that refuses answers and closes; so the answer is looked at in any case. */
    bool sent = write_all(fd, header, len);
    for (off_t at = 0; sent && at < st.st_size;) {
        ssize_t n = sendfile(fd, file, &at, (size_t)(st.st_size - at));
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            fail("%s has become shorter", argv[1]);
        sent = n > 0;
    }
    if (sent && shutdown(fd, SHUT_WR) < 0)
        fail_errno("shutdown");
    char answer[ANSWER_MOST] = "";
    ssize_t n = recv(fd, answer, sizeof(answer) - 1, MSG_WAITALL);
    if (n <= 0)
        fail("the receiver has gone, and has not said that the file arrived");
    answer[strcspn(answer, "\n")] = 0;
    if (strncmp(answer, "received: ", 10) != 0)
        fail("the receiver: %s", answer);
    double took = now() - began;
    printf("%s, %.1f MB/s\n", answer, (double)st.st_size / took / 1e6);
    close(fd);
    close(file);
    return 0;
}
