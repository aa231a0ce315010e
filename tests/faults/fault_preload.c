/* Loaded into a program with LD_PRELOAD: makes one call of the C library fail, once.
 *
 *   SNUG_FAULT=CALL:N:HOW   the N-th CALL (1 is the first) after main has begun. CALL is a name of
 *                           kNames below; HOW is a number of errno, or "short": half of the bytes.
 *   SNUG_FAULT_FD=FD        gets a byte when the call has failed, so that the caller knows
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum call { kOpen, kRead, kWrite, kSync, kRename, kMmap, kTruncate, kClose, kMalloc, kNumCalls };
static const char* const kNames[kNumCalls] = {"open", "read",     "write", "sync",  "rename",
                                              "mmap", "truncate", "close", "malloc"};
enum { kNone = 0, kShort = -1 };

static int g_call = kNumCalls, g_how, g_report = -1;
static long g_number;
static atomic_long g_count;
static atomic_int g_armed;

/* What to do instead of the call: kNone, kShort or a number of errno. */
static int fault_of(enum call call) {
  if ((int)call != g_call || !atomic_load_explicit(&g_armed, memory_order_relaxed)) return kNone;
  if (atomic_fetch_add(&g_count, 1) + 1 != g_number) return kNone;
  const int before = errno;
  (void)!syscall(SYS_write, g_report, "!", 1);
  errno = before;
  return g_how;
}

/* The function of the same name that would have been called. */
#define REAL(type, name, ...)                                  \
  static type (*real)(__VA_ARGS__);                            \
  if (real == NULL) {                                          \
    void* found = dlsym(RTLD_NEXT, name);                      \
    memcpy(&real, &found, sizeof found); /* C99 has no cast */ \
  }
#define FAIL_IF(call)               \
  const int fault = fault_of(call); \
  if (fault > 0) return errno = fault, -1;
#define HALF(n) (fault == kShort && (n) > 1 ? (n) / 2 : (n))

static int take_mode(int flags, va_list arguments) {
  return flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, int) : 0;
}
#define OPEN(name)                                \
  int name(const char* path, int flags, ...) {    \
    REAL(int, #name, const char*, int, ...)       \
    FAIL_IF(kOpen)                                \
    va_list arguments;                            \
    va_start(arguments, flags);                   \
    const int mode = take_mode(flags, arguments); \
    va_end(arguments);                            \
    return real(path, flags, mode);               \
  }
OPEN(open)
OPEN(open64)
#define OPENAT(name)                                       \
  int name(int folder, const char* path, int flags, ...) { \
    REAL(int, #name, int, const char*, int, ...)           \
    FAIL_IF(kOpen)                                         \
    va_list arguments;                                     \
    va_start(arguments, flags);                            \
    const int mode = take_mode(flags, arguments);          \
    va_end(arguments);                                     \
    return real(folder, path, flags, mode);                \
  }
OPENAT(openat)
OPENAT(openat64)

ssize_t read(int fd, void* to, size_t n) {
  REAL(ssize_t, "read", int, void*, size_t)
  FAIL_IF(kRead)
  return real(fd, to, HALF(n));
}
#define PREAD(name)                                    \
  ssize_t name(int fd, void* to, size_t n, off_t at) { \
    REAL(ssize_t, #name, int, void*, size_t, off_t)    \
    FAIL_IF(kRead)                                     \
    return real(fd, to, HALF(n), at);                  \
  }
PREAD(pread)
PREAD(pread64)

ssize_t write(int fd, const void* from, size_t n) {
  REAL(ssize_t, "write", int, const void*, size_t)
  FAIL_IF(kWrite)
  return real(fd, from, HALF(n));
}
#define PWRITE(name)                                           \
  ssize_t name(int fd, const void* from, size_t n, off_t at) { \
    REAL(ssize_t, #name, int, const void*, size_t, off_t)      \
    FAIL_IF(kWrite)                                            \
    return real(fd, from, HALF(n), at);                        \
  }
PWRITE(pwrite)
PWRITE(pwrite64)
#define PWRITEV(name)                                                    \
  ssize_t name(int fd, const struct iovec* from, int n, off_t at) {      \
    REAL(ssize_t, #name, int, const struct iovec*, int, off_t)           \
    FAIL_IF(kWrite)                                                      \
    if (fault != kShort) return real(fd, from, n, at);                   \
    const struct iovec part = {from[0].iov_base, HALF(from[0].iov_len)}; \
    return real(fd, &part, 1, at);                                       \
  }
PWRITEV(pwritev)
PWRITEV(pwritev64)

#define SYNC(name)        \
  int name(int fd) {      \
    REAL(int, #name, int) \
    FAIL_IF(kSync)        \
    return real(fd);      \
  }
SYNC(fsync)
SYNC(fdatasync)
SYNC(syncfs)

int rename(const char* from, const char* to) {
  REAL(int, "rename", const char*, const char*)
  FAIL_IF(kRename)
  return real(from, to);
}
int renameat2(int a, const char* from, int b, const char* to, unsigned flags) {
  REAL(int, "renameat2", int, const char*, int, const char*, unsigned)
  FAIL_IF(kRename)
  return real(a, from, b, to, flags);
}
int link(const char* from, const char* to) {
  REAL(int, "link", const char*, const char*)
  FAIL_IF(kRename)
  return real(from, to);
}

#define MMAP(name)                                                              \
  void* name(void* at, size_t n, int rights, int flags, int fd, off_t offset) { \
    REAL(void*, #name, void*, size_t, int, int, int, off_t)                     \
    const int fault = fault_of(kMmap);                                          \
    if (fault > 0) return errno = fault, MAP_FAILED;                            \
    return real(at, n, rights, flags, fd, offset);                              \
  }
MMAP(mmap)
MMAP(mmap64)

#define TRUNCATE(name)           \
  int name(int fd, off_t size) { \
    REAL(int, #name, int, off_t) \
    FAIL_IF(kTruncate)           \
    return real(fd, size);       \
  }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)
#define FALLOCATE(name)                                \
  int name(int fd, int mode, off_t from, off_t size) { \
    REAL(int, #name, int, int, off_t, off_t)           \
    FAIL_IF(kTruncate)                                 \
    return real(fd, mode, from, size);                 \
  }
FALLOCATE(fallocate)
FALLOCATE(fallocate64)

/* As in Linux, the descriptor is closed even then. */
int close(int fd) {
  REAL(int, "close", int)
  const int fault = fault_of(kClose), closed = real(fd);
  if (fault > 0) return errno = fault, -1;
  return closed;
}

/* dlsym may allocate, so these call the C library by its other names. */
extern void* __libc_malloc(size_t n);
extern void* __libc_calloc(size_t n, size_t size);
extern void* __libc_realloc(void* old, size_t n);
extern void* __libc_memalign(size_t align, size_t n);
#define NO_MEMORY_IF_DUE \
  if (fault_of(kMalloc) > 0) return errno = ENOMEM, NULL;
void* malloc(size_t n) {
  NO_MEMORY_IF_DUE
  return __libc_malloc(n);
}
void* calloc(size_t n, size_t size) {
  NO_MEMORY_IF_DUE
  return __libc_calloc(n, size);
}
void* realloc(void* old, size_t n) {
  NO_MEMORY_IF_DUE
  return __libc_realloc(old, n);
}
void* aligned_alloc(size_t align, size_t n) {
  NO_MEMORY_IF_DUE
  return __libc_memalign(align, n);
}
int posix_memalign(void** memory, size_t align, size_t n) {
  if (fault_of(kMalloc) > 0) return ENOMEM;
  *memory = __libc_memalign(align, n);
  return *memory == NULL ? ENOMEM : 0;
}

static void read_order(void) {
  const char *order = getenv("SNUG_FAULT"), *report = getenv("SNUG_FAULT_FD");
  if (order == NULL || report == NULL) return;
  char name[16] = "";
  const size_t length = strcspn(order, ":");
  if (length >= sizeof name || order[length] == '\0') return;
  memcpy(name, order, length);
  char* how = NULL;
  g_number = strtol(order + length + 1, &how, 10);
  g_how = strcmp(how, ":short") == 0 ? kShort : atoi(how + 1);
  g_report = atoi(report);
  for (int i = 0; i < kNumCalls; ++i)
    if (strcmp(name, kNames[i]) == 0) g_call = i;
}

static int (*g_main)(int, char**, char**);
static int armed_main(int argc, char** argv, char** environment) {
  read_order();
  atomic_store(&g_armed, 1);
  const int code = g_main(argc, argv, environment);
  atomic_store(&g_armed, 0);
  return code;
}

/* What runs before main is not ours to test. */
int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv, void (*init)(void),
                      void (*fini)(void), void (*loader_fini)(void), void* stack_end) {
  REAL(int, "__libc_start_main", int (*)(int, char**, char**), int, char**, void (*)(void),
       void (*)(void), void (*)(void), void*)
  g_main = main;
  return real(armed_main, argc, argv, init, fini, loader_fini, stack_end);
}
