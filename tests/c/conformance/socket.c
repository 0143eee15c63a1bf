/* exs_socket, exs_bind, exs_listen, exs_getsockname, exs_getpeername, exs_fcntl. */
#include "net.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/stat.h>

CASE("socket-1", domains_and_types, NOWHERE)
{
    static const int DOMAINS[] = {AF_INET, AF_INET6}, TYPES[] = {SOCK_STREAM, SOCK_SEQPACKET};
    int i, j, fd, value;
    socklen_t len = sizeof value;

    for (i = 0; i < 2; i++) {
        for (j = 0; j < 2; j++) {
            fd = exs_socket(DOMAINS[i], TYPES[j], 0);
            CHECK(fd >= 0);
            GIVES(0, exs_getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &len));
            GIVES(TYPES[j], value);
            GIVES(0, exs_getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &len));
            GIVES(DOMAINS[i], value);
            end_one(fd);
        }
    }
}

CASE("socket-1", what_there_is_not_is_refused, NOWHERE)
{
    FAILS(EAFNOSUPPORT, exs_socket(27 /* AF_IB */, SOCK_STREAM, 0));
    FAILS(EAFNOSUPPORT, exs_socket(AF_UNIX, SOCK_STREAM, 0));
    FAILS(EAFNOSUPPORT, exs_socket(-1, SOCK_STREAM, 0));
    FAILS(ESOCKTNOSUPPORT, exs_socket(AF_INET, SOCK_DGRAM, 0));
    FAILS(ESOCKTNOSUPPORT, exs_socket(AF_INET, SOCK_RAW, 0));
    FAILS(EINVAL, exs_socket(AF_INET, 99, 0));
    FAILS(EPROTONOSUPPORT, exs_socket(AF_INET, SOCK_STREAM, 99));
}

CASE("fd-1", it_is_a_real_descriptor, NOWHERE)
{
    int fd = exs_socket(AF_INET, SOCK_STREAM, 0), other = open("/dev/null", O_RDONLY);
    struct stat st;

    CHECK(fd >= 0 && other >= 0 && other != fd);
    GIVES(0, fstat(fd, &st));
    CHECK(S_ISSOCK(st.st_mode));
    GIVES(FD_CLOEXEC, fcntl(fd, F_GETFD));
    GIVES(0, fcntl(fd, F_GETFL) & O_NONBLOCK);
    GIVES(0, close(fd));
    FAILS(EBADF, fcntl(fd, F_GETFD));
    fd = exs_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && (fcntl(fd, F_GETFL) & O_NONBLOCK));
    GIVES(0, close(fd));
    close(other);
}

CASE("bind-2", the_address_can_be_read_back, CONNECTED)
{
    struct place at = any_place(), got;
    int fd = new_socket();

    GIVES(0, exs_bind(fd, ADDR(at), at.len));
    GIVES(0, exs_listen(fd, 1));
    got.len = sizeof got.addr;
    GIVES(0, exs_getsockname(fd, ADDR(got), &got.len));
    GIVES(at.addr.ss_family, got.addr.ss_family);
    if (world != LOCAL)
        CHECK(((struct sockaddr_in *)&got.addr)->sin_port != 0);
    else
        CHECK(got.len == at.len && memcmp(&got.addr, &at.addr, at.len) == 0);
    end_one(fd);
}

CASE("bind-1", addresses_without_sense_are_refused, EXS | EXSMSG)
{
    struct place at = any_place();
    struct sockaddr_un un = {AF_UNIX, "x"};
    struct sockaddr_in6 six;
    int fd = new_socket();

    memset(&six, 0, sizeof six);
    six.sin6_family = AF_INET6;
    FAILS(EFAULT, exs_bind(fd, NULL, at.len));
    FAILS(EINVAL, exs_bind(fd, ADDR(at), at.len - 1));
    FAILS(EINVAL, exs_bind(fd, ADDR(at), 0));
    FAILS(EINVAL, exs_bind(fd, ADDR(at), 1));
    FAILS(EAFNOSUPPORT, exs_bind(fd, (struct sockaddr *)&un, sizeof un));
    FAILS(EAFNOSUPPORT, exs_bind(fd, (struct sockaddr *)&six, sizeof six));
    GIVES(0, exs_bind(fd, ADDR(at), at.len));
    FAILS(EINVAL, exs_bind(fd, ADDR(at), at.len));
    end_one(fd);
}

CASE("all-5", what_is_no_socket_is_refused, NOWHERE)
{
    struct sockaddr_in in;
    int pipe_[2];

    memset(&in, 0, sizeof in);
    in.sin_family = AF_INET;
    CHECK(pipe(pipe_) == 0);
    FAILS(ENOTSOCK, exs_bind(pipe_[0], (struct sockaddr *)&in, sizeof in));
    FAILS(ENOTSOCK, exs_listen(pipe_[0], 1));
    FAILS(EBADF, exs_bind(-1, (struct sockaddr *)&in, sizeof in));
    FAILS(EBADF, exs_listen(-1, 1));
    FAILS(EBADF, exs_listen(12345, 1));
    close(pipe_[0]);
    close(pipe_[1]);
}

CASE("listen-2", a_port_is_one_listeners, TCP | EXS | EXSMSG)
{
    struct place at;
    int fd = listener(&at), other = new_socket(), failed_at;

    failed_at = exs_bind(other, ADDR(at), at.len);
    if (failed_at == 0)
        failed_at = exs_listen(other, 1);
    GIVES(-1, failed_at);
    GIVES(EADDRINUSE, errno);
    end_one(fd);
    end_one(other);
}

CASE("listen-1", any_backlog_will_do, CONNECTED)
{
    static const int BACKLOGS[] = {0, -1, 1, 100000};
    int i, fd;

    for (i = 0; i < 4; i++) {
        struct place at = any_place();

        fd = new_socket();
        GIVES(0, exs_bind(fd, ADDR(at), at.len));
        GIVES(0, exs_listen(fd, BACKLOGS[i]));
        end_one(fd);
    }
}

CASE("name-1", both_ends_name_each_other, TCP | EXS | EXSMSG)
{
    struct pair p = connection();
    struct place mine, theirs;

    mine.len = theirs.len = sizeof mine.addr;
    GIVES(0, exs_getsockname(p.a, ADDR(mine), &mine.len));
    GIVES(0, exs_getpeername(p.b, ADDR(theirs), &theirs.len));
    GIVES(sizeof(struct sockaddr_in), mine.len);
    GIVES(mine.len, theirs.len);
    CHECK(((struct sockaddr_in *)&mine.addr)->sin_addr.s_addr ==
          ((struct sockaddr_in *)&theirs.addr)->sin_addr.s_addr);
    CHECK(((struct sockaddr_in *)&mine.addr)->sin_port ==
          ((struct sockaddr_in *)&theirs.addr)->sin_port);
    end(p);
}

CASE("name-2", an_address_is_cut_where_room_ends, TCP | EXS | EXSMSG)
{
    struct pair p = connection();
    struct sockaddr_in in;
    unsigned char *bytes = (unsigned char *)&in;
    socklen_t len = 4;
    size_t i;

    memset(&in, 0xee, sizeof in);
    GIVES(0, exs_getsockname(p.a, (struct sockaddr *)&in, &len));
    GIVES(sizeof in, len);
    for (i = 4; i < sizeof in; i++)
        GIVES(0xee, bytes[i]);
    end(p);
}

CASE("name-3", what_there_is_not_is_an_error, TCP | EXS | EXSMSG)
{
    int fd = new_socket();
    struct place at;

    at.len = sizeof at.addr;
    FAILS(ENOTCONN, exs_getpeername(fd, ADDR(at), &at.len));
    GIVES(0, exs_getsockname(fd, ADDR(at), &at.len));
    FAILS(EFAULT, exs_getsockname(fd, ADDR(at), NULL));
    FAILS(EFAULT, exs_getsockname(fd, NULL, &at.len));
    FAILS(EBADF, exs_getsockname(-1, ADDR(at), &at.len));
    FAILS(EBADF, exs_getpeername(-1, ADDR(at), &at.len));
    end_one(fd);
}

CASE("fcntl-1", it_is_that_of_the_descriptor, SOCKETS)
{
    int fd = new_socket(), flags = exs_fcntl(fd, F_GETFL), copy;

    CHECK(flags >= 0);
    GIVES(0, exs_fcntl(fd, F_SETFL, flags | O_NONBLOCK));
    CHECK(exs_fcntl(fd, F_GETFL) & O_NONBLOCK);
    GIVES(0, exs_fcntl(fd, F_SETFL, flags));
    GIVES(0, exs_fcntl(fd, F_SETFD, 0));
    GIVES(0, exs_fcntl(fd, F_GETFD));
    GIVES(0, exs_fcntl(fd, F_SETFD, FD_CLOEXEC));
    GIVES(FD_CLOEXEC, exs_fcntl(fd, F_GETFD));
    copy = exs_fcntl(fd, F_DUPFD_CLOEXEC, 100);
    CHECK(copy >= 100);
    GIVES(FD_CLOEXEC, exs_fcntl(copy, F_GETFD));
    end_one(copy);
    end_one(fd);
}

CASE("fcntl-1", what_makes_no_sense_is_refused, NOWHERE)
{
    int fd = exs_socket(AF_INET, SOCK_STREAM, 0);

    FAILS(EBADF, exs_fcntl(-1, F_GETFL));
    FAILS(EBADF, exs_fcntl(12345, F_GETFD));
    FAILS(EINVAL, exs_fcntl(fd, 99999));
    end_one(fd);
}
