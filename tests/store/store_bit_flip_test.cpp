// Single-bit flips anywhere in a compressed file: found, or without effect.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace snug::test
