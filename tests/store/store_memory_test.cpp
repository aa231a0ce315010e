// Memory stays below 256 MiB for a file of 2 GiB and 64 threads.
#include <gtest/gtest.h>

#include <filesystem>

#include "snug/store.h"
#include "store/peak_memory.h"
#include "store/store_files.h"
#include "support/sanitizer.h"

namespace snug::test {
namespace {

constexpr std::uint64_t kDataBytes = std::uint64_t{2} << 30;
TEST(StoreMemory, StaysBelow256MiB) {
  if (kSanitized) GTEST_SKIP() << "sanitizers have their own memory";
  ScratchFolder folder;
  // One byte a value has the most symbols, eight bytes the most planes. The file is sparse.
  const std::string json =
      "{\"a\":{\"dtype\":\"F64\",\"shape\":[" + std::to_string(kDataBytes / 16) +
      "],\"data_offsets\":[0," + std::to_string(kDataBytes / 2) +
      "]},\"b\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(kDataBytes / 2) +
      "],\"data_offsets\":[" + std::to_string(kDataBytes / 2) + "," + std::to_string(kDataBytes) +
      "]}}";
  write_file(folder / "x.safetensors", with_length(json, weight_bytes("F64", 4 << 20, 1)));
  std::filesystem::resize_file(folder / "x.safetensors", 8 + json.size() + kDataBytes);
  StoreOptions options;
  options.num_threads = 64;
  const long compress =
      child_peak([&] { return compress_path(folder / "x.safetensors", "", options).ok(); });
  EXPECT_GE(compress, 0);
  EXPECT_LT(compress, kMaxKiB);
  const long verify =
      child_peak([&] { return verify_path(folder / "x.snug.safetensors", options).ok(); });
  EXPECT_GE(verify, 0);
  RecordProperty("compress_kib", std::to_string(compress));
  RecordProperty("verify_kib", std::to_string(verify));
  EXPECT_LT(verify, kMaxKiB);
}

}  // namespace
}  // namespace snug::test
