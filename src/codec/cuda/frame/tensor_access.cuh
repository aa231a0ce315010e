// codec/cuda/frame/tensor_access.cuh - reads and writes a tensor 16 bytes at a time, wherever its
// bytes are. Positions are byte offsets in the tensor; vectors start at multiples of 16.
#pragma once
#include "codec/cuda/frame/device_frame.cuh"

namespace snug::cuda {

// A contiguous tensor at a 16-byte aligned address: one instruction.
struct DirectAccess {
  u8* data;

  __device__ __forceinline__ uint4 load16(u64 pos) const {
    return __ldcs(reinterpret_cast<const uint4*>(data + pos));
  }
  // Keeps the line in the cache: it is read again.
  __device__ __forceinline__ uint4 peek16(u64 pos) const {
    return *reinterpret_cast<const uint4*>(data + pos);
  }
  __device__ __forceinline__ void store16(u64 pos, uint4 v) const {
    __stcs(reinterpret_cast<uint4*>(data + pos), v);
  }
  // The same for 2, 4 or 8 bytes at multiples of their size; T is an integer or uint2.
  template <class T>
  __device__ __forceinline__ T peek(u64 pos) const {
    return *reinterpret_cast<const T*>(data + pos);
  }
  template <class T>
  __device__ __forceinline__ void store(u64 pos, T v) const {
    *reinterpret_cast<T*>(data + pos) = v;
  }
  // Starts copying a vector to shared memory; see copy_async_b128.
  __device__ __forceinline__ void fetch16(u64 pos, u32 shared) const {
    copy_async_b128(shared, data + pos);
  }
  __device__ __forceinline__ u8 load_byte(u64 pos) const { return data[pos]; }
  __device__ __forceinline__ void store_byte(u64 pos, u8 b) const { data[pos] = b; }
  __device__ __forceinline__ void prefetch(u64 pos) const { prefetch_l2(data + pos); }
};

// Pieces of any number, length and address.
struct ScatteredAccess {
  const Segment* segments;
  const u64* starts;  // of each segment in the tensor, and the end
  u32 num_segments;
  Segment only;    // where `segments` is null
  u64 origin = 0;  // of positions

  struct Piece {
    u8* at;
    u64 left;
  };
  // These functions are not inlined: they have many users, and the search dominates.
  __device__ __noinline__ Piece find(u64 pos) const {
    pos += origin;
    if (segments == nullptr) return {static_cast<u8*>(only.data) + pos, only.num_bytes - pos};
    // Pages mostly have one size: guess first, then search.
    const u64 page = starts[1] == 0 ? 1 : starts[1];
    u32 i = (pos | page) >> 32 == 0 ? static_cast<u32>(pos) / static_cast<u32>(page)
                                    : static_cast<u32>(pos / page);
    if (i >= num_segments || starts[i] > pos || starts[i + 1] <= pos) {
      u32 last = num_segments;
      for (i = 0; i + 1 < last;) {
        const u32 mid = (i + last) / 2;
        (starts[mid] <= pos ? i : last) = mid;
      }
    }
    return {static_cast<u8*>(segments[i].data) + (pos - starts[i]), starts[i + 1] - pos};
  }

  __device__ __noinline__ uint4 load16(u64 pos) const {
    const Piece piece = find(pos);
    const auto address = reinterpret_cast<std::uintptr_t>(piece.at);
    if (piece.left >= 16 && address % 16 == 0) return *reinterpret_cast<const uint4*>(piece.at);
    u32 words[4] = {};
    if (piece.left >= 16 && address % 4 == 0) {
      for (int i = 0; i < 4; ++i) words[i] = reinterpret_cast<const u32*>(piece.at)[i];
    } else if (piece.left >= 16 && address % 2 == 0) {
      for (int i = 0; i < 8; ++i)
        words[i / 2] |= u32{reinterpret_cast<const u16*>(piece.at)[i]} << (i % 2 * 16);
    } else {
      for (unsigned i = 0; i < 16; ++i) words[i / 4] |= u32{load_byte(pos + i)} << (i % 4 * 8);
    }
    return {words[0], words[1], words[2], words[3]};
  }
  __device__ uint4 peek16(u64 pos) const { return load16(pos); }
  __device__ __noinline__ void fetch16(u64 pos, u32 shared) const {
    store_shared(shared, load16(pos));
  }
  __device__ __noinline__ void store16(u64 pos, uint4 v) const {
    const Piece piece = find(pos);
    const auto address = reinterpret_cast<std::uintptr_t>(piece.at);
    if (piece.left >= 16 && address % 16 == 0) {
      *reinterpret_cast<uint4*>(piece.at) = v;
      return;
    }
    const u32 words[4] = {v.x, v.y, v.z, v.w};
    if (piece.left >= 16 && address % 4 == 0) {
      for (int i = 0; i < 4; ++i) reinterpret_cast<u32*>(piece.at)[i] = words[i];
    } else if (piece.left >= 16 && address % 2 == 0) {
      for (int i = 0; i < 8; ++i)
        reinterpret_cast<u16*>(piece.at)[i] = static_cast<u16>(words[i / 2] >> (i % 2 * 16));
    } else {
      for (unsigned i = 0; i < 16; ++i)
        store_byte(pos + i, static_cast<u8>(words[i / 4] >> (i % 4 * 8)));
    }
  }
  template <class T>
  __device__ __noinline__ T peek(u64 pos) const {
    const Piece piece = find(pos);
    if (piece.left >= sizeof(T) && reinterpret_cast<std::uintptr_t>(piece.at) % sizeof(T) == 0)
      return *reinterpret_cast<const T*>(piece.at);
    T v;
    for (unsigned i = 0; i < sizeof(T); ++i) reinterpret_cast<u8*>(&v)[i] = load_byte(pos + i);
    return v;
  }
  template <class T>
  __device__ __noinline__ void store(u64 pos, T v) const {
    const Piece piece = find(pos);
    if (piece.left >= sizeof(T) && reinterpret_cast<std::uintptr_t>(piece.at) % sizeof(T) == 0) {
      *reinterpret_cast<T*>(piece.at) = v;
      return;
    }
    for (unsigned i = 0; i < sizeof(T); ++i)
      store_byte(pos + i, reinterpret_cast<const u8*>(&v)[i]);
  }
  __device__ u8 load_byte(u64 pos) const { return *find(pos).at; }
  __device__ void store_byte(u64 pos, u8 b) const { *find(pos).at = b; }
  __device__ void prefetch(u64) const {}
};

// The same tensor with positions relative to `pos`.
__device__ __forceinline__ DirectAccess advanced(DirectAccess tensor, u64 pos) {
  return {tensor.data + pos};
}
__device__ __forceinline__ ScatteredAccess advanced(ScatteredAccess tensor, u64 pos) {
  tensor.origin += pos;
  return tensor;
}

// The address of these bytes if they are contiguous and 16-byte aligned, as blocks of a paged cache
// mostly are; else null.
__device__ __forceinline__ u8* in_one_piece(const DirectAccess& tensor, u64 pos, u64) {
  return tensor.data + pos;
}
__device__ __forceinline__ u8* in_one_piece(const ScatteredAccess& tensor, u64 pos, u64 num_bytes) {
  const ScatteredAccess::Piece piece = tensor.find(pos);
  const bool good = piece.left >= num_bytes && reinterpret_cast<std::uintptr_t>(piece.at) % 16 == 0;
  return good ? piece.at : nullptr;
}

// The first num_bytes (at most 16) at pos; the rest reads as zero.
template <class Access>
__device__ uint4 load_partial(const Access& tensor, u64 pos, unsigned num_bytes) {
  u32 words[4] = {};
  for (unsigned i = 0; i < num_bytes; ++i)
    words[i / 4] |= u32{tensor.load_byte(pos + i)} << (i % 4 * 8);
  return {words[0], words[1], words[2], words[3]};
}

template <class Access>
__device__ void store_partial(const Access& tensor, u64 pos, uint4 v, unsigned num_bytes) {
  const u32 words[4] = {v.x, v.y, v.z, v.w};
  for (unsigned i = 0; i < num_bytes; ++i)
    tensor.store_byte(pos + i, static_cast<u8>(words[i / 4] >> (i % 4 * 8)));
}

// Loads or stores a vector, or its first `left` bytes.
template <class Access>
__device__ __forceinline__ uint4 load_upto16(const Access& tensor, u64 pos, i64 left) {
  if (left >= 16) return tensor.load16(pos);
  return left > 0 ? load_partial(tensor, pos, static_cast<unsigned>(left)) : uint4{};
}
template <class Access>
__device__ __forceinline__ void store_upto16(const Access& tensor, u64 pos, uint4 v, i64 left) {
  if (left >= 16)
    tensor.store16(pos, v);
  else if (left > 0)
    store_partial(tensor, pos, v, static_cast<unsigned>(left));
}

// The same, out of line, for the end of a block.
template <class Access>
__device__ __noinline__ void store_end(Access tensor, u64 pos, uint4 v, i32 left) {
  store_upto16(tensor, pos, v, left);
}

template <class Access>
__device__ __noinline__ uint4 load_end(Access tensor, u64 pos, i32 left) {
  return load_upto16(tensor, pos, left);
}

// One element of `width` bytes as an integer.
template <class Access>
__device__ u64 load_elem(const Access& tensor, u64 pos, unsigned width) {
  u64 v = 0;
  for (unsigned i = 0; i < width; ++i) v |= u64{tensor.load_byte(pos + i)} << (8 * i);
  return v;
}
template <class Access>
__device__ void store_elem(const Access& tensor, u64 pos, unsigned width, u64 v) {
  for (unsigned i = 0; i < width; ++i) tensor.store_byte(pos + i, static_cast<u8>(v >> (8 * i)));
}

}  // namespace snug::cuda
