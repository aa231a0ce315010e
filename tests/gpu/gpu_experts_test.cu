// Mixtures of experts on the GPU: packing equals the CPU's, packed equals raw bit for bit, and both
// are close to the reference, for every kernel, awkward shapes and odd routings.
#include <gtest/gtest.h>

#include <numeric>

#include "gemm/experts_format.h"
#include "gpu/gemm_device.h"
#include "snug/experts.h"

namespace snug::test {
namespace {

using gemm::Bank;
using gemm::BankShape;
using gemm::ExpertsPlan;
using gemm::Kind;

// A bank packed on the GPU, with memory after it that must stay as it is.
struct DeviceBank {
  BankShape shape;
  DeviceBuffer buffer;
  Bank bank;
  std::vector<gemm::DeviceResult> results;

  DeviceBank(const Weights& w, const BankShape& s)
      : shape(s), buffer(gemm::bank_bytes(s)), results(s.experts) {
    DeviceBuffer source(bytes_of(w)), workspace(gemm::pack_bank_workspace_bytes(s, s.experts)),
        device_results(s.experts * sizeof(gemm::DeviceResult));
    const Status status =
        gemm::pack_bank(source.data(), s, 0, s.experts, {buffer.data(), buffer.size()},
                        {workspace.data(), workspace.size()}, result_in(device_results), nullptr);
    EXPECT_TRUE(status.ok()) << to_string(status);
    EXPECT_EQ(cudaMemcpy(results.data(), device_results.data(), device_results.size(),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_TRUE(buffer.end_is_intact());
    EXPECT_TRUE(workspace.end_is_intact());
    bank = {buffer.data(), s};
  }
};

struct Shape {
  std::uint64_t experts, n, k;
};

// A layer as packed and as raw banks.
struct Layer {
  Shape s;
  Weights w13, w2;
  DeviceBank gate_up[2], down[2];

  explicit Layer(const Shape& shape, std::size_t rare = 3000)
      : s(shape),
        w13(normal_weights(s.experts * 2 * s.n * s.k, 0.05f, rare, 1)),
        w2(normal_weights(s.experts * s.n * s.k, 0.05f, rare, 2)),
        gate_up{{w13, {s.experts, 2 * s.n, s.k, 2, Kind::kRaw}},
                {w13, {s.experts, 2 * s.n, s.k, 2, Kind::kFixed}}},
        down{{w2, {s.experts, s.k, s.n, 1, Kind::kRaw}},
             {w2, {s.experts, s.k, s.n, 1, Kind::kFixed}}} {}

  struct Run {
    Weights y;
    Status status, routing;
  };
  Run run(int kind, const Weights& x, const std::vector<std::int32_t>& ids, std::uint32_t top_k,
          const ExpertsPlan& plan = {}, std::size_t misalign = 0, std::uint64_t pad = 0) const {
    const std::uint64_t m = ids.size() / top_k, ld = s.k + pad;
    Bytes id_bytes(ids.size() * 4), weight_bytes(ids.size() * 4);
    std::vector<float> weights(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i)
      weights[i] = 0.1f + 0.05f * static_cast<float>(i % 7);
    if (!ids.empty()) {
      std::memcpy(id_bytes.data(), ids.data(), id_bytes.size());
      std::memcpy(weight_bytes.data(), weights.data(), weight_bytes.size());
    }
    DeviceBuffer device_x(bytes_of(x), misalign), device_ids(id_bytes),
        device_weights(weight_bytes), y(m * ld * 2, misalign), result(sizeof(gemm::DeviceResult)),
        workspace(gemm::experts_workspace_bytes(gate_up[1].shape, down[1].shape, top_k, m));
    // Whatever was there before must not matter.
    EXPECT_EQ(cudaMemset(workspace.data(), 0xFF, workspace.size()), cudaSuccess);
    EXPECT_EQ(cudaMemset(y.data(), 0xA5, y.size()), cudaSuccess);
    gemm::ExpertsArgs args;
    args.x = device_x.data(), args.ldx = ld, args.m = m;
    args.ids = reinterpret_cast<const std::int32_t*>(device_ids.data());
    args.weights = reinterpret_cast<const float*>(device_weights.data());
    args.top_k = top_k;
    args.y = y.data(), args.ldy = ld;
    args.result = result_in(result);
    Run out;
    out.status = gemm::experts(gate_up[kind].bank, down[kind].bank, args,
                               {workspace.data(), workspace.size()}, plan, nullptr);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    out.routing = gemm::routing_status(fetch_result(result));
    EXPECT_TRUE(y.end_is_intact());
    EXPECT_TRUE(workspace.end_is_intact());
    out.y = values_of(y.download(y.size()));
    return out;
  }
  // The distance of y from the reference on the CPU, relative to its size.
  double error(const Weights& x, const std::vector<std::int32_t>& ids, std::uint32_t top_k,
               const Weights& y, std::uint64_t pad = 0) const {
    const std::uint64_t m = ids.size() / top_k, ld = s.k + pad;
    std::vector<float> weights(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i)
      weights[i] = 0.1f + 0.05f * static_cast<float>(i % 7);
    Weights want(m * ld);
    gemm::ExpertsArgs args;
    args.x = x.data(), args.ldx = ld, args.m = m;
    args.ids = ids.data(), args.weights = weights.data(), args.top_k = top_k;
    args.y = want.data(), args.ldy = ld;
    (void)gemm::experts_host(w13.data(), w2.data(), s.experts, s.n, s.k, args);
    double off = 0, size = 0;
    for (std::uint64_t row = 0; row < m; ++row)
      for (std::uint64_t col = 0; col < s.k; ++col) {
        const double truth = from_bf16(want[row * ld + col]), got = from_bf16(y[row * ld + col]);
        off += (got - truth) * (got - truth);
        size += truth * truth;
      }
    return size == 0 ? std::sqrt(off) : std::sqrt(off / size);
  }
};

std::vector<std::int32_t> random_ids(std::uint64_t m, std::uint32_t top_k, std::uint64_t experts,
                                     std::uint64_t seed) {
  Prng prng(seed);
  std::vector<std::int32_t> ids(m * top_k);
  for (auto& id : ids) id = static_cast<std::int32_t>(prng.below(experts));
  return ids;
}

const std::vector<ExpertsPlan> kPlans = {{0, 0, 0},  {1, 1, 0},  {1, 2, 0},  {1, 4, 0},
                                         {1, 8, 0},  {2, 0, 16}, {2, 0, 32}, {2, 0, 64},
                                         {2, 0, 96}, {2, 0, 128}};

void expect_right(const Layer& layer, const std::vector<std::int32_t>& ids, std::uint32_t top_k,
                  const ExpertsPlan& plan, std::size_t misalign = 0, std::uint64_t pad = 0) {
  const std::uint64_t m = ids.size() / top_k;
  const Weights x = normal_weights(m * (layer.s.k + pad), 1.0f, 0, 3);
  const auto raw = layer.run(0, x, ids, top_k, plan, misalign, pad),
             packed = layer.run(1, x, ids, top_k, plan, misalign, pad);
  ASSERT_TRUE(packed.status.ok()) << to_string(packed.status);
  EXPECT_EQ(raw.y, packed.y) << "kernel " << plan.kernel << " split " << plan.split << " rows "
                             << plan.rows << " m " << m << " top_k " << top_k;
  EXPECT_LT(layer.error(x, ids, top_k, packed.y, pad), 8e-3)
      << "kernel " << plan.kernel << " split " << plan.split << " rows " << plan.rows << " m " << m;
}

TEST(GpuExperts, PackingEqualsTheCpus) {
  for (const std::uint32_t parts : {1u, 2u})
    for (const auto& [n, k] : {std::pair{64, 256}, {34, 200}, {16, 1032}}) {
      const BankShape shape{3, static_cast<std::uint64_t>(n), static_cast<std::uint64_t>(k), parts,
                            Kind::kFixed};
      const Weights w = normal_weights(3 * shape.n * shape.k, 0.02f, 3000, 4);
      const DeviceBank bank(w, shape);
      Bytes host(gemm::bank_bytes(shape));
      ASSERT_TRUE(gemm::pack_bank_host(w.data(), shape, host).ok());
      EXPECT_EQ(bank.buffer.download(bank.buffer.size()), host);
      DeviceBuffer back(shape.n * shape.k * 2);
      ASSERT_TRUE(gemm::unpack_expert(bank.bank, 1, back.data(), nullptr).ok());
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      const auto second = w.begin() + static_cast<std::ptrdiff_t>(shape.n * shape.k);
      EXPECT_EQ(values_of(back.download(back.size())),
                Weights(second, second + static_cast<std::ptrdiff_t>(shape.n * shape.k)));
      EXPECT_TRUE(back.end_is_intact());
    }
}

TEST(GpuExperts, AnExpertThatDoesNotFitIsNamed) {
  const BankShape shape{3, 64, 1024, 1, Kind::kFixed};
  Weights w = normal_weights(3 * 64 * 1024, 0.02f, 0, 9);
  Prng prng(3);
  for (std::size_t i = 64 * 1024; i < 2 * 64 * 1024; ++i)
    w[i] = static_cast<std::uint16_t>(prng.below(65536));
  const DeviceBank bank(w, shape);
  EXPECT_TRUE(cuda::to_status(bank.results[0]).ok());
  EXPECT_EQ(cuda::to_status(bank.results[1]).code, Code::kDstTooSmall);
  EXPECT_TRUE(cuda::to_status(bank.results[2]).ok());
}

TEST(GpuExperts, EveryPlanAndShape) {
  for (const Shape& s : {Shape{6, 128, 256}, {5, 72, 200}, {4, 24, 40}, {3, 208, 136}}) {
    const Layer layer(s);
    for (const ExpertsPlan& plan : kPlans)
      for (const std::uint64_t m : {1, 7, 16, 40}) {
        if (plan.split > 1 && m > 16) continue;
        expect_right(layer, random_ids(m, 2, s.experts, m), 2, plan);
      }
  }
}

TEST(GpuExperts, ManyRows) {
  const Layer layer({4, 64, 128});
  for (const ExpertsPlan& plan : kPlans)
    if (plan.split <= 1) expect_right(layer, random_ids(300, 3, 4, 1), 3, plan);
  // Enough pairs that several thread blocks sort them.
  auto ids = random_ids(1000, 3, 4, 2);
  for (std::size_t i = 0; i < ids.size(); i += 5) ids[i] = -1;
  expect_right(layer, ids, 3, {2, 0, 128});
  ids[2500] = 4;
  const auto bad = layer.run(1, normal_weights(1000 * 128, 1.0f, 0, 3), ids, 3, {2, 0, 128});
  EXPECT_EQ(bad.routing.code, Code::kUsage);
  EXPECT_EQ(bad.routing.block, 833u);
}

TEST(GpuExperts, OddRoutings) {
  const Layer layer({9, 48, 128});
  for (const ExpertsPlan& plan : kPlans) {
    if (plan.split > 1) continue;
    expect_right(layer, std::vector<std::int32_t>(150, 7), 1, plan);  // one expert has all rows
    expect_right(layer, std::vector<std::int32_t>(64, -1), 2, plan);  // nobody has any
    std::vector<std::int32_t> some = random_ids(20, 4, 9, 5);
    for (std::size_t i = 0; i < some.size(); i += 3) some[i] = -1;
    expect_right(layer, some, 4, plan);
  }
  for (std::uint32_t top_k = 1; top_k <= 16; ++top_k)
    expect_right(layer, random_ids(5, top_k, 9, top_k), top_k, {});
}

TEST(GpuExperts, RowsThatAreNotAligned) {
  const Layer layer({4, 48, 72});
  for (const ExpertsPlan& plan : kPlans)
    if (plan.split <= 1) expect_right(layer, random_ids(33, 2, 4, 5), 2, plan, 2, 3);
}

TEST(GpuExperts, IdsOutOfRangeAreReportedAndAddNothing) {
  const Layer layer({4, 48, 128});
  const Weights x = normal_weights(6 * 128, 1.0f, 0, 3);
  const std::vector<std::int32_t> good = {0, 1, 2, -1, 1, 0, -1, 3, 2, 2, 0, 3};
  std::vector<std::int32_t> bad = good;
  bad[3] = 4, bad[6] = 0x7FFFFFFF;
  for (const ExpertsPlan& plan : kPlans) {
    const auto want = layer.run(1, x, good, 2, plan), got = layer.run(1, x, bad, 2, plan);
    EXPECT_TRUE(want.routing.ok());
    EXPECT_EQ(got.routing.code, Code::kUsage);
    EXPECT_EQ(got.routing.block, 1u);
    EXPECT_EQ(got.y, want.y);
  }
}

TEST(GpuExperts, SpecialWeightsAndRowsAreEqualToTheTwins) {
  Layer layer({3, 64, 256}, 300);
  const Weights x = special_weights(20 * 256, 4);
  const auto ids = random_ids(20, 2, 3, 6);
  for (const ExpertsPlan& plan : kPlans)
    if (plan.split <= 1)
      EXPECT_EQ(layer.run(0, x, ids, 2, plan).y, layer.run(1, x, ids, 2, plan).y);
}

// One projection of a bank.
struct Grouped {
  Weights y;
  Status status, routing;
};
constexpr std::uint16_t kUnwritten = 0xA5A5;

Grouped run_grouped(const Bank& bank, const Weights& x, std::uint64_t m,
                    const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& counts,
                    const ExpertsPlan& plan = {}, std::size_t misalign = 0) {
  const BankShape& s = bank.shape;
  const auto bytes = [](const std::vector<std::int32_t>& v) {
    Bytes out(v.size() * 4);
    if (!v.empty()) std::memcpy(out.data(), v.data(), out.size());
    return out;
  };
  DeviceBuffer device_x(bytes_of(x), misalign), device_ids(bytes(ids)),
      device_counts(bytes(counts)), y(m * s.n * 2, misalign), result(sizeof(gemm::DeviceResult)),
      workspace(gemm::grouped_workspace_bytes(s, m));
  EXPECT_EQ(cudaMemset(workspace.data(), 0xFF, workspace.size()), cudaSuccess);
  EXPECT_EQ(cudaMemset(y.data(), 0xA5, y.size()), cudaSuccess);
  gemm::GroupedArgs args;
  args.x = device_x.data(), args.ldx = s.k, args.m = m;
  args.y = y.data(), args.ldy = s.n;
  if (!ids.empty()) args.ids = reinterpret_cast<const std::int32_t*>(device_ids.data());
  if (!counts.empty()) args.counts = reinterpret_cast<const std::int32_t*>(device_counts.data());
  args.result = result_in(result);
  Grouped out;
  out.status = gemm::grouped(bank, args, {workspace.data(), workspace.size()}, plan, nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  out.routing = gemm::routing_status(fetch_result(result));
  EXPECT_TRUE(y.end_is_intact());
  EXPECT_TRUE(workspace.end_is_intact());
  out.y = values_of(y.download(y.size()));
  return out;
}

// The largest distance from sums in FP64, relative to the largest value; rows without an expert
// must be as they were.
double grouped_error(const Weights& w, const BankShape& s, const Weights& x,
                     const std::vector<std::int32_t>& ids, const Weights& y) {
  double off = 0, largest = 0;
  for (std::size_t row = 0; row < ids.size(); ++row)
    for (std::uint64_t i = 0; i < s.n; ++i) {
      if (ids[row] < 0) {
        EXPECT_EQ(y[row * s.n + i], kUnwritten);
        continue;
      }
      const std::uint64_t at = (static_cast<std::uint64_t>(ids[row]) * s.n + i) * s.k;
      double sum = 0;
      for (std::uint64_t c = 0; c < s.k; ++c)
        sum += double{from_bf16(w[at + c])} * from_bf16(x[row * s.k + c]);
      off = std::max(off, std::abs(sum - from_bf16(y[row * s.n + i])));
      largest = std::max(largest, std::abs(sum));
    }
  return off / largest;
}

TEST(GpuExperts, GroupsByIds) {
  for (const auto& [n, k, parts] :
       {std::tuple{96u, 256u, 1u}, {70u, 200u, 1u}, {64u, 136u, 2u}, {32u, 72u, 1u}}) {
    const std::uint64_t experts = 5;
    const Weights w = normal_weights(experts * n * k, 0.05f, 3000, 1);
    const DeviceBank raw(w, {experts, n, k, parts, Kind::kRaw}),
        packed(w, {experts, n, k, parts, Kind::kFixed});
    for (const ExpertsPlan& plan : kPlans)
      for (const std::uint64_t m : {1, 23, 260}) {
        if (plan.split > 1 && m > 100) continue;
        auto ids = random_ids(m, 1, experts, m);
        for (std::size_t i = 5; i < ids.size(); i += 7) ids[i] = -1;
        const Weights x = normal_weights(m * k, 1.0f, 0, 3);
        const std::size_t misalign = m == 23 ? 2 : 0;
        const auto got = run_grouped(packed.bank, x, m, ids, {}, plan, misalign);
        ASSERT_TRUE(got.status.ok()) << to_string(got.status);
        EXPECT_TRUE(got.routing.ok());
        EXPECT_EQ(got.y, run_grouped(raw.bank, x, m, ids, {}, plan, misalign).y);
        EXPECT_LT(grouped_error(w, packed.shape, x, ids, got.y), 5e-3);
      }
  }
}

TEST(GpuExperts, GroupsByCountsEqualThoseByIds) {
  const BankShape shape{4, 64, 128, 1, Kind::kFixed};
  const DeviceBank bank(normal_weights(4 * 64 * 128, 0.05f, 3000, 1), shape);
  const std::vector<std::int32_t> counts = {3, 0, 20, 11};
  const std::uint64_t each = 20, m = 4 * each;
  std::vector<std::int32_t> ids(m, -1);
  for (std::uint64_t e = 0; e < 4; ++e)
    std::fill_n(ids.begin() + static_cast<std::ptrdiff_t>(e * each), counts[e],
                static_cast<std::int32_t>(e));
  const Weights x = normal_weights(m * 128, 1.0f, 0, 3);
  for (const ExpertsPlan& plan : kPlans) {
    const auto by_counts = run_grouped(bank.bank, x, m, {}, counts, plan);
    ASSERT_TRUE(by_counts.status.ok()) << to_string(by_counts.status);
    EXPECT_EQ(by_counts.y, run_grouped(bank.bank, x, m, ids, {}, plan).y);
  }
  const auto bad = run_grouped(bank.bank, x, m, {}, {3, 0, 21, -1});
  EXPECT_EQ(bad.routing.code, Code::kUsage);
  EXPECT_EQ(bad.routing.block, 2 * each);
}

TEST(GpuExperts, WrongGroupsAreRefused) {
  const DeviceBank bank(normal_weights(4 * 64 * 128, 0.05f, 0, 1), {4, 64, 128, 1, Kind::kFixed}),
      uneven(normal_weights(2 * 34 * 128, 0.05f, 0, 1), {2, 34, 128, 2, Kind::kFixed});
  const Weights x = normal_weights(8 * 128, 1.0f, 0, 3);
  EXPECT_TRUE(run_grouped(bank.bank, {}, 0, {}, {}).status.ok());
  EXPECT_EQ(run_grouped(bank.bank, x, 8, {}, {}).status.code, Code::kUsage);
  EXPECT_EQ(run_grouped(bank.bank, x, 7, {}, {1, 1, 1, 1}).status.code, Code::kUsage);
  EXPECT_EQ(run_grouped(uneven.bank, x, 2, {0, 1}, {}).status.code, Code::kUsage);
}

TEST(GpuExperts, WrongArgumentsAreRefused) {
  const Layer layer({2, 32, 64});
  const Weights x = normal_weights(64, 1.0f, 0, 3);
  const auto no_rows = layer.run(1, {}, {}, 2);
  EXPECT_TRUE(no_rows.status.ok() && no_rows.routing.ok());
  EXPECT_EQ(layer.run(1, x, std::vector<std::int32_t>(17, 0), 17).status.code, Code::kUsage);
  EXPECT_EQ(layer.run(1, x, {0, 1}, 2, {3, 0, 0}).status.code, Code::kUsage);
  EXPECT_EQ(layer.run(1, x, {0, 1}, 2, {1, 3, 0}).status.code, Code::kUsage);
  EXPECT_EQ(layer.run(1, x, {0, 1}, 2, {2, 0, 63}).status.code, Code::kUsage);
  gemm::ExpertsArgs args;
  args.top_k = 1;
  EXPECT_EQ(gemm::experts(layer.down[1].bank, layer.gate_up[1].bank, args, {}, {}, nullptr).code,
            Code::kUsage);
  const auto workspace_bytes = [&](std::uint32_t top_k, std::uint64_t max_m) {
    return gemm::experts_workspace_bytes(layer.gate_up[1].bank.shape, layer.down[1].bank.shape,
                                         top_k, max_m);
  };
  EXPECT_NE(workspace_bytes(16, 100), 0u);
  EXPECT_EQ(workspace_bytes(0, 100), 0u);
  EXPECT_EQ(workspace_bytes(1, std::uint64_t{1} << 60), 0u);
}

}  // namespace
}  // namespace snug::test
