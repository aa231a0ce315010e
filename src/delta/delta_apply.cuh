// delta/delta_apply.cuh - one payload applied to one block, as delta_decode_block.cpp does
// it. Runs twice: first only to compare hashes, then to write.
#pragma once
#include "delta/delta_device.cuh"

namespace snug::cuda::deltas {

struct ApplyWork {
  const u8* delta;
  u64 delta_room;  // bytes there are; the header may claim less
  u8* tensor;      // 16-byte aligned
  u64 tensor_bytes;
  DType dtype;
  u32 log2_block;  // the most the launch can do; the delta's may be less
  delta::ClassRule rule;
  CallState* state;
  DeviceResult* result;
};

// What the head of a payload says of each class, and what follows from it.
struct ApplyTable {
  u32 starts[kNumClasses + 1];  // elements in class order
  u32 counts[kNumClasses], large_counts[kNumClasses], golomb_k[kNumClasses];
  Subset changed[kNumClasses], large[kNumClasses];
  u32 change_starts[kNumClasses + 1];
  u32 fixed_starts[kNumClasses + 1];
  u32 symbol_starts[3 * kNumClasses + 1];
  u32 tail_bits[kNumClasses];
  u32 head_words, fixed_words, bad;
};

template <u32 kThreads>
struct ApplyShared {
  static constexpr u32 kElems = kThreads * kPerThread;
  alignas(16) u16 unary[2 * kElems];     // what each unary code counts
  alignas(16) u16 differences[kElems];   // of changes in class order
  alignas(16) u16 large_places[kElems];  // places of large differences among changes of their class
  u32 bits[kThreads + 2];                // changed elements in class order
  u32 ones_before[kThreads];             // of each word of bits
  u16 next_in_class[kNumClasses][kThreads];
  ScanRows scan;
  ApplyTable table;
  u64 base_sum, target_sum;
  delta::Header header;
};

template <u32 kWidth, u32 kThreads>
class BlockApplier {
  using Shared = ApplyShared<kThreads>;

 public:
  __device__ BlockApplier(const ApplyWork& work, const delta::Header& header, Shared& shared)
      : work_(work), header_(header), s_(shared) {}

  // Where the payload of a block starts: the index was checked.
  __device__ u64 payload_end(u32 block) const {
    return u64{reinterpret_cast<const u32*>(work_.delta + delta::kHeaderBytes)[block]} * 4;
  }

  // False if the payload makes no sense for this base.
  template <bool kWrite>
  __device__ bool run(u32 block) {
    n_ = static_cast<u32>(header_.elems_in_block(block));
    const u64 start = (u64{block} << header_.log2_block) * kWidth;
    const bool is_last = block + 1 == header_.num_blocks();
    block_bytes_ = n_ * kWidth + (is_last ? header_.num_tail_bytes : 0);
    tensor_ = work_.tensor + start;
    const u64 begin = block == 0 ? header_.payload_start() : payload_end(block - 1);
    payload_ = reinterpret_cast<const u32*>(work_.delta + begin);
    num_words_ = static_cast<u32>((payload_end(block) - begin) / 4);
    if (kWrite && num_words_ == 0 && !is_last) return true;
    elems_.load(tensor_, block_bytes_);
    if (!kWrite) add_hash(start, byte_behind(tensor_), &s_.base_sum);
    const bool good = num_words_ == 0 || decode();
    if (is_last) put_tail();
    if (!kWrite) {
      if (good) add_hash(start, header_.tail[0], &s_.target_sum);
    } else if (good) {
      store();
    }
    return good;
  }

 private:
  __device__ u32 byte_behind(const u8* block) const {
    return block_bytes_ > Shared::kElems * kWidth ? block[Shared::kElems * kWidth] : 0;
  }

  __device__ void add_hash(u64 start, u32 byte_behind, u64* to) {
    const u64 sum = warp_sum(elems_.hash(start, block_bytes_) +
                             term_behind<kThreads, kWidth>(byte_behind, start, block_bytes_));
    if (lane() == 0) atomicAdd(to, sum);
  }

  __device__ bool decode() {
    const u32 mode = payload_[0] & 0xFF;
    if (mode == static_cast<u32>(delta::BlockMode::kRaw)) {
      if (num_words_ * 4 != delta::raw_payload_bytes(n_, kWidth)) return false;
      load_raw();
      return true;
    }
    if (mode != static_cast<u32>(delta::BlockMode::kSparse)) return false;
    const int class_top = static_cast<int>(payload_[0] >> 8 & 0xFF);
    if (static_cast<u64>(class_top) > work_.rule.max_key()) return false;
    const Classes classes(work_.rule, class_top, kWidth);
    count_elements(classes);
    if (warp() == 0) read_head();
    __syncthreads();
    if (s_.table.bad != 0) return false;
    const u32 num_tail_words = read_unary();
    if (num_tail_words == kNone) return false;
    clear_bits();
    for (u32 c = warp(); c < kNumClasses; c += kThreads / 32)
      if (!read_class(c) && lane() == 0) atomicOr(&s_.table.bad, 1u);
    __syncthreads();
    if (s_.table.bad != 0 || !read_large(num_tail_words)) return false;
    number_changes();
    change_elements(classes);
    return true;
  }

  // ---- raw blocks: the payload is the block ----
  __device__ void load_raw() {
    const u32 first = threadIdx.x * kPerThread * kWidth / 4;
#pragma unroll
    for (u32 j = 0; j < 8 * kWidth; ++j)
      if (1 + first + j < num_words_) elems_.words[j] = payload_[1 + first + j];
  }

  // ---- classes of the base ----
  __device__ void count_elements(const Classes& classes) {
    const u32 first = threadIdx.x * kPerThread;
    valid_ = n_ > first ? min(n_ - first, kPerThread) : 0;
    const ClassCounts own = count_classes(elems_, valid_, classes);
    u32 sums[4] = {own.words[0], own.words[1], own.words[2], own.words[3]}, total[4];
    block_scan<kThreads>(sums, total, s_.scan);
    const ClassCounts before = {{sums[0], sums[1], sums[2], sums[3]}};
    const ClassCounts sizes = {{total[0], total[1], total[2], total[3]}};
    u32 start = 0;
#pragma unroll
    for (u32 c = 0; c < kNumClasses; ++c) {
      s_.next_in_class[c][threadIdx.x] = static_cast<u16>(start + before.of(c));
      if (threadIdx.x == 0) s_.table.starts[c] = start;
      start += sizes.of(c);
    }
    if (threadIdx.x == 0) s_.table.starts[kNumClasses] = start;
    __syncthreads();
  }

  // ---- the head; one lane a class ----
  __device__ u32 byte_at(u32 i) const { return payload_[i / 4] >> 8 * (i % 4) & 0xFF; }

  __device__ void read_head() {
    ApplyTable& t = s_.table;
    const u32 changed = payload_[0] >> 16 & 0xFF, large = payload_[0] >> 24;
    const u32 num_changed = static_cast<u32>(__popc(changed)),
              num_large = static_cast<u32>(__popc(large));
    const u32 used = 4 + 2 * num_changed + 3 * num_large, head_words = (used + 3) / 4;
    bool bad = changed == 0 || (large & ~changed) != 0 || head_words > num_words_;
    const u32 c = lane();
    const bool is_class = c < kNumClasses;
    u32 count = 0, large_count = 0, k = 0;
    if (!bad && is_class) {
      const u32 below = (1u << c) - 1;
      const u32 at = 4 + 2 * static_cast<u32>(__popc(changed & below));
      const u32 nth_large = static_cast<u32>(__popc(large & below));
      const u32 large_at = 4 + 2 * num_changed + 2 * nth_large;
      if (changed >> c & 1) count = 1 + (byte_at(at) | byte_at(at + 1) << 8);
      if (large >> c & 1) {
        large_count = 1 + (byte_at(large_at) | byte_at(large_at + 1) << 8);
        k = byte_at(4 + 2 * num_changed + 2 * num_large + nth_large);
      }
      const u32 size = t.starts[c + 1] - t.starts[c];
      bad = count > size || large_count > count || k >= 8 * kWidth;
      for (u32 i = used + c; i < 4 * head_words; i += kNumClasses) bad |= byte_at(i) != 0;
    }
    bad = __any_sync(kFullMask, bad);
    Subset changed_set = {0, false, 0}, large_set = {0, false, 0};
    if (!bad && count > 0) changed_set = delta::subset_rule(t.starts[c + 1] - t.starts[c], count);
    if (!bad && large_count > 0) large_set = delta::subset_rule(count, large_count);
    const u32 fixed = changed_set.num_listed * static_cast<u32>(changed_set.rice_k) + count +
                      large_set.num_listed * static_cast<u32>(large_set.rice_k);
    const u32 symbols = changed_set.num_listed + large_set.num_listed + large_count;
    const u32 change_start = prefix_of_classes(count), fixed_start = prefix_of_classes(fixed),
              symbol_start = prefix_of_classes(symbols);
    if (is_class) {
      t.counts[c] = count;
      t.large_counts[c] = large_count;
      t.golomb_k[c] = k;
      t.changed[c] = changed_set;
      t.large[c] = large_set;
      t.change_starts[c] = change_start;
      t.fixed_starts[c] = fixed_start;
      t.symbol_starts[3 * c] = symbol_start;
      t.symbol_starts[3 * c + 1] = symbol_start + changed_set.num_listed;
      t.symbol_starts[3 * c + 2] = symbol_start + changed_set.num_listed + large_set.num_listed;
    }
    if (c == kNumClasses - 1) {
      t.change_starts[kNumClasses] = change_start + count;
      t.fixed_starts[kNumClasses] = fixed_start + fixed;
      t.symbol_starts[3 * kNumClasses] = symbol_start + symbols;
      t.head_words = head_words;
      t.fixed_words = (fixed_start + fixed + 31) / 32;
      t.bad = bad || head_words + t.fixed_words > num_words_;
    }
  }

  // ---- unary codes: ones are counted, zeros before each are its value ----
  static constexpr u32 kNone = ~0u;

  // Fills s_.unary; returns the words that are left for the tails, or kNone.
  __device__ u32 read_unary() {
    const ApplyTable& t = s_.table;
    const u32 wanted = t.symbol_starts[3 * kNumClasses];
    const u32 first_word = t.head_words + t.fixed_words;
    u32 seen = 0, previous = 0, at_word = first_word;  // ones, and where the last code ended
    for (; seen < wanted; at_word += kThreads) {
      if (at_word >= num_words_) return kNone;
      const u32 w = at_word + threadIdx.x;
      const u32 word = w < num_words_ ? payload_[w] : 0;
      const u32 word_start = (w - first_word) * 32;
      u32 ones[1] = {static_cast<u32>(__popc(word))}, total[1];
      block_scan<kThreads>(ones, total, s_.scan);
      // The end of the last code in an earlier word.
      const u32 end_here =
          word == 0 ? 0 : word_start + 32 - static_cast<u32>(__clz(static_cast<int>(word)));
      const u32 before = max_before(end_here, previous);
      u32 s = seen + ones[0], last = before;
      bool outside = false;
      for (u32 left = word; left != 0 && s < wanted; left &= left - 1, ++s) {
        const u32 place = word_start + static_cast<u32>(__ffs(static_cast<int>(left))) - 1;
        const u32 zeros = place - last;
        outside |= zeros > 0xFFFF;
        s_.unary[s] = static_cast<u16>(zeros);
        last = place + 1;
      }
      previous = latest_;
      if (__syncthreads_or(outside)) return kNone;
      // The code that is the last one wanted must be the last in its word.
      if (seen + total[0] >= wanted) {
        const bool mine =
            word != 0 && seen + ones[0] < wanted && seen + ones[0] + __popc(word) >= wanted;
        const bool exact = mine && seen + ones[0] + __popc(word) == wanted;
        if (!__syncthreads_or(exact)) return kNone;
        return num_words_ - word_of_last(mine ? w : 0) - 1;
      }
      seen += total[0];
    }
    return num_words_ - first_word;  // no codes at all
  }

  // The largest of `v` over earlier threads and `floor`; leaves the largest of all in latest_.
  __device__ u32 max_before(u32 v, u32 floor) {
    u32 upto = v;
#pragma unroll
    for (u32 d = 1; d < 32; d *= 2) {
      const u32 below = __shfl_up_sync(kFullMask, upto, d);
      if (lane() >= d) upto = max(upto, below);
    }
    const u32 before_in_warp = __shfl_up_sync(kFullMask, upto, 1);
    __syncthreads();
    if (lane() == 31) s_.scan.rows[warp()][0] = upto;
    __syncthreads();
    u32 result = floor, all = floor;
    for (u32 w = 0; w < kThreads / 32; ++w) {
      if (w < warp()) result = max(result, s_.scan.rows[w][0]);
      all = max(all, s_.scan.rows[w][0]);
    }
    latest_ = all;
    __syncthreads();
    return lane() == 0 ? result : max(result, before_in_warp);
  }

  __device__ u32 word_of_last(u32 w) {
    const u32 in_warp = __reduce_max_sync(kFullMask, w);
    if (lane() == 0) s_.scan.rows[warp()][1] = in_warp;
    __syncthreads();
    u32 last = 0;
    for (u32 i = 0; i < kThreads / 32; ++i) last = max(last, s_.scan.rows[i][1]);
    __syncthreads();
    return last;
  }

  // ---- subsets ----
  __device__ void clear_bits() {
    for (u32 i = threadIdx.x; i < kThreads + 2; i += kThreads) s_.bits[i] = 0;
    __syncthreads();
    // Inverted subsets start full.
    const ApplyTable& t = s_.table;
    const u32 first = threadIdx.x * 32;
    u32 word = 0;
    for (u32 c = 0; c < kNumClasses; ++c) {
      if (!t.changed[c].inverted) continue;
      const u32 from = max(t.starts[c], first), to = min(t.starts[c + 1], first + 32);
      if (from < to)
        word |= (to - from == 32 ? kFullMask : (1u << (to - from)) - 1) << (from - first);
    }
    s_.bits[threadIdx.x] = word;
    __syncthreads();
  }

  // Low bits of a gap, from the fixed part.
  __device__ u32 fixed_bits(u32 at, u32 num_bits) const {
    if (num_bits == 0) return 0;
    const u32* fixed = payload_ + s_.table.head_words;
    const u32 word = at / 32, shift = at % 32;
    u32 bits = fixed[word] >> shift;
    if (shift + num_bits > 32) bits |= fixed[word + 1] << (32 - shift);
    return bits & ((1u << num_bits) - 1);
  }

  // One warp: calls list(i, thing) for the listed things of a subset of n; false if one is
  // not below n.
  template <class List>
  __device__ bool read_subset(const Subset& subset, u32 n, u32 first_symbol, u32 fixed_at,
                              List list) const {
    const auto k = static_cast<u32>(subset.rice_k);
    u32 next = 0;
    for (u32 first = 0; first < subset.num_listed; first += 32) {
      const u32 i = first + lane();
      const bool valid = i < subset.num_listed;
      const u32 high = valid ? s_.unary[first_symbol + i] : 0;
      bool outside = high > n >> k;  // so that sums stay small
      const u32 gap = valid && !outside ? high << k | fixed_bits(fixed_at + i * k, k) : 0;
      const u32 end = next + warp_scan(valid ? gap + 1 : 0);
      outside |= valid && end > n;
      if (__any_sync(kFullMask, outside)) return false;
      if (valid) list(i, end - 1);
      next = __shfl_sync(kFullMask, end, 31);
    }
    return true;
  }

  // One warp: changed elements of a class, their signs, places of large ones and bits of
  // tails.
  __device__ bool read_class(u32 c) {
    ApplyTable& t = s_.table;
    const u32 start = t.starts[c], count = t.counts[c];
    if (lane() == 0) t.tail_bits[c] = 0;
    if (count == 0) return true;
    const auto toggle = [&](u32, u32 thing) {
      atomicXor(&s_.bits[(start + thing) / 32], 1u << (start + thing) % 32);
    };
    if (!read_subset(t.changed[c], t.starts[c + 1] - start, t.symbol_starts[3 * c],
                     t.fixed_starts[c], toggle))
      return false;
    const u32 signs_at =
        t.fixed_starts[c] + t.changed[c].num_listed * static_cast<u32>(t.changed[c].rice_k);
    for (u32 i = lane(); i < count; i += 32)
      s_.differences[t.change_starts[c] + i] = fixed_bits(signs_at + i, 1) ? u16{0xFFFF} : u16{1};
    if (t.large_counts[c] == 0) return true;
    if (!read_places(c, signs_at + count)) return false;
    u32 num_tail = 0;
    bool outside = false;
    for (u32 i = lane(); i < t.large_counts[c]; i += 32) {
      const u32 longer = s_.unary[t.symbol_starts[3 * c + 2] + i];
      outside |= longer + t.golomb_k[c] >= 8 * kWidth;
      num_tail += outside ? 0 : longer + t.golomb_k[c];
    }
    num_tail = __reduce_add_sync(kFullMask, num_tail);
    if (lane() == 0) t.tail_bits[c] = num_tail;
    return !__any_sync(kFullMask, outside);
  }

  // Places of large changes among all of the class, in rising order.
  __device__ bool read_places(u32 c, u32 fixed_at) {
    const ApplyTable& t = s_.table;
    const Subset& subset = t.large[c];
    const u32 count = t.counts[c];
    u16* places = s_.large_places + t.change_starts[c];
    if (!subset.inverted) {
      const bool good = read_subset(subset, count, t.symbol_starts[3 * c + 1], fixed_at,
                                    [&](u32 i, u32 thing) { places[i] = static_cast<u16>(thing); });
      __syncwarp();
      return good;
    }
    // Members lie between the others: mark those, then number the rest.
    for (u32 i = lane(); i < count; i += 32) places[i] = 0;
    __syncwarp();
    if (!read_subset(subset, count, t.symbol_starts[3 * c + 1], fixed_at,
                     [&](u32, u32 thing) { places[thing] = 1; }))
      return false;
    __syncwarp();
    u32 num_members = 0;
    for (u32 first = 0; first < count; first += 32) {
      const u32 i = first + lane();
      const u32 members = __ballot_sync(kFullMask, i < count && places[i] == 0);
      __syncwarp();
      if (members >> lane() & 1)
        places[num_members + static_cast<u32>(__popc(members & ((1u << lane()) - 1)))] =
            static_cast<u16>(i);
      num_members += static_cast<u32>(__popc(members));
      __syncwarp();
    }
    return true;
  }

  // ---- differences beyond 1: one warp, one class ----
  __device__ bool read_large(u32 num_tail_words) {
    const ApplyTable& t = s_.table;
    u32 total = 0;
    for (u32 c = 0; c < kNumClasses; ++c) total += t.tail_bits[c];
    if ((total + 31) / 32 != num_tail_words) return false;
    const u32* tails = payload_ + (num_words_ - num_tail_words);
    for (u32 c = warp(); c < kNumClasses; c += kThreads / 32) {
      u32 tail_at = 0;
      for (u32 j = 0; j < c; ++j) tail_at += t.tail_bits[j];
      for (u32 first = 0; first < t.large_counts[c]; first += 32) {
        const u32 i = first + lane();
        const bool valid = i < t.large_counts[c];
        const u32 num_tail = valid ? s_.unary[t.symbol_starts[3 * c + 2] + i] + t.golomb_k[c] : 0;
        const u32 end = tail_at + warp_scan(num_tail);
        if (valid) put_large(c, i, tails, end - num_tail, num_tail);
        tail_at = __shfl_sync(kFullMask, end, 31);
      }
    }
    return true;
  }

  __device__ void put_large(u32 c, u32 i, const u32* tails, u32 begin, u32 num_tail) {
    const ApplyTable& t = s_.table;
    u32 tail = 0;
    if (num_tail > 0) {
      tail = tails[begin / 32] >> begin % 32;
      if (begin % 32 + num_tail > 32) tail |= tails[begin / 32 + 1] << (32 - begin % 32);
      tail &= (1u << num_tail) - 1;
    }
    const u32 value = (tail | 1u << num_tail) - (1u << t.golomb_k[c]) + 2;
    u16& difference = s_.differences[t.change_starts[c] + s_.large_places[t.change_starts[c] + i]];
    difference = static_cast<u16>(difference == 1 ? value : 0 - value);
  }

  __device__ void number_changes() {
    u32 ones[1] = {static_cast<u32>(__popc(s_.bits[threadIdx.x]))}, total[1];
    block_scan<kThreads>(ones, total, s_.scan);
    s_.ones_before[threadIdx.x] = ones[0];
    __syncthreads();
  }

  // ---- the result ----
  __device__ void change_elements(const Classes& classes) {
#pragma unroll
    for (u32 i = 0; i < kPerThread; ++i) {
      const u32 value = elems_.get(i);
      u16& next = s_.next_in_class[classes.of(value)][threadIdx.x];
      const u32 at = next++;  // behind the last element there are no changes to find
      const u32 word = i < valid_ ? s_.bits[at / 32] : 0;
      if (word >> at % 32 & 1) {
        const u32 g =
            s_.ones_before[at / 32] + static_cast<u32>(__popc(word & ((1u << at % 32) - 1)));
        const u32 sum = value + s_.differences[g];
        elems_.set(i, kWidth == 2 ? sum & 0xFFFF : sum & 0xFF);
      }
    }
  }

  // The bytes beyond the last whole element are part of the header.
  __device__ void put_tail() {
    if (header_.num_tail_bytes == 0 || threadIdx.x != n_ / kPerThread) return;  // or store() does
#pragma unroll
    for (u32 i = 0; i < kPerThread; ++i)
      if (i == n_ % kPerThread) elems_.set(i, header_.tail[0]);
  }

  __device__ void store() const {
    const u32 first = threadIdx.x * kPerThread * kWidth;
    if (threadIdx.x == 0 && block_bytes_ > Shared::kElems * kWidth)
      tensor_[Shared::kElems * kWidth] = header_.tail[0];
    if (first + kPerThread * kWidth <= block_bytes_) {
#pragma unroll
      for (u32 j = 0; j < 2 * kWidth; ++j)
        reinterpret_cast<uint4*>(tensor_ + first)[j] =
            make_uint4(elems_.words[4 * j], elems_.words[4 * j + 1], elems_.words[4 * j + 2],
                       elems_.words[4 * j + 3]);
      return;
    }
#pragma unroll
    for (u32 j = 0; j < 8 * kWidth; ++j)
      for (u32 k = 0; k < 4; ++k)
        if (first + 4 * j + k < block_bytes_)
          tensor_[first + 4 * j + k] = static_cast<u8>(elems_.words[j] >> 8 * k);
  }

  const ApplyWork& work_;
  const delta::Header& header_;
  Shared& s_;
  Elems<kWidth> elems_;
  const u32* payload_ = nullptr;
  u8* tensor_ = nullptr;
  u32 n_ = 0, block_bytes_ = 0, valid_ = 0, num_words_ = 0, latest_ = 0;
};

}  // namespace snug::cuda::deltas
