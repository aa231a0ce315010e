// codec/cuda/decode_fixed_any/part_target.cuh - where a warp puts its part of a restored block: by
// one address, or by two where a page of a scattered tensor ends inside the part.
#pragma once
#include "codec/cuda/frame/tensor_access.cuh"

namespace snug::cuda {

// Places of a part, to be added to offsets in the block: `first` up to offset `limit`,
// `second` from there on. The producer finds them.
struct PartPlace {
  std::uint8_t* first;
  std::uint8_t* second;
  std::uint32_t limit;
};

// Offsets count from the start of the block.
template <class Access>
struct PartTarget;

template <>
struct PartTarget<DirectAccess> {
  std::uint8_t* base;

  __device__ PartTarget(const DirectAccess& dst, std::uint64_t pos, const PartPlace&)
      : base(dst.data + pos) {}
  __device__ __forceinline__ std::uint8_t* at(std::uint32_t offset) const { return base + offset; }
};

template <>
struct PartTarget<ScatteredAccess> {
  PartPlace place;

  __device__ PartTarget(const ScatteredAccess&, std::uint64_t, const PartPlace& place)
      : place(place) {}
  __device__ __forceinline__ std::uint8_t* at(std::uint32_t offset) const {
    return (offset < place.limit ? place.first : place.second) + offset;
  }
};

// Finds the place of bytes [first, last) of the block at `pos`, rows of 512 bytes; false
// where they lie in more than two pieces, or not at multiples of 16, or a row in two.
__device__ __forceinline__ bool find_place(const DirectAccess&, std::uint64_t, std::uint32_t,
                                           std::uint32_t, PartPlace&) {
  return true;
}
inline __device__ __noinline__ bool find_place(const ScatteredAccess& dst, std::uint64_t pos,
                                               std::uint32_t first, std::uint32_t last,
                                               PartPlace& place) {
  if (first >= last) return true;
  const ScatteredAccess::Piece piece = dst.find(pos + first);
  place.first = piece.at - first;
  place.limit = last;
  if (reinterpret_cast<std::uintptr_t>(piece.at) % 16 != 0) return false;
  if (piece.left >= last - first) return true;
  place.limit = first + static_cast<std::uint32_t>(piece.left);
  const ScatteredAccess::Piece next = dst.find(pos + place.limit);
  place.second = next.at - place.limit;
  return place.limit % 512 == 0 && reinterpret_cast<std::uintptr_t>(next.at) % 16 == 0 &&
         next.left >= last - place.limit;
}

}  // namespace snug::cuda
