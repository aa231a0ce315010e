// delta/cuda/delta_parse.cuh - the codes of one payload, read by one warp: what
// delta_decode_block.cpp reads, 32 codes at a time. The payload may be hostile.
#pragma once
#include "delta/cuda/delta_planes.cuh"

namespace snug::cuda::deltas {

// Changes of one class that follow each other.
struct ChangeRun {
  u32 start, count;      // among all changes of the block
  u32 list, num_listed;  // ranks of changed elements, or of the others, among the things
  u32 class_idx, inverted;
  u32 signs_at;  // bit of the payload
};

// kLists numbers have room for the codes of kChanges changes, kWords words for the payload.
template <u32 kChanges, u32 kLists, u32 kWords>
struct ParseRoom {
  static constexpr u32 kMaxChanges = kChanges, kMaxCodes = kLists, kMaxWords = kWords;
  struct Section {
    u32 start;     // the first code's number among all
    u32 fixed_at;  // of the low bits
    u32 n;         // things to choose from; 0: lengths of large differences
    u32 k;
  };
  u32 payload[kWords + 2];              // two words can be read where the last one ends
  alignas(4) u16 things[kLists];        // what each code says: first zeros, then members of lists
  alignas(4) u16 magnitudes[kChanges];  // of changes in class order
  Section sections[3 * kNumClasses];
  ChangeRun runs[kNumClasses];
  u32 num_runs, num_changes;
};

// How many of the rising numbers list[0..count) have fewer than `nth` numbers that are not
// listed before them, or as many: with `nth` itself, the number not listed that has `nth`
// such before it.
__device__ inline u32 listed_before(const u16* list, u32 count, u32 nth) {
  u32 low = 0;
  for (u32 high = count; low < high;) {
    const u32 middle = (low + high) / 2;
    if (list[middle] - middle <= nth)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// What the head says, before anything of it is checked against the base.
struct ParseHead {
  u32 changed, large;  // classes
  u32 head_words;
  u32 count, num_large, k;     // lane c: of class c
  u32 num_changes, num_codes;  // at most that many codes
  bool bad;

  // `payload` has num_words, of which those of the head are there. By all lanes.
  __device__ ParseHead(const u32* payload, u32 num_words) {
    changed = payload[0] >> 16 & 0xFF, large = payload[0] >> 24;
    const u32 num_changed = count_bits(changed), num_large_classes = count_bits(large);
    const u32 used = 4 + 2 * num_changed + 3 * num_large_classes;
    head_words = (used + 3) / 4;
    count = num_large = k = 0;
    bad = changed == 0 || (large & ~changed) != 0 || head_words > num_words;
    const auto byte_at = [&](u32 i) { return payload[i / 4] >> 8 * (i % 4) & 0xFF; };
    const u32 c = lane();
    if (!bad && c < kNumClasses) {
      const u32 at = 4 + 2 * count_bits(changed & lanes_below());
      const u32 nth_large = count_bits(large & lanes_below());
      const u32 large_at = 4 + 2 * num_changed + 2 * nth_large;
      if (changed >> c & 1) count = 1 + (byte_at(at) | byte_at(at + 1) << 8);
      if (large >> c & 1) {
        num_large = 1 + (byte_at(large_at) | byte_at(large_at + 1) << 8);
        k = byte_at(4 + 2 * num_changed + 2 * num_large_classes + nth_large);
      }
      for (u32 i = used + c; i < 4 * head_words; i += kNumClasses) bad |= byte_at(i) != 0;
      bad |= num_large > count;
    }
    bad = __any_sync(kFullMask, bad);
    num_changes = __reduce_add_sync(kFullMask, count);
    num_codes = __reduce_add_sync(kFullMask,
                                  bad ? 0 : count + num_large + min(num_large, count - num_large));
  }
};

template <u32 kWidth, class Room>
class PayloadParser {
 public:
  // room.payload has num_words; room.magnitudes are all 1.
  __device__ PayloadParser(Room& room, u32 num_words) : room_(room), num_words_(num_words) {}

  // By one warp: fills things, magnitudes and runs. False if the payload makes no sense for a
  // base with classes of these sizes; `size` is that of class c in lane c.
  __device__ bool run(const ParseHead& head, u32 size) {
    if (head.bad || !make_plan(head, size)) return false;
    if (!read_zeros()) return false;
    __syncwarp();
    if (!read_lists()) return false;
    __syncwarp();
    return read_large(head);
  }

 private:
  // ---- the head: sizes of the three streams ----
  __device__ bool make_plan(const ParseHead& head, u32 size) {
    const u32 c = lane(), count = head.count, num_large = head.num_large;
    const bool bad = c < kNumClasses && (count > size || head.k >= 8 * kWidth);
    if (__any_sync(kFullMask, bad)) return false;
    changed_ = large_ = {0, false, 0};
    if (count > 0) changed_ = delta::subset_rule(size, count);
    if (num_large > 0) large_ = delta::subset_rule(count, num_large);
    const u32 low_bits = changed_.num_listed * static_cast<u32>(changed_.rice_k),
              large_low_bits = large_.num_listed * static_cast<u32>(large_.rice_k);
    const u32 fixed_bits = low_bits + count + large_low_bits;
    const u32 num_codes = changed_.num_listed + large_.num_listed + num_large;
    const u32 num_sections = (changed_.num_listed > 0) + (large_.num_listed > 0) + (num_large > 0);
    change_start_ = prefix_of_classes(count);
    code_start_ = prefix_of_classes(num_codes);
    const u32 fixed_at = 32 * head.head_words + prefix_of_classes(fixed_bits);
    u32 nth = prefix_of_classes(num_sections);
    constexpr u32 kLast = kNumClasses - 1;
    num_codes_ = __shfl_sync(kFullMask, code_start_ + num_codes, kLast);
    num_sections_ = __shfl_sync(kFullMask, nth + num_sections, kLast);
    unary_word_ = (__shfl_sync(kFullMask, fixed_at + fixed_bits, kLast) + 31) / 32;
    if (unary_word_ > num_words_) return false;
    u32 start = code_start_;
    const auto add = [&](u32 num, u32 at, u32 n, u32 k) {
      if (num == 0) return;
      room_.sections[nth++] = {start, at, n, k};
      start += num;
    };
    add(changed_.num_listed, fixed_at, size, static_cast<u32>(changed_.rice_k));
    add(large_.num_listed, fixed_at + low_bits + count, count, static_cast<u32>(large_.rice_k));
    add(num_large, 0, 0, head.k);
    if (count > 0)
      room_.runs[count_bits(head.changed & lanes_below())] = {
          change_start_,      count, code_start_, changed_.num_listed, c, changed_.inverted,
          fixed_at + low_bits};
    if (c == 0) room_.num_runs = count_bits(head.changed), room_.num_changes = head.num_changes;
    __syncwarp();
    return true;
  }

  // ---- unary codes: ones are counted, zeros before each are its value ----
  __device__ bool read_zeros() {
    u32 seen = 0, last_end = 0;  // ones, and where the last of them ends
    u32 at_word = unary_word_;
    for (; seen < num_codes_; at_word += 32) {
      if (at_word >= num_words_) return false;
      const u32 w = at_word + lane();
      const u32 word = w < num_words_ ? room_.payload[w] : 0;
      const u32 word_start = (w - unary_word_) * 32;
      const u32 upto = seen + warp_scan(count_bits(word));
      const u32 some = __ballot_sync(kFullMask, word != 0);
      const u32 end_here = word_start + width_of_bits(word);
      const u32 earlier = some & lanes_below();
      const u32 end_before =
          __shfl_sync(kFullMask, end_here, earlier == 0 ? 0 : width_of_bits(earlier) - 1);
      const u32 last = earlier == 0 ? last_end : end_before;
      // The first code of a word began in an earlier one.
      const u32 zeros_before = word_start - last;
      u32 nth = upto - count_bits(word), left = word, zeros = zeros_before;
      for (; left != 0 && nth < num_codes_; ++nth) {
        const u32 place = lowest_bit(left);
        room_.things[nth] = static_cast<u16>(zeros + place);
        left = left >> place >> 1;
        zeros = 0;
      }
      if (__any_sync(kFullMask, word != 0 && zeros_before + lowest_bit(word) > 0xFFFF))
        return false;
      // The word with the last code has no ones behind it.
      if (const u32 enough = __ballot_sync(kFullMask, upto >= num_codes_); enough != 0) {
        const u32 with_last = lowest_bit(enough);
        tails_word_ = at_word + with_last + 1;
        return __shfl_sync(kFullMask, upto, with_last) == num_codes_;
      }
      seen = __shfl_sync(kFullMask, upto, 31);
      if (some != 0) last_end = __shfl_sync(kFullMask, end_here, width_of_bits(some) - 1);
    }
    tails_word_ = at_word;  // no codes at all
    return true;
  }

  __device__ __forceinline__ u32 bits_at(u32 at, u32 num_bits) const {
    const u32 *word = room_.payload + at / 32, shift = at % 32;
    return __funnelshift_r(word[0], word[1], shift) & ((1u << num_bits) - 1);
  }

  // ---- zeros and low bits to members of lists ----
  __device__ bool read_lists() {
    const u32 own_start = lane() < num_sections_ ? room_.sections[lane()].start : ~0u;
    u32 num_begun = 0, carry = 0;  // sections; things up to the last code, in its section
    for (u32 first = 0; first < num_codes_; first += 32) {
      const u32 i = first + lane();
      const bool valid = i < num_codes_;
      const u32 starts =
          __reduce_or_sync(kFullMask, own_start - first < 32 ? 1u << (own_start - first) : 0);
      const u32 begun = starts & (lanes_below() << 1 | 1);
      const auto& section = room_.sections[num_begun + count_bits(begun) - 1];
      num_begun += count_bits(starts);
      const u32 zeros = valid ? room_.things[i] : 0, k = section.k, n = section.n;
      const bool is_list = valid && n > 0;
      bool outside = is_list ? zeros > n >> k : valid && zeros + k >= 8 * kWidth;
      u32 things = 0;  // the code's own and those it leaves out
      if (is_list && !outside)
        things = (zeros << k | bits_at(section.fixed_at + (i - section.start) * k, k)) + 1;
      const u32 upto = warp_scan(things);
      const u32 before_section =
          __shfl_sync(kFullMask, upto - things, begun == 0 ? 0 : width_of_bits(begun) - 1);
      const u32 end = begun == 0 ? carry + upto : upto - before_section;
      outside |= is_list && end > n;
      if (__any_sync(kFullMask, outside)) return false;
      if (is_list) room_.things[i] = static_cast<u16>(end - 1);
      carry = __shfl_sync(kFullMask, end, 31);
    }
    return true;
  }

  // ---- differences beyond 1 ----
  __device__ bool read_large(const ParseHead& head) {
    u32 tail_at = 32 * tails_word_;
    for (u32 left = head.large; left != 0; left &= left - 1) {
      const u32 c = lowest_bit(left);
      const auto of_class = [&](u32 v) { return __shfl_sync(kFullMask, v, c); };
      const u32 num_large = of_class(head.num_large), k = of_class(head.k),
                num_listed = of_class(large_.num_listed), start = of_class(change_start_);
      const u32 first_listed = of_class(code_start_ + changed_.num_listed);
      const bool inverted = of_class(large_.inverted ? 1 : 0) != 0;
      const u16 *listed = room_.things + first_listed, *lengths = listed + num_listed;
      for (u32 first = 0; first < num_large; first += 32) {
        const u32 i = first + lane();
        const bool valid = i < num_large;
        const u32 num_tail = valid ? lengths[i] + k : 0;
        const u32 end = tail_at + warp_scan(num_tail);
        tail_at = __shfl_sync(kFullMask, end, 31);
        if (tail_at > 32 * num_words_) return false;
        if (valid) {
          const u32 code = bits_at(end - num_tail, num_tail) | 1u << num_tail;
          const u32 at = inverted ? i + listed_before(listed, num_listed, i) : listed[i];
          room_.magnitudes[start + at] = static_cast<u16>(code - (1u << k) + 2);
        }
      }
    }
    return (tail_at + 31) / 32 == num_words_;
  }

  Room& room_;
  const u32 num_words_;
  Subset changed_, large_;  // lane c: of class c
  u32 change_start_ = 0, code_start_ = 0;
  u32 num_codes_ = 0, num_sections_ = 0, unary_word_ = 0, tails_word_ = 0;
};

}  // namespace snug::cuda::deltas
