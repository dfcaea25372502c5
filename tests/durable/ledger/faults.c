/* Faults of the system under a broker, by LD_PRELOAD: fdatasync that fails, a disk without room, a clock set back or ahead.
   TENBIN_FAULTS names a file of three 64-bit numbers, which the test changes while the broker runs:
   errno of fdatasync and fsync, errno of writes to regular files, nanoseconds to add to the time of day. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *faults;
static int (*real_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("TENBIN_FAULTS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) _exit(120);
    void *page = mmap(NULL, 24, PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) _exit(121);
    faults = page;
    close(file);
}

static int fails(int which) {
    int error = faults ? (int)faults[which] : 0;
    if (error) errno = error;
    return error;
}

static int write_fails(int file) {
    struct stat status;
    if (!faults || !faults[1] || fstat(file, &status) || !S_ISREG(status.st_mode)) return 0;
    return fails(1);
}

int fdatasync(int file) { return fails(0) ? -1 : (int)syscall(SYS_fdatasync, file); }
int fsync(int file) { return fails(0) ? -1 : (int)syscall(SYS_fsync, file); }

ssize_t write(int file, const void *bytes, size_t count) {
    return write_fails(file) ? -1 : syscall(SYS_write, file, bytes, count);
}
ssize_t pwrite(int file, const void *bytes, size_t count, off_t offset) {
    return write_fails(file) ? -1 : syscall(SYS_pwrite64, file, bytes, count, offset);
}
ssize_t pwrite64(int file, const void *bytes, size_t count, off_t offset) {
    return write_fails(file) ? -1 : syscall(SYS_pwrite64, file, bytes, count, offset);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = real_clock ? real_clock(clock, time) : (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME && faults && faults[2]) {
        int64_t all = (int64_t)time->tv_sec * 1000000000 + time->tv_nsec + faults[2];
        time->tv_sec = all / 1000000000;
        time->tv_nsec = all % 1000000000;
    }
    return result;
}
