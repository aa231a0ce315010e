// One block to one payload: find the changes, plan the sizes, write the bits.
#include <cstring>

#include "delta/bit_io.h"
#include "delta/delta_block.h"

namespace snug::delta {
namespace {

// The codes of one class: what is listed, and the bits that takes.
struct ClassPlan {
  std::uint32_t start = 0, count = 0;  // its part of ranks and differences
  Subset changed = {}, large = {};
  std::uint32_t num_large = 0;
  std::uint32_t first_gap = 0, first_large_gap = 0, first_large = 0;  // parts of scratch arrays
  int golomb_k = 0;
};

struct BlockPlan {
  ClassPlan classes[kNumClasses];
  std::uint64_t fixed_bits = 0, unary_bits = 0, tail_bits = 0;
  std::uint32_t num_gaps = 0, num_large_gaps = 0, num_large = 0;  // used of scratch arrays
  std::uint8_t changed_classes = 0, large_classes = 0;
  int class_top = 0;

  std::size_t head_bytes() const noexcept {
    const auto count = [](unsigned mask) { return static_cast<std::size_t>(std::popcount(mask)); };
    return align4(4 + 2 * count(changed_classes) + 3 * count(large_classes));
  }
  static std::size_t word_bytes(std::uint64_t bits) noexcept {
    return static_cast<std::size_t>((bits + 31) / 32) * 4;
  }
  std::size_t payload_bytes() const noexcept {
    return head_bytes() + word_bytes(fixed_bits) + word_bytes(unary_bits) + word_bytes(tail_bits);
  }
};

template <class U>
int choose_class_top(const std::uint8_t* base, std::size_t n, const ClassRule& rule) {
  std::uint64_t sum = 0;
  const auto add = [&](std::size_t first, std::size_t count) {
    for (std::size_t i = first; i < first + count; ++i) {
      U value;
      std::memcpy(&value, base + i * sizeof(U), sizeof(U));
      sum += rule.key(value);
    }
  };
  std::size_t num_sampled = n;
  if (n <= kSampleRuns * kSampleRun) {
    add(0, n);
  } else {
    num_sampled = kSampleRuns * kSampleRun;
    for (std::size_t run = 0; run < kSampleRuns; ++run) add(sample_start(run, n), kSampleRun);
  }
  return static_cast<int>((2 * sum + num_sampled) / (2 * num_sampled));
}

// Gaps of a subset of n things whose members are `members`, or of the rest. Returns the
// sum of what the unary parts count.
std::uint64_t list_gaps(const std::uint16_t* members, std::uint32_t num_members, std::uint32_t n,
                        const Subset& subset, std::uint16_t* gaps) {
  std::uint64_t zeros = 0;
  std::uint32_t num_gaps = 0, next = 0;  // the first thing after the last listed one
  if (!subset.inverted) {
    for (std::uint32_t i = 0; i < num_members; ++i) {
      const std::uint32_t gap = members[i] - next;
      gaps[i] = static_cast<std::uint16_t>(gap);
      zeros += gap >> subset.rice_k;
      next = members[i] + 1u;
    }
    return zeros;
  }
  std::uint32_t thing = 0;
  const auto list_until = [&](std::uint32_t end) {
    for (; thing < end; ++thing) {
      const std::uint32_t gap = thing - next;
      gaps[num_gaps++] = static_cast<std::uint16_t>(gap);
      zeros += gap >> subset.rice_k;
      next = thing + 1;
    }
    ++thing;  // `end` is a member
  };
  for (std::uint32_t i = 0; i < num_members; ++i) list_until(members[i]);
  list_until(n);
  return zeros;
}

template <class U>
std::uint64_t magnitude(U difference) {
  const U negated = static_cast<U>(0 - difference);
  return difference >> (8 * sizeof(U) - 1) ? negated : difference;
}

template <class U>
void plan_large(ClassPlan& plan, BlockPlan& block, Scratch& scratch) {
  const U* differences = reinterpret_cast<const U*>(scratch.differences) + plan.start;
  std::uint64_t* values = scratch.large_values + block.num_large;
  std::uint32_t num_ones = 0;
  for (std::uint32_t i = 0; i < plan.count; ++i)
    num_ones += static_cast<U>(differences[i] + 1) <= 2;
  if (num_ones == plan.count) return;
  // The ranks of this class were turned into gaps and are free to be used again.
  std::uint16_t* places = scratch.ranks + plan.start;
  std::uint32_t num_large = 0;
  for (std::uint32_t i = 0; i < plan.count; ++i) {
    const std::uint64_t value = magnitude(differences[i]) - 2;
    values[num_large] = value;
    places[num_large] = static_cast<std::uint16_t>(i);
    num_large += value != ~std::uint64_t{0};  // 1 - 2
  }
  plan.num_large = num_large;
  std::uint32_t sum_of_widths = 0;
  for (std::uint32_t i = 0; i < num_large; ++i)
    sum_of_widths += static_cast<std::uint32_t>(std::bit_width(values[i]));
  plan.golomb_k = golomb_order(sum_of_widths, num_large);
  for (std::uint32_t i = 0; i < num_large; ++i) {
    const std::uint64_t code = values[i] + (std::uint64_t{1} << plan.golomb_k);
    const auto num_tail = static_cast<std::uint64_t>(std::bit_width(code)) - 1;
    block.unary_bits += num_tail - static_cast<std::uint64_t>(plan.golomb_k) + 1;
    block.tail_bits += num_tail;
  }
  plan.first_large = block.num_large;
  block.num_large += num_large;
  plan.large = subset_rule(plan.count, num_large);
  plan.first_large_gap = block.num_large_gaps;
  block.unary_bits += plan.large.num_listed + list_gaps(places, num_large, plan.count, plan.large,
                                                        scratch.large_gaps + plan.first_large_gap);
  block.fixed_bits +=
      std::uint64_t{plan.large.num_listed} * static_cast<unsigned>(plan.large.rice_k);
  block.num_large_gaps += plan.large.num_listed;
}

template <class U>
void plan_class(int c, std::uint32_t class_size, BlockPlan& block, Scratch& scratch) {
  ClassPlan& plan = block.classes[c];
  if (plan.count == 0) return;
  block.changed_classes |= static_cast<std::uint8_t>(1u << c);
  plan.changed = subset_rule(class_size, plan.count);
  plan.first_gap = block.num_gaps;
  block.unary_bits +=
      plan.changed.num_listed + list_gaps(scratch.ranks + plan.start, plan.count, class_size,
                                          plan.changed, scratch.gaps + plan.first_gap);
  block.fixed_bits +=
      std::uint64_t{plan.changed.num_listed} * static_cast<unsigned>(plan.changed.rice_k) +
      plan.count;
  block.num_gaps += plan.changed.num_listed;
  plan_large<U>(plan, block, scratch);
  if (plan.num_large > 0) block.large_classes |= static_cast<std::uint8_t>(1u << c);
}

void write_gaps(const std::uint16_t* gaps, const Subset& subset, BitWriter& fixed,
                BitWriter& unary) {
  const auto k = static_cast<unsigned>(subset.rice_k);
  const std::uint32_t low = (1u << k) - 1;
  for (std::uint32_t i = 0; i < subset.num_listed; ++i) {
    fixed.put(gaps[i] & low, k);
    unary.put_unary(gaps[i] >> k);
  }
}

template <class U>
void write_class(const ClassPlan& plan, const Scratch& scratch, BitWriter& fixed, BitWriter& unary,
                 BitWriter& tails) {
  write_gaps(scratch.gaps + plan.first_gap, plan.changed, fixed, unary);
  const U* differences = reinterpret_cast<const U*>(scratch.differences) + plan.start;
  for (std::uint32_t i = 0; i < plan.count; ++i)
    fixed.put(static_cast<std::uint64_t>(differences[i] >> (8 * sizeof(U) - 1)), 1);
  if (plan.num_large == 0) return;
  write_gaps(scratch.large_gaps + plan.first_large_gap, plan.large, fixed, unary);
  const auto k = static_cast<unsigned>(plan.golomb_k);
  for (std::uint32_t i = 0; i < plan.num_large; ++i) {
    const std::uint64_t code = scratch.large_values[plan.first_large + i] + (std::uint64_t{1} << k);
    const auto num_tail = static_cast<unsigned>(std::bit_width(code)) - 1;
    unary.put_unary(num_tail - k);
    tails.put_long(code ^ std::uint64_t{1} << num_tail, num_tail);
  }
}

void write_head(const BlockPlan& plan, std::uint8_t* dst) {
  std::memset(dst, 0, plan.head_bytes());
  dst[0] = static_cast<std::uint8_t>(BlockMode::kSparse);
  dst[1] = static_cast<std::uint8_t>(plan.class_top);
  dst[2] = plan.changed_classes;
  dst[3] = plan.large_classes;
  dst += 4;
  const auto put16 = [&](std::uint32_t value) {
    dst[0] = static_cast<std::uint8_t>(value);
    dst[1] = static_cast<std::uint8_t>(value >> 8);
    dst += 2;
  };
  for (const ClassPlan& c : plan.classes)
    if (c.count > 0) put16(c.count - 1);
  for (const ClassPlan& c : plan.classes)
    if (c.num_large > 0) put16(c.num_large - 1);
  for (const ClassPlan& c : plan.classes)
    if (c.num_large > 0) *dst++ = static_cast<std::uint8_t>(c.golomb_k);
}

template <class U>
void write_payload(const BlockPlan& plan, Scratch& scratch) {
  write_head(plan, scratch.payload);
  std::uint8_t* at = scratch.payload + plan.head_bytes();
  BitWriter fixed(at);
  at += BlockPlan::word_bytes(plan.fixed_bits);
  BitWriter unary(at);
  BitWriter tails(at + BlockPlan::word_bytes(plan.unary_bits));
  for (const ClassPlan& c : plan.classes)
    if (c.count > 0) write_class<U>(c, scratch, fixed, unary, tails);
  fixed.finish();
  unary.finish();
  tails.finish();
}

std::size_t write_raw(const std::uint8_t* next, std::size_t num_bytes, std::uint8_t* dst) {
  std::memset(dst, 0, 4);
  dst[0] = static_cast<std::uint8_t>(BlockMode::kRaw);
  std::memcpy(dst + 4, next, num_bytes);
  std::memset(dst + 4 + num_bytes, 0, align4(num_bytes) - num_bytes);
  return 4 + align4(num_bytes);
}

template <class U>
BlockResult encode_width(const std::uint8_t* base, const std::uint8_t* next, std::size_t n,
                         DType dtype, Scratch& scratch) {
  BlockPlan plan;
  plan.class_top = choose_class_top<U>(base, n, class_rule(dtype));
  const Classifier classifier(dtype, plan.class_top);
  const int width = log2_width(dtype);
  const Kernels& kernel = kernels();
  std::uint32_t sizes[kNumClasses];
  kernel.classify[width](base, next, n, classifier, scratch.groups, scratch.changed);
  kernel.count(scratch.groups, num_groups(n), sizes);
  ChangeLists lists = {{}, {}, scratch.ranks, scratch.differences};
  for (int c = 1; c < kNumClasses; ++c) lists.starts[c] = lists.starts[c - 1] + sizes[c - 1];
  kernel.collect[width](base, next, scratch.groups, scratch.changed, num_groups(n), classifier,
                        lists);
  BlockResult result;
  for (int c = 0; c < kNumClasses; ++c) {
    plan.classes[c].start = lists.starts[c];
    plan.classes[c].count = lists.counts[c];
    result.num_changed += lists.counts[c];
    plan_class<U>(c, sizes[c], plan, scratch);
  }
  result.num_bytes = plan.payload_bytes();
  if (result.num_bytes < raw_payload_bytes(n, sizeof(U)))
    write_payload<U>(plan, scratch);
  else
    result.num_bytes = write_raw(next, n * sizeof(U), scratch.payload);
  return result;
}

}  // namespace

BlockResult encode_block(const std::uint8_t* base, const std::uint8_t* next, std::size_t num_elems,
                         DType dtype, Scratch& scratch) noexcept {
  if (std::memcmp(base, next, num_elems * elem_bytes(dtype)) == 0) return {};
  return frame::with_width(elem_bytes(dtype), [&](auto zero) {
    return encode_width<decltype(zero)>(base, next, num_elems, dtype, scratch);
  });
}

}  // namespace snug::delta
