/* Prints the rate of this processor's time stamp counter in kHz.
 *
 * QEMU's software emulation gives the guest the host's counter. On a busy host the
 * guest's own measurement of its rate can be wrong by a factor of nine, and every
 * timeout with it; so it is measured out here and handed in.
 */
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_RAW, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

int main(void)
{
    double began = now();
    unsigned long long first = __rdtsc();
    struct timespec pause = { 0, 100 * 1000 * 1000 };
    nanosleep(&pause, NULL);
    double passed = now() - began;
    printf("%.0f\n", (double)(__rdtsc() - first) / passed);
    return 0;
}
