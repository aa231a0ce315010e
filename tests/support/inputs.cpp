#include "support/inputs.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "codec/sample.h"
#include "support/minifloat.h"

namespace snug::test {
namespace {

// ---- what applies to what --------------------------------------------------
bool any(DType) { return true; }
bool is_integer(DType dtype) {
  return dtype == DType::kI8 || dtype == DType::kI16 || dtype == DType::kI32 ||
         dtype == DType::kI64 || dtype == DType::kBytes;
}
bool is_f32(DType dtype) { return dtype == DType::kF32; }
bool is_f64(DType dtype) { return dtype == DType::kF64; }
bool is_f4(DType dtype) { return dtype == DType::kF4; }
bool is_bool(DType dtype) { return dtype == DType::kBool; }

// ---- building blocks -------------------------------------------------------
int bits_of(DType dtype) { return static_cast<int>(8 * elem_bytes(dtype)); }

int mantissa_bits(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return 7;
    case DType::kF16: return 10;
    case DType::kF32: return 23;
    case DType::kF64: return 52;
    case DType::kF8E4M3: return 3;
    case DType::kF8E5M2: return 2;
    default: return 0;
  }
}
std::uint64_t exponent_mask(DType dtype) {
  const int exponent_bits = bits_of(dtype) - 1 - mantissa_bits(dtype);
  return ((1ull << exponent_bits) - 1) << mantissa_bits(dtype);
}

// Elements from value(i), each an integer whose low bytes are the element.
template <class Value>
Bytes elements(DType dtype, std::size_t n, Value value) {
  const std::size_t width = elem_bytes(dtype);
  Bytes bytes(n * width);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t v = value(i);
    std::memcpy(bytes.data() + i * width, &v, width);
  }
  return bytes;
}

// A plausible weight: floats of deviation 0.02, integers and the rest of 20.
std::uint64_t weight(DType dtype, Prng& prng, double scale = 1) {
  return to_bits(prng.normal() * scale * (has_sign_bit(dtype) ? 0.02 : 20), dtype);
}

std::uint64_t with_exponent(DType dtype, std::uint64_t exponent, Prng& prng) {
  const std::uint64_t mask = exponent_mask(dtype);
  return (prng.next() & ~mask) | (exponent << mantissa_bits(dtype) & mask);
}

// ---- the inputs ------------------------------------------------------------
Bytes all_patterns(DType dtype, std::size_t, Prng&) {
  const int spare = bits_of(dtype) > 16 ? bits_of(dtype) - 16 : 0;
  return elements(dtype, 65536, [&](std::size_t i) { return std::uint64_t{i} << spare; });
}
Bytes all_patterns_shuffled(DType dtype, std::size_t, Prng&) {
  const int spare = bits_of(dtype) > 16 ? bits_of(dtype) - 16 : 0;
  // An odd multiplier permutes the 16-bit numbers.
  return elements(dtype, 65536,
                  [&](std::size_t i) { return std::uint64_t{i * 40503u % 65536} << spare; });
}
Bytes zeros(DType dtype, std::size_t n, Prng&) {
  return elements(dtype, n, [](std::size_t) { return 0; });
}
Bytes constant(DType dtype, std::size_t n, Prng& prng) {
  const std::uint64_t v = prng.next();
  return elements(dtype, n, [&](std::size_t) { return v; });
}
Bytes constant_but_first(DType dtype, std::size_t n, Prng&) {
  return elements(dtype, n, [](std::size_t i) { return i == 0 ? 1 : 0; });
}
Bytes constant_but_last(DType dtype, std::size_t n, Prng&) {
  return elements(dtype, n, [&](std::size_t i) { return i + 1 == n ? ~0ull : 7; });
}
Bytes random_bits(DType dtype, std::size_t n, Prng& prng) {
  return elements(dtype, n, [&](std::size_t) { return prng.next(); });
}
Bytes gaussian(DType dtype, std::size_t n, Prng& prng) {
  return elements(dtype, n, [&](std::size_t) { return weight(dtype, prng); });
}
Bytes two_valued(DType dtype, std::size_t n, Prng& prng) {
  const std::uint64_t a = prng.next(), b = prng.next();
  return elements(dtype, n, [&](std::size_t) { return prng.one_in(3) ? a : b; });
}
Bytes sparse(DType dtype, std::size_t n, Prng& prng) {
  return elements(dtype, n, [&](std::size_t) { return prng.one_in(20) ? weight(dtype, prng) : 0; });
}
Bytes outliers(DType dtype, std::size_t n, Prng& prng) {
  return elements(
      dtype, n, [&](std::size_t) { return prng.one_in(100) ? prng.next() : weight(dtype, prng); });
}
Bytes row_scales(DType dtype, std::size_t n, Prng& prng) {
  double scale = 1;
  return elements(dtype, n, [&](std::size_t i) {
    if (i % 257 == 0) scale = static_cast<double>(1u << prng.below(20)) / 1024;
    return weight(dtype, prng, scale);
  });
}
Bytes half_and_half(DType dtype, std::size_t n, Prng& prng) {
  return elements(dtype, n, [&](std::size_t i) { return i < n / 2 ? 0 : weight(dtype, prng); });
}
// Encoders choose tables from a sample: here the sample sees two calm values and
// everything else is noise, the worst case for escapes.
Bytes hidden_from_sample(DType dtype, std::size_t n, Prng& prng) {
  Bytes bytes = random_bits(dtype, n, prng);
  const std::size_t width = elem_bytes(dtype), block = std::size_t{1} << 14;
  for (std::size_t first = 0; first < n; first += block) {
    const std::size_t count = n - first < block ? n - first : block;
    codec::for_each_sample(count, [&](std::size_t start, std::size_t len, std::size_t) {
      for (std::size_t i = 0; i < len; ++i)
        std::memset(bytes.data() + (first + start + i) * width, prng.one_in(2) ? 0x3C : 0x3D,
                    width);
    });
  }
  return bytes;
}
Bytes nan_payloads(DType dtype, std::size_t n, Prng& prng) {
  return elements(dtype, n, [&](std::size_t) { return with_exponent(dtype, ~0ull, prng); });
}
Bytes denormals(DType dtype, std::size_t n, Prng& prng) {
  return elements(dtype, n, [&](std::size_t) { return with_exponent(dtype, 0, prng); });
}
Bytes signed_zeros(DType dtype, std::size_t n, Prng& prng) {
  return elements(
      dtype, n, [&](std::size_t) { return std::uint64_t{prng.one_in(2)} << (bits_of(dtype) - 1); });
}
// Exactly as many exponents as a palette holds, one fewer, one more, many more.
template <int kExponents>
Bytes exponents(DType dtype, std::size_t n, Prng& prng) {
  return elements(dtype, n, [&](std::size_t) {
    return with_exponent(dtype, 100 + prng.below(kExponents), prng);
  });
}
// Falling counts around 1/1024, where the palette stops.
Bytes geometric_exponents(DType dtype, std::size_t n, Prng& prng) {
  return elements(dtype, n, [&](std::size_t) {
    const auto zeros = static_cast<std::uint64_t>(__builtin_ctzll(prng.next() | 1ull << 40));
    return with_exponent(dtype, 120 - zeros, prng);
  });
}
Bytes f32_holding_bf16(DType, std::size_t n, Prng& prng) {
  return elements(DType::kF32, n, [&](std::size_t) { return weight(DType::kBF16, prng) << 16; });
}
Bytes f32_holding_f16(DType, std::size_t n, Prng& prng) {
  return elements(DType::kF32, n,
                  [&](std::size_t) { return weight(DType::kF32, prng) & ~((1ull << 13) - 1); });
}
Bytes f64_holding_f32(DType, std::size_t n, Prng& prng) {
  return elements(DType::kF64, n,
                  [&](std::size_t) { return weight(DType::kF64, prng) & ~((1ull << 29) - 1); });
}
Bytes f4_packed(DType, std::size_t n, Prng& prng) {
  const auto nibble = [&] { return to_minifloat(prng.normal(), 2, 1); };
  return elements(DType::kF4, n, [&](std::size_t) { return nibble() | nibble() << 4; });
}
Bytes small_integers(DType dtype, std::size_t n, Prng& prng) {
  return elements(dtype, n, [&](std::size_t) { return prng.below(7) - 3; });
}
Bytes ascending(DType dtype, std::size_t n, Prng&) {
  return elements(dtype, n, [](std::size_t i) { return i * 3; });
}
Bytes booleans(DType dtype, std::size_t n, Prng& prng) {
  return elements(dtype, n, [&](std::size_t) { return std::uint64_t{prng.one_in(10)}; });
}

constexpr Input kInputs[] = {
    {"all_patterns", any, all_patterns},
    {"all_patterns_shuffled", any, all_patterns_shuffled},
    {"zeros", any, zeros},
    {"constant", any, constant},
    {"constant_but_first", any, constant_but_first},
    {"constant_but_last", any, constant_but_last},
    {"random_bits", any, random_bits},
    {"gaussian", any, gaussian},
    {"two_valued", any, two_valued},
    {"sparse", any, sparse},
    {"outliers", any, outliers},
    {"row_scales", any, row_scales},
    {"half_and_half", any, half_and_half},
    {"hidden_from_sample", any, hidden_from_sample},
    {"nan_payloads", has_sign_bit, nan_payloads},
    {"denormals", has_sign_bit, denormals},
    {"signed_zeros", has_sign_bit, signed_zeros},
    {"exponents_1", has_exponent_plane, exponents<1>},
    {"exponents_7", has_exponent_plane, exponents<7>},
    {"exponents_14", has_exponent_plane, exponents<14>},
    {"exponents_15", has_exponent_plane, exponents<15>},
    {"exponents_16", has_exponent_plane, exponents<16>},
    {"exponents_17", has_exponent_plane, exponents<17>},
    {"exponents_40", has_exponent_plane, exponents<40>},
    {"geometric_exponents", has_exponent_plane, geometric_exponents},
    {"f32_holding_bf16", is_f32, f32_holding_bf16},
    {"f32_holding_f16", is_f32, f32_holding_f16},
    {"f64_holding_f32", is_f64, f64_holding_f32},
    {"f4_packed", is_f4, f4_packed},
    {"small_integers", is_integer, small_integers},
    {"ascending", is_integer, ascending},
    {"booleans", is_bool, booleans},
};

std::uint64_t hash(const char* text) {
  std::uint64_t h = 0xCBF29CE484222325ull;  // FNV-1a
  for (; *text != '\0'; ++text) h = (h ^ static_cast<unsigned char>(*text)) * 0x100000001B3ull;
  return h;
}

}  // namespace

std::span<const Input> inputs() { return kInputs; }

Bytes make_input(const Input& input, DType dtype, std::size_t num_elems) {
  Prng prng(hash(input.name) ^ static_cast<std::uint64_t>(dtype) << 56 ^ num_elems);
  return input.make(dtype, num_elems, prng);
}

const Input& input_named(const char* name) {
  for (const Input& input : kInputs)
    if (std::strcmp(input.name, name) == 0) return input;
  std::fprintf(stderr, "no test input is named %s\n", name);
  std::abort();
}

std::vector<DType> all_dtypes() {
  std::vector<DType> dtypes;
  for (int i = 0; i < kNumDTypes; ++i) dtypes.push_back(static_cast<DType>(i));
  return dtypes;
}

std::vector<Codec> all_codecs() {
  std::vector<Codec> codecs;
  for (int i = 0; i < kNumCodecs; ++i) codecs.push_back(static_cast<Codec>(i));
  return codecs;
}

}  // namespace snug::test
