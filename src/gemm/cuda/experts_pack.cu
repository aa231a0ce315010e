// The host side of packing banks of experts.
#include "gemm/cuda/linear_host.h"
#include "gemm/cuda/pack_params.cuh"
#include "gemm/experts_format.h"

namespace snug::gemm {

std::size_t pack_bank_workspace_bytes(const BankShape& shape, std::uint64_t count) noexcept {
  if (slot_bytes(shape) == 0 || count > kMaxExperts) return 0;
  return PackWorkspace(SlotLayout(shape).n, shape.k, count).total;
}

Status pack_bank(const void* w, const BankShape& shape, std::uint64_t first, std::uint64_t count,
                 cuda::Target bank, cuda::Target workspace, DeviceResult* results,
                 Stream stream) noexcept {
  if (bank_bytes(shape) == 0) return usage("shape of the bank is out of range");
  if (first > shape.experts || count > shape.experts - first)
    return usage("the bank has no such experts", first + count, shape.experts);
  if (bank.data == nullptr || !is_aligned(bank.data, kAlign))
    return usage("bank is not 256-byte aligned");
  if (bank.num_bytes < bank_bytes(shape))
    return {Code::kDstTooSmall, "bank does not fit", kNowhere,
            kNowhere,           bank.num_bytes,      bank_bytes(shape)};
  if (count == 0) return {};
  if (w == nullptr || !is_aligned(w, 2)) return usage("weights are not 2-byte aligned");
  if (results == nullptr) return usage("no place for the results");
  if (Status s = cuda::check_workspace(workspace.data, workspace.num_bytes,
                                       pack_bank_workspace_bytes(shape, count));
      !s.ok())
    return s;
  if (current_device().num_sms == 0) return {Code::kNoDevice, "no usable GPU"};
  if (current_device().major < 8)
    return {Code::kNoDevice, "packing needs a GPU of compute capability 8.0 or later"};
  const SlotLayout slot(shape);
  const PackWorkspace offsets(slot.n, shape.k, count);
  auto* const scratch = static_cast<std::uint8_t*>(workspace.data);
  auto* const dst = static_cast<std::uint8_t*>(bank.data) + first * slot.num_bytes;
  // Zeros where overflows may be, so that equal experts are equal bytes.
  if (const std::uint64_t room = slot.num_bytes - slot.matrix.overflows; room != 0)
    if (cudaError_t error =
            cudaMemset2DAsync(dst + slot.matrix.overflows, slot.num_bytes, 0, room, count, stream);
        error != cudaSuccess)
      return from_cuda(error);
  const PackParams p{
      .w = static_cast<const std::uint16_t*>(w),
      .ld = shape.k,
      .n = slot.n,
      .k = shape.k,
      .part_n = shape.n / shape.parts,
      .part_strips = slot.part_strips,
      .row_end = 0,
      .pairs = shape.k % 2 == 0 && is_aligned(w, 4),
      .dst = dst,
      .max_overflows = slot.max_overflows,
      .kind = shape.kind,
      .strip_escaped = reinterpret_cast<std::uint64_t*>(scratch + offsets.escapes),
      .strip_overflows = reinterpret_cast<std::uint64_t*>(scratch + offsets.overflows),
      .tile_overflows = scratch + offsets.tiles,
      .result = results,
      .w_stride = shape.n * shape.k,
      .dst_stride = slot.num_bytes};
  return from_cuda(enqueue_pack(p, static_cast<std::uint32_t>(count), stream));
}

Status unpack_expert(const Bank& bank, std::uint64_t expert, void* w, Stream stream) noexcept {
  if (bank_bytes(bank.shape) == 0) return usage("shape of the bank is out of range");
  if (bank.data == nullptr || !is_aligned(bank.data, kAlign))
    return usage("bank is not 256-byte aligned");
  if (expert >= bank.shape.experts)
    return usage("the bank has no such expert", expert, bank.shape.experts);
  if (w == nullptr || !is_aligned(w, 2)) return usage("weights are not 2-byte aligned");
  if (current_device().num_sms == 0) return {Code::kNoDevice, "no usable GPU"};
  const SlotLayout slot(bank.shape);
  const std::uint64_t part_n = bank.shape.n / bank.shape.parts;
  Matrix matrix;
  matrix.data = static_cast<const std::uint8_t*>(bank.data) + expert * slot.num_bytes;
  matrix.num_bytes = slot.matrix.overflows + slot.max_overflows * kOverflowBytes;
  matrix.k = bank.shape.k;
  matrix.kind = bank.shape.kind;
  for (std::uint32_t part = 0; part < bank.shape.parts; ++part) {
    // The matrix ends with the last row of the part, so that its padding is not written.
    matrix.n = slot.n;
    const std::uint64_t end = part * slot.part_strips * kStripRows + part_n;
    const cudaError_t error =
        launch_unpack(matrix, part * slot.part_strips, slot.part_strips, end,
                      static_cast<std::uint16_t*>(w) + part * part_n * matrix.k, matrix.k, stream);
    if (error != cudaSuccess) return from_cuda(error);
  }
  return {};
}

}  // namespace snug::gemm
