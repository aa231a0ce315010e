// Bodies of count, collect and scatter, compiled once for every instruction set: what
// they need of it is popcount and the like. No include guard, no includes:
// the file that compiles them opens a namespace first.

inline void count_classes(const Group* groups, std::size_t num_groups,
                          std::uint32_t (&sizes)[kNumClasses]) {
  std::uint32_t at_least[kNumClasses + 1] = {};
  for (std::size_t g = 0; g < num_groups; ++g)
    for (int c = 0; c < kNumClasses; ++c)
      at_least[c] += static_cast<std::uint32_t>(std::popcount(groups[g].at_least[c]));
  for (int c = 0; c < kNumClasses; ++c) sizes[c] = at_least[c] - at_least[c + 1];
}

// `before` has the elements of each class in earlier groups.
inline void add_group(const Group& group, std::uint32_t (&before)[kNumClasses]) {
  std::uint32_t above = 0;
  for (int c = kNumClasses - 1; c >= 0; --c) {
    const auto at_least = static_cast<std::uint32_t>(std::popcount(group.at_least[c]));
    before[c] += at_least - above;
    above = at_least;
  }
}

template <class U>
void collect_changes(const std::uint8_t* base, const std::uint8_t* next, const Group* groups,
                     const std::uint64_t* changed, std::size_t num_groups,
                     const Classifier& classifier, ChangeLists& lists) {
  auto* differences = static_cast<U*>(lists.differences);
  std::uint32_t before[kNumClasses] = {}, ends[kNumClasses];
  for (int c = 0; c < kNumClasses; ++c) ends[c] = lists.starts[c];
  for (std::size_t g = 0; g < num_groups; ++g) {
    std::uint64_t masks[kNumClasses];
    if (changed[g] != 0)
      for (int c = 0; c < kNumClasses; ++c) masks[c] = groups[g].class_mask(c);
    for (std::uint64_t left = changed[g]; left != 0; left &= left - 1) {
      const std::uint64_t lowest = left & (0 - left);
      const auto i = static_cast<std::size_t>(std::countr_zero(left));
      U from, to;
      std::memcpy(&from, base + (g * kGroupElems + i) * sizeof(U), sizeof(U));
      std::memcpy(&to, next + (g * kGroupElems + i) * sizeof(U), sizeof(U));
      const int c = classifier.class_of(from);
      const std::uint32_t at = ends[c]++;
      lists.ranks[at] = static_cast<std::uint16_t>(
          before[c] + static_cast<std::uint32_t>(std::popcount(masks[c] & (lowest - 1))));
      differences[at] = static_cast<U>(to - from);
    }
    add_group(groups[g], before);
  }
  for (int c = 0; c < kNumClasses; ++c) lists.counts[c] = ends[c] - lists.starts[c];
}

// Bits of `bits` moved, in order, to the places where `mask` has ones.
inline std::uint64_t deposit(std::uint64_t bits, std::uint64_t mask) {
#if defined(HWY_TARGET) && HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  return _pdep_u64(bits, mask);
#else
  std::uint64_t out = 0;
  for (; mask != 0; mask &= mask - 1, bits >>= 1)
    if (bits & 1) out |= mask & (0 - mask);
  return out;
#endif
}

template <class U>
void scatter_changes(const Group* groups, std::size_t num_groups, const Classifier& classifier,
                     const ChangeBits& changes, std::uint8_t* dst) {
  const auto* differences = static_cast<const U*>(changes.differences);
  std::uint32_t at[kNumClasses], next[kNumClasses];  // element in class order, difference
  for (int c = 0; c < kNumClasses; ++c) at[c] = next[c] = changes.starts[c];
  for (std::size_t g = 0; g < num_groups; ++g) {
    std::uint64_t changed = 0;
    for (int c = 0; c < kNumClasses; ++c) {
      const std::uint64_t mask = groups[g].class_mask(c);
      const std::uint64_t* words = changes.bits + at[c] / 64;
      const std::uint32_t shift = at[c] % 64;
      changed |= deposit(words[0] >> shift | words[1] << 1 << (63 - shift), mask);
      at[c] += static_cast<std::uint32_t>(std::popcount(mask));
    }
    for (; changed != 0; changed &= changed - 1) {
      const auto i = static_cast<std::size_t>(std::countr_zero(changed));
      std::uint8_t* to = dst + (g * kGroupElems + i) * sizeof(U);
      U value;
      std::memcpy(&value, to, sizeof value);
      value = static_cast<U>(value + differences[next[classifier.class_of(value)]++]);
      std::memcpy(to, &value, sizeof value);
    }
  }
}
