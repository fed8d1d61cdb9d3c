/* Preloaded into a process: its clock is set by whoever writes nanoseconds (int64) into the file SET_CLOCK_FILE.

Only CLOCK_REALTIME is another one, as when a machine's clock is set; who waits until a time of that clock waits as long
as this one says, also if it is set meanwhile. Not libfaketime: its clock_nanosleep(), by which Python sleeps, fails for
CLOCK_MONOTONIC when that is to stay as it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define SLICE (SECOND / 20) /* how long somebody waits who does not know yet that the clock has been set */
#define MONOTONIC_CONDITION 2 /* in __wrefs: glibc, nptl/pthreadP.h */

static const int64_t none = 0;
static const volatile int64_t *offset = &none;
static long (*real_syscall)(long, ...);
static int (*real_sem)(sem_t *, const struct timespec *);
static int (*real_condition)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real_syscall = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    real_sem = (int (*)(sem_t *, const struct timespec *))dlsym(RTLD_NEXT, "sem_timedwait");
    real_condition = (int (*)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *))dlvsym(
        RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    const char *path = getenv("SET_CLOCK_FILE");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) offset = mapped;
    close(file);
}

static int64_t nanoseconds(const struct timespec *at) { return at->tv_sec * SECOND + at->tv_nsec; }

static struct timespec split(int64_t at) { return (struct timespec){at / SECOND, at % SECOND}; }

static int64_t machines(void) {
    struct timespec now;
    real_syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    return nanoseconds(&now);
}

/* Until when to wait by the machine's clock; false if the time has come. */
static int next(const struct timespec *until, struct timespec *slice) {
    int64_t now = machines(), left = nanoseconds(until) - (now + *offset);
    *slice = split(now + (left > SLICE ? SLICE : left > 0 ? left : 0));
    return left > 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (real_syscall == NULL) begin();
    int failed = (int)real_syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) *now = split(nanoseconds(now) + *offset);
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    *now = (struct timeval){at.tv_sec, at.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *now) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (now != NULL) *now = at.tv_sec;
    return at.tv_sec;
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    struct timespec slice;
    for (;;) {
        int more = next(until, &slice), failed = real_sem(semaphore, &slice);
        if (!failed || errno != ETIMEDOUT || !more) return failed;
    }
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    if (condition->__data.__wrefs & MONOTONIC_CONDITION) return real_condition(condition, mutex, until);
    struct timespec slice;
    for (;;) {
        int more = next(until, &slice), failed = real_condition(condition, mutex, &slice);
        if (failed != ETIMEDOUT || !more) return failed;
    }
}

long syscall(long number, ...) {
    long a[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long);
    va_end(rest);
    if (real_syscall == NULL) begin();
    const struct timespec *until = (const struct timespec *)a[3];
    if (number != SYS_futex || !(a[1] & FUTEX_CLOCK_REALTIME) || until == NULL)
        return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    struct timespec slice;
    for (;;) {
        int more = next(until, &slice);
        long failed = real_syscall(number, a[0], a[1], a[2], &slice, a[4], a[5]);
        if (failed == 0 || errno != ETIMEDOUT || !more) return failed;
    }
}
