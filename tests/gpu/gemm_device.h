// gpu/gemm_device.h - packed matrices and one-call multiplications for the GPU tests.
#pragma once
#include "gemm/cuda/linear_host.h"
#include "gemm/gemm_weights.h"
#include "gpu/gpu_buffers.h"
#include "snug/gemm.h"

namespace snug::test {

inline Bytes bytes_of(const Weights& values) {
  Bytes bytes(values.size() * 2);
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline Weights values_of(const Bytes& bytes) {
  Weights values(bytes.size() / 2);
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline gemm::DeviceResult* result_in(const DeviceBuffer& buffer) {
  return reinterpret_cast<gemm::DeviceResult*>(buffer.data());
}

// A matrix packed on the GPU. `status` says how that went.
struct DeviceMatrix {
  DeviceBuffer buffer;
  gemm::Matrix matrix;
  Status status;

  DeviceMatrix(const Weights& w, std::uint64_t n, std::uint64_t k, gemm::Kind kind,
               std::size_t misalign = 0, std::uint64_t ld = 0)
      : buffer(gemm::packed_bound(n, k, kind)) {
    DeviceBuffer source(bytes_of(w), misalign), workspace(gemm::pack_workspace_bytes(n, k));
    DeviceBuffer result(sizeof(gemm::DeviceResult));
    status = gemm::pack(source.data(), ld == 0 ? k : ld, n, k, kind, {buffer.data(), buffer.size()},
                        {workspace.data(), workspace.size()}, result_in(result), nullptr);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_TRUE(buffer.end_is_intact());
    EXPECT_TRUE(workspace.end_is_intact());
    if (status.ok()) status = cuda::to_status(fetch_result(result));
    if (!status.ok()) return;
    const auto opened = gemm::open(buffer.data(), buffer.size(), nullptr);
    status = opened.status();
    if (opened.ok()) matrix = *opened;
  }
};

// x, y and a workspace for many calls with one shape.
struct LinearRun {
  std::uint64_t n, k, max_m, ldx, ldy;
  Weights x, bias;
  DeviceBuffer device_x, device_bias, device_y, workspace;

  LinearRun(std::uint64_t n_, std::uint64_t k_, std::uint64_t max_m_, std::size_t misalign = 0,
            std::uint64_t pad = 0)
      : n(n_),
        k(k_),
        max_m(max_m_),
        ldx(k_ + pad),
        ldy(n_ + pad),
        x(normal_weights(max_m_ * ldx, 1.0f, 0, 5)),
        bias(normal_weights(n_, 1.0f, 0, 6)),
        device_x(bytes_of(x), misalign),
        device_bias(bytes_of(bias)),
        device_y(max_m_ * ldy * 2, misalign),
        workspace(std::size_t{96} << 20) {
    const Status status = gemm::init_workspace({workspace.data(), workspace.size()}, nullptr);
    EXPECT_TRUE(status.ok()) << to_string(status);
  }
  // All of y, with what lies between its rows; empty where the call is refused.
  Weights operator()(const gemm::Matrix& matrix, std::uint64_t m, const gemm::Plan& plan,
                     bool with_bias = false, int poison = 0xA5) {
    EXPECT_EQ(cudaMemset(device_y.data(), poison, device_y.size()), cudaSuccess);
    status = gemm::linear(
        matrix,
        {device_x.data(), ldx, m, with_bias ? device_bias.data() : nullptr, device_y.data(), ldy},
        {workspace.data(), workspace.size()}, plan, nullptr);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_TRUE(device_y.end_is_intact());
    return status.ok() ? values_of(device_y.download(m * ldy * 2)) : Weights();
  }
  Status status;
};

// Every plan that fits: both kinds of weights must be able to run it.
inline std::vector<gemm::Plan> plans_for(std::uint64_t n, std::uint64_t k, std::uint64_t m) {
  using gemm::Kernel, gemm::Kind;
  const auto& device = gemm::current_device();
  std::vector<gemm::Plan> plans{{.kernel = Kernel::kGeneric}};
  for (const int warps : {8, 16})
    for (const int split_k : {1, 2, 3}) {
      const gemm::Plan plan{.kernel = Kernel::kFewRows, .split_k = split_k, .warps = warps};
      if (gemm::fit_few_rows(device, {n, k, m, Kind::kRaw}, plan).split_k != 0 &&
          gemm::fit_few_rows(device, {n, k, m, Kind::kFixed}, plan).split_k != 0)
        plans.push_back(plan);
    }
  if (device.hopper())
    for (const int tile_m : gemm::kTileMs)
      for (const int strips : gemm::kTileStrips)
        for (const int split_k : {static_cast<int>(gemm::kStreamK), 1, 2, 4})
          if (const gemm::Plan plan{
                  .kernel = Kernel::kBatch, .split_k = split_k, .strips = strips, .tile_m = tile_m};
              gemm::batch_fits(plan, k))
            plans.push_back(plan);
  return plans;
}

}  // namespace snug::test
