// tests/support/child_process.h - work in a child process: its peak memory, or its limits.
#pragma once
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace snug::test {

struct ChildReport {
  int code = -1;       // what the body returned, 0 to 255; -1 if it was killed
  long peak_kib = -1;  // most memory the child has used
};

// Runs `body`, which returns an exit code, in a child. Call it while there is one thread.
template <class Body>
ChildReport in_child(Body body) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const int code = body();
    struct rusage usage;
    ::getrusage(RUSAGE_SELF, &usage);
    (void)!::write(ends[1], &usage.ru_maxrss, sizeof usage.ru_maxrss);
    ::_exit(code);
  }
  ::close(ends[1]);
  ChildReport report;
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  if (::read(ends[0], &report.peak_kib, sizeof report.peak_kib) != sizeof report.peak_kib)
    report.peak_kib = -1;
  ::close(ends[0]);
  if (WIFEXITED(status)) report.code = WEXITSTATUS(status);
  return report;
}

// For the rest of this process: at most so many descriptors.
inline void limit_descriptors(rlim_t most) {
  const struct rlimit limit = {most, most};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

}  // namespace snug::test
