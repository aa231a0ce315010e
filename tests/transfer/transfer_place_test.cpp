// Where received files go: their permissions, names that are taken, names that are long.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "store/store_files.h"
#include "transfer/one_receiver.h"
#include "transfer/part_folder.h"

namespace snug::test {
namespace {

namespace fs = std::filesystem;

unsigned mode_of(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 0777u : 0;
}

TEST(WirePlace, TheUmaskHoldsForWhatArrives) {
  ScratchFolder from;
  fs::create_directories(from / "m/deep");
  write_file(from / "m/a", "x");
  write_file(from / "m/deep/b", "x");
  ::chmod((from / "m/a").c_str(), 0644);
  ::chmod((from / "m/deep/b").c_str(), 0755);
  for (const mode_t mask : {mode_t{022}, mode_t{027}, mode_t{077}}) {
    ScratchFolder to;
    const mode_t before = ::umask(mask);
    {
      Receiver receiver(to.path());
      EXPECT_TRUE(send_path(from / "m", receiver.address(), quick()).ok());
      EXPECT_TRUE(send_path(from / "m/a", receiver.address(), quick()).ok());
    }
    ::umask(before);
    for (const char* name : {"m", "m/deep", "m/deep/b"})
      EXPECT_EQ(mode_of(to / name), 0755u & ~mask) << name;
    for (const char* name : {"m/a", "a"}) EXPECT_EQ(mode_of(to / name), 0644u & ~mask) << name;
    EXPECT_EQ(to.list(), (std::vector<std::string>{"a", "m/", "m/a", "m/deep/", "m/deep/b"}));
  }
}

TEST(WirePlace, APartStaysPrivateIfItCannotGetItsName) {
  ScratchFolder to;
  const transfer::FileManifest manifest{"m", true, {{"a", 0, 0644}}};
  auto part = transfer::PartFolder::open(to.path(), manifest, false);
  ASSERT_TRUE(part.ok()) << to_string(part.status());
  fs::create_directory(to / "m");
  std::string kept;
  EXPECT_EQ(part->commit(manifest, false, {}, {}, kept).status().status.code, Code::kExists);
  EXPECT_EQ(mode_of(part->path()), 0700u);
}

// --force may have to keep what was there, under a longer name.
TEST(WirePlace, TheLongestNameCanBeReplaced) {
  ScratchFolder from, to;
  TransferOptions force = quick();
  force.force = true;
  const std::string longest(241, 'n'), longer(242, 'n');
  for (const std::string& name : {longest, longer}) {
    fs::create_directory(from / name);
    write_file(from / (name + "/a"), "new");
  }
  fs::create_directory(to / longest);
  write_file(to / (longest + "/precious"), "mine");
  Receiver receiver(to.path(), force);
  EXPECT_EQ(send_path(from / longer, receiver.address(), quick()).status().status.code,
            Code::kUsage);
  const auto report = send_path(from / longest, receiver.address(), quick());
  ASSERT_TRUE(report.ok()) << to_string(report.status());
  EXPECT_EQ(read_file(to / (longest + "/a")), "new");
  const auto listed = to.list();
  EXPECT_TRUE(std::ranges::any_of(listed, [&](const std::string& path) {
    return path.starts_with(longest + ".kept-") && path.ends_with("/precious");
  }));
}

// Before anything has travelled.
TEST(WirePlace, AFileDoesNotReplaceAFolder) {
  ScratchFolder to;
  fs::create_directory(to / "x");
  const auto part = transfer::PartFolder::open(to.path(), {"x", false, {{"x", 1, 0644}}}, true);
  EXPECT_EQ(part.status().status.code, Code::kExists);
  EXPECT_EQ(to.list(), std::vector<std::string>{"x/"});
}

}  // namespace
}  // namespace snug::test
