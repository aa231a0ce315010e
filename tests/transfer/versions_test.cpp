// What a server publishes out of a folder.
#include "transfer/versions.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "store/store_files.h"
#include "support/child_process.h"

namespace snug::test {
namespace {

namespace fs = std::filesystem;

TEST(VersionCatalog, PublishesThousandsOfFilesWithFewDescriptors) {
  const ScratchFolder folder;
  for (const char* name : {"v1", "v2"}) {
    fs::create_directory(folder / name);
    for (int i = 0; i < 1100; ++i)
      write_file(folder / name + ("/" + std::to_string(i)), name + std::to_string(i));
  }
  const auto report = in_child([&] {
    limit_descriptors(256);
    int num_problems = 0;
    transfer::VersionCatalog catalog(folder.path(), [&](const StoreStatus&) { ++num_problems; });
    if (!catalog.scan().ok() || num_problems > 0) return 1;
    const transfer::Version newest = catalog.newest("-");
    if (newest.name != "v2") return 2;
    const auto base = version_of(folder / "v1");
    return base && newest.hash == *version_of(folder / "v2") ? 0 : 3;
  });
  EXPECT_EQ(report.code, 0);
}

// Damage is no new version, and a version whose owner puts the times back has still changed.
TEST(VersionCatalog, PublishesNoDamage) {
  const ScratchFolder folder;
  fs::create_directory(folder / "served");
  write_file(folder / "plain", make_file(mixed_tensors()));
  const std::string path = folder / "served/v1";
  ASSERT_TRUE(compress_path(folder / "plain", path).ok());
  std::string said;
  transfer::VersionCatalog catalog(folder / "served",
                                   [&](const StoreStatus& s) { said += to_string(s) + "\n"; });
  ASSERT_TRUE(catalog.scan().ok());
  ASSERT_EQ(catalog.newest("-").name, "v1");
  const auto time = fs::last_write_time(path);
  std::string bytes = read_file(path);
  bytes[bytes.size() / 2] ^= 1;
  write_file(path, bytes);
  fs::last_write_time(path, time);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (said.empty() && std::chrono::steady_clock::now() < until) {
    ASSERT_TRUE(catalog.scan().ok());
    ::usleep(50'000);
  }
  EXPECT_NE(said.find("not published"), std::string::npos) << said;
  EXPECT_EQ(catalog.newest("-").name, "");
}

// A patch has to hold the names of all tensors, a full copy does not.
TEST(VersionCatalog, PublishesMoreNamesThanAPatchMayHave) {
  const ScratchFolder folder;
  std::string names;  // 72 MB
  for (int i = 0; i < 1200; ++i)
    names += (i == 0 ? "\"" : ",\"") + std::to_string(i) + std::string(60'000, 'x') +
             R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  for (const char* version : {"v1", "v2"}) {
    fs::create_directory(folder / version);
    write_file(folder / version + "/new", version);
  }
  write_file(folder / "v1/0", with_length("{" + names + "}", ""));
  fs::create_hard_link(folder / "v1/0", folder / "v2/0");
  const auto refused = diff_path(folder / "v1", folder / "v2", folder / ".patch").status();
  EXPECT_EQ(refused.status.code, Code::kUsage);
  EXPECT_NE(std::string(refused.status.what).find("more than 128 MiB"), std::string::npos);
  transfer::VersionCatalog catalog(folder.path(), [](const StoreStatus&) { ADD_FAILURE(); });
  ASSERT_TRUE(catalog.scan().ok());
  const transfer::Version newest = catalog.newest("-");
  EXPECT_EQ(newest.name, "v2");
  EXPECT_EQ(catalog.patch(*version_of(folder / "v1"), newest), nullptr);
}

}  // namespace
}  // namespace snug::test
