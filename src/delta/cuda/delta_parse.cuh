// delta/cuda/delta_parse.cuh - reads the codes of one payload by one warp, 32 at a time; see
// delta_decode_block.cpp. The payload may be hostile.
#pragma once
#include "delta/cuda/delta_planes.cuh"

namespace snug::cuda::deltas {

// The changes of one class.
struct ChangeRun {
  std::uint32_t start, count;      // among all changes of the block
  std::uint32_t list, num_listed;  // ranks of changed elements, or of the others, in `things`
  std::uint32_t class_idx, inverted;
  std::uint32_t signs_at;  // bit of the payload
};

// Room for kChanges changes with kLists codes, and for a payload of kWords words.
template <unsigned kChanges, unsigned kLists, unsigned kWords>
struct ParseRoom {
  static constexpr std::uint32_t kMaxChanges = kChanges, kMaxCodes = kLists, kMaxWords = kWords;
  struct Section {
    std::uint32_t start;     // number of its first code
    std::uint32_t fixed_at;  // of the low bits
    std::uint32_t n;  // size of the set that it lists a part of; 0: lengths of large differences
    std::uint32_t k;
  };
  std::uint32_t payload[kWords + 2];        // bits_at() reads two words
  alignas(4) std::uint16_t things[kLists];  // of each code: its zeros, later the member of the list
  alignas(4) std::uint16_t magnitudes[kChanges];  // of changes, in the order of classes
  Section sections[3 * kNumClasses];
  ChangeRun runs[kNumClasses];
  std::uint32_t num_runs, num_changes;
};

// `list` is rising. Returns how many of its numbers come before the nth number that it lacks, which
// is nth plus the returned count.
__device__ inline std::uint32_t listed_before(const std::uint16_t* list, std::uint32_t count,
                                              std::uint32_t nth) {
  std::uint32_t low = 0;
  for (unsigned high = count; low < high;) {
    const std::uint32_t middle = (low + high) / 2;
    if (list[middle] - middle <= nth)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// The head of a payload, not yet checked against the base.
struct ParseHead {
  std::uint32_t changed, large;  // classes
  std::uint32_t head_words;
  std::uint32_t count, num_large, k;     // lane c: of class c
  std::uint32_t num_changes, num_codes;  // num_codes is an upper bound
  bool bad;

  // By all lanes. At least the head of the num_words is in `payload`.
  __device__ ParseHead(const std::uint32_t* payload, std::uint32_t num_words) {
    changed = payload[0] >> 16 & 0xFF, large = payload[0] >> 24;
    const std::uint32_t num_changed = count_bits(changed), num_large_classes = count_bits(large);
    const std::uint32_t used = 4 + 2 * num_changed + 3 * num_large_classes;
    head_words = (used + 3) / 4;
    count = num_large = k = 0;
    bad = changed == 0 || (large & ~changed) != 0 || head_words > num_words;
    const auto byte_at = [&](std::uint32_t i) { return payload[i / 4] >> 8 * (i % 4) & 0xFF; };
    const std::uint32_t c = lane_id();
    if (!bad && c < kNumClasses) {
      const std::uint32_t at = 4 + 2 * count_bits(changed & lanes_below());
      const std::uint32_t nth_large = count_bits(large & lanes_below());
      const std::uint32_t large_at = 4 + 2 * num_changed + 2 * nth_large;
      if (changed >> c & 1) count = 1 + (byte_at(at) | byte_at(at + 1) << 8);
      if (large >> c & 1) {
        num_large = 1 + (byte_at(large_at) | byte_at(large_at + 1) << 8);
        k = byte_at(4 + 2 * num_changed + 2 * num_large_classes + nth_large);
      }
      for (unsigned i = used + c; i < 4 * head_words; i += kNumClasses) bad |= byte_at(i) != 0;
      bad |= num_large > count;
    }
    bad = __any_sync(kAllLanes, bad);
    num_changes = __reduce_add_sync(kAllLanes, count);
    num_codes = __reduce_add_sync(kAllLanes,
                                  bad ? 0 : count + num_large + min(num_large, count - num_large));
  }
};

template <unsigned kWidth, class Room>
class PayloadParser {
 public:
  // room.payload has num_words; room.magnitudes are all 1.
  __device__ PayloadParser(Room& room, std::uint32_t num_words)
      : room_(room), num_words_(num_words) {}

  // By one warp: fills things, magnitudes and runs. Lane c has the size of class c in the base.
  // False if the payload makes no sense for such a base.
  __device__ bool run(const ParseHead& head, std::uint32_t size) {
    if (head.bad || !make_plan(head, size)) return false;
    if (!read_zeros()) return false;
    __syncwarp();
    if (!read_lists()) return false;
    __syncwarp();
    return read_large(head);
  }

 private:
  // ---- sizes of the three streams ----
  __device__ bool make_plan(const ParseHead& head, std::uint32_t size) {
    const std::uint32_t c = lane_id(), count = head.count, num_large = head.num_large;
    const bool bad = c < kNumClasses && (count > size || head.k >= 8 * kWidth);
    if (__any_sync(kAllLanes, bad)) return false;
    changed_ = large_ = {0, false, 0};
    if (count > 0) changed_ = delta::subset_rule(size, count);
    if (num_large > 0) large_ = delta::subset_rule(count, num_large);
    const std::uint32_t low_bits =
                            changed_.num_listed * static_cast<std::uint32_t>(changed_.rice_k),
                        large_low_bits =
                            large_.num_listed * static_cast<std::uint32_t>(large_.rice_k);
    const std::uint32_t fixed_bits = low_bits + count + large_low_bits;
    const std::uint32_t num_codes = changed_.num_listed + large_.num_listed + num_large;
    const std::uint32_t num_sections =
        (changed_.num_listed > 0) + (large_.num_listed > 0) + (num_large > 0);
    change_start_ = prefix_of_classes(count);
    code_start_ = prefix_of_classes(num_codes);
    const std::uint32_t fixed_at = 32 * head.head_words + prefix_of_classes(fixed_bits);
    std::uint32_t nth = prefix_of_classes(num_sections);
    constexpr std::uint32_t kLast = kNumClasses - 1;
    num_codes_ = __shfl_sync(kAllLanes, code_start_ + num_codes, kLast);
    num_sections_ = __shfl_sync(kAllLanes, nth + num_sections, kLast);
    unary_word_ = (__shfl_sync(kAllLanes, fixed_at + fixed_bits, kLast) + 31) / 32;
    if (unary_word_ > num_words_) return false;
    std::uint32_t start = code_start_;
    const auto add = [&](std::uint32_t num, std::uint32_t at, std::uint32_t n, std::uint32_t k) {
      if (num == 0) return;
      room_.sections[nth++] = {start, at, n, k};
      start += num;
    };
    add(changed_.num_listed, fixed_at, size, static_cast<std::uint32_t>(changed_.rice_k));
    add(large_.num_listed, fixed_at + low_bits + count, count,
        static_cast<std::uint32_t>(large_.rice_k));
    add(num_large, 0, 0, head.k);
    if (count > 0)
      room_.runs[count_bits(head.changed & lanes_below())] = {
          change_start_,      count, code_start_, changed_.num_listed, c, changed_.inverted,
          fixed_at + low_bits};
    if (c == 0) room_.num_runs = count_bits(head.changed), room_.num_changes = head.num_changes;
    __syncwarp();
    return true;
  }

  // ---- unary codes: the zeros before each one are its value ----
  __device__ bool read_zeros() {
    std::uint32_t seen = 0, last_end = 0;  // ones, and the end of the last of them
    std::uint32_t at_word = unary_word_;
    for (; seen < num_codes_; at_word += 32) {
      if (at_word >= num_words_) return false;
      const std::uint32_t w = at_word + lane_id();
      const std::uint32_t word = w < num_words_ ? room_.payload[w] : 0;
      const std::uint32_t word_start = (w - unary_word_) * 32;
      const std::uint32_t upto = seen + warp_inclusive_sum_fused(count_bits(word));
      const std::uint32_t some = __ballot_sync(kAllLanes, word != 0);
      const std::uint32_t end_here = word_start + width_of_bits(word);
      const std::uint32_t earlier = some & lanes_below();
      const std::uint32_t end_before =
          __shfl_sync(kAllLanes, end_here, earlier == 0 ? 0 : width_of_bits(earlier) - 1);
      const std::uint32_t last = earlier == 0 ? last_end : end_before;
      // The first code of a word began in an earlier one.
      const std::uint32_t zeros_before = word_start - last;
      std::uint32_t nth = upto - count_bits(word), left = word, zeros = zeros_before;
      for (; left != 0 && nth < num_codes_; ++nth) {
        const std::uint32_t place = lowest_bit(left);
        room_.things[nth] = static_cast<std::uint16_t>(zeros + place);
        left = left >> place >> 1;
        zeros = 0;
      }
      if (__any_sync(kAllLanes, word != 0 && zeros_before + lowest_bit(word) > 0xFFFF))
        return false;
      // No ones may follow the last code in its word.
      if (const std::uint32_t enough = __ballot_sync(kAllLanes, upto >= num_codes_); enough != 0) {
        const std::uint32_t with_last = lowest_bit(enough);
        tails_word_ = at_word + with_last + 1;
        return __shfl_sync(kAllLanes, upto, with_last) == num_codes_;
      }
      seen = __shfl_sync(kAllLanes, upto, 31);
      if (some != 0) last_end = __shfl_sync(kAllLanes, end_here, width_of_bits(some) - 1);
    }
    tails_word_ = at_word;  // no codes at all
    return true;
  }

  __device__ __forceinline__ std::uint32_t bits_at(std::uint32_t at, std::uint32_t num_bits) const {
    const std::uint32_t *word = room_.payload + at / 32, shift = at % 32;
    return __funnelshift_r(word[0], word[1], shift) & ((1u << num_bits) - 1);
  }

  // ---- zeros and low bits to members of lists ----
  __device__ bool read_lists() {
    const std::uint32_t own_start =
        lane_id() < num_sections_ ? room_.sections[lane_id()].start : ~0u;
    std::uint32_t num_begun = 0, carry = 0;  // sections; members and gaps so far in the current one
    for (unsigned first = 0; first < num_codes_; first += 32) {
      const std::uint32_t i = first + lane_id();
      const bool valid = i < num_codes_;
      const std::uint32_t starts =
          __reduce_or_sync(kAllLanes, own_start - first < 32 ? 1u << (own_start - first) : 0);
      const std::uint32_t begun = starts & (lanes_below() << 1 | 1);
      const auto& section = room_.sections[num_begun + count_bits(begun) - 1];
      num_begun += count_bits(starts);
      const std::uint32_t zeros = valid ? room_.things[i] : 0, k = section.k, n = section.n;
      const bool is_list = valid && n > 0;
      bool outside = is_list ? zeros > n >> k : valid && zeros + k >= 8 * kWidth;
      std::uint32_t things = 0;  // the member and those it skips
      if (is_list && !outside)
        things = (zeros << k | bits_at(section.fixed_at + (i - section.start) * k, k)) + 1;
      const std::uint32_t upto = warp_inclusive_sum_fused(things);
      const std::uint32_t before_section =
          __shfl_sync(kAllLanes, upto - things, begun == 0 ? 0 : width_of_bits(begun) - 1);
      const std::uint32_t end = begun == 0 ? carry + upto : upto - before_section;
      outside |= is_list && end > n;
      if (__any_sync(kAllLanes, outside)) return false;
      if (is_list) room_.things[i] = static_cast<std::uint16_t>(end - 1);
      carry = __shfl_sync(kAllLanes, end, 31);
    }
    return true;
  }

  // ---- differences beyond 1 ----
  __device__ bool read_large(const ParseHead& head) {
    std::uint32_t tail_at = 32 * tails_word_;
    for (unsigned left = head.large; left != 0; left &= left - 1) {
      const std::uint32_t c = lowest_bit(left);
      const auto of_class = [&](std::uint32_t v) { return __shfl_sync(kAllLanes, v, c); };
      const std::uint32_t num_large = of_class(head.num_large), k = of_class(head.k),
                          num_listed = of_class(large_.num_listed), start = of_class(change_start_);
      const std::uint32_t first_listed = of_class(code_start_ + changed_.num_listed);
      const bool inverted = of_class(large_.inverted ? 1 : 0) != 0;
      const std::uint16_t *listed = room_.things + first_listed, *lengths = listed + num_listed;
      for (unsigned first = 0; first < num_large; first += 32) {
        const std::uint32_t i = first + lane_id();
        const bool valid = i < num_large;
        const std::uint32_t num_tail = valid ? lengths[i] + k : 0;
        const std::uint32_t end = tail_at + warp_inclusive_sum_fused(num_tail);
        tail_at = __shfl_sync(kAllLanes, end, 31);
        if (tail_at > 32 * num_words_) return false;
        if (valid) {
          const std::uint32_t code = bits_at(end - num_tail, num_tail) | 1u << num_tail;
          const std::uint32_t at = inverted ? i + listed_before(listed, num_listed, i) : listed[i];
          room_.magnitudes[start + at] = static_cast<std::uint16_t>(code - (1u << k) + 2);
        }
      }
    }
    return (tail_at + 31) / 32 == num_words_;
  }

  Room& room_;
  const std::uint32_t num_words_;
  Subset changed_, large_;  // lane c: of class c
  std::uint32_t change_start_ = 0, code_start_ = 0;
  std::uint32_t num_codes_ = 0, num_sections_ = 0, unary_word_ = 0, tails_word_ = 0;
};

}  // namespace snug::cuda::deltas
