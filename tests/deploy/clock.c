/* The system's clock, shifted by the seconds (int64) that the file $FEDPRIV_TEST_CLOCK has now; for LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile int64_t *shift;
static int (*real)(clockid_t, struct timespec *);

static __attribute__((constructor)) void begin(void) {
    const char *path = getenv("FEDPRIV_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    shift = mapped == MAP_FAILED ? 0 : mapped;
    real = dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t id, struct timespec *at) {
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, at);
    if (!failed && shift && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += *shift;
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
