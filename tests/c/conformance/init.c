/* exs_init, exs_version, exs_strerror. */
#include "net.h"

#include <pthread.h>

CASE("init-1", starting_again_changes_nothing, NOWHERE)
{
    GIVES(0, exs_init(EXS_VERSION));
    GIVES(0, exs_init(EXS_VERSION1));
}

CASE("init-2", an_unknown_version_is_refused, NOWHERE)
{
    FAILS(EINVAL, exs_init(0));
    FAILS(EINVAL, exs_init(EXS_VERSION + 1));
    FAILS(EINVAL, exs_init(-1));
    GIVES(0, exs_init(EXS_VERSION));
}

CASE("all-14", other_calls_start_the_library_too, NOWHERE)
{
    exs_qhandle_t q = new_queue(1);

    end_queue(q);
    GIVES(0, exs_init(EXS_VERSION));
}

CASE("init-2", an_invalid_environment_is_an_error, NOWHERE | ALONE)
{
    int fd;

    setenv("EXS_TRANSPORT", "carrier pigeon", 1);
    if (exs_init(EXS_VERSION) == -1) {
        GIVES(EINVAL, errno);
    } else {
        /* Told where it matters first. */
        fd = exs_socket(AF_INET, SOCK_STREAM, 0);
        GIVES(-1, fd);
        GIVES(EINVAL, errno);
    }
    CHECK(strstr(exs_strerror(), "EXS_TRANSPORT") || strstr(exs_strerror(), "carrier pigeon"));
}

CASE("all-13", the_last_error_has_a_sentence, NOWHERE)
{
    char first[256];

    FAILS(EINVAL, exs_qcreate(0));
    snprintf(first, sizeof first, "%s", exs_strerror());
    CHECK(strlen(first) > 10);
    FAILS(EINVAL, exs_mderegister(-7));
    CHECK(strcmp(first, exs_strerror()) != 0);
}

static void sees_nothing(void *unused)
{
    (void)unused;
    CHECK(exs_strerror()[0] == 0);
}

CASE("all-13", a_sentence_is_of_its_own_thread, NOWHERE)
{
    FAILS(EINVAL, exs_qcreate(0));
    join(start(sees_nothing, NULL));
    CHECK(exs_strerror()[0] != 0);
}

CASE("all-13", the_error_of_an_event_has_a_sentence, CONNECTED)
{
    struct pair p = connection();
    exs_qhandle_t q = new_queue(4);
    char byte;

    GIVES(0, exs_recv(p.a, &byte, 1, 0, q, 1, UNREG));
    GIVES(1, exs_cancel(p.a, EXS_CAF_FILDES, 0));
    next_failed(q, EXS_EVT_RECV, ECANCELED);
    CHECK(exs_strerror()[0] != 0);
    end(p);
    end_queue(q);
}

CASE("version-1", the_version_has_three_numbers, NOWHERE)
{
    int a, b, c;
    char more;

    GIVES(3, sscanf(exs_version(), "%d.%d.%d%c", &a, &b, &c, &more));
}
