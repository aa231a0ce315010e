#include "golden/golden_cases.h"

#include <cstring>
#include <functional>

#include "codec/sections.h"
#include "frame/frame.h"
#include "support/checks.h"
#include "support/reseal.h"

namespace snug::test {
namespace {

// A good frame of one block, to be spoilt.
struct Victim {
  Bytes frame;
  std::size_t payload;  // where the payload starts
  std::size_t section;  // BF16: where what follows the raw low plane starts
};

Victim make_victim(DType dtype, Codec codec, const char* input, std::size_t num_elems) {
  const Bytes raw = make_input(input_named(input), dtype, num_elems);
  Victim victim;
  victim.frame = encode_or_fail(view(raw), {dtype, codec, 12, 1});
  victim.payload = frame::read_header(view(victim.frame))->payload_start();
  victim.section = victim.payload + frame::align_up(num_elems);
  return victim;
}

template <class T>
void put(Bytes& frame, std::size_t at, T value) {
  std::memcpy(frame.data() + at, &value, sizeof value);
}
template <class T>
T get(const Bytes& frame, std::size_t at) {
  T value;
  std::memcpy(&value, frame.data() + at, sizeof value);
  return value;
}

constexpr std::size_t kElems = 300;
constexpr std::size_t kEntryAt = frame::kHeaderBytes;
constexpr std::size_t kSizeAt = kEntryAt + 8;
constexpr std::size_t kCodecAt = kEntryAt + 5;
constexpr std::size_t kModesAt = kEntryAt + 6;

class InvalidSet {
 public:
  // Spoils a copy of the victim and makes its checksums right again.
  void add(const char* what, const Victim& victim,
           const std::function<void(Bytes&, const Victim&)>& spoil) {
    Bytes frame = victim.frame;
    spoil(frame, victim);
    reseal(frame);
    cases_.push_back({Code::kCorrupt, what, frame});
  }
  // Checksums stay as they were.
  void add_unsealed(Code code, const char* what, const Victim& victim,
                    const std::function<void(Bytes&)>& spoil) {
    Bytes frame = victim.frame;
    spoil(frame);
    cases_.push_back({code, what, frame});
  }
  std::vector<GoldenInvalid> take() { return std::move(cases_); }

 private:
  std::vector<GoldenInvalid> cases_;
};

// Gives the only block another size, at its end.
void resize_block(Bytes& frame, std::size_t num_bytes) {
  frame.resize(frame.size() - get<std::uint32_t>(frame, kSizeAt) + num_bytes);
  put(frame, kSizeAt, static_cast<std::uint32_t>(num_bytes));
  put(frame, 16, std::uint64_t{frame.size()});
}
void grow(Bytes& frame) { resize_block(frame, get<std::uint32_t>(frame, kSizeAt) + 16); }

void add_header_cases(InvalidSet& set, const Victim& v) {
  set.add_unsealed(Code::kCorrupt, "empty", v, [](Bytes& f) { f.clear(); });
  set.add_unsealed(Code::kCorrupt, "cut_in_header", v, [](Bytes& f) { f.resize(63); });
  set.add_unsealed(Code::kCorrupt, "cut_in_index", v, [](Bytes& f) { f.resize(72); });
  set.add_unsealed(Code::kCorrupt, "cut_in_payload", v, [](Bytes& f) { f.resize(f.size() - 1); });
  set.add_unsealed(Code::kBadMagic, "magic", v, [](Bytes& f) { f[0] = std::byte{'s'}; });
  set.add_unsealed(Code::kUnsupportedVersion, "version_0", v,
                   [](Bytes& f) { f[4] = std::byte{0}; });
  set.add_unsealed(Code::kUnsupportedVersion, "version_2", v,
                   [](Bytes& f) { f[4] = std::byte{2}; });
  set.add_unsealed(Code::kCorrupt, "head_checksum", v, [](Bytes& f) { f[32] ^= std::byte{1}; });
  set.add_unsealed(Code::kCorrupt, "payload_checksum", v,
                   [](Bytes& f) { f.back() ^= std::byte{1}; });
  set.add_unsealed(Code::kCorrupt, "dtype", v, [](Bytes& f) { f[5] = std::byte{13}; });
  set.add_unsealed(Code::kCorrupt, "block_size_small", v, [](Bytes& f) { f[6] = std::byte{11}; });
  set.add_unsealed(Code::kCorrupt, "block_size_large", v, [](Bytes& f) { f[6] = std::byte{18}; });
  set.add_unsealed(Code::kCorrupt, "tail_length", v, [](Bytes& f) { f[7] = std::byte{2}; });
  set.add_unsealed(Code::kCorrupt, "tail_unused", v, [](Bytes& f) { f[24] = std::byte{1}; });
  set.add_unsealed(Code::kCorrupt, "reserved_first", v, [](Bytes& f) { f[36] = std::byte{1}; });
  set.add_unsealed(Code::kCorrupt, "reserved_last", v, [](Bytes& f) { f[63] = std::byte{0x80}; });
  set.add_unsealed(Code::kCorrupt, "elements_too_many", v,
                   [](Bytes& f) { put(f, 8, (std::uint64_t{1} << 42) + 1); });
  set.add_unsealed(Code::kCorrupt, "frame_size_unaligned", v,
                   [](Bytes& f) { put(f, 16, std::uint64_t{f.size()} + 8); });
  set.add("elements_in_more_blocks", v,
          [](Bytes& f, const Victim&) { put(f, 8, std::uint64_t{5000}); });
  set.add("frame_size_beyond_blocks", v, [](Bytes& f, const Victim&) {
    f.resize(f.size() + 16);
    put(f, 16, std::uint64_t{f.size()});
  });
  set.add("block_offset", v, [](Bytes& f, const Victim&) { put(f, kEntryAt, std::uint8_t{6}); });
  set.add("block_empty", v, [](Bytes& f, const Victim&) { put(f, kSizeAt, std::uint32_t{0}); });
  set.add("block_unaligned", v,
          [](Bytes& f, const Victim&) { put(f, kSizeAt, get<std::uint32_t>(f, kSizeAt) + 8); });
  set.add("block_larger_than_raw", v,
          [](Bytes& f, const Victim&) { put(f, kSizeAt, std::uint32_t{2 * kElems + 24}); });
  set.add("codec", v, [](Bytes& f, const Victim&) { f[kCodecAt] = std::byte{4}; });
}

void add_simple_block_cases(InvalidSet& set) {
  const Victim raw = make_victim(DType::kBF16, Codec::kRaw, "gaussian", kElems);
  set.add("raw_short", raw,
          [](Bytes& f, const Victim&) { resize_block(f, get<std::uint32_t>(f, kSizeAt) - 16); });
  set.add("raw_with_modes", raw, [](Bytes& f, const Victim&) { f[kModesAt] = std::byte{1}; });
  const Victim constant = make_victim(DType::kBF16, Codec::kEntropy, "constant", kElems);
  set.add("constant_long", constant, [](Bytes& f, const Victim&) { grow(f); });
  set.add("constant_with_modes", constant,
          [](Bytes& f, const Victim&) { f[kModesAt] = std::byte{4}; });
}

void add_palette_section_cases(InvalidSet& set) {
  const Victim v = make_victim(DType::kBF16, Codec::kEntropy, "outliers", kElems);
  const auto at = [&](std::size_t offset) { return v.section + offset; };
  const std::size_t table = at(codec::kTableOffset);
  const auto byte_at = [](Bytes& f, std::size_t i) { return std::to_integer<unsigned>(f[i]); };
  const std::size_t palette_size = std::to_integer<std::size_t>(v.frame[at(10)]);

  set.add("modes_of_missing_planes", v,
          [](Bytes& f, const Victim&) { f[kModesAt + 1] = std::byte{1}; });
  set.add("section_reserved", v, [&](Bytes& f, const Victim&) { f[at(11)] = std::byte{1}; });
  set.add("words_too_many", v,
          [&](Bytes& f, const Victim&) { put(f, at(0), std::uint32_t{0xFFFFFFFF}); });
  set.add("words_one_missing", v,
          [&](Bytes& f, const Victim&) { put(f, at(0), get<std::uint32_t>(f, at(0)) - 1); });
  set.add("escapes_too_many", v,
          [&](Bytes& f, const Victim&) { put(f, at(4), std::uint32_t{kElems + 1}); });
  set.add("escapes_one_missing", v,
          [&](Bytes& f, const Victim&) { put(f, at(4), get<std::uint32_t>(f, at(4)) - 1); });
  set.add("escapes_one_more", v,
          [&](Bytes& f, const Victim&) { put(f, at(4), get<std::uint32_t>(f, at(4)) + 1); });
  set.add("palette_table_size", v,
          [&](Bytes& f, const Victim&) { put(f, at(8), std::uint16_t{31}); });
  set.add("palette_size_0", v, [&](Bytes& f, const Victim&) { f[at(10)] = std::byte{0}; });
  set.add("palette_size_16", v, [&](Bytes& f, const Victim&) { f[at(10)] = std::byte{16}; });
  set.add("palette_unused_value", v,
          [&](Bytes& f, const Victim&) { f[table + palette_size] = std::byte{9}; });
  set.add("palette_sum_255", v, [&](Bytes& f, const Victim&) {
    f[table + 16] = static_cast<std::byte>(byte_at(f, table + 16) - 1);
  });
  set.add("palette_sum_257", v, [&](Bytes& f, const Victim&) {
    f[table + 16] = static_cast<std::byte>(byte_at(f, table + 16) + 1);
  });
  set.add("state_wrong", v,
          [&](Bytes& f, const Victim&) { f[at(codec::kStatesOffset) + 2] ^= std::byte{1}; });
  set.add("state_below_range", v,
          [&](Bytes& f, const Victim&) { put(f, at(codec::kStatesOffset), std::uint32_t{1}); });
  set.add("bytes_left_over", v, [](Bytes& f, const Victim&) { grow(f); });
  set.add("payload_of_one_plane", v,
          [](Bytes& f, const Victim& victim) { resize_block(f, victim.section - victim.payload); });
}

void add_byte_section_cases(InvalidSet& set) {
  const Victim v = make_victim(DType::kF8E4M3, Codec::kEntropy, "gaussian", 1000);
  const std::size_t table = v.payload + codec::kTableOffset;
  set.add("byte_table_sum", v, [&](Bytes& f, const Victim&) {
    f[table + 2] = static_cast<std::byte>(std::to_integer<unsigned>(f[table + 2]) ^ 1);
  });
  set.add("byte_table_empty", v, [&](Bytes& f, const Victim&) { put(f, table, std::uint16_t{0}); });
  set.add("byte_table_cut", v, [&](Bytes& f, const Victim&) {
    put(f, v.payload + 8, static_cast<std::uint16_t>(get<std::uint16_t>(f, v.payload + 8) - 1));
  });
  set.add("byte_table_long", v, [&](Bytes& f, const Victim&) {
    put(f, v.payload + 8, static_cast<std::uint16_t>(get<std::uint16_t>(f, v.payload + 8) + 1));
  });
  set.add("byte_section_with_palette", v,
          [&](Bytes& f, const Victim&) { f[v.payload + 10] = std::byte{1}; });
  set.add("byte_section_with_escapes", v,
          [&](Bytes& f, const Victim&) { put(f, v.payload + 4, std::uint32_t{1}); });
}

void add_fixed_cases(InvalidSet& set) {
  // Enough outliers that the palette cannot hold them.
  constexpr std::uint32_t kMany = 2000;
  const Victim v = make_victim(DType::kBF16, Codec::kFixed, "outliers", kMany);
  const std::size_t header = v.section + frame::align_up(codec::fixed_nibble_bytes(kMany));
  const std::size_t escapes = header + codec::FixedHeader::kBytes;
  set.add("fixed_dtype", v,
          [](Bytes& f, const Victim&) { f[5] = static_cast<std::byte>(DType::kF16); });
  set.add("fixed_modes", v, [](Bytes& f, const Victim&) { f[kModesAt] = std::byte{2}; });
  set.add("fixed_palette_sign", v,
          [&](Bytes& f, const Victim&) { f[header + 4] |= std::byte{0x80}; });
  set.add("fixed_reserved", v, [&](Bytes& f, const Victim&) { f[header + 15] = std::byte{1}; });
  set.add("fixed_escapes_too_many", v, [&](Bytes& f, const Victim&) { put(f, header, kMany + 1); });
  set.add("fixed_escapes_beyond_payload", v,
          [&](Bytes& f, const Victim&) { put(f, header, kMany); });
  set.add("fixed_escape_outside_block", v,
          [&](Bytes& f, const Victim&) { put(f, escapes, kMany); });
  set.add("fixed_bytes_left_over", v, [](Bytes& f, const Victim&) { grow(f); });
}

}  // namespace

std::string GoldenValid::name() const {
  return std::string(dtype_name(dtype)) + "." + codec_name(codec) + "." +
         std::to_string(log2_block) + "." + input + "." + std::to_string(num_elems) +
         (num_tail_bytes != 0 ? "+" + std::to_string(num_tail_bytes) : "");
}

Bytes GoldenValid::raw() const {
  Bytes bytes = make_input(input_named(input), dtype, num_elems);
  for (std::size_t i = 0; i < num_tail_bytes; ++i)
    bytes.push_back(static_cast<std::byte>(0xA1 + i));
  return bytes;
}

std::vector<GoldenValid> golden_valid() {
  std::vector<GoldenValid> cases = {
      {DType::kBF16, Codec::kEntropy, 12, "gaussian", 0},
      {DType::kBF16, Codec::kEntropy, 12, "gaussian", 0, 1},
      {DType::kBF16, Codec::kEntropy, 12, "gaussian", 1},
      {DType::kBF16, Codec::kEntropy, 12, "gaussian", 9000, 1},
      {DType::kBF16, Codec::kFixed, 12, "gaussian", 4500, 1},
      {DType::kBF16, Codec::kEntropy, 12, "constant", 10000},
      {DType::kBF16, Codec::kEntropy, 17, "row_scales", 3000},
      {DType::kBF16, Codec::kEntropy, 13, "exponents_40", 2000},
      {DType::kBF16, Codec::kEntropy, 12, "half_and_half", 8192},
      {DType::kBF16, Codec::kEntropy, 12, "random_bits", 1000},
      {DType::kBF16, Codec::kEntropy, 12, "nan_payloads", 1500},
      {DType::kBF16, Codec::kFixed, 12, "outliers", 1501},
      {DType::kF32, Codec::kEntropy, 12, "f32_holding_bf16", 2000, 3},
      {DType::kF32, Codec::kFixed, 12, "f32_holding_bf16", 1000, 2},
      {DType::kF32, Codec::kFixed, 12, "outliers", 500},
      {DType::kF64, Codec::kEntropy, 12, "f64_holding_f32", 500, 7},
      {DType::kF4, Codec::kEntropy, 13, "f4_packed", 4000},
      {DType::kI64, Codec::kEntropy, 12, "small_integers", 500},
      {DType::kBool, Codec::kEntropy, 13, "booleans", 3000},
      {DType::kBytes, Codec::kEntropy, 13, "half_and_half", 3000},
  };
  for (const DType dtype : all_dtypes()) {
    cases.push_back({dtype, Codec::kEntropy, 13, "outliers", 1200});
    cases.push_back({dtype, Codec::kRaw, 13, "gaussian", 101});
  }
  return cases;
}

std::vector<GoldenInvalid> golden_invalid() {
  InvalidSet set;
  add_header_cases(set, make_victim(DType::kBF16, Codec::kEntropy, "gaussian", kElems));
  add_simple_block_cases(set);
  add_palette_section_cases(set);
  add_byte_section_cases(set);
  add_fixed_cases(set);
  return set.take();
}

}  // namespace snug::test
