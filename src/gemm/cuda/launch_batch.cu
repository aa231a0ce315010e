// Describes x to TMA and launches the batch kernel.
#include "gemm/cuda/launch_batch.cuh"

namespace snug::gemm {

extern SNUG_LAUNCH_ROWS(16);
extern SNUG_LAUNCH_ROWS(32);
extern SNUG_LAUNCH_ROWS(48);
extern SNUG_LAUNCH_ROWS(64);
extern SNUG_LAUNCH_ROWS(80);
extern SNUG_LAUNCH_ROWS(96);
extern SNUG_LAUNCH_ROWS(112);
extern SNUG_LAUNCH_ROWS(128);
extern SNUG_LAUNCH_ROWS(144);
extern SNUG_LAUNCH_ROWS(160);
extern SNUG_LAUNCH_ROWS(176);
extern SNUG_LAUNCH_ROWS(192);
extern SNUG_LAUNCH_ROWS(208);
extern SNUG_LAUNCH_ROWS(224);
extern SNUG_LAUNCH_ROWS(240);
extern SNUG_LAUNCH_ROWS(256);

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

}  // namespace

bool describe_x(CUtensorMap& map, const LinearParams& p, std::uint32_t box_rows) noexcept {
  const cuuint64_t sizes[2] = {p.k, p.m}, strides[1] = {p.ldx * 2};
  const cuuint32_t box[2] = {64, box_rows}, steps[2] = {1, 1};
  const EncodeTiled encode = encode_tiled();
  return encode != nullptr &&
         encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<std::uint16_t*>(p.x), sizes,
                strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

cudaError_t launch_batch(const Device& device, const LinearParams& params, Kind kind,
                         const Plan& plan, cudaStream_t stream) noexcept {
  switch (plan.tile_m) {
    case 16: return launch_rows<16>(device, params, kind, plan, stream);
    case 32: return launch_rows<32>(device, params, kind, plan, stream);
    case 48: return launch_rows<48>(device, params, kind, plan, stream);
    case 64: return launch_rows<64>(device, params, kind, plan, stream);
    case 80: return launch_rows<80>(device, params, kind, plan, stream);
    case 96: return launch_rows<96>(device, params, kind, plan, stream);
    case 112: return launch_rows<112>(device, params, kind, plan, stream);
    case 128: return launch_rows<128>(device, params, kind, plan, stream);
    case 144: return launch_rows<144>(device, params, kind, plan, stream);
    case 160: return launch_rows<160>(device, params, kind, plan, stream);
    case 176: return launch_rows<176>(device, params, kind, plan, stream);
    case 192: return launch_rows<192>(device, params, kind, plan, stream);
    case 208: return launch_rows<208>(device, params, kind, plan, stream);
    case 224: return launch_rows<224>(device, params, kind, plan, stream);
    case 240: return launch_rows<240>(device, params, kind, plan, stream);
    case 256: return launch_rows<256>(device, params, kind, plan, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace snug::gemm
