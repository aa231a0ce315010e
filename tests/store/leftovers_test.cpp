// Temporary names: who still works on them, and how often the disk is waited for.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "snug/store.h"
#include "store/output.h"
#include "store/store_files.h"

namespace {
std::atomic<int> g_num_syncs{0};
}

// Takes the place of the C library's.
extern "C" int fsync(int fd) {
  ++g_num_syncs;
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace snug::test {
namespace {

namespace fs = std::filesystem;

// A process that works on something under a temporary name until it is killed.
class Worker {
 public:
  template <class Begin>
  explicit Worker(Begin begin) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const auto work = begin();
      (void)!::write(ends[1], "x", 1);
      for (;;) ::pause();
    }
    char ready;
    EXPECT_EQ(::read(ends[0], &ready, 1), 1);
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~Worker() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
};

TEST(Leftovers, OfKilledRunsAreFound) {
  const ScratchFolder folder;
  const std::string path = folder / "x.safetensors";
  EXPECT_TRUE(find_leftovers(path).empty());
  Worker file([&] {
    auto created = store::OutputFile::create(path, false);
    auto output = std::make_shared<store::OutputFile>(std::move(*created));
    EXPECT_TRUE(output->file().write_at(0, "12345", 5).ok());
    return output;
  });
  Worker other([&] {
    auto output =
        std::make_shared<store::OutputFolder>(path, folder.path(), std::vector<std::string>{"sub"});
    EXPECT_TRUE(output->create().ok());
    write_file(output->path_of("sub/f"), "123");
    return output;
  });
  EXPECT_EQ(folder.list().size(), 4u);
  EXPECT_TRUE(find_leftovers(path).empty());
  file.kill();
  const auto one = find_leftovers(path);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].num_bytes, 5u);
  EXPECT_TRUE(one[0].path.starts_with(path + ".tmp-"));
  other.kill();
  const auto two = find_leftovers(path);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].num_bytes + two[1].num_bytes, 8u);
  for (const Leftover& left : two) fs::remove_all(left.path);
  EXPECT_TRUE(folder.list().empty());
}

TEST(Leftovers, OtherNamesAreNot) {
  const ScratchFolder folder;
  for (const char* name : {"x", "x.tmp-0123456", "x.tmp-012345678", "x.tmp-0123456g",
                           "y.tmp-01234567", "xx.tmp-01234567", "x.kept-01234567"})
    write_file(folder / name, "mine");
  write_file(folder / "x.tmp-89abcdef", "");  // nothing to win
  EXPECT_TRUE(find_leftovers(folder / "x").empty());
  EXPECT_TRUE(find_leftovers(folder / "none/x").empty());
  EXPECT_TRUE(find_leftovers("").empty());
  write_file(folder / "x.tmp-01234567", "left");
  EXPECT_EQ(find_leftovers(folder / "x").size(), 1u);
  EXPECT_EQ(find_leftovers(folder / "x/").size(), 1u);
}

TEST(Leftovers, SmallFilesOfAFolderAreSyncedAtOnce) {
  const ScratchFolder folder;
  fs::create_directory(folder / "in");
  for (int i = 0; i < 100; ++i)
    write_file(folder / "in/" + std::to_string(i) + ".safetensors",
               make_file({make_tensor("t", "BF16", {300})}));
  g_num_syncs = 0;
  ASSERT_TRUE(compress_path(folder / "in", folder / "packed").ok());
  ASSERT_TRUE(decompress_path(folder / "packed", folder / "out").ok());
  EXPECT_LT(g_num_syncs, 10);
  EXPECT_GT(g_num_syncs, 0);  // the folder that holds it
  // A single file is on the disk before it has its name.
  g_num_syncs = 0;
  ASSERT_TRUE(compress_path(folder / "in/1.safetensors", folder / "one").ok());
  EXPECT_GE(g_num_syncs, 2);
}

}  // namespace
}  // namespace snug::test
