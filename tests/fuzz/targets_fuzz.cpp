// Any bytes through every kernel table: all must agree with the scalar one.
#include <cstdint>
#include <cstring>
#include <vector>

#include "codec/entropy/model.h"
#include "codec/kernels.h"
#include "codec/sections.h"
#include "fuzz/fuzz_frame.h"

namespace snug::test {
namespace {

using codec::Kernels;
using codec::kScalarKernels;
using codec::kSlackBytes;
using codec::entropy::EncodeStream;
using codec::entropy::Model;
using codec::entropy::Stream;

using Plane = std::vector<std::uint8_t>;

void histogram_of(const Plane& plane, std::uint32_t (&histogram)[256]) {
  std::memset(histogram, 0, sizeof histogram);
  for (const auto byte : plane) ++histogram[byte];
}

struct Coded {
  Plane words;
  std::uint32_t states[codec::entropy::kLanes];
  bool operator==(const Coded& other) const {
    return words == other.words && std::memcmp(states, other.states, sizeof states) == 0;
  }
};

Coded encode_symbols(const Kernels& table, const Plane& symbols, const Model& model) {
  std::vector<std::uint16_t> room(symbols.size() + kSlackBytes);
  EncodeStream stream{symbols.data(), symbols.size(), &model, room.data() + room.size(), 0, {}};
  table.rans_encode(&stream, 1, {});
  Coded coded;
  coded.words.reserve(2);  // kernels want an address even where there are no words
  coded.words.resize(2 * stream.num_words);
  if (!coded.words.empty())
    std::memcpy(coded.words.data(), stream.words_end - stream.num_words, coded.words.size());
  std::memcpy(coded.states, stream.states, sizeof coded.states);
  return coded;
}

// Symbols there and back on this table, against the scalar one.
void check_stream(const Kernels& table, const Plane& symbols, const Model& model) {
  const Coded coded = encode_symbols(kScalarKernels, symbols, model);
  require(encode_symbols(table, symbols, model) == coded);
  Plane decoded(symbols.size());
  const Stream stream{coded.words.data(), coded.words.size() / 2, coded.states, &model,
                      decoded.data(),     decoded.size()};
  require(table.rans_decode(&stream, 1) == 1 && decoded == symbols);
}

// The input itself as states and words.
void check_hostile(const Kernels& table, const Plane& bytes, const Model& model) {
  if (bytes.size() < 128) return;
  std::uint32_t states[codec::entropy::kLanes];
  std::memcpy(states, bytes.data(), sizeof states);
  Plane words(bytes.begin() + 128, bytes.end());
  words.reserve(2);
  Plane here(512), reference(512);
  const std::size_t num_words = std::min<std::size_t>(words.size() / 2, here.size());
  const Stream a{words.data(), num_words, states, &model, here.data(), here.size()};
  const Stream b{words.data(), num_words, states, &model, reference.data(), reference.size()};
  const unsigned intact = table.rans_decode(&a, 1);
  require(intact == kScalarKernels.rans_decode(&b, 1));
  require(intact == 0 || here == reference);
}

void check_palette(const Kernels& table, const Plane& plane) {
  std::uint32_t histogram[256];
  histogram_of(plane, histogram);
  const auto palette = codec::entropy::make_palette(histogram);
  std::uint8_t lut[256];
  std::memset(lut, palette.size, sizeof lut);
  for (int i = 0; i < palette.size; ++i) lut[palette.values[i]] = static_cast<std::uint8_t>(i);
  const auto escape = static_cast<std::uint8_t>(palette.size);

  const std::size_t n = plane.size();
  Plane nibbles((n + 1) / 2), nibbles_ref((n + 1) / 2), escapes(n + kSlackBytes),
      escapes_ref(n + kSlackBytes);
  const std::size_t count = kScalarKernels.map_palette(plane.data(), n, lut, escape,
                                                       nibbles_ref.data(), escapes_ref.data());
  require(table.map_palette(plane.data(), n, lut, escape, nibbles.data(), escapes.data()) == count);
  escapes.resize(count);
  escapes_ref.resize(count);
  require(nibbles == nibbles_ref && escapes == escapes_ref);
  Plane restored(n);
  require(table.unmap_palette(nibbles.data(), n, palette.values, escape, escapes.data(), count,
                              restored.data()) == count);
  require(restored == plane);

  Model model;
  model.first = palette.table;
  nibbles.resize(codec::padded_symbols(nibbles.size()));
  check_stream(table, nibbles, model);
  check_hostile(table, plane, model);
}

void check_bytes(const Kernels& table, const Plane& plane) {
  std::uint32_t histogram[256];
  histogram_of(plane, histogram);
  Model model;
  std::uint64_t cost;
  codec::entropy::make_byte_model(histogram, model, cost);
  Plane symbols(codec::padded_symbols(plane.size()), codec::swap_nibbles(plane[0]));
  for (std::size_t i = 0; i < plane.size(); ++i) symbols[i] = codec::swap_nibbles(plane[i]);
  check_stream(table, symbols, model);
  check_hostile(table, plane, model);
}

void check_planes(const Kernels& table, const Plane& bytes) {
  const std::size_t n = bytes.size() / 2, whole = bytes.size() / 16 * 16;
  if (n == 0) return;
  require(table.checksum_terms(bytes.data(), whole) ==
          kScalarKernels.checksum_terms(bytes.data(), whole));
  for (const bool rotate : {false, true}) {
    Plane lo(n), hi(n), lo_ref(n), hi_ref(n), merged(2 * n);
    table.split2(bytes.data(), n, rotate, lo.data(), hi.data());
    kScalarKernels.split2(bytes.data(), n, rotate, lo_ref.data(), hi_ref.data());
    table.merge2(lo.data(), hi.data(), n, rotate, merged.data());
    require(lo == lo_ref && hi == hi_ref && std::memcmp(merged.data(), bytes.data(), 2 * n) == 0);
  }
}

void check_fixed(const Kernels& table, const Plane& high) {
  std::uint8_t palette[8] = {}, lut[128];
  std::memset(lut, 7, sizeof lut);
  for (std::size_t i = 0; i < 7; ++i) {
    palette[i] = high[i % high.size()] & 127;
    lut[palette[i]] = static_cast<std::uint8_t>(i);
  }
  const std::size_t n = high.size(), room = n / 3;
  Plane nibbles(codec::fixed_nibble_bytes(n)), nibbles_ref(nibbles.size()), escapes(4 * room),
      escapes_ref(4 * room);
  const std::size_t count =
      kScalarKernels.fixed_pack(high.data(), n, lut, nibbles_ref.data(), escapes_ref.data(), room);
  require(table.fixed_pack(high.data(), n, lut, nibbles.data(), escapes.data(), room) == count);
  require(nibbles == nibbles_ref && escapes == escapes_ref);
  Plane unpacked(n), unpacked_ref(n);
  table.fixed_unpack(nibbles.data(), n, palette, unpacked.data());
  kScalarKernels.fixed_unpack(nibbles.data(), n, palette, unpacked_ref.data());
  require(unpacked == unpacked_ref);
}

}  // namespace
}  // namespace snug::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace snug;
  if (size == 0 || size > 131072) return 0;
  const test::Plane bytes(data, data + size);
  for (const codec::Kernels* table : codec::all_kernels()) {
    if (table == &codec::kScalarKernels && codec::all_kernels().size() > 1) continue;
    test::check_palette(*table, bytes);
    test::check_bytes(*table, bytes);
    test::check_planes(*table, bytes);
    test::check_fixed(*table, bytes);
  }
  return 0;
}
