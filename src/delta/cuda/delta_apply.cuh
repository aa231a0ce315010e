// delta/cuda/delta_apply.cuh - payloads applied to their blocks, each by one thread block: the
// elements are classified in shared memory, one warp reads the payload's codes, then all
// threads look for the elements that change.
#pragma once
#include <type_traits>

#include "delta/cuda/delta_check.cuh"
#include "delta/cuda/delta_parse.cuh"
#include "delta/cuda/delta_tile.cuh"

namespace snug::cuda::deltas {

// What one pass over all blocks does with the targets it makes.
enum class Pass {
  kCheck,         // only adds up hashes
  kStore,         // only stores: blocks that change
  kCheckAndStore  // both; to other memory than the base
};

// What became of a block; kLeft: it is left to the launch with more room.
enum class Outcome : u32 { kDone, kBad, kLeft };

// Nearly all blocks have few changes, which need little shared memory. The rest is left to a
// second launch, kMany, with room for anything but fewer thread blocks at a time.
template <u32 kWidth, u32 kThreads, bool kMany>
struct ApplyShared {
  using Elements = Tile<kWidth, kThreads>;
  static constexpr u32 kElems = Elements::kElems;
  using Codes = std::conditional_t<kMany, ParseRoom<kElems, 2 * kElems, kElems * kWidth / 4 + 1>,
                                   ParseRoom<kElems * 11 / 128, kElems * 17 / 128, kElems / 16>>;
  Elements tile;
  Codes codes;
  Outcome outcome;
  delta::Header header;
};

template <u32 kWidth, u32 kThreads, bool kMany, Pass kPass>
class BlockApplier {
  using Shared = ApplyShared<kWidth, kThreads, kMany>;
  using Codes = typename Shared::Codes;
  static constexpr u32 kWarps = kThreads / 32;

 public:
  __device__ BlockApplier(const ApplyWork& work, Shared& shared)
      : work_(work), header_(shared.header), s_(shared) {}

  // False if the payload makes no sense for this base.
  __device__ bool run(u32 block) {
    n_ = static_cast<u32>(header_.elems_in_block(block));
    const u64 start = (u64{block} << header_.log2_block) * kWidth;
    const auto first_pair = static_cast<u32>(start / 8);
    const bool is_last = block + 1 == header_.num_blocks();
    const u32 block_bytes = n_ * kWidth + (is_last ? header_.num_tail_bytes : 0);
    const u32* ends = reinterpret_cast<const u32*>(work_.delta + delta::kHeaderBytes);
    const u32 begin = block == 0 ? static_cast<u32>(header_.payload_start() / 4) : ends[block - 1];
    payload_ = reinterpret_cast<const u32*>(work_.delta) + begin;
    num_words_ = ends[block] - begin;
    if (kPass == Pass::kStore && num_words_ == 0 && !is_last) return true;
    stage_payload();
    if (kMany && !has_many_changes()) return true;
    const u64 base_sum = s_.tile.load(work_.base + start, n_, block_bytes, first_pair);
    __syncthreads();
    const Outcome outcome = apply();
    if (outcome == Outcome::kLeft) return true;
    __syncthreads();
    if (is_last && threadIdx.x == 0)
      for (u32 i = 0; i < header_.num_tail_bytes; ++i)
        *s_.tile.byte_at(n_ * kWidth + i) = header_.tail[i];
    __syncthreads();
    const bool good = outcome == Outcome::kDone;
    constexpr bool kHash = kPass != Pass::kStore;
    u8* to = kPass == Pass::kCheck || !good ? nullptr : work_.target + start;
    const u64 target_sum = s_.tile.template store<kHash>(to, block_bytes, first_pair);
    if (kHash) base_sum_ += base_sum, target_sum_ += target_sum;
    return good;
  }
  // Hash terms of all blocks so far, of this thread.
  __device__ u64 base_sum() const { return base_sum_; }
  __device__ u64 target_sum() const { return target_sum_; }

 private:
  // What of it may be needed, by all threads.
  __device__ void stage_payload() {
    for (u32 i = threadIdx.x; i < min(num_words_, Codes::kMaxWords); i += kThreads)
      s_.codes.payload[i] = payload_[i];
  }
  __device__ u32 mode() const { return s_.codes.payload[0] & 0xFF; }
  __device__ u32 class_top() const { return s_.codes.payload[0] >> 8 & 0xFF; }
  __device__ bool is_sparse() const {
    return mode() == static_cast<u32>(delta::BlockMode::kSparse) &&
           class_top() <= work_.rule.max_key();
  }
  __device__ bool is_many(const ParseHead& head) const {
    using Few = typename ApplyShared<kWidth, kThreads, false>::Codes;
    return !head.bad && (num_words_ > Few::kMaxWords || head.num_changes > Few::kMaxChanges ||
                         head.num_codes > Few::kMaxCodes);
  }
  // By all threads, before anything else is done for a block.
  __device__ bool has_many_changes() {
    __syncthreads();
    if (num_words_ == 0 || !is_sparse()) return false;
    return is_many(ParseHead(s_.codes.payload, num_words_));
  }

  __device__ Outcome apply() {
    if (num_words_ == 0) return Outcome::kDone;
    if (mode() == static_cast<u32>(delta::BlockMode::kRaw)) return copy_raw();
    if (!is_sparse()) return Outcome::kBad;
    for (u32 i = threadIdx.x; i < Codes::kMaxChanges / 2; i += kThreads)
      reinterpret_cast<u32*>(s_.codes.magnitudes)[i] = 0x00010001u;
    const PairClasses classes(work_.rule, static_cast<int>(class_top()));
    const ClassCounts sizes = s_.tile.classify(classes);
    if (warp() == 0) {
      u32 size = lane() < kNumClasses ? sizes.of(lane()) : 0;
      if (lane() == (classes.of(0, 0) & 0xFFFF)) size -= Shared::kElems - n_;  // zeros behind
      const Outcome outcome = parse(size);
      if (lane() == 0) s_.outcome = outcome;
    }
    __syncthreads();
    if (s_.outcome == Outcome::kDone) change_elements();
    return s_.outcome;
  }

  // The payload is the block.
  __device__ Outcome copy_raw() {
    if (num_words_ * 4 != delta::raw_payload_bytes(n_, kWidth)) return Outcome::kBad;
    for (u32 i = threadIdx.x; i + 1 < num_words_; i += kThreads)
      *reinterpret_cast<u32*>(s_.tile.byte_at(4 * i)) = payload_[1 + i];
    return Outcome::kDone;
  }

  // By one warp; `size` is that of class c in lane c.
  __device__ Outcome parse(u32 size) {
    const ParseHead head(s_.codes.payload, num_words_);
    if (!kMany && is_many(head)) {
      if (lane() == 0) atomicAdd(&work_.state->num_large, 1u);
      return Outcome::kLeft;
    }
    PayloadParser<kWidth, Codes> parser(s_.codes, num_words_);
    return parser.run(head, size) ? Outcome::kDone : Outcome::kBad;
  }

  // A warp takes 32 changes at a time.
  __device__ void change_elements() {
    const Codes& codes = s_.codes;
    const u32 own_start = lane() < codes.num_runs ? codes.runs[lane()].start : ~0u;
    for (u32 first = 32 * warp(); first < codes.num_changes; first += kThreads) {
      const u32 i = first + lane();
      const u32 begun = count_bits(__ballot_sync(kFullMask, own_start < first));
      const u32 starts =
          __reduce_or_sync(kFullMask, own_start - first < 32 ? 1u << (own_start - first) : 0);
      const ChangeRun& run = codes.runs[begun + count_bits(starts & (lanes_below() << 1 | 1)) - 1];
      if (i < codes.num_changes) change_element(run, i);
    }
  }

  __device__ __forceinline__ void change_element(const ChangeRun& run, u32 i) {
    const Codes& codes = s_.codes;
    const u32 nth = i - run.start;
    const u16* list = codes.things + run.list;
    const u32 rank = run.inverted ? nth + listed_before(list, run.num_listed, nth) : list[nth];
    const u32 sign_at = run.signs_at + nth;
    const bool negative = codes.payload[sign_at / 32] >> sign_at % 32 & 1;
    const u32 difference = negative ? 0u - codes.magnitudes[i] : codes.magnitudes[i];
    u8* at = s_.tile.byte_at(s_.tile.find(run.class_idx, rank) * kWidth);
    if (kWidth == 2)
      *reinterpret_cast<u16*>(at) = static_cast<u16>(*reinterpret_cast<u16*>(at) + difference);
    else
      *at = static_cast<u8>(*at + difference);
  }

  const ApplyWork& work_;
  const delta::Header& header_;
  Shared& s_;
  const u32* payload_ = nullptr;
  u32 n_ = 0, num_words_ = 0;
  u64 base_sum_ = 0, target_sum_ = 0;
};

// ---- the call --------------------------------------------------------------
// By the last thread block of a pass that checks. All blocks were hashed whatever happened to
// one of them: an error in a block of another base is an error of the base.
__device__ inline void finish_check(const ApplyWork& work, const delta::Header& h) {
  CallState& state = *work.state;
  u64 error = read_state(&state.first_error);
  if (delta::hash_finish(read_state(&state.base_sum), work.tensor_bytes) != h.base_hash)
    error = error_key(Code::kWrongBase, kReasonWrongBase, kNowhere);
  else if (error == 0 &&
           delta::hash_finish(read_state(&state.target_sum), work.tensor_bytes) != h.target_hash)
    error = error_key(Code::kCorrupt, kReasonTargetHash, kNowhere);
  write_result(work.result, error, work.tensor_bytes);
}

__device__ inline void apply_tail_alone(const ApplyWork& work, const delta::Header& h, Pass pass) {
  if (blockIdx.x != 0 || threadIdx.x != 0 || h.num_tail_bytes == 0) return;
  if (pass != Pass::kStore) {
    atomicAdd(&work.state->base_sum, u64{delta::hash_term(work.base[0], 0, 0)});
    atomicAdd(&work.state->target_sum, u64{delta::hash_term(h.tail[0], 0, 0)});
  }
  if (pass != Pass::kCheck) work.target[0] = h.tail[0];
}

// All blocks of a pass that this launch can do; the one of kMany comes second and ends the pass.
template <u32 kWidth, u32 kThreads, bool kMany, Pass kPass>
__device__ void apply_blocks(const ApplyWork& work, ApplyShared<kWidth, kThreads, kMany>& shared) {
  if (work.result->code != 0) return;  // of the kernel before this one
  if (threadIdx.x == 0) shared.header = load_header(work.delta);
  __syncthreads();
  const auto num_blocks = static_cast<u32>(shared.header.num_blocks());
  if (num_blocks == 0 && !kMany) apply_tail_alone(work, shared.header, kPass);
  BlockApplier<kWidth, kThreads, kMany, kPass> applier(work, shared);
  for (u32 block = blockIdx.x; block < num_blocks; block += gridDim.x) {
    if (kMany && *static_cast<volatile u32*>(&work.state->num_large) == 0) break;
    const bool good = applier.run(block);
    if (!good && threadIdx.x == 0)
      atomicMax(&work.state->first_error, error_key(Code::kCorrupt, kReasonPayload, block));
    __syncthreads();
  }
  if (kPass == Pass::kStore) return;
  const u64 base_sum = warp_sum(applier.base_sum()), target_sum = warp_sum(applier.target_sum());
  if (lane() == 0) {
    atomicAdd(&work.state->base_sum, base_sum);
    atomicAdd(&work.state->target_sum, target_sum);
    __threadfence();
  }
  __syncthreads();
  if (kMany && threadIdx.x == 0 && atomicAdd(&work.state->done, 1u) + 1 == gridDim.x)
    finish_check(work, shared.header);
}

}  // namespace snug::cuda::deltas
