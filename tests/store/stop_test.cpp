// StopScope: whatever a call is doing, it soon asks, ends, and leaves nothing behind.
#include <gtest/gtest.h>

#include <filesystem>

#include "snug/store.h"
#include "store/store_files.h"

namespace snug::test {
namespace {

namespace fs = std::filesystem;

// 20,000 tensors of one byte, whose names are out of order.
std::string tiny_tensors() {
  std::string json = "{", data(20'000, 'x');
  for (std::size_t i = 0; i < data.size(); ++i)
    json += (i == 0 ? "\"" : ",\"") + std::to_string(i * 7919 % data.size()) +
            R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(i) + "," +
            std::to_string(i + 1) + "]}";
  return with_length(json + "}", data);
}

// Stops `call` at its first question, and at ever later ones. Without
// `min_questions` there would be long times without any.
template <class Call>
void expect_stops(const ScratchFolder& folder, int min_questions, Call call) {
  int num_asked = 0;
  {
    const StopScope scope([&] { return ++num_asked > 0; });
    EXPECT_TRUE(call().status().ok());
  }
  EXPECT_GE(num_asked, min_questions);
  fs::remove_all(folder / "out");
  const auto before = folder.list();
  for (int last = 1; last <= num_asked; last += last) {
    int left = last;
    const StopScope scope([&] { return --left > 0; });
    const StoreStatus s = call().status();
    EXPECT_EQ(s.status.code, Code::kIo) << last << " of " << num_asked;
    EXPECT_STREQ(s.status.what, "stopped on request");
    EXPECT_EQ(folder.list(), before) << last << " of " << num_asked;
  }
}

TEST(Stop, EndsEveryCall) {
  const ScratchFolder folder;
  StoreOptions options;
  options.num_threads = 1;
  for (const char* name : {"plain", "shards"}) {
    const std::string in = folder / name;
    const bool is_folder = name == std::string("shards");
    if (is_folder) fs::create_directory(in);
    write_file(is_folder ? in + "/a.safetensors" : in, tiny_tensors());
    const std::string stored = in + ".stored", patch = in + ".patch";
    ASSERT_TRUE(compress_path(in, stored, options).ok());
    ASSERT_TRUE(diff_path(stored, in, patch, options).ok());
    // Tensor by tensor.
    expect_stops(folder, 20'000, [&] { return compress_path(in, folder / "out", options); });
    expect_stops(folder, 20'000, [&] { return decompress_path(stored, folder / "out", options); });
    expect_stops(folder, 20'000, [&] { return verify_path(stored, options); });
    expect_stops(folder, 20'000, [&] { return version_of(stored, options); });
    // Headers alone: two for a compressed file, which are sorted and compared.
    expect_stops(folder, 20'000,
                 [&] { return patch_path(stored, patch, folder / "out", options); });
    expect_stops(folder, 20, [&] { return diff_path(in, in, folder / "out", options); });
    if (!is_folder) expect_stops(folder, 20'000, [&] { return Reader::open(stored); });
    if (!is_folder) expect_stops(folder, 20, [&] { return Reader::open(in); });
  }
}

TEST(Stop, TheInnermostScopeCounts) {
  const ScratchFolder folder;
  write_file(folder / "plain", make_file(mixed_tensors()));
  const StopScope stopped([] { return false; });
  EXPECT_FALSE(version_of(folder / "plain").ok());
  {
    const StopScope to_the_end({});
    EXPECT_TRUE(version_of(folder / "plain").ok());
  }
  EXPECT_FALSE(version_of(folder / "plain").ok());
}

TEST(Stop, IsForGood) {
  const ScratchFolder folder;
  write_file(folder / "plain", make_file(mixed_tensors()));
  int num_asked = 0;
  const StopScope scope([&] { return ++num_asked > 1; });  // no, then yes
  EXPECT_FALSE(version_of(folder / "plain").ok());
  EXPECT_FALSE(version_of(folder / "plain").ok());
}

// Their bytes alone would not be worth a report.
TEST(Stop, ProgressIsReportedForTinyTensorsToo) {
  const ScratchFolder folder;
  write_file(folder / "plain", tiny_tensors());
  int num_reports = 0;
  StoreOptions options;
  options.progress = [&](const Progress&) { return ++num_reports < 3; };
  EXPECT_EQ(compress_path(folder / "plain", folder / "out", options).status().status.code,
            Code::kIo);
  EXPECT_EQ(num_reports, 3);
  EXPECT_FALSE(fs::exists(folder / "out"));
}

}  // namespace
}  // namespace snug::test
