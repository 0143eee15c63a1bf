/* The functions of <sys/exs.h> that take `...`, which Rust cannot define: they fetch
 * the argument that the command asks for, and hand it on. */
#define _GNU_SOURCE /* all commands of fcntl(2) */
#include <sys/exs.h>

#include <fcntl.h>
#include <stdarg.h>

int exsffi_qmodify(exs_qhandle_t queue, int attribute, int number, int *place);
int exsffi_fcntl(int fd, int command, uintptr_t argument);

int exs_qmodify(exs_qhandle_t queue, int attribute, ...)
{
    int number = 0;
    int *place = NULL;
    va_list args;

    va_start(args, attribute);
    switch (attribute) {
    case EXS_QATTR_DEPTH:
    case EXS_QATTR_WAIT:
        number = va_arg(args, int);
        break;
    case EXS_QATTR_EVENTS:
        place = va_arg(args, int *);
        break;
    case EXS_QATTR_SIGNAL:
        /* seen as an exs_signal_t again on the other side */
        place = (int *)(void *)va_arg(args, exs_signal_t *);
        break;
    default: /* refused there, with the others' errors */
        break;
    }
    va_end(args);
    return exsffi_qmodify(queue, attribute, number, place);
}

int exs_fcntl(int fd, int command, ...)
{
    uintptr_t argument = 0;
    va_list args;

    va_start(args, command);
    switch (command) {
    case F_SETFD:
    case F_SETFL:
    case F_DUPFD:
    case F_DUPFD_CLOEXEC:
    case F_SETOWN:
        argument = (uintptr_t)(unsigned)va_arg(args, int);
        break;
    case F_GETFD:
    case F_GETFL:
    case F_GETOWN:
        break;
    default: /* locks and the like: a pointer */
        argument = (uintptr_t)va_arg(args, void *);
        break;
    }
    va_end(args);
    return exsffi_fcntl(fd, command, argument);
}
