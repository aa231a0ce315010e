// delta/delta_kernels.h - the loops that touch every element, one table per
// instruction set; all give the same result. They neither allocate nor parse.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/target_list.h"
#include "delta/delta_format.h"

namespace snug::delta {

inline constexpr std::size_t kGroupElems = 64;
inline constexpr std::size_t kMaxGroups = kMaxBlockElems / kGroupElems;

// 64 neighbours, one bit each: bit i of at_least[c] says that element i is in class c or
// above. at_least[0] has the elements that exist.
struct Group {
  std::uint64_t at_least[kNumClasses];

  std::uint64_t class_mask(int c) const noexcept {
    return c + 1 < kNumClasses ? at_least[c] & ~at_least[c + 1] : at_least[c];
  }
};

struct Classifier {
  ClassRule rule;
  int first_key;                          // of class 0; may be negative
  std::uint64_t thresholds[kNumClasses];  // [0] is not used

  Classifier(DType dtype, int class_top) noexcept
      : rule(class_rule(dtype)), first_key(class_top - (kNumClasses - 1)), thresholds() {
    for (int c = 1; c < kNumClasses; ++c) thresholds[c] = rule.threshold(class_top, c);
  }
  int class_of(std::uint64_t element) const noexcept {
    const int c = static_cast<int>(rule.key(element)) - first_key;
    return c < 0 ? 0 : c < kNumClasses ? c : kNumClasses - 1;
  }
};

// A block in class order has first the elements of class 0, then those of class 1, and so
// on; class c begins at starts[c].

// Changes by class: those of class c are at starts[c], counts[c] of them.
struct ChangeLists {
  std::uint32_t starts[kNumClasses];
  std::uint32_t counts[kNumClasses];
  std::uint16_t* ranks;  // place among the elements of the class, rising
  void* differences;     // next - base, one unsigned element each
};

// Changes as one bit for each element in class order, readable 128 bits beyond the last,
// and their differences, those of class c at starts[c].
struct ChangeBits {
  std::uint32_t starts[kNumClasses];
  const std::uint64_t* bits;
  const void* differences;
};

// Widths of elements are given as log2: 0 to 3.
struct Kernels {
  const char* name;

  // Sum of hash terms of num_bytes that start at pair first_pair.
  std::uint64_t (*hash_terms)(const std::uint8_t* bytes, std::size_t num_bytes,
                              std::uint64_t first_pair);

  // Fills groups of n elements and, if `next` is not null, one mask of changed elements a group.
  void (*classify[4])(const std::uint8_t* base, const std::uint8_t* next, std::size_t n,
                      const Classifier& classifier, Group* groups, std::uint64_t* changed);

  // Elements of each class.
  void (*count)(const Group* groups, std::size_t num_groups, std::uint32_t (&sizes)[kNumClasses]);

  // Fills lists.ranks, differences and counts from the changed elements.
  void (*collect[4])(const std::uint8_t* base, const std::uint8_t* next, const Group* groups,
                     const std::uint64_t* changed, std::size_t num_groups,
                     const Classifier& classifier, ChangeLists& lists);

  // Adds the differences to the changed elements of dst, which has the base.
  void (*scatter[4])(const Group* groups, std::size_t num_groups, const Classifier& classifier,
                     const ChangeBits& changes, std::uint8_t* dst);
};

extern const Kernels kScalarKernels;
void append_hwy_kernels(codec::TargetList<const Kernels*>& tables) noexcept;  // best first

// The table that goes with codec::kernels(), so that SNUG_FORCE chooses both.
const Kernels& kernels() noexcept;

// All tables this CPU runs, best first; scalar is last.
std::span<const Kernels* const> all_kernels() noexcept;

}  // namespace snug::delta
