// Describes x to the copy engine and launches the batch kernel.
#include <algorithm>
#include <atomic>

#include "gemm/launch.h"
#include "gemm/sm90_batch_gemm.cuh"

namespace snug::gemm {
namespace {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// From the driver that is loaded, so that nothing links against libcuda.
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

// Teams of thread blocks to share `tiles` of y: a few less than fit on the GPU, if
// then no tile or every tile is cut evenly.
std::uint32_t even_teams(std::uint64_t tiles, std::uint32_t most) {
  for (std::uint32_t teams = most; teams > most - most / 12; --teams)
    if (tiles % teams == 0 || teams % tiles == 0) return teams;
  return most;
}

// Teams that run at once. Those of four leave SMs idle where the GPU's groups of SMs are
// not multiples of four, which only the driver knows.
template <class Shape>
std::uint32_t most_teams(const Device& device) {
  if (Shape::kTeam == 2) return static_cast<std::uint32_t>(device.num_sms) / 2;
  static std::atomic<std::uint32_t> known[64];
  int id = 0;
  if (cudaGetDevice(&id) != cudaSuccess || id < 0 || id >= 64) return 1;
  if (const std::uint32_t teams = known[id].load(std::memory_order_relaxed); teams != 0)
    return teams;
  int clusters = 0;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {Shape::kTeam, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(device.num_sms) / Shape::kTeam * Shape::kTeam);
  config.blockDim = dim3(Shape::kThreads);
  config.dynamicSmemBytes = Shape::kSmemBytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  if (cudaFuncSetAttribute(batch_gemm<Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(Shape::kSmemBytes)) != cudaSuccess ||
      cudaOccupancyMaxActiveClusters(&clusters, batch_gemm<Shape>, &config) != cudaSuccess ||
      clusters < 1)
    return 1;
  const auto teams = std::min(static_cast<std::uint32_t>(clusters),
                              static_cast<std::uint32_t>(device.num_sms) / Shape::kTeam);
  known[id].store(teams, std::memory_order_relaxed);
  return teams;
}

template <class Shape>
cudaError_t launch(const Device& device, const LinearParams& params, std::uint32_t splits,
                   cudaStream_t stream) {
  constexpr std::uint32_t kTeam = Shape::kTeam, kTeamStrips = kTeam * Shape::kStrips;
  BatchParams b;
  b.p = params;
  b.p.splits = splits;
  b.token_tiles = (params.m + Shape::kCols - 1) / Shape::kCols;
  if (!describe_x(b.x_map, params, Shape::kCols / kTeam)) return cudaErrorNotSupported;
  const std::uint64_t row_tiles = (params.strips + kTeamStrips - 1) / kTeamStrips;
  const std::uint64_t tiles = row_tiles * b.token_tiles;
  const auto most = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(tiles * params.tiles_per_strip, most_teams<Shape>(device)));
  b.teams = splits == 1 ? even_teams(tiles, most) : static_cast<std::uint32_t>(tiles * splits);
  const cudaError_t error = launch_overlapped(batch_gemm<Shape>, kTeam * b.teams, Shape::kThreads,
                                              Shape::kSmemBytes, b, stream, kTeam * splits);
  // Nothing to add where every team has whole tiles, or clusters have added them.
  if (error != cudaSuccess || splits != 1 || tiles % b.teams == 0) return error;
  const auto chunks = static_cast<std::uint32_t>(tiles * kTeam * (Shape::kPartQuads / 64));
  return launch_overlapped(batch_add<Shape>, (chunks + 7) / 8, 256, 0, b, stream);
}

template <int kCols, int kGroups, int kSubs, int kBlocks = 1, int kTeam = 2>
cudaError_t launch_kind(const Device& device, const LinearParams& params, Kind kind,
                        std::uint32_t splits, cudaStream_t stream) {
  return kind == Kind::kRaw
             ? launch<BatchShape<kCols, kGroups, kSubs, kBlocks, kTeam, Kind::kRaw>>(device, params,
                                                                                     splits, stream)
             : launch<BatchShape<kCols, kGroups, kSubs, kBlocks, kTeam, Kind::kNibble>>(
                   device, params, splits, stream);
}

template <int kCols>
cudaError_t launch_rows(const Device& device, const LinearParams& params, Kind kind, int strips,
                        std::uint32_t splits, cudaStream_t stream) {
  constexpr int kBlocks = batch_blocks_per_sm(8, kCols);
  if (strips == 8) return launch_kind<kCols, 2, 1, kBlocks>(device, params, kind, splits, stream);
  if (strips == 12) return launch_kind<kCols, 3, 1>(device, params, kind, splits, stream);
  if constexpr (kCols >= 32)
    if (strips == 32)
      return launch_kind<kCols, 2, 1, kBlocks, 4>(device, params, kind, splits, stream);
  if constexpr (kCols >= 64)
    if (strips == 48) return launch_kind<kCols, 3, 1, 1, 4>(device, params, kind, splits, stream);
  // Four warpgroups hide each other's waits; wider sums leave registers for two only.
  constexpr int kGroups = kCols <= 64 ? 4 : 2;
  return launch_kind<kCols, kGroups, 4 / kGroups>(device, params, kind, splits, stream);
}

}  // namespace

std::uint32_t batch_columns(std::uint64_t m) noexcept {
  std::uint32_t columns = 16;
  while (columns < m && columns < 256) columns *= 2;
  return columns;
}

bool batch_fits(const Plan& plan, std::uint64_t k) noexcept {
  if (plan.splits != 0 && plan.splits != 1 && plan.splits != 2 && plan.splits != 4) return false;
  if (static_cast<std::uint64_t>(plan.splits) > (k + kTileCols - 1) / kTileCols) return false;
  if (plan.columns == 256) return plan.warps == 8;
  if (plan.warps == 32)
    return plan.splits <= 2 && (plan.columns == 32 || plan.columns == 64 || plan.columns == 128);
  if (plan.warps == 48) return plan.splits <= 2 && (plan.columns == 64 || plan.columns == 128);
  return (plan.columns == 16 || plan.columns == 32 || plan.columns == 64 || plan.columns == 128) &&
         (plan.warps == 8 || plan.warps == 12 || plan.warps == 16);
}

std::uint64_t batch_partial_bytes(const Device& device, const Plan& plan) noexcept {
  if (plan.splits > 1) return 0;
  const int strips = batch_block_strips(plan.warps);
  return std::uint64_t{static_cast<std::uint32_t>(device.num_sms)} * 2 *
         static_cast<std::uint32_t>(strips) * kStripRows *
         static_cast<std::uint32_t>(plan.columns) * 4;
}

cudaError_t launch_batch(const Device& device, const LinearParams& params, Kind kind,
                         const Plan& plan, cudaStream_t stream) noexcept {
  const std::uint32_t splits = plan.splits > 1 ? static_cast<std::uint32_t>(plan.splits) : 1;
  switch (plan.columns) {
    case 16: return launch_rows<16>(device, params, kind, plan.warps, splits, stream);
    case 32: return launch_rows<32>(device, params, kind, plan.warps, splits, stream);
    case 64: return launch_rows<64>(device, params, kind, plan.warps, splits, stream);
    case 128: return launch_rows<128>(device, params, kind, plan.warps, splits, stream);
    case 256: return launch_kind<256, 2, 1>(device, params, kind, splits, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace snug::gemm
