// Model folders: shards converted, everything else copied, nothing half done.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "snug/store.h"
#include "store/output.h"
#include "store/store_files.h"

namespace snug::test {
namespace {

namespace fs = std::filesystem;

constexpr char kIndex[] =
    "{\"metadata\":{\"total_size\":100},\"weight_map\":{\"a\":\"model-1.safetensors\",\"b\":"
    "\"model-2.safetensors\"}}";

class StoreFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ / "model/sub/empty");
    write_file(folder_ / "model/model-1.safetensors",
               make_file({make_tensor("a", "BF16", {300, 400})}));
    write_file(folder_ / "model/model-2.safetensors",
               make_file({make_tensor("b", "F32", {30, 40})}));
    write_file(folder_ / "model/model.safetensors.index.json", kIndex);
    write_file(folder_ / "model/config.json", "{}");
    write_file(folder_ / "model/sub/adapter.safetensors",
               make_file({make_tensor("c", "F16", {10})}));
    write_file(folder_ / "model/empty.txt", "");
  }

  void expect_same(const std::string& a, const std::string& b) const {
    std::size_t num_files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(a)) {
      const std::string name = entry.path().lexically_relative(a).string();
      EXPECT_TRUE(fs::exists(b + "/" + name)) << name;
      if (entry.is_directory()) continue;
      EXPECT_TRUE(read_file(entry.path().string()) == read_file(b + "/" + name)) << name;
      ++num_files;
    }
    for (const auto& entry : fs::recursive_directory_iterator(b))
      num_files -= entry.is_directory() ? 0 : 1;
    EXPECT_EQ(num_files, 0u);
  }

  // The call fails with `code` and leaves no trace.
  void expect_refused(const std::string& in, const std::string& out, Code code, const char* what) {
    const auto before = folder_.list();
    const auto report = compress_path(in, out);
    EXPECT_EQ(report.status().status.code, code) << to_string(report.status());
    EXPECT_STREQ(report.status().status.what, what);
    EXPECT_EQ(folder_.list(), before);
  }

  ScratchFolder folder_;
};

TEST_F(StoreFolder, RoundTrip) {
  const auto packed = compress_path(folder_ / "model", "");
  ASSERT_TRUE(packed.ok()) << to_string(packed.status());
  EXPECT_EQ(packed->output, folder_ / "model.snug");
  EXPECT_EQ(packed->files.size(), 3u);
  EXPECT_EQ(packed->num_copied_files, 3u);
  EXPECT_LT(packed->stored_bytes, packed->raw_bytes);
  EXPECT_TRUE(read_file(folder_ / "model.snug/model.safetensors.index.json") == kIndex);
  EXPECT_TRUE(verify_path(folder_ / "model.snug").ok());
  const auto restored = decompress_path(folder_ / "model.snug/", folder_ / "again");
  ASSERT_TRUE(restored.ok()) << to_string(restored.status());
  expect_same(folder_ / "model", folder_ / "again");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()), 3);
}

TEST_F(StoreFolder, LinksToFilesAreFollowed) {
  fs::create_directory(folder_ / "blobs");
  fs::rename(folder_ / "model/model-1.safetensors", folder_ / "blobs/0123");
  fs::create_symlink("../blobs/0123", folder_ / "model/model-1.safetensors");
  ASSERT_TRUE(compress_path(folder_ / "model", folder_ / "out").ok());
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder_ / "out/model-1.safetensors")));
  ASSERT_TRUE(decompress_path(folder_ / "out", folder_ / "again").ok());
  expect_same(folder_ / "model", folder_ / "again");
}

TEST_F(StoreFolder, RefusesWhatIsNoFile) {
  fs::create_directory_symlink("..", folder_ / "model/up");
  expect_refused(folder_ / "model", folder_ / "out", Code::kUsage,
                 "link to a folder is not followed");
  fs::remove(folder_ / "model/up");
  fs::create_symlink("nowhere", folder_ / "model/dangling");
  expect_refused(folder_ / "model", folder_ / "out", Code::kNotFound, "cannot open");
  fs::remove(folder_ / "model/dangling");
  ASSERT_EQ(::mkfifo((folder_ / "model/fifo").c_str(), 0600), 0);
  expect_refused(folder_ / "model", folder_ / "out", Code::kUsage, "neither file nor folder");
}

TEST_F(StoreFolder, RefusesMissingShards) {
  fs::remove(folder_ / "model/model-2.safetensors");
  expect_refused(folder_ / "model", folder_ / "out", Code::kNotFound,
                 "shard named by the index is missing");
  write_file(folder_ / "model/model.safetensors.index.json",
             "{\"weight_map\":{\"a\":\"../model/model-1.safetensors\"}}");
  expect_refused(folder_ / "model", folder_ / "out", Code::kNotFound,
                 "shard named by the index is missing");
  write_file(folder_ / "model/model.safetensors.index.json",
             "{\"weight_map\":{\"a\":\"/etc/hostname\"}}");
  expect_refused(folder_ / "model", folder_ / "out", Code::kNotFound,
                 "shard named by the index is missing");
  write_file(folder_ / "model/model.safetensors.index.json", "{\"weight_map\":{\"a\":1}}");
  expect_refused(folder_ / "model", folder_ / "out", Code::kCorrupt, "JSON: expected a string");
}

TEST_F(StoreFolder, RefusesABadShardBeforeWriting) {
  write_file(folder_ / "model/model-2.safetensors", "not tensors at all");
  expect_refused(folder_ / "model", folder_ / "out", Code::kBadMagic,
                 "not a safetensors file: header too long");
}

TEST_F(StoreFolder, RefusesFoldersWithoutTensors) {
  fs::create_directory(folder_ / "none");
  expect_refused(folder_ / "none", folder_ / "out", Code::kNotFound,
                 "no .safetensors file in this folder");
}

TEST_F(StoreFolder, RefusesOutputInsideInput) {
  expect_refused(folder_ / "model", folder_ / "model/out", Code::kUsage,
                 "output lies inside the input folder");
  expect_refused(folder_ / "model", folder_ / "model", Code::kUsage,
                 "output lies inside the input folder");
}

// Where there would be no room for the suffix of unfinished work: said before anything is written.
TEST_F(StoreFolder, RefusesNamesThatAreTooLong) {
  const std::string longest(241, 'n'), longer(242, 'n');
  const char* const what = "name of more than 241 bytes; Snug needs the rest while it works";
  expect_refused(folder_ / "model", folder_ / longer, Code::kUsage, what);
  expect_refused(folder_ / "model/model-2.safetensors", folder_ / longer, Code::kUsage, what);
  EXPECT_TRUE(compress_path(folder_ / "model", folder_ / longest).ok());
  write_file(folder_ / ("model/" + longer), "");
  expect_refused(folder_ / "model", folder_ / "out", Code::kUsage, what);
}

TEST_F(StoreFolder, ForceLosesNothing) {
  fs::create_directory(folder_ / "out");
  expect_refused(folder_ / "model", folder_ / "out", Code::kExists,
                 "already there; --force replaces it");
  StoreOptions force;
  force.force = true;
  write_file(folder_ / "out/thesis.txt", "mine");
  EXPECT_EQ(compress_path(folder_ / "model", folder_ / "out", force).status().status.code,
            Code::kExists);
  EXPECT_EQ(read_file(folder_ / "out/thesis.txt"), "mine");
  fs::rename(folder_ / "out/thesis.txt", folder_ / "out/config.json");
  ASSERT_TRUE(compress_path(folder_ / "model", folder_ / "out", force).ok());
  EXPECT_NE(read_file(folder_ / "out/config.json"), "mine");
  ASSERT_TRUE(decompress_path(folder_ / "out", folder_ / "again").ok());
  expect_same(folder_ / "model", folder_ / "again");
}

TEST_F(StoreFolder, ForceKeepsWhatAppearsMeanwhile) {
  StoreOptions options;
  options.force = true;
  const auto put = [&](const std::string& name) {
    options.progress = [&, name](const Progress&) {
      fs::create_directories(fs::path(folder_ / name).parent_path());
      write_file(folder_ / name, "mine");
      return true;
    };
  };
  // Large enough for progress to be reported.
  write_file(folder_ / "model/big.safetensors",
             make_file({make_tensor("big", "BF16", {2000, 1000})}));
  ASSERT_TRUE(compress_path(folder_ / "model", folder_ / "out").ok());
  for (const char* name : {"precious.txt", "sub/precious.txt", "new/deep/precious.txt"}) {
    put("out/" + std::string(name));
    const auto report = compress_path(folder_ / "model", folder_ / "out", options);
    ASSERT_TRUE(report.ok()) << to_string(report.status());
    ASSERT_TRUE(report->kept.starts_with(folder_ / "out.kept-")) << report->kept;
    EXPECT_EQ(read_file(report->kept + "/" + name), "mine");
    EXPECT_TRUE(fs::exists(report->kept + "/config.json"));
    EXPECT_FALSE(fs::exists(folder_ / "out/" + name));
    EXPECT_TRUE(verify_path(folder_ / "out").ok());
    fs::remove_all(report->kept);
  }
  // What has a successor is replaced, whenever it was written.
  put("out/config.json");
  const auto report = compress_path(folder_ / "model", folder_ / "out", options);
  ASSERT_TRUE(report.ok()) << to_string(report.status());
  EXPECT_EQ(report->kept, "");
  EXPECT_NE(read_file(folder_ / "out/config.json"), "mine");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()), 2);
}

TEST_F(StoreFolder, NamesTheDamagedShard) {
  ASSERT_TRUE(compress_path(folder_ / "model", folder_ / "out").ok());
  std::string shard = read_file(folder_ / "out/model-1.safetensors");
  shard[shard.size() / 2] ^= 4;
  fs::permissions(folder_ / "out/model-1.safetensors", fs::perms::owner_write,
                  fs::perm_options::add);
  write_file(folder_ / "out/model-1.safetensors", shard);
  const auto before = folder_.list();
  const auto report = decompress_path(folder_ / "out", folder_ / "again");
  EXPECT_EQ(report.status().status.code, Code::kCorrupt);
  EXPECT_EQ(report.status().file, folder_ / "out/model-1.safetensors");
  EXPECT_EQ(report.status().tensor, "a");
  EXPECT_EQ(folder_.list(), before);
}

// Whoever looks while a folder is replaced finds the old one or the new one, whole.
TEST(StoreFolderNames, ANameIsNeverFreeWhileItsFolderIsReplaced) {
  const ScratchFolder folder;
  const std::string to = folder / "name";
  fs::create_directory(to);
  write_file(to + "/f", "0");
  fs::create_directory(folder / "probe");
  if (::renameat2(AT_FDCWD, to.c_str(), AT_FDCWD, (folder / "probe").c_str(), RENAME_EXCHANGE) != 0)
    GTEST_SKIP() << "this file system cannot exchange names";
  fs::remove(to);
  fs::rename(folder / "probe", to);
  std::atomic<bool> stop{false};
  std::atomic<int> num_looks{0}, num_missing{0};
  std::thread looking([&] {
    for (; !stop; ++num_looks) num_missing += !fs::exists(to);
  });
  while (num_looks == 0) std::this_thread::yield();
  for (int i = 1; i <= 100; ++i) {
    const std::string from = folder / "next";
    fs::create_directory(from);
    write_file(from + "/f", std::to_string(i));
    std::string kept;
    ASSERT_TRUE(store::replace_folder(from, to, std::vector<std::string>{"f"}, kept).ok());
    EXPECT_EQ(kept, "");
    EXPECT_EQ(read_file(to + "/f"), std::to_string(i));
  }
  stop = true;
  looking.join();
  EXPECT_EQ(num_missing, 0);
  EXPECT_EQ(folder.list(), (std::vector<std::string>{"name/", "name/f"}));
  fs::create_directory(folder / "next");
  EXPECT_EQ(store::rename_folder(folder / "next", to).status.code, Code::kExists);
}

TEST(StoreFolderNames, AFileGivesWayOnlyIfItIsKnown) {
  const ScratchFolder folder;
  for (const bool is_known : {false, true}) {
    fs::create_directory(folder / "next");
    write_file(folder / "name", "mine");
    std::vector<std::string> known;
    if (is_known) known.emplace_back();
    std::string kept;
    ASSERT_TRUE(store::replace_folder(folder / "next", folder / "name", known, kept).ok());
    EXPECT_EQ(kept.empty(), is_known);
    EXPECT_TRUE(is_known || read_file(kept) == "mine");
    EXPECT_TRUE(fs::is_directory(folder / "name"));
    fs::remove(folder / "name");
  }
}

TEST(StoreFolderNames, ManyFilesAreSyncedAtOnce) {
  const ScratchFolder folder;
  for (int i = 0; i < 200; ++i) write_file(folder / std::to_string(i), "x");
  EXPECT_TRUE(store::sync_folder(folder.path()).ok());
  EXPECT_EQ(store::sync_folder(folder / "nothing").status.code, Code::kNotFound);
}

}  // namespace
}  // namespace snug::test
