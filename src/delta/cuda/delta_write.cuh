// delta/cuda/delta_write.cuh - one warp writes the changes of a block to its payload, the same
// bytes as delta_encode_block.cpp. It writes the unary codes of all classes and lists in one pass,
// 32 at a time.
#pragma once
#include "delta/cuda/delta_find.cuh"

namespace snug::cuda::deltas {

// Lane c: the plan of class c.
struct ClassPlan {
  std::uint32_t start, size, count, num_large, golomb_k;
  Subset changed, large;
  std::uint32_t fixed_at;  // bit of the payload

  __device__ std::uint32_t signs_at() const {
    return fixed_at + changed.num_listed * static_cast<std::uint32_t>(changed.rice_k);
  }
};

template <unsigned kWidth, class Room>
class PayloadWriter {
 public:
  __device__ PayloadWriter(const Found& found, const Room& room)
      : found_(found), room_(room), bits_{room.payload, 32 * (room.payload_words - 1)} {}

  // Returns the payload's size in words. The payload is complete if that is below
  // room.payload_words.
  __device__ std::uint32_t run() {
    make_plan();
    clear_payload();
    write_head();
    sort_changes();
    list_unchanged();
    const std::uint32_t num_codes = make_sections();
    __syncwarp();
    const std::uint32_t unary_at = 32 * (head_words_ + fixed_words_);
    const std::uint32_t unary_end = write_codes(num_codes, unary_at);
    const std::uint32_t tails_at = (unary_end + 31) / 32 * 32;
    return (write_tails(tails_at) + 31) / 32;
  }

 private:
  // ---- sizes ----
  __device__ void make_plan() {
    const std::uint32_t c = lane_id();
    plan_ = {};
    if (c < kNumClasses) {
      plan_.size = found_.size;
      plan_.count = room_.table->counts[c];
      plan_.num_large = room_.table->num_large[c];
    }
    if (plan_.count > 0) plan_.changed = delta::subset_rule(plan_.size, plan_.count);
    if (plan_.num_large > 0) {
      plan_.large = delta::subset_rule(plan_.count, plan_.num_large);
      plan_.golomb_k = static_cast<std::uint32_t>(
          delta::golomb_order(room_.table->sum_of_widths[c], plan_.num_large));
    }
    plan_.start = prefix_of_classes(plan_.count);
    changed_classes_ = __ballot_sync(kAllLanes, plan_.count > 0);
    large_classes_ = __ballot_sync(kAllLanes, plan_.num_large > 0);
    head_words_ = (4 + 2 * count_bits(changed_classes_) + 3 * count_bits(large_classes_) + 3) / 4;
    const std::uint32_t fixed_bits =
        plan_.changed.num_listed * static_cast<std::uint32_t>(plan_.changed.rice_k) + plan_.count +
        plan_.large.num_listed * static_cast<std::uint32_t>(plan_.large.rice_k);
    plan_.fixed_at = 32 * head_words_ + prefix_of_classes(fixed_bits);
    const std::uint32_t fixed_end =
        __shfl_sync(kAllLanes, plan_.fixed_at + fixed_bits, kNumClasses - 1);
    fixed_words_ = (fixed_end + 31) / 32 - head_words_;
  }

  __device__ void clear_payload() const {
    for (unsigned i = lane_id(); i < room_.payload_words; i += 32) room_.payload[i] = 0;
    __syncwarp();
  }

  // A lane for each class.
  __device__ void write_head() const {
    const std::uint32_t num_classes = count_bits(changed_classes_),
                        num_large = count_bits(large_classes_);
    const std::uint32_t nth_large = count_bits(large_classes_ & lanes_below());
    if (plan_.count > 0)
      bits_.put(32 + 16 * count_bits(changed_classes_ & lanes_below()), plan_.count - 1, 16);
    if (plan_.num_large > 0) {
      bits_.put(32 + 16 * (num_classes + nth_large), plan_.num_large - 1, 16);
      bits_.put(32 + 16 * (num_classes + num_large) + 8 * nth_large, plan_.golomb_k, 8);
    }
    if (lane_id() == 0)
      bits_.put(0,
                static_cast<std::uint32_t>(delta::BlockMode::kSparse) |
                    static_cast<std::uint32_t>(found_.class_top) << 8 | changed_classes_ << 16 |
                    large_classes_ << 24,
                32);
  }

  // ---- changes, sorted by class; stable ----
  // Ranks, signs, and what large changes need. Lane c counts those of class c.
  __device__ void sort_changes() const {
    struct {
      std::uint32_t ranks, signs, magnitudes, places;  // of the next one
    } next = {room_.ranks_at() + plan_.start, plan_.signs_at(), room_.large_at() + plan_.start,
              room_.large_at() + plan_.start + plan_.num_large};
    const std::uint32_t inverted = __ballot_sync(kAllLanes, plan_.large.inverted);
    for (unsigned first = 0; first < found_.num_changed; first += 32) {
      const std::uint32_t i = first + lane_id();
      const bool valid = i < found_.num_changed;
      const std::uint32_t change = valid ? room_.list[i] : 1u << 16;
      const std::uint32_t c = valid ? room_.class_of(i, change) : 0;
      const LaneClasses classes(valid, c);
      const std::uint32_t peers = classes.of(c) & lanes_below(), own = classes.of(lane_id());
      const std::uint32_t nth = count_bits(peers), start = of_class(plan_.start, c);
      const std::uint32_t rank_at = of_class(next.ranks, c) + nth,
                          sign_at = of_class(next.signs, c) + nth;
      const std::uint32_t difference = change >> 16;
      if (valid) room_.halves()[rank_at] = static_cast<std::uint16_t>(room_.rank_of(change));
      if (difference >> (8 * kWidth - 1)) bits_.put_one(sign_at);
      next.ranks += count_bits(own);
      next.signs += count_bits(own);
      if (large_classes_ == 0) continue;
      const std::uint32_t m = magnitude_of<kWidth>(difference);
      const bool listed = valid && (large_classes_ >> c & 1) && (m > 1) != (inverted >> c & 1);
      const std::uint32_t all_large = __ballot_sync(kAllLanes, m > 1),
                          all_listed = __ballot_sync(kAllLanes, listed);
      const std::uint32_t magnitude_at =
                              of_class(next.magnitudes, c) + count_bits(peers & all_large),
                          place_at = of_class(next.places, c) + count_bits(peers & all_listed);
      if (m > 1) room_.halves()[magnitude_at] = static_cast<std::uint16_t>(m);
      if (listed)
        room_.halves()[place_at] = static_cast<std::uint16_t>(rank_at - room_.ranks_at() - start);
      next.magnitudes += count_bits(own & all_large);
      next.places += count_bits(own & all_listed);
    }
    __syncwarp();
  }

  // The lanes that have a change of a class.
  struct LaneClasses {
    std::uint32_t valid, bit0, bit1, bit2;

    __device__ __forceinline__ LaneClasses(bool is_valid, std::uint32_t c)
        : valid(__ballot_sync(kAllLanes, is_valid)),
          bit0(__ballot_sync(kAllLanes, c & 1)),
          bit1(__ballot_sync(kAllLanes, c & 2)),
          bit2(__ballot_sync(kAllLanes, c & 4)) {}
    __device__ __forceinline__ std::uint32_t of(std::uint32_t c) const {
      return valid & (bit0 ^ ((c & 1) - 1)) & (bit1 ^ ((c >> 1 & 1) - 1)) &
             (bit2 ^ ((c >> 2 & 1) - 1));
    }
  };

  // If most elements of a class changed, its subset lists the others.
  __device__ void list_unchanged() const {
    const std::uint32_t all = __ballot_sync(kAllLanes, plan_.changed.inverted);
    for (unsigned left = all; left != 0; left &= left - 1) {
      const std::uint32_t c = lowest_bit(left);
      const std::uint32_t start = of_class(plan_.start, c), count = of_class(plan_.count, c),
                          size = of_class(plan_.size, c);
      const std::uint16_t* changed = room_.halves() + room_.ranks_at() + start;
      std::uint16_t* others = room_.halves() + start;
      for (unsigned i = lane_id(); i <= count; i += 32) {  // those between changes i - 1 and i
        const std::uint32_t begin = i == 0 ? 0 : changed[i - 1] + 1u,
                            end = i == count ? size : changed[i];
#pragma unroll 1  // most are short
        for (unsigned rank = begin; rank < end; ++rank)
          others[rank - i] = static_cast<std::uint16_t>(rank);
      }
    }
  }

  // ---- codes ----
  // Returns their number.
  __device__ std::uint32_t make_sections() {
    const std::uint32_t changed = plan_.changed.num_listed, large = plan_.large.num_listed;
    const std::uint32_t num_sections = (changed > 0) + (large > 0) + (plan_.num_large > 0);
    const std::uint32_t num_codes = changed + large + plan_.num_large;
    std::uint32_t start = prefix_of_classes(num_codes), nth = prefix_of_classes(num_sections);
    const std::uint32_t all_codes = __shfl_sync(kAllLanes, start + num_codes, kNumClasses - 1);
    num_sections_ = __shfl_sync(kAllLanes, nth + num_sections, kNumClasses - 1);
    Section* sections = room_.table->sections;
    const auto add = [&](std::uint32_t count, std::uint32_t list, std::uint32_t fixed_at,
                         std::uint32_t k) {
      if (count == 0) return;
      sections[nth++] = {start, list, fixed_at, k};
      start += count;
    };
    add(changed, plan_.start + (plan_.changed.inverted ? 0 : room_.ranks_at()), plan_.fixed_at,
        static_cast<std::uint32_t>(plan_.changed.rice_k));
    add(large, room_.large_at() + plan_.start + plan_.num_large, plan_.signs_at() + plan_.count,
        static_cast<std::uint32_t>(plan_.large.rice_k));
    add(plan_.num_large, room_.large_at() + plan_.start, 0, plan_.golomb_k | Section::kLengths);
    return all_codes;
  }

  // Returns where the unary stream ends.
  __device__ std::uint32_t write_codes(std::uint32_t num_codes, std::uint32_t unary_at) const {
    const Section* sections = room_.table->sections;
    const std::uint16_t* lists = room_.halves();
    const std::uint32_t own_start = lane_id() < num_sections_ ? sections[lane_id()].start : ~0u;
    std::uint32_t num_begun = 0;  // sections
    for (unsigned first = 0; first < num_codes; first += 32) {
      const std::uint32_t i = first + lane_id();
      const bool valid = i < num_codes;
      const std::uint32_t starts =
          __reduce_or_sync(kAllLanes, own_start - first < 32 ? 1u << (own_start - first) : 0);
      const std::uint32_t nth = num_begun + count_bits(starts & (lanes_below() << 1 | 1)) - 1;
      num_begun += count_bits(starts);
      const uint4 packed = reinterpret_cast<const uint4*>(sections)[nth];
      const Section section = {packed.x, packed.y, packed.z, packed.w};
      const std::uint32_t nth_in = i - section.start, k = section.k & 0xFF;
      const std::uint16_t* at = lists + section.list + nth_in;
      std::uint32_t zeros = 0, low = 0;
      if (valid && section.k & Section::kLengths) {
        zeros = tail_length(*at, k) - k;
      } else if (valid) {
        const std::uint32_t gap = *at - (nth_in == 0 ? 0 : at[-1] + 1u);
        zeros = gap >> k;
        low = gap & ((1u << k) - 1);
      }
      const std::uint32_t end = warp_inclusive_sum_fused(valid ? zeros + 1 : 0);
      if (valid) bits_.put_one(unary_at + end - 1);
      bits_.put(section.fixed_at + nth_in * k, low, k);
      unary_at += __shfl_sync(kAllLanes, end, 31);
    }
    return unary_at;
  }

  __device__ __forceinline__ static std::uint32_t tail_length(std::uint32_t magnitude,
                                                              std::uint32_t golomb_k) {
    return width_of_bits(magnitude - 2 + (1u << golomb_k)) - 1;
  }

  // Tails of the large changes of all classes, in turn. Returns where they end.
  __device__ std::uint32_t write_tails(std::uint32_t tails_at) const {
    const std::uint32_t start = prefix_of_classes(plan_.num_large);
    const std::uint32_t num_large =
        __shfl_sync(kAllLanes, start + plan_.num_large, kNumClasses - 1);
    const std::uint32_t list = room_.large_at() + plan_.start - start;
    for (unsigned first = 0; first < num_large; first += 32) {
      const std::uint32_t i = first + lane_id();
      std::uint32_t c = 0;
      for (unsigned left = large_classes_; left != 0; left &= left - 1)
        if (of_class(start, lowest_bit(left)) <= i) c = lowest_bit(left);
      const std::uint32_t k = of_class(plan_.golomb_k, c), at = of_class(list, c) + i;
      const std::uint32_t m = i < num_large ? room_.halves()[at] : 0;
      const std::uint32_t num_tail = m > 0 ? tail_length(m, k) : 0;
      const std::uint32_t end = tails_at + warp_inclusive_sum_fused(num_tail);
      if (m > 0) bits_.put(end - num_tail, (m - 2 + (1u << k)) ^ 1u << num_tail, num_tail);
      tails_at = __shfl_sync(kAllLanes, end, 31);
    }
    return tails_at;
  }

  __device__ __forceinline__ static std::uint32_t of_class(std::uint32_t v, std::uint32_t c) {
    return __shfl_sync(kAllLanes, v, c);
  }

  const Found& found_;
  const Room& room_;
  const BitTarget bits_;
  ClassPlan plan_;
  std::uint32_t changed_classes_ = 0, large_classes_ = 0;
  std::uint32_t head_words_ = 0, fixed_words_ = 0, num_sections_ = 0;
};

}  // namespace snug::cuda::deltas
