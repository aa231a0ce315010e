// A follower that is stopped while it applies a patch: the version does not appear.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "snug/transfer.h"
#include "store/store_files.h"

namespace snug::test {
namespace {

namespace fs = std::filesystem;

void publish(const ScratchFolder& folder, const std::string& name, const std::string& bytes) {
  write_file(folder / name, bytes);
  fs::rename(folder / name, folder / "served/" + name);
}

TEST(SyncStop, WhileAPatchIsApplied) {
  const ScratchFolder folder;
  fs::create_directory(folder / "served");
  fs::create_directory(folder / "taken");
  std::string bytes = make_file({make_tensor("w", "BF16", {1 << 20})});
  publish(folder, "v1", bytes);
  SyncOptions options;
  options.once = true;
  auto listener = std::move(*wire::Listener::open("127.0.0.1:0", options.wire));
  std::atomic<bool> ended{false};
  SyncOptions serving = options;
  serving.keep_going = [&] { return !ended; };
  std::thread server(
      [&] { EXPECT_TRUE(serve_versions(listener, folder / "served", serving).ok()); });
  const std::string address = listener.address(), taken = folder / "taken";
  EXPECT_TRUE(follow_versions(address, taken, options).ok());
  ASSERT_EQ(fs::read_symlink(taken + "/current"), "v1");

  bytes[bytes.size() / 2] ^= 1;
  publish(folder, "v2", bytes);
  // The result of the patch is there, under a temporary name.
  const auto is_applied = [&] {
    std::error_code error;
    for (fs::directory_iterator it(taken + "/.v2.snug-part", error), end; !error && it != end;
         it.increment(error))
      if (it->path().filename().string().starts_with("update.result")) return true;
    return false;
  };
  SyncOptions stopping = options;
  bool stopped = false;
  stopping.keep_going = [&] { return !(stopped = stopped || is_applied()); };
  // Until the server has found it.
  for (int i = 0; i < 1000 && !stopped; ++i) {
    const StoreStatus s = follow_versions(address, taken, stopping);
    EXPECT_TRUE(s.ok() || stopped) << to_string(s);
  }
  EXPECT_TRUE(stopped);
  EXPECT_EQ(fs::read_symlink(taken + "/current"), "v1");
  EXPECT_FALSE(fs::exists(taken + "/v2"));
  EXPECT_FALSE(fs::exists(taken + "/.v2.snug-part"));

  EXPECT_TRUE(follow_versions(address, taken, options).ok());
  EXPECT_EQ(fs::read_symlink(taken + "/current"), "v2");
  EXPECT_EQ(read_file(taken + "/v2"), bytes);
  ended = true;
  server.join();
}

}  // namespace
}  // namespace snug::test
