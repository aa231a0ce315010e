// Reads that fail: no command takes an error for something else.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>

#include "snug/store.h"
#include "store/store_files.h"

namespace {
std::atomic<int> g_num_reads{0};
std::atomic<int> g_failing{0};  // the read that fails, counted from 1; 0: none

ssize_t read_or_fail(int fd, void* dst, size_t num_bytes, off_t offset) {
  if (++g_num_reads != g_failing) return ::syscall(SYS_pread64, fd, dst, num_bytes, offset);
  errno = EIO;
  return -1;
}
}  // namespace

// Take the place of the C library's, which has both names.
extern "C" ssize_t pread(int fd, void* dst, size_t num_bytes, off_t offset) {
  return read_or_fail(fd, dst, num_bytes, offset);
}
extern "C" ssize_t pread64(int fd, void* dst, size_t num_bytes, off_t offset) {
  return read_or_fail(fd, dst, num_bytes, offset);
}

namespace snug::test {
namespace {

namespace fs = std::filesystem;

class ReadErrors : public ::testing::Test {
 protected:
  void SetUp() override {
    auto tensors = mixed_tensors();
    write_file(folder_ / "base", make_file(tensors));
    tensors[0].data[5] ^= 1;
    write_file(folder_ / "next", make_file(tensors));
    ASSERT_TRUE(compress_path(folder_ / "base", folder_ / "packed").ok());
    options_.num_threads = 1;
  }
  // Calls `work` with every read failing in turn; it says whether it succeeded.
  template <class Work>
  void fail_everywhere(Work work) {
    g_failing = 0;
    g_num_reads = 0;
    ASSERT_TRUE(work());
    const int num_reads = g_num_reads;
    ASSERT_GT(num_reads, 1);
    for (int i = 1; i <= num_reads; ++i) {
      g_num_reads = 0;
      g_failing = i;
      EXPECT_FALSE(work()) << "read " << i << " of " << num_reads;
    }
    g_failing = 0;
  }

  ScratchFolder folder_;
  StoreOptions options_;
};

TEST_F(ReadErrors, OfDiff) {
  for (const char* base : {"base", "packed"})
    fail_everywhere([&] {
      fs::remove(folder_ / "patch");
      const bool ok = diff_path(folder_ / base, folder_ / "next", folder_ / "patch", options_).ok();
      EXPECT_EQ(ok, fs::exists(folder_ / "patch"));
      return ok;
    });
}

TEST_F(ReadErrors, OfPatch) {
  ASSERT_TRUE(diff_path(folder_ / "base", folder_ / "next", folder_ / "patch").ok());
  for (const char* base : {"base", "packed"})
    fail_everywhere([&] {
      fs::remove(folder_ / "out");
      const bool ok = patch_path(folder_ / base, folder_ / "patch", folder_ / "out", options_).ok();
      EXPECT_EQ(ok, fs::exists(folder_ / "out"));
      return ok;
    });
}

TEST_F(ReadErrors, OfVersions) {
  for (const char* name : {"base", "packed"})
    fail_everywhere([&] { return version_of(folder_ / name, options_).ok(); });
}

}  // namespace
}  // namespace snug::test
