// delta/delta_encode.cuh - one block of base and next to one payload, the bytes of
// delta_encode_block.cpp.
#pragma once
#include "delta/delta_device.cuh"

namespace snug::cuda::deltas {

struct EncodeWork {
  const u8 *base, *next;  // 16-byte aligned
  u8* delta;
  u64 capacity;
  delta::Header header;  // without hashes and sizes
  delta::ClassRule rule;
  CallState* state;
  volatile u64* offsets;  // one a block, for the look-back; zero before
  DeviceResult* result;
};

// What one warp found out about one class.
struct ClassPlan {
  u32 count, num_large, golomb_k;
  Subset changed, large;
  u32 fixed_bits, unary_bits, tail_bits;
};

template <u32 kThreads>
struct EncodeShared {
  static constexpr u32 kElems = kThreads * kPerThread;
  alignas(16) u32 list[kElems / 2];  // places of changed elements, 16 bits each; then the payload
  alignas(16) u16 ranks[kElems];     // of changes in class order, class c at starts[c]
  alignas(16) u16 differences[kElems];
  uint4 before[kThreads];  // ClassCounts of earlier threads
  u32 members[kThreads];   // changed elements in class order, of inverted subsets
  ScanRows scan;
  u32 starts[kNumClasses + 1], counts[kNumClasses];
  ClassPlan plans[kNumClasses];
  u64 base_sum, target_sum;
  u32 key_sum, block, offset;
};

template <u32 kWidth, u32 kThreads>
class BlockEncoder {
  using Shared = EncodeShared<kThreads>;
  static constexpr u32 kWarps = kThreads / 32;

 public:
  __device__ BlockEncoder(const EncodeWork& work, Shared& shared) : work_(work), s_(shared) {}

  __device__ void run(u32 block) {
    n_ = static_cast<u32>(work_.header.elems_in_block(block));
    const u64 start = (u64{block} << work_.header.log2_block) * kWidth;
    const bool is_last = block + 1 == work_.header.num_blocks();
    const u32 block_bytes = n_ * kWidth + (is_last ? work_.header.num_tail_bytes : 0);
    base_ = work_.base + start;
    next_ = work_.next + start;
    find_changes(start, block_bytes);
    u32 payload_bytes = 0;
    bool raw = false;
    if (num_changed_ > 0) {
      sort_changes();
      for (u32 c = warp(); c < kNumClasses; c += kWarps) plan_class(c);
      __syncthreads();
      payload_bytes = lay_out();
      const auto raw_bytes = static_cast<u32>(delta::raw_payload_bytes(n_, kWidth));
      raw = payload_bytes >= raw_bytes;
      if (raw) payload_bytes = raw_bytes;
    }
    // Others wait for this: say it before the work is done. The same thread says the rest.
    if (threadIdx.x == kThreads - 32 && block > 0)
      work_.offsets[block] = kIsSum | payload_bytes / 4;
    if (num_changed_ > 0 && !raw) write_payload(payload_bytes / 4);
    if (warp() == kWarps - 1) look_back(block, payload_bytes / 4);
    __syncthreads();
    copy_out(block, payload_bytes, raw);
  }

 private:
  // ---- which elements changed; classes of all ----
  __device__ void find_changes(u64 start, u32 block_bytes) {
    Elems<kWidth> base, next;
    base.load(base_, block_bytes);
    next.load(next_, block_bytes);
    class_top_ = choose_class_top();
    const u32 first = threadIdx.x * kPerThread;
    const u32 valid = n_ > first ? min(n_ - first, kPerThread) : 0;
    u32 changed = 0;
    constexpr u32 kPerWord = 4 / kWidth, kElem = kWidth == 2 ? 0xFFFF : 0xFF;
#pragma unroll
    for (u32 i = 0; i < kPerThread; ++i) {
      const u32 difference = base.words[i / kPerWord] ^ next.words[i / kPerWord];
      if (difference & kElem << 8 * kWidth * (i % kPerWord)) changed |= 1u << i;
    }
    if (valid < kPerThread) changed &= (1u << valid) - 1;
    add_hashes(base.hash(start, block_bytes) + term_behind(base_, start, block_bytes),
               next.hash(start, block_bytes) + term_behind(next_, start, block_bytes));
    const ClassCounts own = count_classes(base, valid, Classes(work_.rule, class_top_, kWidth));
    u32 sums[5] = {own.words[0], own.words[1], own.words[2], own.words[3],
                   static_cast<u32>(__popc(changed))};
    u32 total[5];
    block_scan<kThreads>(sums, total, s_.scan);
    num_changed_ = total[4];
    s_.before[threadIdx.x] = make_uint4(sums[0], sums[1], sums[2], sums[3]);
    if (warp() == 0) start_table({{total[0], total[1], total[2], total[3]}});
    s_.members[threadIdx.x] = 0;
    u16* list = reinterpret_cast<u16*>(s_.list);
    for (u32 at = sums[4]; changed != 0; changed &= changed - 1, ++at)
      list[at] = static_cast<u16>(first + static_cast<u32>(__ffs(static_cast<int>(changed))) - 1);
    __syncthreads();
  }

  __device__ u64 term_behind(const u8* block, u64 start, u32 block_bytes) const {
    const u32 byte = block_bytes > Shared::kElems * kWidth ? block[Shared::kElems * kWidth] : 0;
    return deltas::term_behind<kThreads, kWidth>(byte, start, block_bytes);
  }

  __device__ int choose_class_top() {
    constexpr u32 kSample = delta::kSampleRuns * delta::kSampleRun;
    u32 sum = 0;
    const u32 num_sampled = min(n_, kSample);
    for (u32 i = threadIdx.x; i < num_sampled; i += kThreads) {
      const u32 at = n_ <= kSample
                         ? i
                         : static_cast<u32>(delta::sample_start(i / delta::kSampleRun, n_)) +
                               i % static_cast<u32>(delta::kSampleRun);
      sum += static_cast<u32>(work_.rule.key(element(base_, at)));
    }
    sum = __reduce_add_sync(kFullMask, sum);
    if (lane() == 0) atomicAdd(&s_.key_sum, sum);
    __syncthreads();
    return static_cast<int>((2 * s_.key_sum + num_sampled) / (2 * num_sampled));
  }

  __device__ void add_hashes(u64 base, u64 next) {
    base = warp_sum(base);
    next = warp_sum(next);
    if (lane() != 0) return;
    atomicAdd(&s_.base_sum, base);
    atomicAdd(&s_.target_sum, next);
  }

  __device__ void start_table(const ClassCounts& sizes) {
    const u32 size = lane() < kNumClasses ? sizes.of(lane()) : 0;
    const u32 start = prefix_of_classes(size);
    if (lane() < kNumClasses) {
      s_.starts[lane()] = start;
      s_.counts[lane()] = 0;
    }
    if (lane() == 0) s_.starts[kNumClasses] = n_;
  }

  __device__ __forceinline__ u32 element(const u8* block, u32 i) const {
    return kWidth == 2 ? u32{reinterpret_cast<const u16*>(block)[i]} : u32{block[i]};
  }

  // Elements of class c among those of the thread that has element `place`, before it. All
  // elements of a word are compared at once: with the top bit of each set, subtracting
  // a bound leaves that bit where the element reaches it.
  __device__ u32 count_before(u32 place, u32 c, const Classes& classes) const {
    constexpr u32 kPerWord = 4 / kWidth, kOnes = kWidth == 2 ? 0x00010001 : 0x01010101;
    constexpr u32 kTops = kOnes << (8 * kWidth - 1);
    const u32 mask = classes.mask * kOnes, begin = classes.begin(c) * kOnes,
              end = classes.begin(c + 1) * kOnes;
    const u32 first = place / kPerThread * kPerThread;
    const uint4* from = reinterpret_cast<const uint4*>(base_ + first * kWidth);
    int left = static_cast<int>(place - first);
    u32 count = 0;
    for (; left > 0; ++from) {
      const uint4 v = *from;
      const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (u32 j = 0; j < 4; ++j, left -= static_cast<int>(kPerWord)) {
        const u32 keys = (words[j] & mask) | kTops;
        u32 inside = (keys - begin) & ~(keys - end) & kTops;
        if (left < static_cast<int>(kPerWord))  // the word of `place`, or one behind it
          inside = left <= 0 ? 0 : inside & ((1u << 8 * kWidth * static_cast<u32>(left)) - 1);
        count += static_cast<u32>(__popc(inside));
      }
    }
    return count;
  }

  // ---- changes in class order ----
  __device__ void sort_changes() {
    const Classes classes(work_.rule, class_top_, kWidth);
    for (u32 first = 0; first < num_changed_; first += kThreads) {
      const u32 k = first + threadIdx.x;
      const bool valid = k < num_changed_;
      u32 c = kNumClasses, rank = 0, difference = 0;
      if (valid) {
        const u32 place = reinterpret_cast<const u16*>(s_.list)[k];
        const u32 from = element(base_, place);
        difference = element(next_, place) - from;
        c = classes.of(from);
        const uint4 before = s_.before[place / kPerThread];
        const ClassCounts counts = {{before.x, before.y, before.z, before.w}};
        rank = counts.of(c) + count_before(place, c, classes);
      }
      u32 peers = 0;
#pragma unroll
      for (u32 j = 0; j < kNumClasses; ++j) {
        const u32 of_class = __ballot_sync(kFullMask, c == j);
        if (c == j) peers = of_class;
        if (lane() == j) s_.scan.rows[warp()][j] = static_cast<u32>(__popc(of_class));
      }
      __syncthreads();
      if (threadIdx.x < kNumClasses) {
        u32 sum = s_.counts[threadIdx.x];
        for (u32 w = 0; w < kThreads / 32; ++w) {
          const u32 here = s_.scan.rows[w][threadIdx.x];
          s_.scan.rows[w][threadIdx.x] = sum;
          sum += here;
        }
        s_.counts[threadIdx.x] = sum;
      }
      __syncthreads();
      if (valid) {
        const u32 at = s_.starts[c] + s_.scan.rows[warp()][c] +
                       static_cast<u32>(__popc(peers & ((1u << lane()) - 1)));
        s_.ranks[at] = static_cast<u16>(rank);
        s_.differences[at] = static_cast<u16>(kWidth == 2 ? difference : difference & 0xFF);
      }
      __syncthreads();
    }
  }

  // ---- one warp, one class: lists of things, 32 at a time ----
  // Calls code(listed, gap) with all lanes for each 32 of n things.
  template <class IsListed, class Code>
  __device__ void each_of_all(u32 n, IsListed is_listed, Code code) const {
    u32 next = 0;  // the first thing after the last listed one
    for (u32 first = 0; first < n; first += 32) {
      const u32 i = first + lane();
      const bool listed = i < n && is_listed(i);
      const u32 mask = __ballot_sync(kFullMask, listed), below = mask & ((1u << lane()) - 1);
      const u32 previous =
          below == 0 ? next : first + 32 - static_cast<u32>(__clz(static_cast<int>(below)));
      code(listed, i - previous);
      if (mask != 0) next = first + 32 - static_cast<u32>(__clz(static_cast<int>(mask)));
    }
  }

  // The gaps of changed elements, or of the others if those are listed.
  template <class Code>
  __device__ void each_change_gap(u32 c, const Subset& subset, Code code) const {
    const u32 start = s_.starts[c];
    if (subset.inverted)
      return each_of_all(
          s_.starts[c + 1] - start,
          [&](u32 i) { return (s_.members[(start + i) / 32] >> (start + i) % 32 & 1) == 0; }, code);
    const u16* ranks = s_.ranks + start;
    for (u32 first = 0; first < s_.counts[c]; first += 32) {
      const u32 i = first + lane();
      const bool valid = i < s_.counts[c];
      code(valid, valid ? ranks[i] - (i == 0 ? 0 : ranks[i - 1] + 1u) : 0);
    }
  }

  template <class Code>
  __device__ void each_large_gap(u32 c, const Subset& subset, Code code) const {
    each_of_all(
        s_.counts[c], [&](u32 i) { return (magnitude(c, i) > 1) != subset.inverted; }, code);
  }

  __device__ __forceinline__ bool negative(u32 c, u32 i) const {
    return s_.differences[s_.starts[c] + i] >> (8 * kWidth - 1);
  }
  __device__ __forceinline__ u32 magnitude(u32 c, u32 i) const {
    const u32 d = s_.differences[s_.starts[c] + i];
    return d >> (8 * kWidth - 1) ? (1u << 8 * kWidth) - d : d;
  }

  // ---- sizes ----
  __device__ void plan_class(u32 c) {
    ClassPlan plan = {s_.counts[c], 0, 0, {0, false, 0}, {0, false, 0}, 0, 0, 0};
    const u32 start = s_.starts[c];
    if (plan.count > 0) {
      plan.changed = delta::subset_rule(s_.starts[c + 1] - start, plan.count);
      if (plan.changed.inverted) mark_members(start, plan.count);
      u32 unary = 0, num_large = 0, sum_of_widths = 0;
      each_change_gap(c, plan.changed, [&](bool listed, u32 gap) {
        if (listed) unary += (gap >> plan.changed.rice_k) + 1;
      });
      for (u32 i = lane(); i < plan.count; i += 32)
        if (const u32 m = magnitude(c, i); m > 1) {
          ++num_large;
          sum_of_widths += 32 - static_cast<u32>(__clz(static_cast<int>(m - 2)));
        }
      plan.unary_bits = __reduce_add_sync(kFullMask, unary);
      plan.num_large = __reduce_add_sync(kFullMask, num_large);
      plan.fixed_bits =
          plan.changed.num_listed * static_cast<u32>(plan.changed.rice_k) + plan.count;
      if (plan.num_large > 0) plan_large(c, __reduce_add_sync(kFullMask, sum_of_widths), plan);
    }
    if (lane() == 0) s_.plans[c] = plan;
  }

  __device__ void mark_members(u32 start, u32 count) {
    for (u32 i = lane(); i < count; i += 32) {
      const u32 at = start + s_.ranks[start + i];
      atomicOr(&s_.members[at / 32], 1u << at % 32);
    }
    __syncwarp();
  }

  __device__ void plan_large(u32 c, u32 sum_of_widths, ClassPlan& plan) {
    plan.large = delta::subset_rule(plan.count, plan.num_large);
    plan.golomb_k = static_cast<u32>(delta::golomb_order(sum_of_widths, plan.num_large));
    u32 unary = 0, tails = 0;
    each_large_gap(c, plan.large, [&](bool listed, u32 gap) {
      if (listed) unary += (gap >> plan.large.rice_k) + 1;
    });
    for (u32 i = lane(); i < plan.count; i += 32)
      if (const u32 m = magnitude(c, i); m > 1) {
        const u32 num_tail = tail_length(m, plan.golomb_k);
        unary += num_tail - plan.golomb_k + 1;
        tails += num_tail;
      }
    plan.fixed_bits += plan.large.num_listed * static_cast<u32>(plan.large.rice_k);
    plan.unary_bits += __reduce_add_sync(kFullMask, unary);
    plan.tail_bits = __reduce_add_sync(kFullMask, tails);
  }

  __device__ __forceinline__ static u32 tail_length(u32 magnitude, u32 golomb_k) {
    return 31 - static_cast<u32>(__clz(static_cast<int>(magnitude - 2 + (1u << golomb_k))));
  }

  // Where each class has its bits: lane c keeps that of class c. Returns the payload's size.
  __device__ u32 lay_out() {
    const bool is_class = lane() < kNumClasses;
    const ClassPlan plan = is_class ? s_.plans[lane()] : ClassPlan{};
    const u32 num_classes = static_cast<u32>(__popc(__ballot_sync(kFullMask, plan.count > 0)));
    const u32 num_large_classes =
        static_cast<u32>(__popc(__ballot_sync(kFullMask, plan.num_large > 0)));
    fixed_at_ = prefix_of_classes(plan.fixed_bits);
    unary_at_ = prefix_of_classes(plan.unary_bits);
    tails_at_ = prefix_of_classes(plan.tail_bits);
    constexpr u32 kLast = kNumClasses - 1;
    const auto words = [](u32 before, u32 last) {
      return (__shfl_sync(kFullMask, before + last, kLast) + 31) / 32;
    };
    const u32 fixed_words = words(fixed_at_, plan.fixed_bits),
              unary_words = words(unary_at_, plan.unary_bits),
              tail_words = words(tails_at_, plan.tail_bits);
    head_words_ = (4 + 2 * num_classes + 3 * num_large_classes + 3) / 4;
    fixed_at_ += 32 * head_words_;
    unary_at_ += 32 * (head_words_ + fixed_words);
    tails_at_ += 32 * (head_words_ + fixed_words + unary_words);
    return 4 * (head_words_ + fixed_words + unary_words + tail_words);
  }

  // ---- where the payload goes: sums of all earlier blocks ----
  static constexpr u64 kIsSum = u64{1} << 62, kIsTotal = u64{2} << 62, kValue = kIsSum - 1;

  __device__ void look_back(u32 block, u32 num_words) {
    u64 before = work_.header.payload_start() / 4;
    if (block > 0) {
      before = 0;
      for (u32 end = block;; end -= 32) {
        // Blocks are numbered by tickets, so all earlier ones are running or done.
        u64 v = kIsTotal;
        do {
          if (lane() < end) v = work_.offsets[end - 1 - lane()];
        } while (__any_sync(kFullMask, v == 0));
        const u32 totals = __ballot_sync(kFullMask, v >= kIsTotal);
        const u32 last = totals == 0 ? 31 : static_cast<u32>(__ffs(static_cast<int>(totals))) - 1;
        before += warp_sum(lane() <= last ? v & kValue : 0);
        if (totals != 0) break;
      }
    }
    if (lane() == 0) {
      work_.offsets[block] = kIsTotal | (before + num_words);
      s_.offset = static_cast<u32>(before);
    }
  }

  // ---- bits ----
  __device__ void write_payload(u32 num_words) {
    for (u32 i = threadIdx.x; i < num_words; i += kThreads) s_.list[i] = 0;
    __syncthreads();
    if (warp() == 0) write_head();
    for (u32 c = warp(); c < kNumClasses; c += kWarps) write_class(c);
  }

  // Gaps of listed things: low bits at fixed_at, the rest in unary at unary_at, which moves on.
  struct GapWriter {
    u32* words;
    u32 rice_k, fixed_at;
    u32& unary_at;

    __device__ __forceinline__ void operator()(bool listed, u32 gap) {
      const u32 mask = __ballot_sync(kFullMask, listed), zeros = gap >> rice_k;
      const u32 end = warp_scan(listed ? zeros + 1 : 0);
      if (listed) {
        const u32 at = unary_at + end - 1,
                  i = static_cast<u32>(__popc(mask & ((1u << lane()) - 1)));
        atomicOr(words + at / 32, 1u << at % 32);
        put_bits(words, fixed_at + i * rice_k, gap & ((1u << rice_k) - 1), rice_k);
      }
      unary_at += __shfl_sync(kFullMask, end, 31);
      fixed_at += static_cast<u32>(__popc(mask)) * rice_k;
    }
  };

  __device__ void write_class(u32 c) {
    const ClassPlan plan = s_.plans[c];
    u32 fixed_at = __shfl_sync(kFullMask, fixed_at_, c),
        unary_at = __shfl_sync(kFullMask, unary_at_, c),
        tails_at = __shfl_sync(kFullMask, tails_at_, c);
    if (plan.count == 0) return;
    each_change_gap(c, plan.changed,
                    GapWriter{s_.list, static_cast<u32>(plan.changed.rice_k), fixed_at, unary_at});
    fixed_at += plan.changed.num_listed * static_cast<u32>(plan.changed.rice_k);
    for (u32 first = 0; first < plan.count; first += 32) {
      const u32 i = first + lane();
      const u32 signs = __ballot_sync(kFullMask, i < plan.count && negative(c, i));
      if (lane() == 0) put_bits(s_.list, fixed_at + first, signs, min(plan.count - first, 32u));
    }
    if (plan.num_large == 0) return;
    fixed_at += plan.count;
    each_large_gap(c, plan.large,
                   GapWriter{s_.list, static_cast<u32>(plan.large.rice_k), fixed_at, unary_at});
    for (u32 first = 0; first < plan.count; first += 32) {
      const u32 i = first + lane();
      const u32 m = i < plan.count ? magnitude(c, i) : 1;
      const u32 num_tail = m > 1 ? tail_length(m, plan.golomb_k) : 0;
      const u32 unary_end = warp_scan(m > 1 ? num_tail - plan.golomb_k + 1 : 0),
                tail_end = warp_scan(num_tail);
      if (m > 1) {
        const u32 at = unary_at + unary_end - 1, code = m - 2 + (1u << plan.golomb_k);
        atomicOr(s_.list + at / 32, 1u << at % 32);
        put_bits(s_.list, tails_at + tail_end - num_tail, code ^ 1u << num_tail, num_tail);
      }
      unary_at += __shfl_sync(kFullMask, unary_end, 31);
      tails_at += __shfl_sync(kFullMask, tail_end, 31);
    }
  }

  // One lane a class.
  __device__ void write_head() {
    const bool is_class = lane() < kNumClasses;
    const u32 count = is_class ? s_.plans[lane()].count : 0,
              num_large = is_class ? s_.plans[lane()].num_large : 0;
    const u32 changed = __ballot_sync(kFullMask, count > 0),
              large = __ballot_sync(kFullMask, num_large > 0);
    const u32 below = (1u << lane()) - 1;
    const u32 num_classes = static_cast<u32>(__popc(changed)),
              num_large_classes = static_cast<u32>(__popc(large));
    const u32 nth_large = static_cast<u32>(__popc(large & below));
    const auto put = [&](u32 byte, u32 bits, u32 num_bits) {
      put_bits(s_.list, 8 * byte, bits, num_bits);
    };
    if (count > 0) put(4 + 2 * static_cast<u32>(__popc(changed & below)), count - 1, 16);
    if (num_large > 0) {
      put(4 + 2 * num_classes + 2 * nth_large, num_large - 1, 16);
      put(4 + 2 * num_classes + 2 * num_large_classes + nth_large, s_.plans[lane()].golomb_k, 8);
    }
    if (lane() == 0)
      s_.list[0] = static_cast<u32>(delta::BlockMode::kSparse) | static_cast<u32>(class_top_) << 8 |
                   changed << 16 | large << 24;
  }

  __device__ u32 raw_word(u32 i) const {
    u32 word = 0;
    for (u32 k = 0; k < 4 && 4 * i + k < n_ * kWidth; ++k) word |= u32{next_[4 * i + k]} << 8 * k;
    return word;
  }

  __device__ void copy_out(u32 block, u32 payload_bytes, bool raw) {
    const u64 begin = u64{s_.offset} * 4;
    const bool fits = begin + payload_bytes <= work_.capacity;
    u32* to = reinterpret_cast<u32*>(work_.delta + begin);
    if (fits && raw) {
      const u32 whole = n_ * kWidth / 4;
      for (u32 i = threadIdx.x; i < payload_bytes / 4; i += kThreads)
        to[i] = i == 0       ? static_cast<u32>(delta::BlockMode::kRaw)
                : i <= whole ? reinterpret_cast<const u32*>(next_)[i - 1]
                             : raw_word(i - 1);
    } else if (fits) {
      for (u32 i = threadIdx.x; i < payload_bytes / 4; i += kThreads) to[i] = s_.list[i];
    }
    if (threadIdx.x != 0) return;
    const u32 end = s_.offset + payload_bytes / 4;
    reinterpret_cast<u32*>(work_.delta + delta::kHeaderBytes)[block] = end;
    CallState& state = *work_.state;
    if (!fits)
      atomicMax(&state.first_error, error_key(Code::kDstTooSmall, kReasonFrameRoom, block));
    atomicAdd(&state.head_sum, checksum_term(end, delta::kHeaderBytes / 4 + block));
    atomicAdd(&state.base_sum, s_.base_sum);
    atomicAdd(&state.target_sum, s_.target_sum);
    atomicAdd(&state.num_changed, u64{num_changed_});
  }

  const EncodeWork& work_;
  Shared& s_;
  const u8 *base_ = nullptr, *next_ = nullptr;
  u32 n_ = 0, num_changed_ = 0;
  int class_top_ = 0;
  u32 head_words_ = 0;
  u32 fixed_at_ = 0, unary_at_ = 0,
      tails_at_ = 0;  // bits of the payload; of the class of this lane
};

}  // namespace snug::cuda::deltas
