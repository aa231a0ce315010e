// Banks of experts on the CPU: exact, in slots whose size the shape decides, safe with damaged
// bytes; and the reference of a layer.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "gemm/experts_format.h"
#include "gemm/gemm_weights.h"
#include "support/guarded_buffer.h"

// While it is set, there is no memory.
static thread_local bool no_memory = false;

[[gnu::noinline]] void* operator new(std::size_t num_bytes) {
  void* const bytes = no_memory ? nullptr : std::malloc(num_bytes);
  if (bytes == nullptr) throw std::bad_alloc();
  return bytes;
}
[[gnu::noinline]] void* operator new(std::size_t num_bytes, const std::nothrow_t&) noexcept {
  return no_memory ? nullptr : std::malloc(num_bytes);
}
[[gnu::noinline]] void operator delete(void* bytes) noexcept { std::free(bytes); }
[[gnu::noinline]] void operator delete(void* bytes, std::size_t) noexcept { std::free(bytes); }

namespace snug::test {
namespace {

using gemm::BankShape;
using gemm::Kind;

std::vector<std::byte> pack(const Weights& w, const BankShape& shape, Status* status = nullptr) {
  GuardedBuffer room(gemm::bank_bytes(shape));
  const Status got = gemm::pack_bank_host(w.data(), shape, room.span());
  if (status != nullptr)
    *status = got;
  else
    EXPECT_TRUE(got.ok()) << to_string(got);
  return {room.span().begin(), room.span().end()};
}

Weights expert_of(const Weights& w, const BankShape& shape, std::uint64_t expert) {
  const auto begin = w.begin() + static_cast<std::ptrdiff_t>(expert * shape.n * shape.k);
  return {begin, begin + static_cast<std::ptrdiff_t>(shape.n * shape.k)};
}

TEST(ExpertsBank, EveryExpertComesBack) {
  for (const Kind kind : {Kind::kRaw, Kind::kFixed})
    for (const std::uint32_t parts : {1u, 2u})
      for (const auto& [n, k] : {std::pair{32, 128}, {48, 300}, {34, 129}, {2, 1}}) {
        const BankShape shape{3, static_cast<std::uint64_t>(n), static_cast<std::uint64_t>(k),
                              parts, kind};
        const Weights w = normal_weights(3 * shape.n * shape.k, 0.02f, 2000, 7);
        const GuardedBuffer bank(pack(w, shape));
        EXPECT_TRUE(gemm::inspect_bank(bank.span(), shape).ok());
        for (std::uint64_t e = 0; e < 3; ++e) {
          Weights back(shape.n * shape.k);
          const Status status = gemm::unpack_expert_host(bank.span(), shape, e, back);
          ASSERT_TRUE(status.ok()) << to_string(status);
          EXPECT_EQ(back, expert_of(w, shape, e)) << n << " x " << k << " in " << parts;
        }
      }
}

TEST(ExpertsBank, ASlotIsAPackedMatrix) {
  const BankShape shape{2, 64, 256, 2, Kind::kFixed};
  const Weights w = normal_weights(2 * 64 * 256, 0.02f, 0, 8);
  const auto bank = pack(w, shape);
  std::vector<std::byte> alone(gemm::packed_bound(64, 256, Kind::kFixed));
  const Weights second = expert_of(w, shape, 1);
  const auto used = gemm::pack_host(second.data(), 256, 64, 256, Kind::kFixed, alone);
  ASSERT_TRUE(used.ok());
  ASSERT_LE(*used, gemm::slot_bytes(shape));
  EXPECT_EQ(std::memcmp(bank.data() + gemm::slot_bytes(shape), alone.data(), *used), 0);
}

// Banks are kept in checkpoints: their bytes must not change.
TEST(ExpertsBank, BytesStayAsTheyAre) {
  const BankShape shape{2, 40, 200, 2, Kind::kFixed};
  Weights w(2 * 40 * 200);
  for (std::size_t i = 0; i < w.size(); ++i)
    w[i] = static_cast<std::uint16_t>(0x3C00 + i * 2654435761u % 1500 + (i % 3 == 0 ? 0x8000 : 0));
  std::uint64_t hash = 0xCBF29CE484222325ull;
  for (const std::byte b : pack(w, shape))
    hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100000001B3ull;
  EXPECT_EQ(gemm::slot_bytes(shape), 27392u);
  EXPECT_EQ(hash, 18134580058421747708u);
}

TEST(ExpertsBank, ABankTakesATwelveBitPart) {
  const BankShape qwen{128, 1536, 2048, 2, Kind::kFixed};
  const double bits = static_cast<double>(gemm::slot_bytes(qwen)) * 8 / (1536.0 * 2048);
  EXPECT_LT(bits, 12.13);
  EXPECT_EQ(gemm::bank_bytes(qwen), 128 * gemm::slot_bytes(qwen));
}

TEST(ExpertsBank, AnExpertThatDoesNotFitIsNamed) {
  const BankShape shape{3, 64, 1024, 1, Kind::kFixed};
  Weights w = normal_weights(3 * 64 * 1024, 0.02f, 0, 9);
  Prng prng(3);
  for (std::size_t i = 64 * 1024; i < 2 * 64 * 1024; ++i)
    w[i] = static_cast<std::uint16_t>(prng.below(65536));
  Status status;
  pack(w, shape, &status);
  EXPECT_EQ(status.code, Code::kDstTooSmall);
  EXPECT_EQ(status.block, 1u);
  BankShape raw = shape;
  raw.kind = Kind::kRaw;
  const auto bank = pack(w, raw);
  Weights back(64 * 1024);
  EXPECT_TRUE(gemm::unpack_expert_host(bank, raw, 1, back).ok());
  EXPECT_EQ(back, expert_of(w, raw, 1));
}

TEST(ExpertsBank, BadShapesAndDamageAreRefused) {
  for (const BankShape& bad :
       {BankShape{0, 16, 16}, BankShape{1, 0, 16}, BankShape{1, 16, 0}, BankShape{1, 15, 16, 2},
        BankShape{1, 16, 16, 3}, BankShape{gemm::kMaxExperts + 1, 16, 16}})
    EXPECT_EQ(gemm::bank_bytes(bad), 0u);
  const BankShape shape{2, 32, 128, 1, Kind::kFixed};
  const Weights w = normal_weights(2 * 32 * 128, 0.02f, 0, 1);
  auto bank = pack(w, shape);
  Weights back(32 * 128);
  EXPECT_EQ(gemm::unpack_expert_host(bank, shape, 2, back).code, Code::kUsage);
  EXPECT_EQ(gemm::unpack_expert_host(bank, shape, 0, std::span(back).first(9)).code,
            Code::kDstTooSmall);
  EXPECT_EQ(gemm::inspect_bank(std::span(bank).first(bank.size() - 1), shape).code, Code::kCorrupt);
  EXPECT_EQ(gemm::inspect_bank(bank, {2, 128, 32, 1, Kind::kFixed}).code, Code::kCorrupt);
  bank[gemm::slot_bytes(shape) + 16] ^= std::byte{1};
  const Status damaged = gemm::inspect_bank(bank, shape);
  EXPECT_EQ(damaged.code, Code::kCorrupt);
  EXPECT_EQ(damaged.block, 1u);
}

TEST(ExpertsBank, NoMemoryIsAnError) {
  const BankShape shape{1, 34, 129, 2, Kind::kFixed};  // gate and up are padded
  const Weights w = normal_weights(34 * 129, 0.02f, 0, 1);
  std::vector<std::byte> bank(gemm::bank_bytes(shape));
  Weights back(34 * 129);
  no_memory = true;
  const Status packed = gemm::pack_bank_host(w.data(), shape, bank);
  no_memory = false;
  EXPECT_EQ(packed.code, Code::kInternal);
  bank = pack(w, shape);
  no_memory = true;
  const Status unpacked = gemm::unpack_expert_host(bank, shape, 0, back);
  no_memory = false;
  EXPECT_EQ(unpacked.code, Code::kInternal);
}

// FP64 from the same weights, without rounding in between.
double truth(const Weights& w13, const Weights& w2, const float* x, std::uint64_t n,
             std::uint64_t k, std::uint64_t expert, std::uint64_t out) {
  double y = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    double gate = 0, up = 0;
    for (std::uint64_t c = 0; c < k; ++c) {
      gate += from_bf16(w13[(expert * 2 * n + i) * k + c]) * static_cast<double>(x[c]);
      up += from_bf16(w13[(expert * 2 * n + n + i) * k + c]) * static_cast<double>(x[c]);
    }
    y += gate / (1 + std::exp(-gate)) * up * from_bf16(w2[(expert * k + out) * n + i]);
  }
  return y;
}

TEST(ExpertsHost, ALayerIsTheWeightedSumOfItsExperts) {
  constexpr std::uint64_t kExperts = 3, kN = 24, kK = 40;
  const Weights w13 = normal_weights(kExperts * 2 * kN * kK, 0.3f, 0, 1),
                w2 = normal_weights(kExperts * kK * kN, 0.3f, 0, 2),
                x = normal_weights(2 * kK, 1.0f, 0, 3);
  const std::int32_t ids[] = {2, 0, -1, 1};
  const float weights[] = {0.75f, 0.25f, 0.5f, 1.5f};
  Weights y(2 * kK);
  gemm::ExpertsArgs args;
  args.x = x.data(), args.ldx = kK, args.m = 2;
  args.ids = ids, args.weights = weights, args.top_k = 2;
  args.y = y.data(), args.ldy = kK;
  ASSERT_TRUE(gemm::experts_host(w13.data(), w2.data(), kExperts, kN, kK, args).ok());
  for (std::uint64_t row = 0; row < 2; ++row) {
    float values[kK];
    for (std::uint64_t c = 0; c < kK; ++c) values[c] = from_bf16(x[row * kK + c]);
    for (std::uint64_t out = 0; out < kK; ++out) {
      double want = 0;
      for (std::uint64_t j = 0; j < 2; ++j)
        if (const std::int32_t e = ids[row * 2 + j]; e >= 0)
          want += weights[row * 2 + j] *
                  truth(w13, w2, values, kN, kK, static_cast<std::uint64_t>(e), out);
      EXPECT_NEAR(from_bf16(y[row * kK + out]), want, 0.02 * std::abs(want) + 0.1);
    }
  }
  const std::int32_t bad[] = {2, 0, 3, 1};
  args.ids = bad;
  const Status status = gemm::experts_host(w13.data(), w2.data(), kExperts, kN, kK, args);
  EXPECT_EQ(status.code, Code::kUsage);
  EXPECT_EQ(status.block, 1u);
}

TEST(ExpertsHost, AResultOfTheGpuIsRead) {
  EXPECT_TRUE(gemm::routing_status({}).ok());
  const Status status = gemm::routing_status({0, static_cast<std::uint32_t>(Code::kUsage), 0, 7});
  EXPECT_EQ(status.code, Code::kUsage);
  EXPECT_EQ(status.block, 7u);
}

}  // namespace
}  // namespace snug::test
