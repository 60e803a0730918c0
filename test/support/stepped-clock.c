/*
 * Steps the wall clock of one program: preloaded, it adds the milliseconds in the file CLOCK_AHEAD_FILE to the time.
 *
 * The file holds one 64-bit integer and is mapped, so a test that writes it steps the clock at once. Other clocks, timers
 * included, are as they were.
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

static int64_t none = 0;
static volatile int64_t *ahead_ms = NULL;

static int64_t ahead(void) {
  if (ahead_ms == NULL) {
    const char *path = getenv("CLOCK_AHEAD_FILE");
    int file = path == NULL ? -1 : open(path, O_RDONLY);
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    ahead_ms = mapped == MAP_FAILED ? &none : mapped;
  }
  return *ahead_ms;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  int result = (int)syscall(SYS_clock_gettime, clock, time);
  if (result != 0 || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return result;
  int64_t ns = time->tv_nsec + ahead() % 1000 * 1000000;
  time->tv_sec += ahead() / 1000 + (ns < 0 ? -1 : ns / 1000000000);
  time->tv_nsec = ns < 0 ? ns + 1000000000 : ns % 1000000000;
  return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  (void)zone;
  struct timespec exact;
  if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return -1;
  time->tv_sec = exact.tv_sec;
  time->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *seconds) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (seconds != NULL) *seconds = exact.tv_sec;
  return exact.tv_sec;
}
