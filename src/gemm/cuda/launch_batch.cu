// Describes x to TMA and launches the batch kernel.
#include <algorithm>

#include "gemm/cuda/linear_host.h"
#include "gemm/cuda/sm90_batch_gemm.cuh"

namespace snug::gemm {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// From the loaded driver, so that nothing links against libcuda.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                         &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
      entry = nullptr;
    return reinterpret_cast<EncodeTiled>(entry);
  }();
  return function;
}

bool describe_x(CUtensorMap& map, const LinearParams& p, std::uint32_t box_rows) {
  const cuuint64_t sizes[2] = {p.k, p.m}, strides[1] = {p.ldx * 2};
  const cuuint32_t box[2] = {64, box_rows}, steps[2] = {1, 1};
  const EncodeTiled encode = encode_tiled();
  return encode != nullptr &&
         encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<std::uint16_t*>(p.x), sizes,
                strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <class Shape>
cudaError_t launch(const Device& device, const LinearParams& params, std::uint32_t split_k,
                   cudaStream_t stream) {
  constexpr std::uint32_t kTeamStrips = kTeam * Shape::kStrips;
  BatchParams b;
  b.p = params;
  b.p.split_k = split_k;
  b.token_tiles = (params.m + Shape::kTileM - 1) / Shape::kTileM;
  if (!describe_x(b.x_map, params, Shape::kTileM / kTeam)) return cudaErrorNotSupported;
  const std::uint64_t row_tiles = (params.strips + kTeamStrips - 1) / kTeamStrips;
  const std::uint64_t tiles = row_tiles * b.token_tiles;
  const auto most = static_cast<std::uint32_t>(std::min<std::uint64_t>(
      tiles * params.tiles_per_strip, static_cast<std::uint32_t>(device.num_sms) / kTeam));
  b.teams = split_k == 1 ? even_teams(tiles, most) : static_cast<std::uint32_t>(tiles * split_k);
  b.share = tiles * params.tiles_per_strip / b.teams;
  b.extra = static_cast<std::uint32_t>(tiles * params.tiles_per_strip % b.teams);
  return launch_sm90(
      device, batch_gemm<Shape>,
      {kTeam * b.teams, Shape::kThreads, Shape::kSmemBytes, stream, Start::kEarly, kTeam * split_k},
      b);
}

template <int kTileM, int kGroups, int kSubs>
cudaError_t launch_kind(const Device& device, const LinearParams& params, Kind kind,
                        std::uint32_t split_k, cudaStream_t stream) {
  return kind == Kind::kRaw ? launch<BatchShape<kTileM, kGroups, kSubs, Kind::kRaw>>(
                                  device, params, split_k, stream)
                            : launch<BatchShape<kTileM, kGroups, kSubs, Kind::kFixed>>(
                                  device, params, split_k, stream);
}

template <int kTileM>
cudaError_t launch_rows(const Device& device, const LinearParams& params, Kind kind, int strips,
                        std::uint32_t split_k, cudaStream_t stream) {
  if constexpr (kTileM <= 128) {
    if (strips == 12) return launch_kind<kTileM, 3, 1>(device, params, kind, split_k, stream);
    // Four warpgroups hide each other's latency; wider sums leave registers for two only.
    constexpr int kGroups = kTileM <= 64 ? 4 : 2;
    if (strips == 16)
      return launch_kind<kTileM, kGroups, 4 / kGroups>(device, params, kind, split_k, stream);
  }
  return launch_kind<kTileM, 2, 1>(device, params, kind, split_k, stream);
}

}  // namespace

cudaError_t launch_batch(const Device& device, const LinearParams& params, Kind kind,
                         const Plan& plan, cudaStream_t stream) noexcept {
  const std::uint32_t split_k = plan.split_k > 1 ? static_cast<std::uint32_t>(plan.split_k) : 1;
  switch (plan.tile_m) {
    case 16: return launch_rows<16>(device, params, kind, plan.strips, split_k, stream);
    case 32: return launch_rows<32>(device, params, kind, plan.strips, split_k, stream);
    case 48: return launch_rows<48>(device, params, kind, plan.strips, split_k, stream);
    case 64: return launch_rows<64>(device, params, kind, plan.strips, split_k, stream);
    case 80: return launch_rows<80>(device, params, kind, plan.strips, split_k, stream);
    case 96: return launch_rows<96>(device, params, kind, plan.strips, split_k, stream);
    case 112: return launch_rows<112>(device, params, kind, plan.strips, split_k, stream);
    case 128: return launch_rows<128>(device, params, kind, plan.strips, split_k, stream);
    case 160: return launch_rows<160>(device, params, kind, plan.strips, split_k, stream);
    case 192: return launch_rows<192>(device, params, kind, plan.strips, split_k, stream);
    case 224: return launch_rows<224>(device, params, kind, plan.strips, split_k, stream);
    case 256: return launch_rows<256>(device, params, kind, plan.strips, split_k, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace snug::gemm
