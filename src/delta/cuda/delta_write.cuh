// delta/cuda/delta_write.cuh - the changes of one block to its payload, by one warp,
// the bytes of delta_encode_block.cpp. All codes of the unary stream are
// written in one pass, 32 at a time, whatever class and list they are of.
#pragma once
#include "delta/cuda/delta_find.cuh"

namespace snug::cuda::deltas {

// Lane c: the plan of class c.
struct ClassPlan {
  u32 start, size, count, num_large, golomb_k;
  Subset changed, large;
  u32 fixed_at;  // bit of the payload

  __device__ u32 signs_at() const {
    return fixed_at + changed.num_listed * static_cast<u32>(changed.rice_k);
  }
};

template <u32 kWidth, class Room>
class PayloadWriter {
 public:
  __device__ PayloadWriter(const Found& found, const Room& room)
      : found_(found), room_(room), bits_{room.payload, 32 * (room.payload_words - 1)} {}

  // Returns the payload's size in words. If that is not below
  // room.payload_words, the payload is not complete.
  __device__ u32 run() {
    make_plan();
    clear_payload();
    write_head();
    sort_changes();
    list_unchanged();
    const u32 num_codes = make_sections();
    __syncwarp();
    const u32 unary_at = 32 * (head_words_ + fixed_words_);
    const u32 unary_end = write_codes(num_codes, unary_at);
    const u32 tails_at = (unary_end + 31) / 32 * 32;
    return (write_tails(tails_at) + 31) / 32;
  }

 private:
  // ---- sizes ----
  __device__ void make_plan() {
    const u32 c = lane();
    plan_ = {};
    if (c < kNumClasses) {
      plan_.size = found_.size;
      plan_.count = room_.table->counts[c];
      plan_.num_large = room_.table->num_large[c];
    }
    if (plan_.count > 0) plan_.changed = delta::subset_rule(plan_.size, plan_.count);
    if (plan_.num_large > 0) {
      plan_.large = delta::subset_rule(plan_.count, plan_.num_large);
      plan_.golomb_k =
          static_cast<u32>(delta::golomb_order(room_.table->sum_of_widths[c], plan_.num_large));
    }
    plan_.start = prefix_of_classes(plan_.count);
    changed_classes_ = __ballot_sync(kFullMask, plan_.count > 0);
    large_classes_ = __ballot_sync(kFullMask, plan_.num_large > 0);
    head_words_ = (4 + 2 * count_bits(changed_classes_) + 3 * count_bits(large_classes_) + 3) / 4;
    const u32 fixed_bits = plan_.changed.num_listed * static_cast<u32>(plan_.changed.rice_k) +
                           plan_.count +
                           plan_.large.num_listed * static_cast<u32>(plan_.large.rice_k);
    plan_.fixed_at = 32 * head_words_ + prefix_of_classes(fixed_bits);
    const u32 fixed_end = __shfl_sync(kFullMask, plan_.fixed_at + fixed_bits, kNumClasses - 1);
    fixed_words_ = (fixed_end + 31) / 32 - head_words_;
  }

  __device__ void clear_payload() const {
    for (u32 i = lane(); i < room_.payload_words; i += 32) room_.payload[i] = 0;
    __syncwarp();
  }

  // One lane a class.
  __device__ void write_head() const {
    const u32 num_classes = count_bits(changed_classes_), num_large = count_bits(large_classes_);
    const u32 nth_large = count_bits(large_classes_ & lanes_below());
    if (plan_.count > 0)
      bits_.put(32 + 16 * count_bits(changed_classes_ & lanes_below()), plan_.count - 1, 16);
    if (plan_.num_large > 0) {
      bits_.put(32 + 16 * (num_classes + nth_large), plan_.num_large - 1, 16);
      bits_.put(32 + 16 * (num_classes + num_large) + 8 * nth_large, plan_.golomb_k, 8);
    }
    if (lane() == 0)
      bits_.put(0,
                static_cast<u32>(delta::BlockMode::kSparse) |
                    static_cast<u32>(found_.class_top) << 8 | changed_classes_ << 16 |
                    large_classes_ << 24,
                32);
  }

  // ---- changes by class, in their order otherwise ----
  // Ranks, signs, and what large changes need. Lane c counts what class c has
  // so far.
  __device__ void sort_changes() const {
    struct {
      u32 ranks, signs, magnitudes, places;  // where the next one goes
    } next = {room_.ranks_at() + plan_.start, plan_.signs_at(), room_.large_at() + plan_.start,
              room_.large_at() + plan_.start + plan_.num_large};
    const u32 inverted = __ballot_sync(kFullMask, plan_.large.inverted);
    for (u32 first = 0; first < found_.num_changed; first += 32) {
      const u32 i = first + lane();
      const bool valid = i < found_.num_changed;
      const u32 change = valid ? room_.list[i] : 1u << 16;
      const u32 c = valid ? room_.class_of(i, change) : 0;
      const LaneClasses classes(valid, c);
      const u32 peers = classes.of(c) & lanes_below(), own = classes.of(lane());
      const u32 nth = count_bits(peers), start = of_class(plan_.start, c);
      const u32 rank_at = of_class(next.ranks, c) + nth, sign_at = of_class(next.signs, c) + nth;
      const u32 difference = change >> 16;
      if (valid) room_.halves()[rank_at] = static_cast<u16>(room_.rank_of(change));
      if (difference >> (8 * kWidth - 1)) bits_.put_one(sign_at);
      next.ranks += count_bits(own);
      next.signs += count_bits(own);
      if (large_classes_ == 0) continue;
      const u32 m = magnitude_of<kWidth>(difference);
      const bool listed = valid && (large_classes_ >> c & 1) && (m > 1) != (inverted >> c & 1);
      const u32 all_large = __ballot_sync(kFullMask, m > 1),
                all_listed = __ballot_sync(kFullMask, listed);
      const u32 magnitude_at = of_class(next.magnitudes, c) + count_bits(peers & all_large),
                place_at = of_class(next.places, c) + count_bits(peers & all_listed);
      if (m > 1) room_.halves()[magnitude_at] = static_cast<u16>(m);
      if (listed) room_.halves()[place_at] = static_cast<u16>(rank_at - room_.ranks_at() - start);
      next.magnitudes += count_bits(own & all_large);
      next.places += count_bits(own & all_listed);
    }
    __syncwarp();
  }

  // Which lanes have a change of which class.
  struct LaneClasses {
    u32 valid, bit0, bit1, bit2;

    __device__ __forceinline__ LaneClasses(bool is_valid, u32 c)
        : valid(__ballot_sync(kFullMask, is_valid)),
          bit0(__ballot_sync(kFullMask, c & 1)),
          bit1(__ballot_sync(kFullMask, c & 2)),
          bit2(__ballot_sync(kFullMask, c & 4)) {}
    __device__ __forceinline__ u32 of(u32 c) const {
      return valid & (bit0 ^ ((c & 1) - 1)) & (bit1 ^ ((c >> 1 & 1) - 1)) &
             (bit2 ^ ((c >> 2 & 1) - 1));
    }
  };

  // Where most elements of a class changed, its subset lists the others.
  __device__ void list_unchanged() const {
    const u32 all = __ballot_sync(kFullMask, plan_.changed.inverted);
    for (u32 left = all; left != 0; left &= left - 1) {
      const u32 c = lowest_bit(left);
      const u32 start = of_class(plan_.start, c), count = of_class(plan_.count, c),
                size = of_class(plan_.size, c);
      const u16* changed = room_.halves() + room_.ranks_at() + start;
      u16* others = room_.halves() + start;
      for (u32 i = lane(); i <= count; i += 32) {  // those between changes i - 1 and i
        const u32 begin = i == 0 ? 0 : changed[i - 1] + 1u, end = i == count ? size : changed[i];
#pragma unroll 1  // most are short
        for (u32 rank = begin; rank < end; ++rank) others[rank - i] = static_cast<u16>(rank);
      }
    }
  }

  // ---- codes ----
  // Returns their number.
  __device__ u32 make_sections() {
    const u32 changed = plan_.changed.num_listed, large = plan_.large.num_listed;
    const u32 num_sections = (changed > 0) + (large > 0) + (plan_.num_large > 0);
    const u32 num_codes = changed + large + plan_.num_large;
    u32 start = prefix_of_classes(num_codes), nth = prefix_of_classes(num_sections);
    const u32 all_codes = __shfl_sync(kFullMask, start + num_codes, kNumClasses - 1);
    num_sections_ = __shfl_sync(kFullMask, nth + num_sections, kNumClasses - 1);
    Section* sections = room_.table->sections;
    const auto add = [&](u32 count, u32 list, u32 fixed_at, u32 k) {
      if (count == 0) return;
      sections[nth++] = {start, list, fixed_at, k};
      start += count;
    };
    add(changed, plan_.start + (plan_.changed.inverted ? 0 : room_.ranks_at()), plan_.fixed_at,
        static_cast<u32>(plan_.changed.rice_k));
    add(large, room_.large_at() + plan_.start + plan_.num_large, plan_.signs_at() + plan_.count,
        static_cast<u32>(plan_.large.rice_k));
    add(plan_.num_large, room_.large_at() + plan_.start, 0, plan_.golomb_k | Section::kLengths);
    return all_codes;
  }

  // Returns where the unary stream ends.
  __device__ u32 write_codes(u32 num_codes, u32 unary_at) const {
    const Section* sections = room_.table->sections;
    const u16* lists = room_.halves();
    const u32 own_start = lane() < num_sections_ ? sections[lane()].start : ~0u;
    u32 num_begun = 0;  // sections
    for (u32 first = 0; first < num_codes; first += 32) {
      const u32 i = first + lane();
      const bool valid = i < num_codes;
      const u32 starts =
          __reduce_or_sync(kFullMask, own_start - first < 32 ? 1u << (own_start - first) : 0);
      const u32 nth = num_begun + count_bits(starts & (lanes_below() << 1 | 1)) - 1;
      num_begun += count_bits(starts);
      const uint4 packed = reinterpret_cast<const uint4*>(sections)[nth];
      const Section section = {packed.x, packed.y, packed.z, packed.w};
      const u32 nth_in = i - section.start, k = section.k & 0xFF;
      const u16* at = lists + section.list + nth_in;
      u32 zeros = 0, low = 0;
      if (valid && section.k & Section::kLengths) {
        zeros = tail_length(*at, k) - k;
      } else if (valid) {
        const u32 gap = *at - (nth_in == 0 ? 0 : at[-1] + 1u);
        zeros = gap >> k;
        low = gap & ((1u << k) - 1);
      }
      const u32 end = warp_scan(valid ? zeros + 1 : 0);
      if (valid) bits_.put_one(unary_at + end - 1);
      bits_.put(section.fixed_at + nth_in * k, low, k);
      unary_at += __shfl_sync(kFullMask, end, 31);
    }
    return unary_at;
  }

  __device__ __forceinline__ static u32 tail_length(u32 magnitude, u32 golomb_k) {
    return width_of_bits(magnitude - 2 + (1u << golomb_k)) - 1;
  }

  // Returns where the tails end. Large changes of all classes follow each other
  // here.
  __device__ u32 write_tails(u32 tails_at) const {
    const u32 start = prefix_of_classes(plan_.num_large);
    const u32 num_large = __shfl_sync(kFullMask, start + plan_.num_large, kNumClasses - 1);
    const u32 list = room_.large_at() + plan_.start - start;
    for (u32 first = 0; first < num_large; first += 32) {
      const u32 i = first + lane();
      u32 c = 0;
      for (u32 left = large_classes_; left != 0; left &= left - 1)
        if (of_class(start, lowest_bit(left)) <= i) c = lowest_bit(left);
      const u32 k = of_class(plan_.golomb_k, c), at = of_class(list, c) + i;
      const u32 m = i < num_large ? room_.halves()[at] : 0;
      const u32 num_tail = m > 0 ? tail_length(m, k) : 0;
      const u32 end = tails_at + warp_scan(num_tail);
      if (m > 0) bits_.put(end - num_tail, (m - 2 + (1u << k)) ^ 1u << num_tail, num_tail);
      tails_at = __shfl_sync(kFullMask, end, 31);
    }
    return tails_at;
  }

  __device__ __forceinline__ static u32 of_class(u32 v, u32 c) {
    return __shfl_sync(kFullMask, v, c);
  }

  const Found& found_;
  const Room& room_;
  const BitTarget bits_;
  ClassPlan plan_;
  u32 changed_classes_ = 0, large_classes_ = 0;
  u32 head_words_ = 0, fixed_words_ = 0, num_sections_ = 0;
};

}  // namespace snug::cuda::deltas
