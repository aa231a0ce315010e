// tests/store/peak_memory.h - the most memory that some work takes.
#pragma once
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace snug::test {

inline constexpr long kMaxKiB = 256 << 10;  // what snug/store.h promises

// Runs `body`, which returns whether it went as it should, in a child. Returns the child's peak in
// KiB, or -1 if it went otherwise. The caller's own memory counts too: it should be small.
template <class Body>
long child_peak(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  struct rusage usage;
  EXPECT_EQ(::wait4(child, &status, 0, &usage), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? usage.ru_maxrss : -1;
}

}  // namespace snug::test
