// Every kernel table against the scalar one.
#include "delta/delta_kernels.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "support/checks.h"
#include "support/delta_versions.h"
#include "support/guarded_buffer.h"

namespace snug::test {
namespace {

using delta::ChangeBits;
using delta::ChangeLists;
using delta::Classifier;
using delta::Group;
using delta::Kernels;
using delta::kNumClasses;

TEST(DeltaKernels, HashesAreEqual) {
  const Bytes bytes = make_input(input_named("random_bits"), DType::kBytes, 3000);
  for (const Kernels* table : delta::all_kernels())
    for (std::size_t n = 0; n < bytes.size(); n += n < 300 ? 1 : 97)
      for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{0xFFFFFFFF0}}) {
        const GuardedBuffer exact(view(bytes).first(n));
        EXPECT_EQ(table->hash_terms(exact.data(), n, first),
                  delta::kScalarKernels.hash_terms(exact.data(), n, first))
            << table->name << " " << n;
      }
}

TEST(DeltaKernels, HashOfPartsIsHashOfWhole) {
  const Bytes bytes = make_input(input_named("gaussian"), DType::kBF16, 40000);
  const auto* p = reinterpret_cast<const std::uint8_t*>(bytes.data());
  const std::uint64_t whole = delta::kernels().hash_terms(p, bytes.size(), 0);
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < bytes.size(); at += 8192)
    sum +=
        delta::kernels().hash_terms(p + at, std::min<std::size_t>(8192, bytes.size() - at), at / 8);
  EXPECT_EQ(sum, whole);
}

TEST(DeltaKernels, HashSeesEveryBitAndEverySwap) {
  Bytes bytes(64);
  const std::uint64_t zero = delta::tensor_hash(bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_NE(delta::tensor_hash(bytes), zero) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i / 4 * 37);
  const std::uint64_t ordered = delta::tensor_hash(bytes);
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < i; ++j) {
      Bytes swapped = bytes;
      std::swap_ranges(swapped.begin() + static_cast<int>(4 * i),
                       swapped.begin() + static_cast<int>(4 * i + 4),
                       swapped.begin() + static_cast<int>(4 * j));
      EXPECT_NE(delta::tensor_hash(swapped), ordered) << i << " " << j;
    }
  EXPECT_NE(delta::tensor_hash(Bytes(8)), delta::tensor_hash(Bytes(9)));
}

// What classify, count and collect find in one block.
struct Found {
  std::vector<Group> groups;
  std::vector<std::uint64_t> changed;
  std::uint32_t sizes[kNumClasses] = {}, counts[kNumClasses] = {};
  std::vector<std::uint16_t> ranks;
  std::vector<std::uint64_t> differences;
  Bytes restored;
};

Found run(const Kernels& table, const Versions& versions, DType dtype, int class_top) {
  const std::size_t width = elem_bytes(dtype), n = versions.base.size() / width;
  const int w = width == 1 ? 0 : width == 2 ? 1 : width == 4 ? 2 : 3;
  const std::size_t num_groups = (n + 63) / 64;
  const GuardedBuffer base(view(versions.base)), next(view(versions.next));
  const Classifier classifier(dtype, class_top);
  Found found;
  found.groups.resize(num_groups);
  found.changed.resize(num_groups + 1);
  found.ranks.resize(n);
  found.differences.resize(n);
  table.classify[w](base.data(), next.data(), n, classifier, found.groups.data(),
                    found.changed.data());
  found.changed.back() = 0;  // slack
  table.count(found.groups.data(), num_groups, found.sizes);
  ChangeLists lists = {{}, {}, found.ranks.data(), found.differences.data()};
  for (int c = 1; c < kNumClasses; ++c) lists.starts[c] = lists.starts[c - 1] + found.sizes[c - 1];
  table.collect[w](base.data(), next.data(), found.groups.data(), found.changed.data(), num_groups,
                   classifier, lists);
  std::memcpy(found.counts, lists.counts, sizeof found.counts);

  std::vector<std::uint64_t> bits(num_groups + 2);
  ChangeBits changes = {{}, bits.data(), found.differences.data()};
  for (int c = 0; c < kNumClasses; ++c) {
    changes.starts[c] = lists.starts[c];
    for (std::uint32_t i = 0; i < lists.counts[c]; ++i) {
      const std::uint32_t at = lists.starts[c] + found.ranks[lists.starts[c] + i];
      bits[at / 64] |= std::uint64_t{1} << at % 64;
    }
  }
  GuardedBuffer dst(base.span());
  table.scatter[w](found.groups.data(), num_groups, classifier, changes, dst.data());
  found.restored.assign(dst.span().begin(), dst.span().end());
  return found;
}

TEST(DeltaKernels, FindTheSameChanges) {
  for (const DType dtype : all_dtypes())
    for (const char* change : {"few_last_bits", "some_small", "everything"})
      for (const std::size_t n : {1, 64, 100, 1000, 4096 + 63})
        for (const int class_top : {0, 3, 7, 12, 121}) {
          if (static_cast<std::uint64_t>(class_top) > delta::class_rule(dtype).max_key()) continue;
          const Versions versions = make_versions(change_named(change), dtype, n);
          const Found expected = run(delta::kScalarKernels, versions, dtype, class_top);
          EXPECT_EQ(expected.restored, versions.next);
          for (const Kernels* table : delta::all_kernels()) {
            SCOPED_TRACE(std::string(table->name) + " " + dtype_name(dtype) + " " + change + " " +
                         std::to_string(n));
            const Found found = run(*table, versions, dtype, class_top);
            EXPECT_EQ(std::memcmp(found.groups.data(), expected.groups.data(),
                                  found.groups.size() * sizeof(Group)),
                      0);
            EXPECT_EQ(found.changed, expected.changed);
            EXPECT_TRUE(std::ranges::equal(found.sizes, expected.sizes));
            EXPECT_TRUE(std::ranges::equal(found.counts, expected.counts));
            EXPECT_EQ(found.ranks, expected.ranks);
            EXPECT_EQ(found.differences, expected.differences);
            EXPECT_EQ(found.restored, versions.next);
          }
        }
}

}  // namespace
}  // namespace snug::test
