// One payload back to one block. Every length from outside is checked here before it is
// used; kernels see only lists that fit.
#include <algorithm>
#include <cstring>

#include "delta/bit_io.h"
#include "delta/delta_block.h"

namespace snug::delta {
namespace {

constexpr Status corrupt(const char* what) noexcept { return {Code::kCorrupt, what}; }

// What the head of a payload says, with what follows from it and the base.
struct BlockHead {
  int class_top = 0;
  std::size_t num_bytes = 0;
  std::uint32_t counts[kNumClasses] = {}, large_counts[kNumClasses] = {};
  int golomb_k[kNumClasses] = {};
  Subset changed[kNumClasses] = {}, large[kNumClasses] = {};
  std::uint64_t fixed_bits = 0, num_ones = 0;
};

Status read_head(std::span<const std::uint8_t> payload, DType dtype, BlockHead& head) {
  if (payload.size() < 4) return corrupt("block too short");
  head.class_top = payload[1];
  if (payload[1] > class_rule(dtype).max_key()) return corrupt("class out of range");
  const unsigned changed = payload[2], large = payload[3];
  if (changed == 0 || (large & ~changed) != 0) return corrupt("classes contradict each other");
  const auto count = [](unsigned mask) { return static_cast<std::size_t>(std::popcount(mask)); };
  const std::size_t used = 4 + 2 * count(changed) + 3 * count(large);
  head.num_bytes = align4(used);
  if (payload.size() < head.num_bytes) return corrupt("block ends inside its head");
  const std::uint8_t* at = payload.data() + 4;
  const auto get_counts = [&](unsigned mask, std::uint32_t* to) {
    for (int c = 0; c < kNumClasses; ++c)
      if (mask >> c & 1) {
        to[c] = static_cast<std::uint32_t>(at[0] | at[1] << 8) + 1;
        at += 2;
      }
  };
  get_counts(changed, head.counts);
  get_counts(large, head.large_counts);
  for (int c = 0; c < kNumClasses; ++c)
    if (large >> c & 1) head.golomb_k[c] = *at++;
  for (; at != payload.data() + head.num_bytes; ++at)
    if (*at != 0) return corrupt("reserved byte is not zero");
  return {};
}

Status check_head(const std::uint32_t (&sizes)[kNumClasses], std::size_t width, BlockHead& head) {
  for (int c = 0; c < kNumClasses; ++c) {
    if (head.counts[c] > sizes[c]) return corrupt("more changes than elements in a class");
    if (head.large_counts[c] > head.counts[c])
      return corrupt("more large changes than changes in a class");
    if (head.golomb_k[c] >= static_cast<int>(8 * width)) return corrupt("order of codes too high");
    if (head.counts[c] == 0) continue;
    head.changed[c] = subset_rule(sizes[c], head.counts[c]);
    if (head.large_counts[c] > 0) head.large[c] = subset_rule(head.counts[c], head.large_counts[c]);
    const auto low_bits = [](const Subset& s) {
      return std::uint64_t{s.num_listed} * static_cast<unsigned>(s.rice_k);
    };
    head.fixed_bits += low_bits(head.changed[c]) + head.counts[c] + low_bits(head.large[c]);
    head.num_ones +=
        std::uint64_t{head.changed[c].num_listed} + head.large[c].num_listed + head.large_counts[c];
  }
  return {};
}

// Words from `at` on that hold exactly `num_ones` ones; false if no number of words does.
bool unary_words(std::span<const std::uint8_t> bytes, std::uint64_t num_ones,
                 std::size_t& num_words) {
  std::uint64_t seen = 0;
  for (num_words = 0; seen < num_ones; ++num_words) {
    if (num_words * 4 + 4 > bytes.size()) return false;
    std::uint32_t word;
    std::memcpy(&word, bytes.data() + 4 * num_words, 4);
    seen += static_cast<std::uint64_t>(std::popcount(word));
  }
  return seen == num_ones;
}

struct Streams {
  BitReader fixed, unary, tails;
  std::uint64_t num_tail_bits = 0;
};

// Calls list(thing) for each listed thing of a subset of n; false if one is not below n.
template <class List>
bool read_gaps(const Subset& subset, std::uint32_t n, Streams& streams, List list) {
  std::uint64_t next = 0;
  for (std::uint32_t i = 0; i < subset.num_listed; ++i) {
    std::uint64_t high;
    if (!streams.unary.get_unary(high)) return false;
    const std::uint64_t low = streams.fixed.get(static_cast<unsigned>(subset.rice_k));
    const std::uint64_t thing = next + (high << subset.rice_k | low);
    if (thing >= n) return false;
    list(static_cast<std::uint32_t>(thing));
    next = thing + 1;
  }
  return true;
}

// Sets the bits [first, first + count).
void set_bits(std::uint64_t* bits, std::uint32_t first, std::uint32_t count) {
  for (const std::uint32_t end = first + count; first < end;) {
    const std::uint32_t in_word = std::min(64 - first % 64, end - first);
    bits[first / 64] |= (~std::uint64_t{0} >> (64 - in_word)) << first % 64;
    first += in_word;
  }
}

// The changed elements of a class, as bits in class order.
bool read_changed(const Subset& subset, std::uint32_t n, std::uint32_t start, Streams& streams,
                  std::uint64_t* bits) {
  if (subset.inverted) set_bits(bits, start, n);
  return read_gaps(subset, n, streams, [&](std::uint32_t thing) {
    bits[(start + thing) / 64] ^= std::uint64_t{1} << (start + thing) % 64;
  });
}

// The members of a subset, in rising order.
bool read_members(const Subset& subset, std::uint32_t n, Streams& streams, std::uint16_t* members) {
  std::uint32_t num_members = 0, next = 0;
  const auto add_until = [&](std::uint32_t end) {
    for (; next < end; ++next) members[num_members++] = static_cast<std::uint16_t>(next);
  };
  const bool good = read_gaps(subset, n, streams, [&](std::uint32_t thing) {
    if (subset.inverted)
      add_until(thing);
    else
      members[num_members++] = static_cast<std::uint16_t>(thing);
    next = thing + 1;
  });
  if (good && subset.inverted) add_until(n);
  return good;
}

// Differences of one, up or down, a bit each.
template <class U>
void read_signs(std::uint32_t count, BitReader& fixed, U* differences) {
  for (std::uint32_t i = 0; i < count;) {
    const std::uint32_t end = i + std::min<std::uint32_t>(32, count - i);
    for (std::uint64_t signs = fixed.get(end - i); i < end; ++i, signs >>= 1)
      differences[i] = static_cast<U>(1 - 2 * (signs & 1));
  }
}

template <class U>
Status read_class(const BlockHead& head, int c, std::uint32_t class_size, std::uint32_t start,
                  Streams& streams, Scratch& scratch) {
  if (!read_changed(head.changed[c], class_size, start, streams, scratch.change_bits))
    return corrupt("change outside its class");
  U* differences = reinterpret_cast<U*>(scratch.differences) + start;
  read_signs(head.counts[c], streams.fixed, differences);
  if (head.large_counts[c] == 0) return {};
  if (!read_members(head.large[c], head.counts[c], streams, scratch.large_gaps))
    return corrupt("large change that is no change");
  const auto k = static_cast<unsigned>(head.golomb_k[c]);
  for (std::uint32_t i = 0; i < head.large_counts[c]; ++i) {
    std::uint64_t longer;
    if (!streams.unary.get_unary(longer) || longer + k >= 8 * sizeof(U))
      return corrupt("difference too large");
    const auto num_tail = static_cast<unsigned>(longer) + k;
    streams.num_tail_bits += num_tail;
    const std::uint64_t code = streams.tails.get_long(num_tail) | std::uint64_t{1} << num_tail;
    const auto value = static_cast<U>(code - (std::uint64_t{1} << k) + 2);
    U& difference = differences[scratch.large_gaps[i]];
    difference = static_cast<U>(difference == U{1} ? value : 0 - value);
  }
  return {};
}

template <class U>
Status decode_sparse(std::span<const std::uint8_t> payload, const std::uint8_t* base, std::size_t n,
                     DType dtype, std::uint8_t* dst, Scratch& scratch) {
  BlockHead head;
  if (Status s = read_head(payload, dtype, head); !s.ok()) return s;
  const Classifier classifier(dtype, head.class_top);
  const int width = log2_width(dtype);
  const Kernels& kernel = kernels();
  std::uint32_t sizes[kNumClasses];
  kernel.classify[width](base, nullptr, n, classifier, scratch.groups, scratch.changed);
  kernel.count(scratch.groups, num_groups(n), sizes);
  if (Status s = check_head(sizes, sizeof(U), head); !s.ok()) return s;
  const std::size_t fixed_words = static_cast<std::size_t>((head.fixed_bits + 31) / 32);
  const std::size_t words_left = (payload.size() - head.num_bytes) / 4;
  if (fixed_words > words_left) return corrupt("block ends inside its fixed bits");
  const auto rest = payload.subspan(head.num_bytes + 4 * fixed_words);
  std::size_t num_unary_words;
  if (!unary_words(rest, head.num_ones, num_unary_words))
    return corrupt("unary codes do not end where they should");
  const std::size_t num_tail_words = rest.size() / 4 - num_unary_words;
  Streams streams = {BitReader(payload.data() + head.num_bytes, fixed_words),
                     BitReader(rest.data(), num_unary_words),
                     BitReader(rest.data() + 4 * num_unary_words, num_tail_words)};
  std::memset(scratch.change_bits, 0, (num_groups(n) + 2) * 8);
  ChangeBits changes = {{}, scratch.change_bits, scratch.differences};
  std::uint32_t start = 0;
  for (int c = 0; c < kNumClasses; ++c) {
    changes.starts[c] = start;
    if (head.counts[c] > 0)
      if (Status s = read_class<U>(head, c, sizes[c], start, streams, scratch); !s.ok()) return s;
    start += sizes[c];
  }
  if ((streams.num_tail_bits + 31) / 32 != num_tail_words)
    return corrupt("block does not end with its last code");
  std::memcpy(dst, base, n * sizeof(U));
  kernel.scatter[width](scratch.groups, num_groups(n), classifier, changes, dst);
  return {};
}

Status decode_any(std::span<const std::uint8_t> payload, const std::uint8_t* base, std::size_t n,
                  DType dtype, std::uint8_t* dst, Scratch& scratch) {
  const std::size_t num_bytes = n * elem_bytes(dtype);
  if (payload.empty()) {
    std::memcpy(dst, base, num_bytes);
    return {};
  }
  if (payload[0] == static_cast<std::uint8_t>(BlockMode::kRaw)) {
    if (payload.size() != 4 + align4(num_bytes)) return corrupt("raw block of the wrong size");
    std::memcpy(dst, payload.data() + 4, num_bytes);
    return {};
  }
  if (payload[0] != static_cast<std::uint8_t>(BlockMode::kSparse))
    return corrupt("unknown mode of a block");
  return frame::with_width(elem_bytes(dtype), [&](auto zero) {
    return decode_sparse<decltype(zero)>(payload, base, n, dtype, dst, scratch);
  });
}

}  // namespace

Status decode_block(std::span<const std::uint8_t> payload, std::uint64_t block_idx,
                    const std::uint8_t* base, std::size_t num_elems, DType dtype, std::uint8_t* dst,
                    Scratch& scratch) noexcept {
  Status status = decode_any(payload, base, num_elems, dtype, dst, scratch);
  if (!status.ok()) status.block = block_idx;
  return status;
}

}  // namespace snug::delta
