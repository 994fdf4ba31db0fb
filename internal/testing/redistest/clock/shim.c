/* Replaces the wall clock of a server. CLOCK_FILE has two integers of 8 bytes. The first is added to the time, in µs.
 * If the second is not 0, it is the time at which the clock stops instead, in µs since the epoch. The file is mapped,
 * so a write takes effect at once. The monotonic clock does not change. fopen64 below keeps servers from using the
 * counter of the processor as the monotonic clock. With the counter, Valkey 9.1 reads the wall clock only once a
 * millisecond, and adds the counted time.
 * This code must not allocate memory: jemalloc reads the time while it starts. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t none[2], *settings; /* the content of CLOCK_FILE, or none if it cannot be mapped */

/* Returns the time to show instead of the true time t, in ns since the epoch. */
static int64_t wall(const struct timespec *t)
{
	if (!settings) {
		const char *name = getenv("CLOCK_FILE");
		int fd = name ? open(name, O_RDONLY) : -1;
		void *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, fd, 0);
		settings = map == MAP_FAILED ? none : map;
		if (fd >= 0)
			close(fd);
	}
	if (settings[1])
		return settings[1] * 1000;
	return t->tv_sec * INT64_C(1000000000) + t->tv_nsec + settings[0] * 1000;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
	int failed = syscall(SYS_clock_gettime, clock, t);
	if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
		int64_t ns = wall(t);
		t->tv_sec = ns / 1000000000;
		t->tv_nsec = ns % 1000000000;
	}
	return failed;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
	struct timespec now;
	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *t)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (t)
		*t = now.tv_sec;
	return now.tv_sec;
}

/* A server uses the counter if /proc/cpuinfo says that its rate is constant. */
FILE *fopen64(const char *restrict name, const char *restrict mode)
{
	static FILE *(*next)(const char *restrict, const char *restrict);
	if (strcmp(name, "/proc/cpuinfo") == 0)
		return NULL;
	if (!next)
		next = dlsym(RTLD_NEXT, "fopen64");
	return next(name, mode);
}
