// codec/cuda/frame/device_frame.cuh - frames as kernels see them: checksums, headers, index
// entries, errors, and the state of one call.
#pragma once
#include "frame/frame.h"
#include "gpu/checksum.cuh"
#include "gpu/ptx_barrier.cuh"
#include "gpu/warp.cuh"
#include "snug/cuda.h"

namespace snug::cuda {

// Why a frame was refused; to_status() in gpu_codec.cu has the words.
enum Reason : u32 {
  kReasonNone = 0,
  kReasonShortFrame,
  kReasonMagic,
  kReasonVersion,
  kReasonHeader,
  kReasonDType,
  kReasonCutShort,
  kReasonTensorRoom,
  kReasonFrameRoom,
  kReasonHeadChecksum,
  kReasonIndex,
  kReasonChecksum,
  kReasonPayload,
  kReasonStream,
  kReasonBatchRoom,
  kReasonUpstream,
  kReasonAlignment,
  kReasonWrongBase,
  kReasonTargetHash,
  kReasonNeedsFrame,
  kNumReasons
};

// One a tensor. Encodes and decodes of a batch use it; prepare_kernel zeroes it before them.
struct ItemState {
  unsigned long long head_sum;     // checksum terms of header and index
  unsigned long long first_error;  // see error_key(); 0: none
  unsigned long long frame_end;    // encode: set by the last block
  unsigned done;                   // blocks finished
  unsigned pad;
};

// Errors as numbers. The error of the lowest block is the largest: taking the maximum reports the
// same one in every run.
__device__ __forceinline__ unsigned long long error_key(Code code, Reason reason, u64 block) {
  return ((~block & 0xFFFFFFFFFFFFull) << 16) | static_cast<u64>(reason) << 8 |
         static_cast<u64>(code);
}
__device__ inline void report_error(ItemState* state, Code code, Reason reason, u64 block) {
  atomicMax(&state->first_error, error_key(code, reason, block));
}

__device__ inline void write_result(DeviceResult* result, u64 first_error, u64 num_bytes) {
  result->code = static_cast<u32>(first_error & 0xFF);
  result->reason = static_cast<u32>(first_error >> 8 & 0xFF);
  const u64 block = ~(first_error >> 16) & 0xFFFFFFFFFFFFull;
  result->block = first_error == 0 || block == 0xFFFFFFFFFFFFull ? kNowhere : block;
  result->num_bytes = first_error == 0 ? num_bytes : 0;
}

// sum + a * b in one instruction.
__device__ __forceinline__ u64 mad_wide(u32 a, u32 b, u64 sum) {
  asm("mad.wide.u32 %0, %1, %2, %0;" : "+l"(sum) : "r"(a), "r"(b));
  return sum;
}

__device__ __forceinline__ u32 checksum_finish(u64 sum, u64 num_bytes) {
  sum += num_bytes;
  sum ^= sum >> 32;
  return static_cast<u32>((sum * frame::kChecksumMix) >> 32);
}

// Bytes of an element; 1 for a number that is no DType, so that it can be divided by.
__host__ __device__ constexpr unsigned width_of(DType dtype) {
  return elem_bytes(dtype) == 0 ? 1 : static_cast<unsigned>(elem_bytes(dtype));
}
// Whole elements in num_bytes. A shift: 64-bit divisions are slow.
__device__ __forceinline__ u64 elems_in(u64 num_bytes, DType dtype) {
  return num_bytes >> (31 - __clz(static_cast<int>(width_of(dtype))));
}
__host__ __device__ constexpr u64 align16(u64 n) { return (n + 15) & ~u64{15}; }

// The header of a frame, or why it was refused.
struct DeviceHeader {
  u64 num_elems = 0;
  u64 frame_bytes = 0;
  u64 num_blocks = 0;
  u32 log2_block = 0;
  u32 num_tail_bytes = 0;
  u64 tail = 0;
  u32 checksum = 0;
  Code code = Code::kOk;
  Reason reason = kReasonNone;

  __device__ u64 payload_start() const {
    return frame::kHeaderBytes + num_blocks * frame::kEntryBytes;
  }
  // BlockGrid::elems_in_block in a form that takes fewer registers here.
  __device__ u32 elems_in_block(u64 block) const {
    const u64 left = num_elems - (block << log2_block);
    return static_cast<u32>(left >> log2_block ? 1u << log2_block : left);
  }
};

__device__ inline void refuse(DeviceHeader& h, Code code, Reason reason) {
  h.code = code;
  h.reason = reason;
  h.num_blocks = 0;
}

// The same checks, in the same order, as frame::read_header and open_frame; a to d are the header's
// vectors. Nothing branches before all four are used, so that their loads run together.
__device__ __forceinline__ DeviceHeader parse_device_header(uint4 a, uint4 b, uint4 c, uint4 d,
                                                            u64 room, u64 tensor_room,
                                                            DType dtype) {
  DeviceHeader h;
  const unsigned width = width_of(dtype);
  h.log2_block = a.y >> 16 & 0xFF;
  h.num_tail_bytes = a.y >> 24;
  h.num_elems = a.z | u64{a.w} << 32;
  h.frame_bytes = b.x | u64{b.y} << 32;
  h.tail = b.z | u64{b.w} << 32;
  h.checksum = c.x;
  const bool known = (a.x == frame::kMagic) & ((a.y & 0xFF) == frame::kVersion) &
                     ((a.y >> 8 & 0xFF) == static_cast<unsigned>(dtype));
  const bool in_range = (h.log2_block >= frame::kMinLog2Block) &
                        (h.log2_block <= frame::kMaxLog2Block) & (h.num_tail_bytes < width) &
                        ((h.tail >> (8 * (h.num_tail_bytes & 7))) == 0) &
                        ((c.y | c.z | c.w | d.x | d.y | d.z | d.w) == 0) &
                        (h.num_elems <= elems_in(frame::kMaxRawBytes, dtype));
  h.num_blocks = frame::BlockGrid{h.num_elems, static_cast<int>(h.log2_block & 31)}.num_blocks();
  const bool whole = (h.frame_bytes % frame::kAlign == 0) & (h.frame_bytes >= h.payload_start());
  const bool fits =
      (h.frame_bytes <= room) & (h.num_elems * width + h.num_tail_bytes <= tensor_room);
  if (known & in_range & whole & fits) return h;
  if (a.x != frame::kMagic)
    refuse(h, Code::kBadMagic, kReasonMagic);
  else if ((a.y & 0xFF) != frame::kVersion)
    refuse(h, Code::kUnsupportedVersion, kReasonVersion);
  else if (!known)
    refuse(h, Code::kCorrupt, kReasonDType);
  else if (!in_range || !whole)
    refuse(h, Code::kCorrupt, kReasonHeader);
  else if (h.frame_bytes > room)
    refuse(h, Code::kCorrupt, kReasonCutShort);
  else
    refuse(h, Code::kDstTooSmall, kReasonTensorRoom);
  return h;
}
inline __device__ __noinline__ DeviceHeader read_device_header(const u8* frame, u64 room,
                                                               u64 tensor_room, DType dtype) {
  DeviceHeader h;
  if (reinterpret_cast<std::uintptr_t>(frame) % frame::kAlign != 0) {
    refuse(h, Code::kUsage, kReasonAlignment);
    return h;
  }
  if (room < frame::kHeaderBytes) {
    refuse(h, Code::kCorrupt, kReasonShortFrame);
    return h;
  }
  const uint4* p = reinterpret_cast<const uint4*>(frame);
  const uint4 a = __ldg(p), b = __ldg(p + 1), c = __ldg(p + 2), d = __ldg(p + 3);
  return parse_device_header(a, b, c, d, room, tensor_room, dtype);
}

// Modes of planes in two bits each, the lowest plane first.
using frame::PlaneMode;
__host__ __device__ constexpr bool has_mode(u32 plane_modes, unsigned plane, PlaneMode mode) {
  return (plane_modes >> (2 * plane) & 3) == static_cast<u32>(mode);
}
__host__ __device__ constexpr u32 mode_bits(PlaneMode mode, unsigned plane) {
  return static_cast<u32>(mode) << (2 * plane);
}

struct DeviceEntry {
  u64 offset;
  u32 codec;
  u32 plane_modes;
  u32 num_bytes;
  u32 checksum;

  __device__ bool is(Codec other) const { return codec == static_cast<u32>(other); }
  __device__ bool has(unsigned plane, PlaneMode mode) const {
    return has_mode(plane_modes, plane, mode);
  }
  __device__ bool codes(unsigned plane) const { return (plane_modes >> (2 * plane) & 3) > 1; }
};

__device__ inline DeviceEntry unpack_entry(uint4 v) {
  const u64 word = v.x | u64{v.y} << 32;
  return {(word & ((u64{1} << 40) - 1)) * frame::kAlign, static_cast<u32>(word >> 40 & 0xFF),
          static_cast<u32>(word >> 48), v.z, v.w};
}

__device__ inline uint4 pack_entry(const DeviceEntry& e) {
  const u64 word = e.offset / frame::kAlign | u64{e.codec} << 40 | u64{e.plane_modes} << 48;
  return {static_cast<u32>(word), static_cast<u32>(word >> 32), e.num_bytes, e.checksum};
}

}  // namespace snug::cuda
