#include "support/delta_versions.h"

#include <gtest/gtest.h>

#include <cstring>

#include "support/checks.h"
#include "support/minifloat.h"

namespace snug::test {
namespace {

void add(DType dtype, Bytes& tensor, std::size_t i, std::uint64_t difference) {
  const std::size_t width = elem_bytes(dtype);
  std::uint64_t value = 0;
  std::memcpy(&value, tensor.data() + i * width, width);
  value += difference;
  std::memcpy(tensor.data() + i * width, &value, width);
}

template <class Difference>
void change_some(DType dtype, Bytes& tensor, Prng& prng, std::size_t one_in,
                 Difference difference) {
  for (std::size_t i = 0; i < tensor.size() / elem_bytes(dtype); ++i)
    if (prng.one_in(one_in)) add(dtype, tensor, i, difference());
}

std::uint64_t up_or_down(Prng& prng) { return prng.one_in(2) ? 1 : ~std::uint64_t{0}; }

constexpr Change kChanges[] = {
    {"nothing", [](DType, Bytes&, Prng&) {}},
    {"one_element",
     [](DType dtype, Bytes& tensor, Prng& prng) {
       const std::size_t n = tensor.size() / elem_bytes(dtype);
       if (n > 0) add(dtype, tensor, prng.below(n), 3);
     }},
    {"few_last_bits",
     [](DType dtype, Bytes& tensor, Prng& prng) {
       change_some(dtype, tensor, prng, 40, [&] { return up_or_down(prng); });
     }},
    {"some_small",
     [](DType dtype, Bytes& tensor, Prng& prng) {
       change_some(dtype, tensor, prng, 3, [&] { return up_or_down(prng) * (1 + prng.below(9)); });
     }},
    {"most_last_bits",
     [](DType dtype, Bytes& tensor, Prng& prng) {
       change_some(dtype, tensor, prng, 1, [&] {
         return prng.one_in(30) ? 0 : up_or_down(prng) * (prng.one_in(50) ? 2 : 1);
       });
     }},
    {"all_larger",
     [](DType dtype, Bytes& tensor, Prng& prng) {
       change_some(dtype, tensor, prng, 1, [&] { return 2 + prng.below(3); });
     }},
    {"few_anything",
     [](DType dtype, Bytes& tensor, Prng& prng) {
       change_some(dtype, tensor, prng, 100, [&] { return prng.next(); });
     }},
    {"sign_bits",
     [](DType dtype, Bytes& tensor, Prng& prng) {
       change_some(dtype, tensor, prng, 50,
                   [&] { return std::uint64_t{1} << (8 * elem_bytes(dtype) - 1); });
     }},
    {"everything",
     [](DType, Bytes& tensor, Prng& prng) {
       for (std::byte& b : tensor) b = static_cast<std::byte>(prng.byte());
     }},
};

}  // namespace

std::span<const Change> changes() { return kChanges; }

const Change& change_named(const char* name) {
  for (const Change& change : kChanges)
    if (std::strcmp(change.name, name) == 0) return change;
  ADD_FAILURE() << "no change " << name;
  return kChanges[0];
}

Versions make_versions(const Change& change, DType dtype, std::size_t num_elems,
                       std::size_t num_extra) {
  Versions versions;
  if (num_elems > 0) versions.base = make_input(input_named("gaussian"), dtype, num_elems);
  Prng prng(num_elems * 31 + static_cast<std::size_t>(dtype));
  for (std::size_t i = 0; i < num_extra; ++i)
    versions.base.push_back(static_cast<std::byte>(prng.byte()));
  versions.next = versions.base;
  change.apply(dtype, versions.next, prng);
  if (num_extra > 0) versions.next.back() ^= std::byte{0x41};
  return versions;
}

Versions training_step(std::size_t num_elems, double step, std::uint64_t seed) {
  Prng prng(seed);
  Versions versions{Bytes(num_elems * 2), Bytes(num_elems * 2)};
  for (std::size_t i = 0; i < num_elems; ++i) {
    const double master = prng.normal() * 0.03;
    const auto before = static_cast<std::uint16_t>(to_bits(master, DType::kBF16));
    const auto after =
        static_cast<std::uint16_t>(to_bits(master + (prng.one_in(2) ? step : -step), DType::kBF16));
    std::memcpy(versions.base.data() + 2 * i, &before, 2);
    std::memcpy(versions.next.data() + 2 * i, &after, 2);
  }
  return versions;
}

Bytes encode_delta(const Versions& versions, const delta::Options& options) {
  Bytes delta(delta::encode_bound(versions.next.size(), options));
  const auto num_bytes = delta::encode(view(versions.base), view(versions.next), delta, options);
  EXPECT_TRUE(num_bytes.ok()) << to_string(num_bytes.status());
  delta.resize(num_bytes.ok() ? *num_bytes : 0);
  return delta;
}

}  // namespace snug::test
