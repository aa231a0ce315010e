// A file written by version 1 must be readable for ever.
#include <gtest/gtest.h>

#include "snug/store.h"
#include "store/store_files.h"

namespace snug::test {
namespace {

std::string pattern(std::uint32_t num_bytes, std::uint32_t k) {
  std::string bytes;
  for (std::uint32_t i = 0; i < num_bytes; ++i)
    bytes.push_back(static_cast<char>(i * i * 7 + k * i));
  return bytes;
}

TEST(StoreGolden, Version1Restores) {
  const std::string json =
      "{\"__metadata__\": {\"format\": \"pt\"}, "
      "\"w\": {\"dtype\": \"BF16\", \"shape\": [40, 30], \"data_offsets\": [0, 2400]}, "
      "\"b\": {\"dtype\": \"F32\", \"shape\": [25], \"data_offsets\": [2400, 2500]}, "
      "\"empty\": {\"dtype\": \"F16\", \"shape\": [0], \"data_offsets\": [2500, 2500]}, "
      "\"odd\": {\"dtype\": \"X7\", \"shape\": [3], \"data_offsets\": [2500, 2513]}, "
      "\"even\": {\"dtype\": \"BF16\", \"shape\": [3000], \"data_offsets\": [2513, 8513]}}";
  std::string even = pattern(6000, 1);
  for (std::size_t i = 1; i < even.size(); i += 2) even[i] = static_cast<char>(0x3C + i % 8 / 4);
  const std::string expected =
      with_length(json, pattern(2400, 3) + pattern(100, 5) + pattern(13, 1) + even);
  ScratchFolder folder;
  const auto report = decompress_path(
      std::string(SNUG_TEST_DIR) + "/data/compressed_v1.safetensors", folder / "x.safetensors");
  ASSERT_TRUE(report.ok()) << to_string(report.status());
  EXPECT_TRUE(read_file(folder / "x.safetensors") == expected);
}

}  // namespace
}  // namespace snug::test
