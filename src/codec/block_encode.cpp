// Encoding of one block: pick tables from a sample, split into planes, code.
#include <cstring>

#include "codec/block.h"
#include "codec/entropy/model.h"
#include "codec/planes.h"
#include "codec/sample.h"
#include "codec/sections.h"
#include "frame/checksum.h"

namespace snug::codec {
namespace {

using frame::align_up;
using frame::PlaneMode;

// Lower planes are mostly noise: only one sampled run in four is looked at.
constexpr std::size_t kNoiseRunStride = 4;

struct Sample {
  std::uint32_t top[256] = {};           // bytes of the top plane
  std::uint32_t nibbles[7][2][16] = {};  // low and high nibbles of the planes below it
};

template <class U>
void take_sample(const std::uint8_t* src, std::size_t n, bool rotate, Sample& sample) noexcept {
  // Four histograms in turn: the commonest exponents repeat, and an increment
  // must not wait for the one before it.
  std::uint32_t top[4][256] = {};
  for_each_sample(n, [&](std::size_t start, std::size_t count, std::size_t run) {
    for (std::size_t i = 0; i < count; ++i) {
      U v;
      std::memcpy(&v, src + (start + i) * sizeof(U), sizeof v);
      if (rotate) v = rotate_left(v);
      ++top[i % 4][static_cast<std::uint8_t>(v >> (8 * sizeof(U) - 8))];
      if (sizeof(U) == 1 || run % kNoiseRunStride != 0) continue;
      for (std::size_t p = 0; p + 1 < sizeof(U); ++p) {
        const auto byte = static_cast<std::uint8_t>(v >> (8 * p));
        ++sample.nibbles[p][0][byte & 15];
        ++sample.nibbles[p][1][byte >> 4];
      }
    }
  });
  for (int i = 0; i < 256; ++i) sample.top[i] = top[0][i] + top[1][i] + top[2][i] + top[3][i];
}

// Whether coding the nibbles of a plane would save at least 1/32 of it.
bool worth_coding(const std::uint32_t (&nibbles)[2][16]) noexcept {
  std::uint64_t total = 0, cost = 0;
  for (const auto& counts : nibbles) {
    entropy::Table table;
    entropy::normalize(counts, 16, table);
    for (int s = 0; s < 16; ++s) {
      total += counts[s];
      cost += std::uint64_t{counts[s]} * entropy::kCost[table.freq[s]];
    }
  }
  return cost < total * (4 * 256 - 4 * 256 / 32);
}

void byte_histogram(const std::uint8_t* plane, std::size_t n, std::uint32_t (&histogram)[256]) noexcept {
  std::uint32_t part[4][256] = {};
  for (std::size_t i = 0; i < n; ++i) ++part[i % 4][plane[i]];
  for (int v = 0; v < 256; ++v) histogram[v] = part[0][v] + part[1][v] + part[2][v] + part[3][v];
}

// Room left in a payload; a codec that runs out of it gives up.
struct Out {
  std::uint8_t* pos;
  std::uint8_t* end;

  std::uint8_t* take(std::size_t num_bytes) noexcept {
    if (num_bytes > static_cast<std::size_t>(end - pos)) return nullptr;
    std::uint8_t* at = pos;
    pos += num_bytes;
    return at;
  }
};

// Codes num_symbols symbol bytes (padded here to whole groups) and writes the section.
bool write_coded_section(std::uint8_t* symbols, std::size_t num_symbols, const entropy::Model& model,
                         std::uint8_t pad, SectionHeader header, const std::uint8_t* table,
                         const std::uint8_t* escapes, Out& out, Workspace& ws) noexcept {
  const std::size_t padded = padded_symbols(num_symbols);
  std::memset(symbols + num_symbols, pad, padded - num_symbols);
  std::uint32_t states[entropy::kLanes];
  std::uint16_t* words_end = ws.words + frame::kMaxBlockElems + 2 * kSlackBytes;
  header.num_words = static_cast<std::uint32_t>(
      kernels().rans_encode(symbols, padded, model, states, words_end));

  std::uint8_t* at = out.take(header.section_bytes());
  if (at == nullptr) return false;
  std::memset(at + header.section_bytes() - frame::kAlign, 0, frame::kAlign);
  header.write(at);
  std::memcpy(at + kStatesOffset, states, sizeof states);
  std::memset(at + kTableOffset, 0, align_up(header.table_bytes));
  std::memcpy(at + kTableOffset, table, header.table_bytes);
  std::memcpy(at + header.words_offset(), words_end - header.num_words, header.num_words * 2);
  std::memcpy(at + header.escapes_offset(), escapes, header.num_escapes);
  return true;
}

bool write_palette_section(const std::uint8_t* plane, std::size_t n, const entropy::Palette& palette,
                           Out& out, Workspace& ws) noexcept {
  std::uint8_t lut[256];
  std::memset(lut, palette.size, sizeof lut);
  for (int i = 0; i < palette.size; ++i) lut[palette.values[i]] = static_cast<std::uint8_t>(i);
  SectionHeader header;
  header.num_escapes = static_cast<std::uint32_t>(kernels().map_palette(
      plane, n, lut, static_cast<std::uint8_t>(palette.size), ws.symbols[0], ws.escapes));
  header.table_bytes = entropy::kPaletteTableBytes;
  header.palette_size = static_cast<std::uint8_t>(palette.size);
  std::uint8_t table[entropy::kPaletteTableBytes];
  entropy::write_palette(palette, table);
  entropy::Model model;
  model.first = palette.table;
  // Index 0 is the commonest symbol, so padding with it is cheap.
  return write_coded_section(ws.symbols[0], (n + 1) / 2, model, 0, header, table, ws.escapes, out, ws);
}

bool write_bytes_section(const std::uint8_t* plane, std::size_t n, const std::uint32_t (&histogram)[256],
                         Out& out, Workspace& ws) noexcept {
  entropy::Model model;
  std::uint64_t cost;
  entropy::make_byte_model(histogram, model, cost);
  std::uint8_t commonest = 0;
  for (int v = 0; v < 256; ++v)
    if (histogram[v] > histogram[commonest]) commonest = static_cast<std::uint8_t>(v);
  for (std::size_t i = 0; i < n; ++i) ws.symbols[0][i] = swap_nibbles(plane[i]);
  std::uint8_t table[entropy::kMaxByteTableBytes];
  SectionHeader header;
  header.table_bytes = static_cast<std::uint16_t>(entropy::write_byte_model(model, table));
  return write_coded_section(ws.symbols[0], n, model, swap_nibbles(commonest), header, table, nullptr,
                             out, ws);
}

PlaneMode choose_top_mode(const Sample& sample, DType dtype, const entropy::Palette& palette) noexcept {
  if (!top_plane_is_exponent(dtype)) return PlaneMode::kBytes;
  std::uint64_t total = 0;
  for (const auto count : sample.top) total += count;
  if (palette.cost < total * 5 * 256) return PlaneMode::kPalette;
  entropy::Model model;
  std::uint64_t bytes_cost;
  entropy::make_byte_model(sample.top, model, bytes_cost);
  const std::uint64_t limit = total * (8 * 256 - 8 * 256 / 32);
  if (bytes_cost < palette.cost && bytes_cost < limit) return PlaneMode::kBytes;
  return palette.cost < limit ? PlaneMode::kPalette : PlaneMode::kRaw;
}

// Returns false where the payload would not be smaller than the raw block.
bool encode_entropy(const std::uint8_t* src, std::size_t n, DType dtype, Out out, Workspace& ws,
                    frame::Entry& entry) noexcept {
  const std::size_t width = elem_bytes(dtype);
  const bool rotate = has_sign_bit(dtype);
  const std::uint8_t* start = out.pos;
  Sample sample;
  with_width(width, [&](auto zero) { take_sample<decltype(zero)>(src, n, rotate, sample); });
  const entropy::Palette palette = entropy::make_palette(sample.top);

  PlaneMode modes[8] = {};
  modes[width - 1] = choose_top_mode(sample, dtype, palette);
  for (std::size_t p = 0; p + 1 < width; ++p)
    modes[p] = worth_coding(sample.nibbles[p]) ? PlaneMode::kBytes : PlaneMode::kRaw;

  // Raw planes come first and are split straight into place.
  std::uint8_t* planes[8];
  bool any_coded = false;
  for (std::size_t p = 0; p < width; ++p) {
    planes[p] = ws.planes[p];
    any_coded |= modes[p] != PlaneMode::kRaw;
    if (modes[p] != PlaneMode::kRaw) continue;
    planes[p] = out.take(align_up(n));
    if (planes[p] == nullptr) return false;
    std::memset(planes[p] + align_up(n) - frame::kAlign, 0, frame::kAlign);
  }
  if (!any_coded) return false;
  split_planes(src, n, width, rotate, planes);

  for (std::size_t p = 0; p < width; ++p) {
    if (modes[p] == PlaneMode::kPalette) {
      if (!write_palette_section(planes[p], n, palette, out, ws)) return false;
    } else if (modes[p] == PlaneMode::kBytes) {
      std::uint32_t histogram[256];
      byte_histogram(planes[p], n, histogram);
      if (histogram[planes[p][0]] == n) {
        modes[p] = PlaneMode::kConstant;
        std::uint8_t* at = out.take(frame::kAlign);
        if (at == nullptr) return false;
        std::memset(at, 0, frame::kAlign);
        at[0] = planes[p][0];
      } else if (!write_bytes_section(planes[p], n, histogram, out, ws)) {
        return false;
      }
    }
    entry.plane_modes = static_cast<std::uint16_t>(entry.plane_modes | static_cast<unsigned>(modes[p]) << (2 * p));
  }
  entry.codec = Codec::kEntropy;
  entry.num_bytes = static_cast<std::uint32_t>(out.pos - start);
  return out.pos < out.end;
}

// The 7 commonest values of the upper 7 exponent bits, in falling order.
void choose_fixed_palette(const std::uint32_t (&top)[256], std::uint8_t (&palette)[8]) noexcept {
  std::uint32_t histogram[128];
  for (int v = 0; v < 128; ++v) histogram[v] = top[2 * v] + top[2 * v + 1];
  bool taken[128] = {};
  for (int i = 0; i < 7; ++i) {
    int best = -1;
    for (int v = 0; v < 128; ++v)
      if (!taken[v] && (best < 0 || histogram[v] > histogram[best])) best = v;
    taken[best] = true;
    palette[i] = static_cast<std::uint8_t>(best);
  }
  palette[7] = 0;
}

bool encode_fixed(const std::uint8_t* src, std::size_t n, DType dtype, Out out, Workspace& ws,
                  frame::Entry& entry) noexcept {
  if (dtype != DType::kBF16 && dtype != DType::kF32) return false;
  const std::size_t width = elem_bytes(dtype);
  const std::uint8_t* start = out.pos;
  Sample sample;  // of rotated values: the top byte is the whole exponent
  with_width(width, [&](auto zero) { take_sample<decltype(zero)>(src, n, true, sample); });
  FixedHeader header;
  choose_fixed_palette(sample.top, header.palette);
  std::uint8_t lut[128];
  std::memset(lut, 7, sizeof lut);
  for (int i = 7; i-- > 0;) lut[header.palette[i]] = static_cast<std::uint8_t>(i);

  std::uint8_t* planes[8];
  for (std::size_t p = 0; p < width; ++p) planes[p] = ws.planes[p];
  if (dtype == DType::kBF16) {
    planes[0] = out.take(align_up(n));
    if (planes[0] == nullptr) return false;
    std::memset(planes[0] + align_up(n) - frame::kAlign, 0, frame::kAlign);
  }
  split_planes(src, n, width, false, planes);
  if (dtype == DType::kF32) {
    // FP32 often holds narrower floats: planes of one repeated byte cost 16 bytes.
    PlaneMode modes[3];
    for (std::size_t p = 0; p < 3; ++p)
      modes[p] = is_constant(planes[p], n) ? PlaneMode::kConstant : PlaneMode::kRaw;
    for (const PlaneMode pass : {PlaneMode::kRaw, PlaneMode::kConstant}) {
      for (std::size_t p = 0; p < 3; ++p) {
        if (modes[p] != pass) continue;
        const std::size_t used = pass == PlaneMode::kRaw ? n : 1;
        std::uint8_t* at = out.take(align_up(used));
        if (at == nullptr) return false;
        std::memset(at + align_up(used) - frame::kAlign, 0, frame::kAlign);
        std::memcpy(at, planes[p], used);
        entry.plane_modes = static_cast<std::uint16_t>(entry.plane_modes | static_cast<unsigned>(pass) << (2 * p));
      }
    }
  }

  std::uint8_t* nibbles = out.take(align_up(fixed_nibble_bytes(n)));
  std::uint8_t* header_at = out.take(FixedHeader::kBytes);
  if (nibbles == nullptr || header_at == nullptr) return false;
  std::memset(nibbles + align_up(fixed_nibble_bytes(n)) - frame::kAlign, 0, frame::kAlign);
  const std::size_t room = static_cast<std::size_t>(out.end - out.pos) / 4;
  header.num_escapes = static_cast<std::uint32_t>(
      kernels().fixed_pack(planes[width - 1], n, lut, nibbles, out.pos, room));
  if (header.num_escapes > room) return false;
  std::uint8_t* end = out.take(align_up(header.num_escapes * 4));
  if (end == nullptr) return false;
  std::memset(end + header.num_escapes * 4, 0, align_up(header.num_escapes * 4) - header.num_escapes * 4);
  header.write(header_at);
  entry.codec = Codec::kFixed;
  entry.num_bytes = static_cast<std::uint32_t>(out.pos - start);
  return out.pos < out.end;
}

}  // namespace

frame::Entry encode_block(const std::uint8_t* src, std::size_t n, DType dtype, Codec codec,
                          std::uint8_t* dst, Workspace& ws) noexcept {
  const std::size_t width = elem_bytes(dtype);
  const std::size_t raw = n * width;
  frame::Entry entry;
  const Out out{dst, dst + frame::max_payload(n, width)};
  if (codec != Codec::kRaw && std::memcmp(src, src + width, raw - width) == 0) {
    std::memset(dst, 0, frame::kAlign);
    std::memcpy(dst, src, width);
    entry.codec = Codec::kConstant;
    entry.num_bytes = frame::kAlign;
  } else if ((codec == Codec::kEntropy && encode_entropy(src, n, dtype, out, ws, entry)) ||
             (codec == Codec::kFixed && encode_fixed(src, n, dtype, out, ws, entry))) {
    // The entry is filled in.
  } else {
    entry = {};
    std::memset(out.end - frame::kAlign, 0, frame::kAlign);
    std::memcpy(dst, src, raw);
    entry.num_bytes = static_cast<std::uint32_t>(out.end - dst);
  }
  entry.checksum =
      frame::checksum_finish(kernels().checksum_terms(dst, entry.num_bytes), entry.num_bytes);
  return entry;
}

}  // namespace snug::codec
