/* Shifts the wall clock of the processes it is preloaded into, by the nanoseconds in $CHAOS_CLOCK's file.
 * The monotonic clocks stay as they are, as they do when a machine's clock is set. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *shift_ns;

__attribute__((constructor)) static void open_shift(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(0, sizeof *shift_ns, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) shift_ns = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (failed || !shift_ns || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
    int64_t ns = now->tv_sec * INT64_C(1000000000) + now->tv_nsec + *shift_ns;
    now->tv_sec = ns / INT64_C(1000000000);
    now->tv_nsec = ns % INT64_C(1000000000);
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec spec;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &spec)) return -1;
    now->tv_sec = spec.tv_sec;
    now->tv_usec = spec.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec spec;
    clock_gettime(CLOCK_REALTIME, &spec);
    if (out) *out = spec.tv_sec;
    return spec.tv_sec;
}
