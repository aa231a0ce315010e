/* paced_reads.c - a library to preload: reads from files below one folder arrive as from a disk or
 * network of a given rate.
 *
 *   cc -O2 -shared -fPIC -o paced_reads.so paced_reads.c -ldl
 *   PACED_READS_UNDER=/models LD_PRELOAD=./paced_reads.so program
 *
 * A program calls paced_reads_set(bytes a second), 0 for no limit. All threads share one queue:
 * every MiB that is read takes its time in it, and is copied when that time is over. So a single
 * thread gets the full rate, many get no more, and copying overlaps with waiting. Page faults of
 * mappings, io_uring and AIO are not paced.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { kPart = 1 << 20 };

static double rate; /* bytes a second */
static double next_free;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void paced_reads_set(double bytes_per_second) {
  pthread_mutex_lock(&mutex);
  rate = bytes_per_second;
  next_free = now();
  pthread_mutex_unlock(&mutex);
}

static int is_paced(int fd) {
  const char* folder = getenv("PACED_READS_UNDER");
  char link[64], path[PATH_MAX];
  ssize_t length;
  if (rate <= 0 || folder == NULL) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  length = readlink(link, path, sizeof path);
  return length > 0 && (size_t)length > strlen(folder) &&
         strncmp(path, folder, strlen(folder)) == 0;
}

static void wait_for(size_t num_bytes) {
  double done;
  struct timespec until;
  pthread_mutex_lock(&mutex);
  done = now();
  if (next_free > done) done = next_free;
  done += (double)num_bytes / rate;
  next_free = done;
  pthread_mutex_unlock(&mutex);
  until.tv_sec = (time_t)done;
  until.tv_nsec = (long)((done - (double)until.tv_sec) * 1e9);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
  }
}

typedef ssize_t (*pread_function)(int, void*, size_t, off_t);
typedef ssize_t (*read_function)(int, void*, size_t);

static void* next_symbol(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  if (found == NULL) abort();
  return found;
}

ssize_t pread64(int fd, void* dst, size_t num_bytes, off_t offset) {
  static pread_function next;
  size_t done = 0;
  if (next == NULL) next = (pread_function)next_symbol("pread64");
  if (num_bytes <= 4096 || !is_paced(fd)) return next(fd, dst, num_bytes, offset);
  while (done < num_bytes) {
    const size_t part = num_bytes - done < kPart ? num_bytes - done : kPart;
    ssize_t got;
    wait_for(part);
    got = next(fd, (char*)dst + done, part, offset + (off_t)done);
    if (got < 0) return done > 0 ? (ssize_t)done : got;
    done += (size_t)got;
    if ((size_t)got < part) break;
  }
  return (ssize_t)done;
}

ssize_t pread(int fd, void* dst, size_t num_bytes, off_t offset) {
  return pread64(fd, dst, num_bytes, offset);
}

ssize_t read(int fd, void* dst, size_t num_bytes) {
  static read_function next;
  size_t done = 0;
  if (next == NULL) next = (read_function)next_symbol("read");
  if (num_bytes <= 4096 || !is_paced(fd)) return next(fd, dst, num_bytes);
  while (done < num_bytes) {
    const size_t part = num_bytes - done < kPart ? num_bytes - done : kPart;
    ssize_t got;
    wait_for(part);
    got = next(fd, (char*)dst + done, part);
    if (got < 0) return done > 0 ? (ssize_t)done : got;
    done += (size_t)got;
    if ((size_t)got < part) break;
  }
  return (ssize_t)done;
}
