// codec/cuda/decode_fixed_bf16/next_block.cuh - which warps of decode_fixed_bf16.cu share which
// blocks, and what they know of a block before they restore it.
#pragma once
#include "codec/cuda/frame/decode_frame.cuh"

namespace snug::cuda {

inline constexpr unsigned kWorkerWarps = 16;  // of a thread block, which has one more that checks
inline constexpr unsigned kWorkerThreads = kWorkerWarps * kWarpSize;
inline constexpr u32 kRowValues = 8 * kWarpSize;  // of a warp's step, 8 of them a lane
inline constexpr unsigned kMaxGroups = 8;

// Warps that share blocks. All numbers are powers of two: no division delays the first load.
struct WarpGroup {
  unsigned log2_warps;  // of the group
  unsigned warp;        // index of this warp in it
  unsigned idx;         // index of the group in the thread block

  __device__ __forceinline__ explicit WarpGroup(unsigned log2_warps)
      : log2_warps(log2_warps),
        warp(warp_id() & ((1u << log2_warps) - 1)),
        idx(warp_id() >> log2_warps) {}
  __device__ __forceinline__ unsigned num_groups() const { return kWorkerWarps >> log2_warps; }
  __device__ __forceinline__ u64 first_block() const {
    return u64{blockIdx.x} * num_groups() + idx;
  }
  __device__ __forceinline__ u64 step() const { return u64{gridDim.x} * num_groups(); }
};

enum class BlockKind : u32 { kEnd, kInvalid, kFixedRows, kRawRows, kOther };

struct NextBlock {
  u64 payload = 0;      // offset in the frame
  u8* place = nullptr;  // where the warp's part goes
  BlockKind kind = BlockKind::kEnd;
  u32 n = 0;
  u32 num_bytes = 0;
  u32 checksum = 0;
};

struct HeaderVecs {
  uint4 a{}, b{}, c{}, d{};  // zeros are no header

  __device__ __forceinline__ explicit HeaderVecs(const Work& work) {
    const uint4* vecs = static_cast<const uint4*>(work.single.frame);
    if (work.single.frame_bytes < frame::kHeaderBytes) return;
    a = load_read_only(vecs);
    b = load_read_only(vecs + 1);
    c = load_read_only(vecs + 2);
    d = load_read_only(vecs + 3);
  }
  __device__ __forceinline__ DeviceHeader parse(const Work& work) const {
    return parse_device_header(a, b, c, d, work.single.frame_bytes, work.single.tensor_bytes,
                               DType::kBF16);
  }
};

// The place of a warp's part, if the parts of all warps of the group are contiguous and 16-byte
// aligned; else null.
__device__ __forceinline__ u8* find_part(const DirectAccess& dst, u64 pos, u32 part,
                                         const WarpGroup& group) {
  return dst.data + pos + group.warp * part;
}
inline __device__ __noinline__ u8* find_part(const ScatteredAccess& dst, u64 pos, u32 part,
                                             const WarpGroup& group) {
  const u32 all = part << group.log2_warps, mine = part * group.warp;
  u8* found = nullptr;
  for (u32 at = 0; at < all;) {
    const ScatteredAccess::Piece piece = dst.find(pos + at);
    const u32 here = piece.left < all - at ? static_cast<u32>(piece.left) : all - at;
    if (reinterpret_cast<std::uintptr_t>(piece.at) % 16 != 0 || here == 0 || here % part != 0)
      return nullptr;
    if (mine - at < here) found = piece.at + (mine - at);
    at += here;
  }
  return found;
}

// The index entries of a block and of the one after it, where its payload ends.
struct EntryPair {
  uint4 packed{}, next{};

  // Only bounded by the frame's buffer: the header may not have been read yet.
  __device__ __forceinline__ EntryPair(const Work& work, u64 block) {
    const uint4* entry =
        static_cast<const uint4*>(work.single.frame) + frame::kHeaderBytes / 16 + block;
    const u64 end = frame::kHeaderBytes + (block + 1) * frame::kEntryBytes;
    if (end <= work.single.frame_bytes) packed = load_read_only(entry);
    if (end + frame::kEntryBytes <= work.single.frame_bytes) next = load_read_only(entry + 1);
  }
};

template <class Access>
__device__ __forceinline__ NextBlock open_block(const Work& work, const DeviceHeader& h,
                                                const WarpGroup& group, u64 block,
                                                const EntryPair& entries) {
  if (block >= h.num_blocks) return {};
  const DeviceEntry e = unpack_entry(entries.packed);
  const u32 n = h.elems_in_block(block);
  NextBlock next{e.offset, nullptr, BlockKind::kInvalid, n, e.num_bytes, e.checksum};
  const u64 end = block + 1 < h.num_blocks ? unpack_entry(entries.next).offset : h.frame_bytes;
  if (!is_valid_entry(e, block, end, n, 2, h)) return next;
  next.kind = BlockKind::kOther;
  if (n != 1u << h.log2_block || e.plane_modes != 0) return next;
  next.place = find_part(access_item<Access>(work, work.single), (block << h.log2_block) * 2,
                         2 * n >> group.log2_warps, group);
  if (next.place == nullptr) return next;
  if (e.is(Codec::kFixed) && e.num_bytes >= n + n / 2 + codec::FixedHeader::kBytes)
    next.kind = BlockKind::kFixedRows;
  if (e.is(Codec::kRaw) && e.num_bytes == 2 * n) next.kind = BlockKind::kRawRows;
  return next;
}

// Prefetches the index entries of blocks from this one on, `step` apart.
__device__ __forceinline__ void prefetch_entries(const Work& work, u64 block, u64 step) {
  const u64 at = frame::kHeaderBytes + (block + lane_id() * step) * frame::kEntryBytes;
  if (at < work.single.frame_bytes) prefetch_l2(static_cast<const u8*>(work.single.frame) + at);
}

}  // namespace snug::cuda
