/* Moves the wall clock of one process by an offset that another process may change at any time, or stops it.
 *
 * LD_PRELOAD=clockshim.so CLOCKSHIM_FILE=<file of two int64: the offset in microseconds, and, unless it is 0, the
 * instant at which the clock stands still, in microseconds since 1970>
 *
 * Only the real-time clock moves. The monotonic clock, on which the server's own timers run, stays as it is.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t nothing[2] = {0, 0};
static const volatile int64_t *moved = nothing; /* the offset, the standstill */

__attribute__((constructor)) static void map_offset(void)
{
    const char *path = getenv("CLOCKSHIM_FILE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *page = mmap(NULL, sizeof(nothing), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED)
        moved = page;
}

/* A system call, not the C library's function: this may run before the library can look up the next symbol. */
int clock_gettime(clockid_t which, struct timespec *out)
{
    int failed = (int)syscall(SYS_clock_gettime, which, out);
    if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) {
        int64_t us = moved[0], still = moved[1];
        if (still) {
            out->tv_sec = still / 1000000;
            out->tv_nsec = (still % 1000000) * 1000;
            return 0;
        }
        int64_t s = us / 1000000, ns = out->tv_nsec + (us % 1000000) * 1000;
        if (ns < 0) {
            ns += 1000000000;
            s -= 1;
        } else if (ns >= 1000000000) {
            ns -= 1000000000;
            s += 1;
        }
        out->tv_sec += s;
        out->tv_nsec = ns;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return (time_t)-1;
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
