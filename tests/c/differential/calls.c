/* Each call in both worlds. */
#include "diff.h"

#define LAST EXS_QHANDLE_INVALID, 0
#define UNREG EXS_MHANDLE_UNREGISTERED

int make_as(int family, int type, int protocol)
{
    return over_exs ? exs_socket(family, type, protocol) : socket(family, type, protocol);
}

int make(int family) { return make_as(family, SOCK_STREAM, 0); }

int bind_to(int fd, const void *addr, socklen_t len)
{
    return over_exs ? exs_bind(fd, addr, len) : bind(fd, addr, len);
}

int listen_on(int fd, int backlog)
{
    return over_exs ? exs_listen(fd, backlog) : listen(fd, backlog);
}

int connect_to(int fd, const void *addr, socklen_t len)
{
    return over_exs ? exs_connect(fd, addr, len, 0, LAST) : connect(fd, addr, len);
}

int accept_from(int fd, void *from, socklen_t *len, int flags)
{
    exs_acceptaddr_t at;
    int n;

    if (!over_exs)
        return accept4(fd, from, len, flags);
    n = exs_accept(fd, &at, flags, LAST);
    if (n >= 0 && from && len) {
        memcpy(from, &at.exs_aa_addr, *len < at.exs_aa_addrlen ? *len : at.exs_aa_addrlen);
        *len = at.exs_aa_addrlen;
    }
    return n;
}

long transmit(int fd, const void *data, size_t len, int flags)
{
    if (over_exs)
        return exs_send(fd, (void *)(uintptr_t)data, len, flags, LAST, UNREG);
    return send(fd, data, len, flags);
}

long receive(int fd, void *to, size_t len, int flags)
{
    return over_exs ? exs_recv(fd, to, len, flags, LAST, UNREG) : recv(fd, to, len, flags);
}

static void pieces(exs_iovec_t *out, const struct iovec *iov, int count)
{
    int i;

    for (i = 0; i < count && i < 64; i++)
        out[i] = (exs_iovec_t){iov[i].iov_base, iov[i].iov_len, UNREG, 0};
}

long transmit_pieces(int fd, struct iovec *iov, int count, int flags)
{
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)count};
    exs_iovec_t list[64];
    exs_msghdr_t em = {.exs_msg_iov = list, .exs_msg_iovlen = count};

    if (!over_exs)
        return sendmsg(fd, &m, flags);
    if (iov)
        pieces(list, iov, count);
    else
        em.exs_msg_iov = NULL;
    return exs_sendmsg(fd, &em, flags, LAST);
}

long receive_pieces(int fd, struct iovec *iov, int count, int flags, int *msg_flags)
{
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)count};
    exs_iovec_t list[64];
    exs_msghdr_t em = {.exs_msg_iov = list, .exs_msg_iovlen = count};
    long n;

    if (over_exs) {
        pieces(list, iov, count);
        n = exs_recvmsg(fd, &em, flags, LAST);
        *msg_flags = em.exs_msg_flags;
    } else {
        n = recvmsg(fd, &m, flags);
        *msg_flags = m.msg_flags;
    }
    return n;
}

int end_way(int fd, int how) { return over_exs ? exs_shutdown(fd, how, LAST) : shutdown(fd, how); }

int finish(int fd) { return over_exs ? exs_close(fd, 0, LAST) : close(fd); }

int get(int fd, int level, int name, void *value, socklen_t *len)
{
    if (over_exs)
        return exs_getsockopt(fd, level, name, value, len);
    return getsockopt(fd, level, name, value, len);
}

int set(int fd, int level, int name, const void *value, socklen_t len)
{
    if (over_exs)
        return exs_setsockopt(fd, level, name, value, len);
    return setsockopt(fd, level, name, value, len);
}

int name_of(int fd, void *addr, socklen_t *len)
{
    return over_exs ? exs_getsockname(fd, addr, len) : getsockname(fd, addr, len);
}

int peer_of(int fd, void *addr, socklen_t *len)
{
    return over_exs ? exs_getpeername(fd, addr, len) : getpeername(fd, addr, len);
}

int control(int fd, int command, long argument)
{
    return over_exs ? exs_fcntl(fd, command, argument) : fcntl(fd, command, argument);
}
