// The reference: reads like docs/delta.md.
#include <bit>
#include <cstring>

#include "delta/delta_kernels.h"

namespace snug::delta {
namespace {

#include "delta/delta_lists-inl.h"

std::uint64_t hash_terms(const std::uint8_t* bytes, std::size_t num_bytes,
                         std::uint64_t first_pair) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < num_bytes; at += 8) {
    std::uint32_t pair[2] = {};
    std::memcpy(pair, bytes + at, num_bytes - at < 8 ? num_bytes - at : 8);
    sum += hash_term(pair[0], pair[1], first_pair + at / 8);
  }
  return sum;
}

template <class U>
void classify(const std::uint8_t* base, const std::uint8_t* next, std::size_t n,
              const Classifier& classifier, Group* groups, std::uint64_t* changed) {
  for (std::size_t first = 0; first < n; first += kGroupElems) {
    Group group = {};
    std::uint64_t differ = 0;
    for (std::size_t i = first; i < n && i < first + kGroupElems; ++i) {
      const std::uint64_t bit = std::uint64_t{1} << (i - first);
      U from, to = 0;
      std::memcpy(&from, base + i * sizeof(U), sizeof(U));
      if (next != nullptr) std::memcpy(&to, next + i * sizeof(U), sizeof(U));
      if (to != from) differ |= bit;
      group.at_least[0] |= bit;
      for (int c = 1; c < kNumClasses; ++c)
        if ((from & classifier.rule.key_mask) >= classifier.thresholds[c]) group.at_least[c] |= bit;
    }
    groups[first / kGroupElems] = group;
    if (next != nullptr) changed[first / kGroupElems] = differ;
  }
}

}  // namespace

const Kernels kScalarKernels = {
    .name = "scalar",
    .hash_terms = hash_terms,
    .classify = {classify<std::uint8_t>, classify<std::uint16_t>, classify<std::uint32_t>,
                 classify<std::uint64_t>},
    .count = count_classes,
    .collect = {collect_changes<std::uint8_t>, collect_changes<std::uint16_t>,
                collect_changes<std::uint32_t>, collect_changes<std::uint64_t>},
    .scatter = {scatter_changes<std::uint8_t>, scatter_changes<std::uint16_t>,
                scatter_changes<std::uint32_t>, scatter_changes<std::uint64_t>},
};

}  // namespace snug::delta
