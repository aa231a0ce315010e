// delta/cuda/delta_encode.cuh - a round: one thread block encodes 16 blocks and finds the places of
// their payloads.
//
// Each warp takes one block. If a block has more changes than fit into a warp's share of the shared
// memory, half of the warps do the round with twice the share each, or a quarter, and so on. Later
// rounds wait for the sizes of this one. So all sizes are found first, and payloads that others
// have overwritten are made again.
#pragma once
#include "delta/cuda/delta_write.cuh"

namespace snug::cuda::deltas {

inline constexpr std::uint32_t kRoundBlocks = 16;
inline constexpr std::uint32_t kEncodeThreads = 32 * kRoundBlocks;
// Two rounds, or one with blocks of 2^14 elements, fit a multiprocessor of sm_90.
inline constexpr std::uint32_t kSmallRoomBytes = 7168, kLargeRoomBytes = 14336;

struct EncodeWork {
  const std::uint8_t *base, *next;  // 16-byte aligned
  std::uint8_t* delta;
  std::uint64_t capacity;
  delta::Header header;  // without hashes and sizes
  delta::ClassRule rule;
  CallState* state;
  volatile std::uint64_t* offsets;  // one a round, for the look-back scan; zero at first
  DeviceResult* result;
  std::uint32_t room_bytes;  // of a warp

  __host__ __device__ std::uint32_t num_rounds() const {
    return static_cast<std::uint32_t>((header.num_blocks() + kRoundBlocks - 1) / kRoundBlocks);
  }
};

// Static shared memory; the warps' share is dynamic.
struct EncodeShared {
  std::uint32_t round;
  std::uint32_t words[kRoundBlocks];    // of the payloads
  std::uint32_t offsets[kRoundBlocks];  // where they go, in words
  struct Sums {
    std::uint64_t base, target;  // hash terms
    std::uint64_t num_changed;
    std::uint64_t head;  // checksum terms of the index
  } sums[kRoundBlocks];  // of the blocks
};

template <unsigned kWidth, bool kLargeBlocks>
class RoundEncoder {
  using Room = EncodeRoom<kLargeBlocks>;

 public:
  __device__ RoundEncoder(const EncodeWork& work, EncodeShared& shared, std::uint8_t* rooms)
      : work_(work), s_(shared), rooms_(rooms) {}

  __device__ void run(std::uint32_t round) {
    round_ = round;
    const std::uint32_t first = round * kRoundBlocks;
    std::uint32_t count = kRoundBlocks;  // blocks at a time
    for (unsigned sweep = 0, done = 0; sweep < 2;) {
      const bool is_last_sweep = sweep == 1 || count == kRoundBlocks;
      const std::uint32_t block = first + done + warp_id();
      const bool mine = warp_id() < count && block < work_.header.num_blocks();
      const Room room = room_of(count);
      Encoded encoded;
      if (mine) encoded = encode(block, room);
      if (lane_id() == 0 && warp_id() < count) s_.words[done + warp_id()] = encoded.words;
      if (__syncthreads_or(encoded.overflow)) {
        count /= 2;
        done = 0;
        continue;
      }
      done += count;
      if (done == kRoundBlocks && sweep == 0) {
        if (warp_id() == 0) place_payloads();
        __syncthreads();
      }
      if (is_last_sweep && mine) copy_out(block, encoded, room);
      if (done == kRoundBlocks) {
        sweep = is_last_sweep ? 2 : 1;
        done = 0;
      }
      __syncthreads();
    }
  }

 private:
  struct Encoded {
    Found found;
    std::uint32_t words = 0;
    bool raw = false, overflow = false;
  };

  __device__ Room room_of(std::uint32_t count) const {
    const std::uint32_t num_bytes = kRoundBlocks / count * work_.room_bytes;
    return Room(rooms_ + min(warp_id(), count - 1) * num_bytes, num_bytes,
                static_cast<std::uint32_t>(work_.header.block_elems()));
  }

  __device__ __forceinline__ Encoded encode(std::uint32_t block, const Room& room) const {
    Encoded out;
    out.found = find_changes<kWidth>(input_of(block), work_.rule, room);
    out.overflow = out.found.overflow;
    if (out.overflow || out.found.num_changed == 0) return out;
    out.words = PayloadWriter<kWidth, Room>(out.found, room).run();
    const auto raw_words = static_cast<std::uint32_t>(
        delta::raw_payload_bytes(work_.header.elems_in_block(block), kWidth) / 4);
    out.raw = out.words >= raw_words;
    out.overflow = !out.raw && out.words >= room.payload_words;
    if (out.raw) out.words = raw_words;
    return out;
  }

  __device__ BlockInput input_of(std::uint32_t block) const {
    BlockInput in;
    in.num_elems = static_cast<std::uint32_t>(work_.header.elems_in_block(block));
    in.first_chunk = block << (work_.header.log2_block + (kWidth == 2 ? 1 : 0) - 4);
    const bool is_last = block + 1 == work_.header.num_blocks();
    in.num_bytes = in.num_elems * kWidth + (is_last ? work_.header.num_tail_bytes : 0);
    in.base_tensor = work_.base;
    in.next_tensor = work_.next;
    // The compiler would compute these again for each row, from spilled values.
    asm volatile("" : "+r"(in.first_chunk), "+r"(in.num_elems), "+r"(in.num_bytes));
    return in;
  }

  // ---- places of payloads: a look-back scan over rounds ----
  static constexpr std::uint64_t kIsSum = std::uint64_t{1} << 62, kIsTotal = std::uint64_t{2} << 62,
                                 kValue = kIsSum - 1;

  __device__ void place_payloads() {
    const std::uint32_t words = lane_id() < kRoundBlocks ? s_.words[lane_id()] : 0;
    const std::uint32_t upto = warp_inclusive_sum_fused(words),
                        sum = __shfl_sync(kAllLanes, upto, 31);
    if (lane_id() == 0 && round_ > 0) work_.offsets[round_] = kIsSum | sum;
    const std::uint32_t before = look_back();
    if (lane_id() < kRoundBlocks) s_.offsets[lane_id()] = before + upto - words;
    if (lane_id() == 0) work_.offsets[round_] = kIsTotal | (before + sum);
  }

  __device__ std::uint32_t look_back() const {
    if (round_ == 0) return static_cast<std::uint32_t>(work_.header.payload_start() / 4);
    std::uint64_t before = 0;
    for (unsigned end = round_;; end -= 32) {
      // Rounds have tickets: all earlier ones are running or done.
      std::uint64_t v = kIsTotal;
      do {
        if (lane_id() < end) v = work_.offsets[end - 1 - lane_id()];
      } while (__any_sync(kAllLanes, v == 0));
      const std::uint32_t totals = __ballot_sync(kAllLanes, v >= kIsTotal);
      const std::uint32_t last = totals == 0 ? 31 : lowest_bit(totals);
      before += warp_sum(lane_id() <= last ? v & kValue : 0);
      if (totals != 0) return static_cast<std::uint32_t>(before);
    }
  }

  __device__ void copy_out(std::uint32_t block, const Encoded& encoded, const Room& room) {
    const std::uint32_t words = encoded.words;
    const std::uint32_t begin = s_.offsets[block % kRoundBlocks], end = begin + words;
    const bool fits = std::uint64_t{end} * 4 <= work_.capacity;
    std::uint32_t* to = reinterpret_cast<std::uint32_t*>(work_.delta) + begin;
    if (fits && encoded.raw) {
      const BlockInput in = input_of(block);
      const std::uint32_t whole = in.num_elems * kWidth / 4;
      for (unsigned i = lane_id(); i < words; i += 32)
        to[i] = i == 0       ? static_cast<std::uint32_t>(delta::BlockMode::kRaw)
                : i <= whole ? reinterpret_cast<const std::uint32_t*>(in.next())[i - 1]
                             : last_raw_word(in, i - 1);
    } else if (fits) {
      for (unsigned i = lane_id(); i < words; i += 32) to[i] = room.payload[i];
    }
    const std::uint64_t base_sum = warp_sum(encoded.found.base_sum),
                        target_sum = warp_sum(encoded.found.target_sum);
    if (lane_id() != 0) return;
    reinterpret_cast<std::uint32_t*>(work_.delta + delta::kHeaderBytes)[block] = end;
    s_.sums[block % kRoundBlocks] = {base_sum, target_sum, encoded.found.num_changed,
                                     checksum_term(end, delta::kHeaderBytes / 4 + block)};
    if (!fits)
      atomicMax(&work_.state->first_error, error_key(Code::kDstTooSmall, kReasonFrameRoom, block));
  }

  __device__ static std::uint32_t last_raw_word(const BlockInput& in, std::uint32_t i) {
    std::uint32_t word = 0;
    for (unsigned k = 0; 4 * i + k < in.num_elems * kWidth; ++k)
      word |= std::uint32_t{in.next()[4 * i + k]} << 8 * k;
    return word;
  }

  const EncodeWork& work_;
  EncodeShared& s_;
  std::uint8_t* rooms_;
  std::uint32_t round_ = 0;
};

// By the last thread block to finish: writes the header, whose hashes are known only now.
__device__ inline void finish_delta(const EncodeWork& work) {
  CallState& state = *work.state;
  const delta::Header& h = work.header;
  const std::uint64_t payload_start = h.payload_start();
  const std::uint64_t raw_bytes = h.num_elems * width_of(h.dtype) + h.num_tail_bytes;
  const std::uint64_t delta_bytes =
      work.num_rounds() == 0
          ? payload_start
          : (work.offsets[work.num_rounds() - 1] & ((std::uint64_t{1} << 62) - 1)) * 4;
  const std::uint32_t tail = h.num_tail_bytes == 0 ? 0 : work.next[raw_bytes - 1];  // one at most
  const std::uint64_t pairs[8] = {delta::kMagic | std::uint64_t{delta::kVersion} << 32 |
                                      static_cast<std::uint64_t>(h.dtype) << 40 |
                                      static_cast<std::uint64_t>(h.log2_block) << 48 |
                                      std::uint64_t{h.num_tail_bytes} << 56,
                                  h.num_elems,
                                  delta_bytes,
                                  delta::hash_finish(read_state(&state.base_sum), raw_bytes),
                                  delta::hash_finish(read_state(&state.target_sum), raw_bytes),
                                  read_state(&state.num_changed),
                                  tail,
                                  0};
  std::uint64_t sum = read_state(&state.head_sum);
  std::uint32_t* to = reinterpret_cast<std::uint32_t*>(work.delta);
#pragma unroll
  for (unsigned i = 0; i < 16; ++i) {
    to[i] = static_cast<std::uint32_t>(pairs[i / 2] >> 32 * (i % 2));
    sum += checksum_term(to[i], i);
  }
  to[14] = checksum_finish(sum, payload_start);
  write_result(work.result, read_state(&state.first_error), delta_bytes);
}

// One thread block of a call; `rooms` is the dynamic shared memory.
template <unsigned kWidth, bool kLargeBlocks>
__device__ void encode_round(const EncodeWork& work, EncodeShared& shared, std::uint8_t* rooms) {
  CallState& state = *work.state;
  if (threadIdx.x == 0) shared.round = atomicAdd(&state.ticket, 1u);
  if (threadIdx.x < kRoundBlocks) shared.sums[threadIdx.x] = {0, 0, 0, 0};
  __syncthreads();
  if (shared.round < work.num_rounds())
    RoundEncoder<kWidth, kLargeBlocks>(work, shared, rooms).run(shared.round);
  else if (threadIdx.x == 0 && work.header.num_tail_bytes > 0)  // a tensor without an element
    shared.sums[0] = {delta::hash_term(work.base[0], 0, 0), delta::hash_term(work.next[0], 0, 0), 0,
                      0};
  if (warp_id() != 0) return;
  __syncwarp();
  const EncodeShared::Sums sums = shared.sums[lane_id() % kRoundBlocks];
  const auto add = [](std::uint64_t v, unsigned long long* to) {
    v = warp_sum(lane_id() < kRoundBlocks ? v : 0);
    if (lane_id() == 0) atomicAdd(to, v);
  };
  add(sums.base, &state.base_sum);
  add(sums.target, &state.target_sum);
  add(sums.num_changed, &state.num_changed);
  add(sums.head, &state.head_sum);
  if (lane_id() != 0) return;
  __threadfence();
  if (atomicAdd(&state.done, 1u) + 1 == gridDim.x) finish_delta(work);
}

}  // namespace snug::cuda::deltas
