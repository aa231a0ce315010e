// Single-bit flips anywhere in a compressed file: found, or without effect.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "snug/store.h"
#include "store/store_files.h"
#include "support/prng.h"
#include "support/sanitizer.h"

namespace snug::test {
namespace {

void flip(const std::string& path, std::size_t at, unsigned bit) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ (1 << bit)));
  ASSERT_TRUE(file.flush().good());
}

TEST(StoreBitFlips, AreDetectedOrHarmless) {
  ScratchFolder folder;
  std::vector<TestTensor> tensors = mixed_tensors();
  const std::string plain = make_file(tensors, "{\"format\":\"pt\"}");
  write_file(folder / "x.safetensors", plain);
  ASSERT_TRUE(compress_path(folder / "x.safetensors", "").ok());
  const std::size_t num_bytes = read_file(folder / "x.snug.safetensors").size();
  StoreOptions options;
  options.num_threads = 1;
  options.force = true;
  Prng prng(2024);
  std::size_t num_detected = 0;
  const std::size_t num_flips = repetitions(10000);
  for (std::size_t i = 0; i < num_flips; ++i) {
    // Half of them in the first bytes: the header is small, and the most delicate.
    const std::size_t at = prng.below(i % 2 == 0 ? 6000 : num_bytes);
    const auto bit = static_cast<unsigned>(prng.below(8));
    flip(folder / "x.snug.safetensors", at, bit);
    if (!verify_path(folder / "x.snug.safetensors", options).ok()) {
      ++num_detected;
    } else {
      ASSERT_TRUE(
          decompress_path(folder / "x.snug.safetensors", folder / "y.safetensors", options).ok())
          << "byte " << at;
      ASSERT_TRUE(read_file(folder / "y.safetensors") == plain) << "byte " << at;
    }
    flip(folder / "x.snug.safetensors", at, bit);
  }
  // What gets through are letters of metadata that Snug only carries along.
  EXPECT_GT(num_detected, num_flips - num_flips / 50);
}

// Reads every tensor whole and in part: an error, or the original's bytes under the original's
// name. Returns whether all could be read.
bool reads_nothing_else(const std::string& path, const std::vector<TestTensor>& tensors) {
  const auto reader = Reader::open(path);
  if (!reader) return false;
  EXPECT_TRUE(reader->compressed());
  EXPECT_EQ(reader->num_tensors(), tensors.size());
  bool all = true;
  for (const TestTensor& expected : tensors) {
    const auto tensor = reader->find(expected.name);
    EXPECT_TRUE(tensor) << expected.name;
    if (!tensor) continue;
    EXPECT_EQ(tensor->dtype, expected.dtype);
    EXPECT_EQ(tensor->shape, expected.shape);
    EXPECT_EQ(tensor->raw_bytes, expected.data.size());
    for (const std::size_t n : {expected.data.size(), expected.data.size() / 3}) {
      std::string bytes(n, '?');
      const bool ok = reader->read_bytes(*tensor, 0, std::as_writable_bytes(std::span(bytes))).ok();
      EXPECT_TRUE(!ok || bytes == expected.data.substr(0, n)) << expected.name;
      all &= ok;
    }
  }
  return all;
}

// The header of the file, and the tensor with the original's header and the ties.
TEST(StoreBitFlips, NoBitOfTheHeaderGivesOtherBytesUnderAName) {
  const std::vector<TestTensor> tensors = {
      make_tensor("aa", "BF16", {30, 20}, 1),  // frames of one size
      make_tensor("ab", "BF16", {30, 20}, 2), make_tensor("ac", "BF16", {20, 30}, 3),
      make_tensor("ba", "I8", {16}, 4),  // stored as they are
      make_tensor("bb", "U8", {16}, 5),       make_tensor("c", "F32", {}, 6),
      make_tensor("d", "U8", {0}, 7)};
  ScratchFolder folder;
  const std::string path = folder / "x.snug.safetensors";
  const std::string plain = make_file(tensors, "{\"format\":\"pt\"}");
  write_file(folder / "x.safetensors", plain);
  StoreOptions options;
  options.codec = Codec::kRaw;
  options.num_threads = 1;
  options.force = true;
  ASSERT_TRUE(compress_path(folder / "x.safetensors", path, options).ok());
  ASSERT_TRUE(reads_nothing_else(path, tensors));
  const std::string file = read_file(path);
  std::uint64_t json_bytes;
  std::memcpy(&json_bytes, file.data(), 8);
  const std::size_t data_start = 8 + json_bytes;
  const TensorEntry last = Reader::open(path)->tensor(2);
  const std::size_t ties = last.file_offset + last.stored_bytes;

  std::size_t num_harmless = 0;
  const std::size_t step = kSanitized ? 7 : 1;
  for (std::size_t i = 0; i < 8 * file.size(); i += step) {
    const std::size_t at = i / 8;
    if (at >= data_start && at < ties) continue;  // frames: the test above
    const auto bit = static_cast<unsigned>(i % 8);
    flip(path, at, bit);
    const bool readable = reads_nothing_else(path, tensors);
    const bool intact = verify_path(path, options).ok();
    ASSERT_TRUE(readable || !intact) << "byte " << at;
    const auto again = compress_path(path, folder / "z.safetensors", options);
    ASSERT_FALSE(again.ok()) << "byte " << at << ": taken for a plain file";
    if (intact) {
      ++num_harmless;
      ASSERT_TRUE(decompress_path(path, folder / "y.safetensors", options).ok()) << "byte " << at;
      ASSERT_TRUE(read_file(folder / "y.safetensors") == plain) << "byte " << at;
    }
    flip(path, at, bit);
    if (::testing::Test::HasFailure()) FAIL() << "byte " << at << ", bit " << bit;
  }
  // Letters of "format" and "pt", a few bits that zstd does not use.
  EXPECT_LT(num_harmless, 80u);
}

}  // namespace
}  // namespace snug::test
