// delta/cuda/delta_tile.cuh - one block of a tensor in shared memory: loaded and stored by all
// threads of a thread block, hashed on the way, and searched for the element of a given class
// and rank.
#pragma once
#include "delta/cuda/delta_planes.cuh"

namespace snug::cuda::deltas {

// A thread classifies 64 neighbours.
inline constexpr u32 kPerThread = 2 * kGroup;

template <u32 kWidth, u32 kThreads>
struct Tile {
  static constexpr u32 kElems = kThreads * kPerThread, kGroups = kElems / kGroup;
  static constexpr u32 kChunks = kElems * kWidth / 16, kPerThreadChunks = kChunks / kThreads;
  static constexpr u32 kWarps = kThreads / 32;

  uint4 chunks[kChunks + 1];         // one more for a byte behind the last element
  u16 before[kNumClasses][kGroups];  // elements of a class before each group
  u32 planes[3][kGroups];
  uint4 warp_counts[kWarps];

  // Where a chunk is: so that neither threads that read neighbouring chunks nor those that
  // read all of their own elements meet in the same banks.
  __device__ __forceinline__ static u32 slot(u32 chunk) { return chunk ^ (chunk >> 3 & 7); }
  __device__ __forceinline__ u8* byte_at(u32 i) {
    return reinterpret_cast<u8*>(chunks + slot(i / 16)) + i % 16;
  }

  // ---- from and to memory ----
  // `block` has num_bytes, of which num_elems * kWidth are elements; what lies behind those
  // is zero here. Returns this thread's hash terms of all bytes; the first pair of the block is
  // pair first_pair of the tensor.
  __device__ u64 load(const u8* block, u32 num_elems, u32 num_bytes, u32 first_pair) {
    if (num_bytes == kElems * kWidth && num_elems == kElems) {
      uint4 v[kPerThreadChunks];
#pragma unroll
      for (u32 j = 0; j < kPerThreadChunks; ++j)
        v[j] = reinterpret_cast<const uint4*>(block)[threadIdx.x + j * kThreads];
      HashTerms terms(first_pair + 2 * threadIdx.x);
#pragma unroll
      for (u32 j = 0; j < kPerThreadChunks; ++j) {
        add_terms(terms, v[j], j);
        chunks[slot(threadIdx.x + j * kThreads)] = v[j];
      }
      return terms.sum();
    }
    u64 sum = 0;
    for (u32 i = threadIdx.x; i <= kChunks; i += kThreads) {
      sum += hash_some(load_some(block, 16 * i, num_bytes), first_pair, i, num_bytes);
      chunks[slot(i)] = load_some(block, 16 * i, num_elems * kWidth);
    }
    return sum;
  }
  // Stores if `block` is not null. Returns this thread's hash terms if kHash.
  template <bool kHash>
  __device__ u64 store(u8* block, u32 num_bytes, u32 first_pair) const {
    if (num_bytes == kElems * kWidth) {
      HashTerms terms(first_pair + 2 * threadIdx.x);
#pragma unroll
      for (u32 j = 0; j < kPerThreadChunks; ++j) {
        const uint4 v = chunks[slot(threadIdx.x + j * kThreads)];
        if (kHash) add_terms(terms, v, j);
        if (block != nullptr) reinterpret_cast<uint4*>(block)[threadIdx.x + j * kThreads] = v;
      }
      return terms.sum();
    }
    u64 sum = 0;
    for (u32 i = threadIdx.x; 16 * i < num_bytes; i += kThreads) {
      const uint4 v = chunks[slot(i)];
      if (kHash) sum += hash_some(v, first_pair, i, num_bytes);
      if (block != nullptr) store_some(block, 16 * i, num_bytes, v);
    }
    return sum;
  }

  // ---- classes ----
  // By all threads, after load() and a barrier. Fills `before` and `planes`, and returns the
  // sizes of the classes, zeros behind the last element included.
  __device__ ClassCounts classify(const PairClasses& classes) {
    const Planes first = planes_of(2 * threadIdx.x, classes),
                 second = planes_of(2 * threadIdx.x + 1, classes);
    const ClassCounts own = first.counts();
    ClassCounts both = second.counts();
    both.add(own);
    ClassCounts upto = both;
    upto.scan();
    if (lane() == 31) warp_counts[warp()] = upto.vector();
    __syncthreads();
    ClassCounts all = {{0, 0, 0, 0}}, start = {{0, 0, 0, 0}};
#pragma unroll
    for (u32 w = 0; w < kWarps; ++w) {
      if (w == warp()) start = all;
      const uint4 v = warp_counts[w];
      all.add({{v.x, v.y, v.z, v.w}});
    }
    start.add(upto);
    start.subtract(both);
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      const u32 a = start.words[j], b = a + own.words[j];
      reinterpret_cast<u32*>(before[2 * j])[threadIdx.x] = __byte_perm(a, b, 0x5410);
      reinterpret_cast<u32*>(before[2 * j + 1])[threadIdx.x] = __byte_perm(a, b, 0x7632);
    }
    return all;
  }

  // The element with this rank in its class, which has more than that.
  __device__ __forceinline__ u32 find(u32 c, u32 rank) const {
    u32 group = 0;
#pragma unroll
    for (u32 step = kGroups / 2; step > 0; step /= 2)
      if (before[c][group + step] <= rank) group += step;
    const Planes bits = {{planes[0][group], planes[1][group], planes[2][group]}};
    return group * kGroup + PlaneOrder<kWidth>::select(bits.members(c), rank - before[c][group]);
  }

 private:
  __device__ __forceinline__ static void add_terms(HashTerms& terms, uint4 v, u32 nth) {
    terms.add(v.x, v.y, 2 * nth * kThreads);
    terms.add(v.z, v.w, 2 * nth * kThreads + 1);
  }
  // Of chunk i of a block of num_bytes.
  __device__ static u64 hash_some(uint4 v, u32 first_pair, u32 i, u32 num_bytes) {
    const u32 pair = first_pair + 2 * i;
    return (16 * i < num_bytes ? delta::hash_term(v.x, v.y, pair) : 0) +
           (16 * i + 8 < num_bytes ? delta::hash_term(v.z, v.w, pair + 1) : 0);
  }
  __device__ static uint4 load_some(const u8* block, u32 first, u32 num_bytes) {
    if (first + 16 <= num_bytes) return *reinterpret_cast<const uint4*>(block + first);
    u32 words[4] = {0, 0, 0, 0};
#pragma unroll
    for (u32 k = 0; k < 16; ++k)
      if (first + k < num_bytes) words[k / 4] |= u32{block[first + k]} << 8 * (k % 4);
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
  __device__ static void store_some(u8* block, u32 first, u32 num_bytes, uint4 v) {
    if (first + 16 <= num_bytes) {
      *reinterpret_cast<uint4*>(block + first) = v;
      return;
    }
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (u32 k = 0; k < 16; ++k)
      if (first + k < num_bytes) block[first + k] = static_cast<u8>(words[k / 4] >> 8 * (k % 4));
  }
  __device__ __forceinline__ Planes planes_of(u32 group_idx, const PairClasses& classes) {
    Group<kWidth> group;
#pragma unroll
    for (u32 j = 0; j < 2 * kWidth; ++j) {
      const uint4 v = chunks[slot(2 * kWidth * group_idx + j)];
      group.words[4 * j] = v.x, group.words[4 * j + 1] = v.y;
      group.words[4 * j + 2] = v.z, group.words[4 * j + 3] = v.w;
    }
    const Planes out = class_planes(group, classes);
#pragma unroll
    for (u32 k = 0; k < 3; ++k) planes[k][group_idx] = out.bits[k];
    return out;
  }
};

}  // namespace snug::cuda::deltas
