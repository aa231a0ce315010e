// delta/cuda/delta_encode.cuh - a round: 16 blocks to their payloads by one thread
// block, and where these go.
//
// Each warp takes one block. If one of them has more changes than fit into a
// warp's part of the shared memory, the round is done by half of the warps at a
// time, or a quarter, and so on. Other rounds wait for the sizes of this one:
// so all sizes are found first, and payloads that had to make room for others
// are made again.
#pragma once
#include "delta/cuda/delta_write.cuh"

namespace snug::cuda::deltas {

inline constexpr u32 kRoundBlocks = 16;
inline constexpr u32 kEncodeThreads = 32 * kRoundBlocks;
// So that two rounds, or one with blocks of 2^14, fit a multiprocessor of
// sm_90.
inline constexpr u32 kSmallRoomBytes = 7168, kLargeRoomBytes = 14336;

struct EncodeWork {
  const u8 *base, *next;  // 16-byte aligned
  u8* delta;
  u64 capacity;
  delta::Header header;  // without hashes and sizes
  delta::ClassRule rule;
  CallState* state;
  volatile u64* offsets;  // one a round, for the look-back; zero before
  DeviceResult* result;
  u32 room_bytes;  // of a warp

  __host__ __device__ u32 num_rounds() const {
    return static_cast<u32>((header.num_blocks() + kRoundBlocks - 1) / kRoundBlocks);
  }
};

// Besides the room of the warps.
struct EncodeShared {
  u32 round;
  u32 words[kRoundBlocks];    // of the payloads
  u32 offsets[kRoundBlocks];  // where they go, in words
  struct Sums {
    u64 base, target, num_changed,
        head;            // hash terms; changes; checksum terms of the index
  } sums[kRoundBlocks];  // of the blocks
};

template <u32 kWidth, bool kLargeBlocks>
class RoundEncoder {
  using Room = EncodeRoom<kLargeBlocks>;

 public:
  __device__ RoundEncoder(const EncodeWork& work, EncodeShared& shared, u8* rooms)
      : work_(work), s_(shared), rooms_(rooms) {}

  __device__ void run(u32 round) {
    round_ = round;
    const u32 first = round * kRoundBlocks;
    u32 count = kRoundBlocks;  // blocks at a time
    for (u32 sweep = 0, done = 0; sweep < 2;) {
      const bool is_last_sweep = sweep == 1 || count == kRoundBlocks;
      const u32 block = first + done + warp();
      const bool mine = warp() < count && block < work_.header.num_blocks();
      const Room room = room_of(count);
      Encoded encoded;
      if (mine) encoded = encode(block, room);
      if (lane() == 0 && warp() < count) s_.words[done + warp()] = encoded.words;
      if (__syncthreads_or(encoded.overflow)) {
        count /= 2;
        done = 0;
        continue;
      }
      done += count;
      if (done == kRoundBlocks && sweep == 0) {
        if (warp() == 0) place_payloads();
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
    u32 words = 0;
    bool raw = false, overflow = false;
  };

  __device__ Room room_of(u32 count) const {
    const u32 num_bytes = kRoundBlocks / count * work_.room_bytes;
    return Room(rooms_ + min(warp(), count - 1) * num_bytes, num_bytes,
                static_cast<u32>(work_.header.block_elems()));
  }

  __device__ __forceinline__ Encoded encode(u32 block, const Room& room) const {
    Encoded out;
    out.found = find_changes<kWidth>(input_of(block), work_.rule, room);
    out.overflow = out.found.overflow;
    if (out.overflow || out.found.num_changed == 0) return out;
    out.words = PayloadWriter<kWidth, Room>(out.found, room).run();
    const auto raw_words =
        static_cast<u32>(delta::raw_payload_bytes(work_.header.elems_in_block(block), kWidth) / 4);
    out.raw = out.words >= raw_words;
    out.overflow = !out.raw && out.words >= room.payload_words;
    if (out.raw) out.words = raw_words;
    return out;
  }

  __device__ BlockInput input_of(u32 block) const {
    BlockInput in;
    in.num_elems = static_cast<u32>(work_.header.elems_in_block(block));
    in.first_chunk = block << (work_.header.log2_block + (kWidth == 2 ? 1 : 0) - 4);
    const bool is_last = block + 1 == work_.header.num_blocks();
    in.num_bytes = in.num_elems * kWidth + (is_last ? work_.header.num_tail_bytes : 0);
    in.base_tensor = work_.base;
    in.next_tensor = work_.next;
    // Otherwise the compiler computes these again for each row, from what it
    // had to spill.
    asm volatile("" : "+r"(in.first_chunk), "+r"(in.num_elems), "+r"(in.num_bytes));
    return in;
  }

  // ---- where payloads go: sums of all earlier rounds ----
  static constexpr u64 kIsSum = u64{1} << 62, kIsTotal = u64{2} << 62, kValue = kIsSum - 1;

  __device__ void place_payloads() {
    const u32 words = lane() < kRoundBlocks ? s_.words[lane()] : 0;
    const u32 upto = warp_scan(words), sum = __shfl_sync(kFullMask, upto, 31);
    if (lane() == 0 && round_ > 0) work_.offsets[round_] = kIsSum | sum;
    const u32 before = look_back();
    if (lane() < kRoundBlocks) s_.offsets[lane()] = before + upto - words;
    if (lane() == 0) work_.offsets[round_] = kIsTotal | (before + sum);
  }

  __device__ u32 look_back() const {
    if (round_ == 0) return static_cast<u32>(work_.header.payload_start() / 4);
    u64 before = 0;
    for (u32 end = round_;; end -= 32) {
      // Rounds are numbered by tickets, so all earlier ones are running or
      // done.
      u64 v = kIsTotal;
      do {
        if (lane() < end) v = work_.offsets[end - 1 - lane()];
      } while (__any_sync(kFullMask, v == 0));
      const u32 totals = __ballot_sync(kFullMask, v >= kIsTotal);
      const u32 last = totals == 0 ? 31 : lowest_bit(totals);
      before += warp_sum(lane() <= last ? v & kValue : 0);
      if (totals != 0) return static_cast<u32>(before);
    }
  }

  __device__ void copy_out(u32 block, const Encoded& encoded, const Room& room) {
    const u32 words = encoded.words;
    const u32 begin = s_.offsets[block % kRoundBlocks], end = begin + words;
    const bool fits = u64{end} * 4 <= work_.capacity;
    u32* to = reinterpret_cast<u32*>(work_.delta) + begin;
    if (fits && encoded.raw) {
      const BlockInput in = input_of(block);
      const u32 whole = in.num_elems * kWidth / 4;
      for (u32 i = lane(); i < words; i += 32)
        to[i] = i == 0       ? static_cast<u32>(delta::BlockMode::kRaw)
                : i <= whole ? reinterpret_cast<const u32*>(in.next())[i - 1]
                             : last_raw_word(in, i - 1);
    } else if (fits) {
      for (u32 i = lane(); i < words; i += 32) to[i] = room.payload[i];
    }
    const u64 base_sum = warp_sum(encoded.found.base_sum),
              target_sum = warp_sum(encoded.found.target_sum);
    if (lane() != 0) return;
    reinterpret_cast<u32*>(work_.delta + delta::kHeaderBytes)[block] = end;
    s_.sums[block % kRoundBlocks] = {base_sum, target_sum, encoded.found.num_changed,
                                     checksum_term(end, delta::kHeaderBytes / 4 + block)};
    if (!fits)
      atomicMax(&work_.state->first_error, error_key(Code::kDstTooSmall, kReasonFrameRoom, block));
  }

  __device__ static u32 last_raw_word(const BlockInput& in, u32 i) {
    u32 word = 0;
    for (u32 k = 0; 4 * i + k < in.num_elems * kWidth; ++k)
      word |= u32{in.next()[4 * i + k]} << 8 * k;
    return word;
  }

  const EncodeWork& work_;
  EncodeShared& s_;
  u8* rooms_;
  u32 round_ = 0;
};

// By the last thread block to finish: the header, whose hashes are known only
// now.
__device__ inline void finish_delta(const EncodeWork& work) {
  CallState& state = *work.state;
  const delta::Header& h = work.header;
  const u64 payload_start = h.payload_start();
  const u64 raw_bytes = h.num_elems * width_of(h.dtype) + h.num_tail_bytes;
  const u64 delta_bytes = work.num_rounds() == 0
                              ? payload_start
                              : (work.offsets[work.num_rounds() - 1] & ((u64{1} << 62) - 1)) * 4;
  const u64 base_hash = delta::hash_finish(read_state(&state.base_sum), raw_bytes);
  const u64 target_hash = delta::hash_finish(read_state(&state.target_sum), raw_bytes);
  const u64 num_changed = read_state(&state.num_changed);
  const u32 tail = h.num_tail_bytes == 0 ? 0 : work.next[raw_bytes - 1];  // elements have two bytes
  const u32 words[16] = {delta::kMagic,
                         delta::kVersion | static_cast<u32>(h.dtype) << 8 |
                             static_cast<u32>(h.log2_block) << 16 | u32{h.num_tail_bytes} << 24,
                         static_cast<u32>(h.num_elems),
                         static_cast<u32>(h.num_elems >> 32),
                         static_cast<u32>(delta_bytes),
                         static_cast<u32>(delta_bytes >> 32),
                         static_cast<u32>(base_hash),
                         static_cast<u32>(base_hash >> 32),
                         static_cast<u32>(target_hash),
                         static_cast<u32>(target_hash >> 32),
                         static_cast<u32>(num_changed),
                         static_cast<u32>(num_changed >> 32),
                         tail,
                         0,
                         0,
                         0};
  u64 sum = read_state(&state.head_sum);
  for (u32 i = 0; i < 16; ++i) sum += checksum_term(words[i], i);
  u32* to = reinterpret_cast<u32*>(work.delta);
  for (u32 i = 0; i < 16; ++i) to[i] = i == 14 ? checksum_finish(sum, payload_start) : words[i];
  write_result(work.result, read_state(&state.first_error), delta_bytes);
}

// Of a call; `rooms` is the dynamic shared memory.
template <u32 kWidth, bool kLargeBlocks>
__device__ void encode_round(const EncodeWork& work, EncodeShared& shared, u8* rooms) {
  CallState& state = *work.state;
  if (threadIdx.x == 0) shared.round = atomicAdd(&state.ticket, 1u);
  if (threadIdx.x < kRoundBlocks) shared.sums[threadIdx.x] = {0, 0, 0, 0};
  __syncthreads();
  if (shared.round < work.num_rounds())
    RoundEncoder<kWidth, kLargeBlocks>(work, shared, rooms).run(shared.round);
  else if (threadIdx.x == 0 && work.header.num_tail_bytes > 0)  // and no element
    shared.sums[0] = {delta::hash_term(work.base[0], 0, 0), delta::hash_term(work.next[0], 0, 0), 0,
                      0};
  if (warp() != 0) return;
  __syncwarp();
  const EncodeShared::Sums sums = shared.sums[lane() % kRoundBlocks];
  const auto add = [](u64 v, u64* to) {
    v = warp_sum(lane() < kRoundBlocks ? v : 0);
    if (lane() == 0) atomicAdd(to, v);
  };
  add(sums.base, &state.base_sum);
  add(sums.target, &state.target_sum);
  add(sums.num_changed, &state.num_changed);
  add(sums.head, &state.head_sum);
  if (lane() != 0) return;
  __threadfence();
  if (atomicAdd(&state.done, 1u) + 1 == gridDim.x) finish_delta(work);
}

}  // namespace snug::cuda::deltas
