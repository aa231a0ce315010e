// The tuning table: its text form, its order, what it refuses; and the C ABI of the CPU part.
#include <gtest/gtest.h>

#include <cstring>

#include "gemm/gemm_weights.h"
#include "gemm/tuning.h"
#include "snug/snug_gpu.h"

namespace snug::test {
namespace {

using gemm::Kernel;
using gemm::TuningEntry;

TEST(GemmTuning, BucketsArePowersOfTwo) {
  EXPECT_EQ(gemm::m_bucket(1), 1u);
  EXPECT_EQ(gemm::m_bucket(3), 4u);
  EXPECT_EQ(gemm::m_bucket(17), 32u);
  EXPECT_EQ(gemm::m_bucket(1 << 20), 8192u);
}

TEST(GemmTuning, TextComesBack) {
  const std::string line =
      "n=1234 k=567 m=8 kernel=few_rows split_k=2 warps=16 strips=0 tile_m=0 gain=1.250 "
      "device=Some GPU of "
      "the test\n";
  ASSERT_TRUE(gemm::load_tuning("# a comment\n\n" + line).ok());
  EXPECT_NE(gemm::tuning_text().find(line), std::string::npos);
  const auto entry = gemm::find_tuning("Some GPU of the test", 1234, 567, 5);
  ASSERT_TRUE(entry.has_value());
  EXPECT_EQ(entry->plan.kernel, Kernel::kFewRows);
  EXPECT_EQ(entry->plan.split_k, 2);
  EXPECT_EQ(entry->plan.warps, 16);
  EXPECT_FLOAT_EQ(entry->gain, 1.25f);
  EXPECT_FALSE(gemm::find_tuning("Some GPU of the test", 1234, 567, 9));
  EXPECT_FALSE(gemm::find_tuning("Another GPU", 1234, 567, 8));
}

TEST(GemmTuning, LaterLinesWin) {
  ASSERT_TRUE(
      gemm::load_tuning(
          "n=7 k=7 m=1 kernel=batch split_k=0 warps=0 strips=8 tile_m=16 gain=1 device=A\n"
          "n=7 k=7 m=1 kernel=generic split_k=0 warps=0 strips=0 tile_m=0 gain=2 device=A\n")
          .ok());
  const auto entry = gemm::find_tuning("A", 7, 7, 1);
  ASSERT_TRUE(entry.has_value());
  EXPECT_EQ(entry->plan.kernel, Kernel::kGeneric);
}

TEST(GemmTuning, OtherTextIsRefusedAsAWhole) {
  for (const char* bad :
       {"hello", "n=9 k=9 m=3 kernel=few_rows split_k=1 warps=8 strips=0 tile_m=0 gain=1 device=A",
        "n=9 k=9 m=4 kernel=nothing split_k=1 warps=8 strips=0 tile_m=0 gain=1 device=A",
        "n=9 k=9 m=4 kernel=few_rows split_k=-1 warps=8 strips=0 tile_m=0 gain=1 device=A",
        "n=9 k=9 m=4 kernel=few_rows split_k=1 warps=8 strips=0 tile_m=0 gain=1 device="}) {
    const std::string good =
        "n=9 k=9 m=4 kernel=few_rows split_k=1 warps=8 strips=0 tile_m=0 gain=1 device=B\n";
    const Status status = gemm::load_tuning(good + bad);
    EXPECT_EQ(status.code, Code::kCorrupt) << bad;
    EXPECT_EQ(status.found, 2u);
    EXPECT_FALSE(gemm::find_tuning("B", 9, 9, 4));
  }
}

TEST(GemmCapi, PacksInspectsAndUnpacks) {
  const Weights w = normal_weights(40 * 300, 0.02f, 400, 1);
  std::vector<std::byte> packed(snug_gemm_packed_bound_bytes(40, 300, SNUG_GEMM_FIXED));
  std::size_t used = 0;
  snug_status status;
  ASSERT_EQ(snug_gemm_pack_host(w.data(), 300, 40, 300, SNUG_GEMM_FIXED, packed.data(),
                                packed.size(), &used, &status),
            SNUG_OK);
  snug_gemm_matrix matrix;
  ASSERT_EQ(snug_gemm_inspect(packed.data(), SNUG_GEMM_HEADER_BYTES, used, &matrix, &status),
            SNUG_OK);
  EXPECT_EQ(matrix.n, 40u);
  EXPECT_EQ(matrix.k, 300u);
  EXPECT_EQ(matrix.num_bytes, used);
  EXPECT_GT(matrix.num_escaped, 0u);
  EXPECT_EQ(matrix.data, nullptr);
  Weights back(w.size());
  ASSERT_EQ(snug_gemm_unpack_host(packed.data(), used, back.data(), 2 * back.size(), 300, nullptr),
            SNUG_OK);
  EXPECT_EQ(back, w);
  packed[3] ^= std::byte{1};
  EXPECT_EQ(snug_gemm_inspect(packed.data(), SNUG_GEMM_HEADER_BYTES, used, &matrix, &status),
            SNUG_BAD_MAGIC);
  EXPECT_STREQ(status.what, "not a packed matrix");
}

// A header that claims more rows than the caller has room for must not be believed.
TEST(GemmCapi, UnpackingStaysInItsBuffer) {
  const Weights w = normal_weights(40 * 300, 0.02f, 400, 1);
  std::vector<std::byte> packed(snug_gemm_packed_bound_bytes(40, 300, SNUG_GEMM_FIXED));
  std::size_t used = 0;
  ASSERT_EQ(snug_gemm_pack_host(w.data(), 300, 40, 300, SNUG_GEMM_FIXED, packed.data(),
                                packed.size(), &used, nullptr),
            SNUG_OK);
  Weights back(40 * 512, 7);
  const auto unpack = [&](std::size_t elems, std::uint64_t ld) {
    return snug_gemm_unpack_host(packed.data(), used, back.data(), 2 * elems, ld, nullptr);
  };
  for (const std::size_t elems : {std::size_t{0}, std::size_t{1}, std::size_t{299},
                                  std::size_t{39 * 300}, std::size_t{40 * 300 - 1}})
    EXPECT_EQ(unpack(elems, 300), SNUG_DST_TOO_SMALL) << elems;
  EXPECT_EQ(unpack(39 * 512 + 299, 512), SNUG_DST_TOO_SMALL);
  EXPECT_EQ(unpack(back.size(), ~0ull), SNUG_DST_TOO_SMALL);  // n * ld would wrap around
  EXPECT_EQ(back, Weights(40 * 512, 7));
  EXPECT_EQ(unpack(39 * 512 + 300, 512), SNUG_OK);  // the last row needs no gap behind it
  EXPECT_EQ(back[39 * 512], w[39 * 300]);
  EXPECT_EQ(back.back(), 7);
}

TEST(GemmCapi, NullIsRefused) {
  std::uint16_t weight = 0;
  std::byte room[SNUG_GEMM_HEADER_BYTES] = {};
  snug_gemm_matrix matrix;
  EXPECT_EQ(
      snug_gemm_pack_host(nullptr, 1, 1, 1, SNUG_GEMM_FIXED, room, sizeof room, nullptr, nullptr),
      SNUG_USAGE);
  EXPECT_EQ(
      snug_gemm_pack_host(&weight, 1, 1, 1, SNUG_GEMM_FIXED, nullptr, 1 << 20, nullptr, nullptr),
      SNUG_USAGE);
  EXPECT_EQ(snug_gemm_unpack_host(nullptr, sizeof room, &weight, 2, 1, nullptr), SNUG_USAGE);
  EXPECT_EQ(snug_gemm_unpack_host(room, sizeof room, nullptr, 2, 1, nullptr), SNUG_USAGE);
  EXPECT_EQ(snug_gemm_inspect(nullptr, sizeof room, sizeof room, &matrix, nullptr), SNUG_USAGE);
  EXPECT_EQ(snug_gemm_inspect(room, sizeof room, sizeof room, nullptr, nullptr), SNUG_USAGE);
  EXPECT_EQ(snug_gemm_load_tuning(nullptr, nullptr), SNUG_USAGE);
  EXPECT_EQ(snug_gemm_tuning_text(nullptr, 100), snug_gemm_tuning_text(nullptr, 0));
}

TEST(GemmCapi, TextIsCutLikeSnprintf) {
  char small[8];
  const std::size_t whole = snug_gemm_tuning_text(small, sizeof small);
  EXPECT_LE(std::strlen(small), 7u);
  EXPECT_GE(whole, std::strlen(small));
}

}  // namespace
}  // namespace snug::test
