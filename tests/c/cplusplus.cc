// The header in a C++ program: what C++ is stricter about than C.
#include <sys/exs.h>

#include <sys/socket.h>

#include <cstdio>
#include <cstring>
#include <vector>

namespace {

// The declarations are those that ES-API programs were written for.
int (*const init)(int) = exs_init;
exs_qhandle_t (*const qcreate)(int) = exs_qcreate;
exs_mhandle_t (*const mregister)(void *, size_t, int) = exs_mregister;
int (*const post)(int, void *, size_t, int, exs_qhandle_t, exs_ahandle_t, exs_mhandle_t) = exs_send;
int (*const dequeue)(exs_qhandle_t, exs_event_t *, int, struct timeval *) = exs_qdequeue;

bool run()
{
    std::vector<char> out(1000, 'c'), in(1000);
    std::vector<exs_event_t> events(2);
    int pair[2];

    if (init(EXS_VERSION) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        return false;
    exs_qhandle_t queue = qcreate(4);
    exs_mhandle_t memory = mregister(out.data(), out.size(), EXS_MRF_SHARED);
    if (queue == EXS_QHANDLE_INVALID || memory == EXS_MHANDLE_INVALID)
        return false;
    exs_ahandle_t name = reinterpret_cast<exs_ahandle_t>(&events);
    if (exs_recv(pair[1], in.data(), in.size(), MSG_WAITALL, queue, (exs_ahandle_t)-1,
                 EXS_MHANDLE_UNREGISTERED) != 0 ||
        post(pair[0], out.data(), out.size(), 0, queue, name, memory) != 0 ||
        dequeue(queue, events.data(), -2, nullptr) != 2)
        return false;
    for (const exs_event_t &e : events)
        if (e.exs_evt_errno != 0 || (e.exs_evt_ahandle != name && e.exs_evt_type == EXS_EVT_SEND))
            return false;
    return in == out && exs_mderegister(memory) == 0 && exs_qdelete(queue) == 0 &&
           exs_close(pair[0], 0, EXS_QHANDLE_INVALID, 0) == 0 &&
           exs_close(pair[1], 0, EXS_QHANDLE_INVALID, 0) == 0;
}

} // namespace

int main()
{
    if (run())
        return 0;
    std::perror(exs_strerror());
    return 1;
}
