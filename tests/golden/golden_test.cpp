// Frames written once and kept: what this Snug reads and writes must not change.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "golden/golden_cases.h"
#include "support/checks.h"

namespace snug::test {
namespace {

namespace fs = std::filesystem;

Bytes read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return Bytes(bytes, bytes + text.size());
}

std::vector<fs::path> frames_in(const char* folder) {
  std::vector<fs::path> paths;
  for (const auto& file : fs::directory_iterator(fs::path(SNUG_TEST_DIR) / "golden" / folder))
    if (file.path().extension() == ".snug") paths.push_back(file.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Options from <dtype>.<codec>.<log2_block>.<...>
EncodeOptions options_of(const fs::path& path) {
  std::istringstream name(path.filename().string());
  std::string dtype, codec, log2_block;
  std::getline(name, dtype, '.');
  std::getline(name, codec, '.');
  std::getline(name, log2_block, '.');
  EncodeOptions options;
  for (const DType d : all_dtypes())
    if (dtype == dtype_name(d)) options.dtype = d;
  for (const Codec c : all_codecs())
    if (codec == codec_name(c)) options.codec = c;
  options.log2_block = std::stoi(log2_block);
  return options;
}

TEST(Golden, ValidFramesDecode) {
  const auto paths = frames_in("valid");
  ASSERT_GE(paths.size(), golden_valid().size());
  for (const fs::path& path : paths) {
    const Bytes frame = read(path), raw = read(fs::path(path).replace_extension(".raw"));
    const auto restored = read_hostile(view(frame));
    ASSERT_TRUE(restored.ok()) << path << ": " << to_string(restored.status());
    EXPECT_EQ(*restored, raw) << path;
  }
}

TEST(Golden, EncodersStillWriteThem) {
  for (const fs::path& path : frames_in("valid")) {
    const Bytes frame = read(path), raw = read(fs::path(path).replace_extension(".raw"));
    EXPECT_EQ(encode_or_fail(view(raw), options_of(path)), frame) << path;
  }
}

TEST(Golden, InvalidFramesFailAsTheirNamesSay) {
  const auto paths = frames_in("invalid");
  ASSERT_GE(paths.size(), golden_invalid().size());
  for (const fs::path& path : paths) {
    const auto restored = read_hostile(view(read(path)));
    EXPECT_EQ(static_cast<int>(restored.status().code), std::stoi(path.filename().string()))
        << path << ": " << to_string(restored.status());
  }
}

// Every plane mode, codec and dtype is among them.
TEST(Golden, CoversTheFormat) {
  std::uint64_t blocks[kNumCodecs] = {};
  bool dtypes[kNumDTypes] = {};
  for (const fs::path& path : frames_in("valid")) {
    const Bytes frame = read(path);
    const auto stats = frame_stats(view(frame));
    ASSERT_TRUE(stats.ok());
    for (int i = 0; i < kNumCodecs; ++i) blocks[i] += stats->num_blocks[i];
    dtypes[static_cast<int>(inspect(view(frame))->dtype)] = true;
  }
  for (const auto n : blocks) EXPECT_GT(n, 0u);
  for (const bool seen : dtypes) EXPECT_TRUE(seen);
}

}  // namespace
}  // namespace snug::test
