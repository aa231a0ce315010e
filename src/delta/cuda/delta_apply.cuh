// delta/cuda/delta_apply.cuh - applies payloads to their blocks. A thread block classifies the
// elements of a block in shared memory, one of its warps reads the payload's codes, then all
// threads find and change elements.
#pragma once
#include <type_traits>

#include "delta/cuda/delta_check.cuh"
#include "delta/cuda/delta_parse.cuh"
#include "delta/cuda/delta_tile.cuh"

namespace snug::cuda::deltas {

// What a pass over all blocks does with the new elements.
enum class Pass {
  kCheck,         // adds up hashes
  kStore,         // stores blocks that change
  kCheckAndStore  // both; the target is not the base
};

// kLeft: the block is left to the launch with more shared memory.
enum class Outcome : std::uint32_t { kDone, kBad, kLeft };

// Most blocks have few changes and need little shared memory. A second launch, kMany, does the
// rest, with room for any block but fewer thread blocks at a time.
template <unsigned kWidth, unsigned kThreads, bool kMany>
struct ApplyShared {
  using Elements = Tile<kWidth, kThreads>;
  static constexpr std::uint32_t kElems = Elements::kElems;
  using Codes = std::conditional_t<kMany, ParseRoom<kElems, 2 * kElems, kElems * kWidth / 4 + 1>,
                                   ParseRoom<kElems * 11 / 128, kElems * 17 / 128, kElems / 16>>;
  Elements tile;
  Codes codes;
  Outcome outcome;
  delta::Header header;
};

template <unsigned kWidth, unsigned kThreads, bool kMany, Pass kPass>
class BlockApplier {
  using Shared = ApplyShared<kWidth, kThreads, kMany>;
  using Codes = typename Shared::Codes;
  static constexpr std::uint32_t kWarps = kThreads / 32;

 public:
  __device__ BlockApplier(const ApplyWork& work, Shared& shared)
      : work_(work), header_(shared.header), s_(shared) {}

  // False if the payload makes no sense for this base.
  __device__ bool run(std::uint32_t block) {
    n_ = static_cast<std::uint32_t>(header_.elems_in_block(block));
    const std::uint64_t start = (std::uint64_t{block} << header_.log2_block) * kWidth;
    const auto first_pair = static_cast<std::uint32_t>(start / 8);
    const bool is_last = block + 1 == header_.num_blocks();
    const std::uint32_t block_bytes = n_ * kWidth + (is_last ? header_.num_tail_bytes : 0);
    const std::uint32_t* ends =
        reinterpret_cast<const std::uint32_t*>(work_.delta + delta::kHeaderBytes);
    const std::uint32_t begin =
        block == 0 ? static_cast<std::uint32_t>(header_.payload_start() / 4) : ends[block - 1];
    payload_ = reinterpret_cast<const std::uint32_t*>(work_.delta) + begin;
    num_words_ = ends[block] - begin;
    if (kPass == Pass::kStore && num_words_ == 0 && !is_last) return true;
    stage_payload();
    if (kMany && !has_many_changes()) return true;
    const std::uint64_t base_sum = s_.tile.load(work_.base + start, n_, block_bytes, first_pair);
    __syncthreads();
    const Outcome outcome = apply();
    if (outcome == Outcome::kLeft) return true;
    __syncthreads();
    if (is_last && threadIdx.x == 0)
      for (unsigned i = 0; i < header_.num_tail_bytes; ++i)
        *s_.tile.byte_at(n_ * kWidth + i) = header_.tail[i];
    __syncthreads();
    const bool good = outcome == Outcome::kDone;
    constexpr bool kHash = kPass != Pass::kStore;
    std::uint8_t* to = kPass == Pass::kCheck || !good ? nullptr : work_.target + start;
    const std::uint64_t target_sum = s_.tile.template store<kHash>(to, block_bytes, first_pair);
    if (kHash) base_sum_ += base_sum, target_sum_ += target_sum;
    return good;
  }
  // This thread's hash terms of all blocks so far.
  __device__ std::uint64_t base_sum() const { return base_sum_; }
  __device__ std::uint64_t target_sum() const { return target_sum_; }

 private:
  // As much as fits: longer payloads are left or copied raw.
  __device__ void stage_payload() {
    for (unsigned i = threadIdx.x; i < min(num_words_, Codes::kMaxWords); i += kThreads)
      s_.codes.payload[i] = payload_[i];
  }
  __device__ std::uint32_t mode() const { return s_.codes.payload[0] & 0xFF; }
  __device__ std::uint32_t class_top() const { return s_.codes.payload[0] >> 8 & 0xFF; }
  __device__ bool is_sparse() const {
    return mode() == static_cast<std::uint32_t>(delta::BlockMode::kSparse) &&
           class_top() <= work_.rule.max_key();
  }
  __device__ bool is_many(const ParseHead& head) const {
    using Few = typename ApplyShared<kWidth, kThreads, false>::Codes;
    return !head.bad && (num_words_ > Few::kMaxWords || head.num_changes > Few::kMaxChanges ||
                         head.num_codes > Few::kMaxCodes);
  }
  // By all threads, before other work on a block.
  __device__ bool has_many_changes() {
    __syncthreads();
    if (num_words_ == 0 || !is_sparse()) return false;
    return is_many(ParseHead(s_.codes.payload, num_words_));
  }

  __device__ Outcome apply() {
    if (num_words_ == 0) return Outcome::kDone;
    if (mode() == static_cast<std::uint32_t>(delta::BlockMode::kRaw)) return copy_raw();
    if (!is_sparse()) return Outcome::kBad;
    for (unsigned i = threadIdx.x; i < Codes::kMaxChanges / 2; i += kThreads)
      reinterpret_cast<std::uint32_t*>(s_.codes.magnitudes)[i] = 0x00010001u;
    const PairClasses classes(work_.rule, static_cast<int>(class_top()));
    const ClassCounts sizes = s_.tile.classify(classes);
    if (warp_id() == 0) {
      std::uint32_t size = lane_id() < kNumClasses ? sizes.of(lane_id()) : 0;
      if (lane_id() == (classes.of(0, 0) & 0xFFFF)) size -= Shared::kElems - n_;  // padding
      const Outcome outcome = parse(size);
      if (lane_id() == 0) s_.outcome = outcome;
    }
    __syncthreads();
    if (s_.outcome == Outcome::kDone) change_elements();
    return s_.outcome;
  }

  __device__ Outcome copy_raw() {
    if (num_words_ * 4 != delta::raw_payload_bytes(n_, kWidth)) return Outcome::kBad;
    for (unsigned i = threadIdx.x; i + 1 < num_words_; i += kThreads)
      *reinterpret_cast<std::uint32_t*>(s_.tile.byte_at(4 * i)) = payload_[1 + i];
    return Outcome::kDone;
  }

  // By one warp; lane c has the size of class c.
  __device__ Outcome parse(std::uint32_t size) {
    const ParseHead head(s_.codes.payload, num_words_);
    if (!kMany && is_many(head)) {
      if (lane_id() == 0) atomicAdd(&work_.state->num_large, 1u);
      return Outcome::kLeft;
    }
    PayloadParser<kWidth, Codes> parser(s_.codes, num_words_);
    return parser.run(head, size) ? Outcome::kDone : Outcome::kBad;
  }

  // A warp takes 32 changes at a time.
  __device__ void change_elements() {
    const Codes& codes = s_.codes;
    const std::uint32_t own_start = lane_id() < codes.num_runs ? codes.runs[lane_id()].start : ~0u;
    for (unsigned first = 32 * warp_id(); first < codes.num_changes; first += kThreads) {
      const std::uint32_t i = first + lane_id();
      const std::uint32_t begun = count_bits(__ballot_sync(kAllLanes, own_start < first));
      const std::uint32_t starts =
          __reduce_or_sync(kAllLanes, own_start - first < 32 ? 1u << (own_start - first) : 0);
      const ChangeRun& run = codes.runs[begun + count_bits(starts & (lanes_below() << 1 | 1)) - 1];
      if (i < codes.num_changes) change_element(run, i);
    }
  }

  __device__ __forceinline__ void change_element(const ChangeRun& run, std::uint32_t i) {
    const Codes& codes = s_.codes;
    const std::uint32_t nth = i - run.start;
    const std::uint16_t* list = codes.things + run.list;
    const std::uint32_t rank =
        run.inverted ? nth + listed_before(list, run.num_listed, nth) : list[nth];
    const std::uint32_t sign_at = run.signs_at + nth;
    const bool negative = codes.payload[sign_at / 32] >> sign_at % 32 & 1;
    const std::uint32_t difference = negative ? 0u - codes.magnitudes[i] : codes.magnitudes[i];
    std::uint8_t* at = s_.tile.byte_at(s_.tile.find(run.class_idx, rank) * kWidth);
    if (kWidth == 2)
      *reinterpret_cast<std::uint16_t*>(at) =
          static_cast<std::uint16_t>(*reinterpret_cast<std::uint16_t*>(at) + difference);
    else
      *at = static_cast<std::uint8_t>(*at + difference);
  }

  const ApplyWork& work_;
  const delta::Header& header_;
  Shared& s_;
  const std::uint32_t* payload_ = nullptr;
  std::uint32_t n_ = 0, num_words_ = 0;
  std::uint64_t base_sum_ = 0, target_sum_ = 0;
};

// ---- the call --------------------------------------------------------------
// By the last thread block of a pass that checks. All blocks were hashed, bad ones too: if the base
// is not the right one, that is the error, whatever the payloads seemed to be.
__device__ inline void finish_check(const ApplyWork& work, const delta::Header& h) {
  CallState& state = *work.state;
  std::uint64_t error = read_state(&state.first_error);
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
    atomicAdd(&work.state->base_sum, delta::hash_term(work.base[0], 0, 0));
    atomicAdd(&work.state->target_sum, delta::hash_term(h.tail[0], 0, 0));
  }
  if (pass != Pass::kCheck) work.target[0] = h.tail[0];
}

// The blocks of a pass that this launch can do. The launch of kMany is second and ends the pass.
template <unsigned kWidth, unsigned kThreads, bool kMany, Pass kPass>
__device__ void apply_blocks(const ApplyWork& work, ApplyShared<kWidth, kThreads, kMany>& shared) {
  if (work.result->code != 0) return;  // of the previous kernel
  if (threadIdx.x == 0) shared.header = load_header(work.delta);
  __syncthreads();
  const auto num_blocks = static_cast<std::uint32_t>(shared.header.num_blocks());
  if (num_blocks == 0 && !kMany) apply_tail_alone(work, shared.header, kPass);
  BlockApplier<kWidth, kThreads, kMany, kPass> applier(work, shared);
  for (unsigned block = blockIdx.x; block < num_blocks; block += gridDim.x) {
    if (kMany && *static_cast<volatile std::uint32_t*>(&work.state->num_large) == 0) break;
    const bool good = applier.run(block);
    if (!good && threadIdx.x == 0)
      atomicMax(&work.state->first_error, error_key(Code::kCorrupt, kReasonPayload, block));
    __syncthreads();
  }
  if (kPass == Pass::kStore) return;
  const std::uint64_t base_sum = warp_sum(applier.base_sum()),
                      target_sum = warp_sum(applier.target_sum());
  if (lane_id() == 0) {
    atomicAdd(&work.state->base_sum, base_sum);
    atomicAdd(&work.state->target_sum, target_sum);
    __threadfence();
  }
  __syncthreads();
  if (kMany && threadIdx.x == 0 && atomicAdd(&work.state->done, 1u) + 1 == gridDim.x)
    finish_check(work, shared.header);
}

}  // namespace snug::cuda::deltas
