// Damaged and hostile deltas, and bases they were not made for: an error or the right
// data, never anything else, and a tensor changed in place is never half changed.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "delta/delta_format.h"
#include "support/checks.h"
#include "support/delta_versions.h"
#include "support/guarded_buffer.h"
#include "support/sanitizer.h"

namespace snug::test {
namespace {

struct Sample {
  const char* change;
  DType dtype;
  bool allow_frame;
};
constexpr Sample kSamples[] = {
    {"few_last_bits", DType::kBF16, true}, {"some_small", DType::kBF16, false},
    {"most_last_bits", DType::kF16, true}, {"few_anything", DType::kF32, true},
    {"sign_bits", DType::kF8E4M3, true},   {"few_anything", DType::kI64, true},
    {"everything", DType::kBF16, true},    {"everything", DType::kBF16, false},
    {"nothing", DType::kI32, true},
};

struct Case {
  Versions versions;
  Bytes delta;
};

Case make(const Sample& sample) {
  Case c;
  c.versions = make_versions(change_named(sample.change), sample.dtype, 4096 + 300,
                             elem_bytes(sample.dtype) / 2);
  c.delta = encode_delta(c.versions, {sample.dtype, 12, sample.allow_frame, 1});
  return c;
}

// Applies it both ways. On success the result is `next`; on failure in place, nothing moved.
Status apply_hostile(std::span<const std::byte> delta, const Versions& versions) {
  const GuardedBuffer exact(delta), base(view(versions.base));
  GuardedBuffer dst(versions.next.size());
  const auto applied = delta::apply(exact.span(), base.span(), dst.span());
  EXPECT_TRUE(dst.front_intact());
  GuardedBuffer tensor(base.span());
  const Status in_place = delta::apply_in_place(exact.span(), tensor.span());
  EXPECT_TRUE(tensor.front_intact());
  // A forged size is a wrong base to one and too much to write to the other.
  if (applied.status().code != Code::kDstTooSmall) {
    EXPECT_EQ(applied.status().code, in_place.code);
  }
  const auto equal = [](std::span<const std::byte> a, const Bytes& b) {
    return std::equal(a.begin(), a.end(), b.begin());
  };
  EXPECT_TRUE(equal(tensor.span(), in_place.ok() ? versions.next : versions.base));
  if (applied.ok()) {
    EXPECT_TRUE(equal(dst.span().first(*applied), versions.next));
  } else {
    EXPECT_STRNE(applied.status().what, "");
  }
  return in_place;
}

void reseal(Bytes& delta) {
  const auto header = delta::read_header(view(delta));
  if (!header || header->payload_start() > delta.size()) return;
  const std::uint32_t sum =
      delta::head_checksum(reinterpret_cast<std::uint8_t*>(delta.data()), header->payload_start());
  std::memcpy(delta.data() + 56, &sum, 4);
}

class DeltaHostile : public testing::TestWithParam<Sample> {};
INSTANTIATE_TEST_SUITE_P(All, DeltaHostile, testing::ValuesIn(kSamples), [](const auto& info) {
  return std::string(info.param.change) + "_" + dtype_name(info.param.dtype) +
         (info.param.allow_frame ? "" : "_blocks");
});

TEST_P(DeltaHostile, TruncationIsAlwaysAnError) {
  const Case c = make(GetParam());
  for (std::size_t size = 0; size < c.delta.size(); size += size < 200 || !kSanitized ? 1 : 13) {
    if (size > 1000 && size % 31 != 0) continue;
    ASSERT_EQ(apply_hostile(view(c.delta).first(size), c.versions).code, Code::kCorrupt) << size;
  }
}

TEST_P(DeltaHostile, BitFlipsGiveAnErrorOrTheRightData) {
  const Case c = make(GetParam());
  Bytes delta = c.delta;
  const std::size_t step = delta.size() * 8 / repetitions(1500) + 1;
  for (std::size_t bit = 0; bit < 8 * delta.size(); bit += bit < 8 * 80 ? 1 : step) {
    delta[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    const Status status = apply_hostile(view(delta), c.versions);
    if (bit / 8 < delta::kHeaderBytes) {
      EXPECT_FALSE(status.ok()) << "bit " << bit << " of the header";
    }
    delta[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
}

TEST_P(DeltaHostile, ForgedBytesBehindGoodChecksums) {
  const Case c = make(GetParam());
  Prng prng(7);
  for (std::size_t i = 0; i < repetitions(3000); ++i) {
    Bytes delta = c.delta;
    for (std::size_t k = 1 + prng.below(3); k-- > 0;) {
      // Heads of blocks, where the lengths are, most often.
      const std::size_t limit =
          prng.one_in(2) ? std::min<std::size_t>(delta.size(), 120) : delta.size();
      delta[prng.below(limit)] = static_cast<std::byte>(prng.byte());
    }
    reseal(delta);
    (void)apply_hostile(view(delta), c.versions);
  }
}

TEST_P(DeltaHostile, AnotherBaseIsRefused) {
  Case c = make(GetParam());
  if (!delta::inspect(view(c.delta))->needs_base) return;
  Prng prng(3);
  for (std::size_t i = 0; i < repetitions(100); ++i) {
    Versions other = c.versions;
    other.base[prng.below(other.base.size())] ^= static_cast<std::byte>(1 << prng.below(8));
    other.next = other.base;  // never written
    EXPECT_EQ(apply_hostile(view(c.delta), other).code, Code::kWrongBase);
  }
  Versions wild = c.versions;
  for (std::byte& b : wild.base) b = static_cast<std::byte>(prng.byte());
  EXPECT_EQ(apply_hostile(view(c.delta), wild).code, Code::kWrongBase);
}

TEST(DeltaUsage, SizesThatDoNotFit) {
  const Versions versions = make_versions(change_named("few_last_bits"), DType::kBF16, 5000);
  const Bytes delta = encode_delta(versions, {});
  Bytes shorter(versions.base.begin(), versions.base.end() - 2), out(versions.next.size());
  EXPECT_EQ(delta::apply(view(delta), view(shorter), out).status().code, Code::kWrongBase);
  EXPECT_EQ(delta::apply_in_place(view(delta), shorter).code, Code::kWrongBase);
  EXPECT_EQ(delta::apply(view(delta), view(versions.base), std::span(out).first(100)).status().code,
            Code::kDstTooSmall);
  EXPECT_EQ(delta::encode(view(shorter), view(versions.next), out).status().code, Code::kUsage);
  EXPECT_EQ(delta::encode(view(versions.base), view(versions.next), std::span(out).first(70))
                .status()
                .code,
            Code::kDstTooSmall);
  for (const delta::Options& bad :
       {delta::Options{DType::kBF16, 11}, delta::Options{DType::kBF16, 17},
        delta::Options{static_cast<DType>(99)}}) {
    EXPECT_EQ(delta::encode_bound(100, bad), 0u);
    EXPECT_EQ(delta::encode(view(versions.base), view(versions.next), out, bad).status().code,
              Code::kUsage);
  }
  EXPECT_EQ(delta::inspect(view(versions.base)).status().code, Code::kBadMagic);
  Bytes newer = delta;
  newer[4] = std::byte{2};
  EXPECT_EQ(delta::inspect(view(newer)).status().code, Code::kUnsupportedVersion);
}

}  // namespace
}  // namespace snug::test
