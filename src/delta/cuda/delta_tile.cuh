// delta/cuda/delta_tile.cuh - one block of a tensor in shared memory. A thread block loads and
// stores it, hashes it on the way, and finds the element of a given class and rank.
#pragma once
#include "delta/cuda/delta_planes.cuh"

namespace snug::cuda::deltas {

inline constexpr std::uint32_t kPerThread = 2 * kGroup;  // elements that a thread classifies

template <unsigned kWidth, unsigned kThreads>
struct Tile {
  static constexpr std::uint32_t kElems = kThreads * kPerThread, kGroups = kElems / kGroup;
  static constexpr std::uint32_t kChunks = kElems * kWidth / 16,
                                 kPerThreadChunks = kChunks / kThreads;
  static constexpr std::uint32_t kWarps = kThreads / 32;

  uint4 chunks[kChunks + 1];                   // one more for a byte behind the last element
  std::uint16_t before[kNumClasses][kGroups];  // elements of a class before each group
  std::uint32_t planes[3][kGroups];
  uint4 warp_counts[kWarps];

  // The place of a chunk, swizzled: no bank conflicts whether threads read neighbouring chunks or
  // all of their own elements.
  __device__ __forceinline__ static std::uint32_t slot(std::uint32_t chunk) {
    return chunk ^ (chunk >> 3 & 7);
  }
  __device__ __forceinline__ std::uint8_t* byte_at(std::uint32_t i) {
    return reinterpret_cast<std::uint8_t*>(chunks + slot(i / 16)) + i % 16;
  }

  // ---- from and to memory ----
  // `block` has num_bytes, of which num_elems * kWidth are elements; zeros follow these here.
  // Returns this thread's hash terms of all bytes. The block starts at pair first_pair of the
  // tensor.
  __device__ std::uint64_t load(const std::uint8_t* block, std::uint32_t num_elems,
                                std::uint32_t num_bytes, std::uint32_t first_pair) {
    if (num_bytes == kElems * kWidth && num_elems == kElems) {
      uint4 v[kPerThreadChunks];
#pragma unroll
      for (unsigned j = 0; j < kPerThreadChunks; ++j)
        v[j] = reinterpret_cast<const uint4*>(block)[threadIdx.x + j * kThreads];
      HashTerms terms(first_pair + 2 * threadIdx.x);
#pragma unroll
      for (unsigned j = 0; j < kPerThreadChunks; ++j) {
        add_terms(terms, v[j], j);
        chunks[slot(threadIdx.x + j * kThreads)] = v[j];
      }
      return terms.sum();
    }
    std::uint64_t sum = 0;
    for (unsigned i = threadIdx.x; i <= kChunks; i += kThreads) {
      sum += hash_some(load_some(block, 16 * i, num_bytes), first_pair, i, num_bytes);
      chunks[slot(i)] = load_some(block, 16 * i, num_elems * kWidth);
    }
    return sum;
  }
  // Stores if `block` is not null. Returns this thread's hash terms if kHash.
  template <bool kHash>
  __device__ std::uint64_t store(std::uint8_t* block, std::uint32_t num_bytes,
                                 std::uint32_t first_pair) const {
    if (num_bytes == kElems * kWidth) {
      HashTerms terms(first_pair + 2 * threadIdx.x);
#pragma unroll
      for (unsigned j = 0; j < kPerThreadChunks; ++j) {
        const uint4 v = chunks[slot(threadIdx.x + j * kThreads)];
        if (kHash) add_terms(terms, v, j);
        if (block != nullptr) reinterpret_cast<uint4*>(block)[threadIdx.x + j * kThreads] = v;
      }
      return terms.sum();
    }
    std::uint64_t sum = 0;
    for (unsigned i = threadIdx.x; 16 * i < num_bytes; i += kThreads) {
      const uint4 v = chunks[slot(i)];
      if (kHash) sum += hash_some(v, first_pair, i, num_bytes);
      if (block != nullptr) store_some(block, 16 * i, num_bytes, v);
    }
    return sum;
  }

  // ---- classes ----
  // By all threads, after load() and a barrier: fills `before` and `planes`. Returns the sizes of
  // the classes, with the zeros behind the last element.
  __device__ ClassCounts classify(const PairClasses& classes) {
    const Planes first = planes_of(2 * threadIdx.x, classes),
                 second = planes_of(2 * threadIdx.x + 1, classes);
    const ClassCounts own = first.counts();
    ClassCounts both = second.counts();
    both.add(own);
    ClassCounts upto = both;
    upto.scan();
    if (lane_id() == 31) warp_counts[warp_id()] = upto.vector();
    __syncthreads();
    ClassCounts all = {{0, 0, 0, 0}}, start = {{0, 0, 0, 0}};
#pragma unroll
    for (unsigned w = 0; w < kWarps; ++w) {
      if (w == warp_id()) start = all;
      const uint4 v = warp_counts[w];
      all.add({{v.x, v.y, v.z, v.w}});
    }
    start.add(upto);
    start.subtract(both);
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      const std::uint32_t a = start.words[j], b = a + own.words[j];
      reinterpret_cast<std::uint32_t*>(before[2 * j])[threadIdx.x] = __byte_perm(a, b, 0x5410);
      reinterpret_cast<std::uint32_t*>(before[2 * j + 1])[threadIdx.x] = __byte_perm(a, b, 0x7632);
    }
    return all;
  }

  // The element with this rank in class c, which has more elements than `rank`.
  __device__ __forceinline__ std::uint32_t find(std::uint32_t c, std::uint32_t rank) const {
    std::uint32_t group = 0;
#pragma unroll
    for (unsigned step = kGroups / 2; step > 0; step /= 2)
      if (before[c][group + step] <= rank) group += step;
    const Planes bits = {{planes[0][group], planes[1][group], planes[2][group]}};
    return group * kGroup + PlaneOrder<kWidth>::select(bits.members(c), rank - before[c][group]);
  }

 private:
  __device__ __forceinline__ static void add_terms(HashTerms& terms, uint4 v, std::uint32_t nth) {
    terms.add(v.x, v.y, 2 * nth * kThreads);
    terms.add(v.z, v.w, 2 * nth * kThreads + 1);
  }
  // Of chunk i of a block of num_bytes.
  __device__ static std::uint64_t hash_some(uint4 v, std::uint32_t first_pair, std::uint32_t i,
                                            std::uint32_t num_bytes) {
    const std::uint32_t pair = first_pair + 2 * i;
    return (16 * i < num_bytes ? delta::hash_term(v.x, v.y, pair) : 0) +
           (16 * i + 8 < num_bytes ? delta::hash_term(v.z, v.w, pair + 1) : 0);
  }
  __device__ static uint4 load_some(const std::uint8_t* block, std::uint32_t first,
                                    std::uint32_t num_bytes) {
    if (first + 16 <= num_bytes) return *reinterpret_cast<const uint4*>(block + first);
    std::uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (unsigned k = 0; k < 16; ++k)
      if (first + k < num_bytes) words[k / 4] |= std::uint32_t{block[first + k]} << 8 * (k % 4);
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
  __device__ static void store_some(std::uint8_t* block, std::uint32_t first,
                                    std::uint32_t num_bytes, uint4 v) {
    if (first + 16 <= num_bytes) {
      *reinterpret_cast<uint4*>(block + first) = v;
      return;
    }
    const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (unsigned k = 0; k < 16; ++k)
      if (first + k < num_bytes)
        block[first + k] = static_cast<std::uint8_t>(words[k / 4] >> 8 * (k % 4));
  }
  __device__ __forceinline__ Planes planes_of(std::uint32_t group_idx, const PairClasses& classes) {
    Group<kWidth> group;
#pragma unroll
    for (unsigned j = 0; j < 2 * kWidth; ++j) {
      const uint4 v = chunks[slot(2 * kWidth * group_idx + j)];
      group.words[4 * j] = v.x, group.words[4 * j + 1] = v.y;
      group.words[4 * j + 2] = v.z, group.words[4 * j + 3] = v.w;
    }
    const Planes out = class_planes(group, classes);
#pragma unroll
    for (unsigned k = 0; k < 3; ++k) planes[k][group_idx] = out.bits[k];
    return out;
  }
};

}  // namespace snug::cuda::deltas
