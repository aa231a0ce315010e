// Encoding of one block: pick tables from a sample, split into planes, code.
#include <cstring>
#include <iterator>

#include "codec/block.h"
#include "codec/plane_choice.h"
#include "codec/planes.h"
#include "codec/sections.h"

namespace snug::codec {
namespace {

using frame::align_up;
using frame::PlaneMode;

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

// An entropy-coded plane on its way into a payload.
struct CodedPlane {
  SectionHeader header;
  entropy::Model model;
  std::uint8_t table[entropy::kMaxByteTableBytes];
  const std::uint8_t* escapes = nullptr;
  entropy::EncodeStream stream;

  // Pads the symbols to whole groups.
  void set_stream(std::uint8_t* symbols, std::size_t num_symbols, std::uint8_t pad,
                  std::uint16_t* words_end) noexcept {
    stream.symbols = symbols;
    stream.num_bytes = padded_symbols(num_symbols);
    stream.model = &model;
    stream.words_end = words_end;
    std::memset(symbols + num_symbols, pad, stream.num_bytes - num_symbols);
  }

  bool put(Out& out) noexcept {
    header.num_words = static_cast<std::uint32_t>(stream.num_words);
    const std::size_t num_bytes = header.section_bytes();
    std::uint8_t* at = out.take(num_bytes);
    if (at == nullptr) return false;
    std::memset(at + num_bytes - frame::kAlign, 0, frame::kAlign);
    header.write(at);
    std::memcpy(at + kStatesOffset, stream.states, sizeof stream.states);
    std::memset(at + kTableOffset, 0, align_up(header.table_bytes));
    std::memcpy(at + kTableOffset, table, header.table_bytes);
    std::memcpy(at + header.words_offset(), stream.words_end - stream.num_words,
                stream.num_words * 2);
    if (header.num_escapes > 0)
      std::memcpy(at + header.escapes_offset(), escapes, header.num_escapes);
    return true;
  }
};

std::uint16_t* words_end(Workspace& ws, int slot) noexcept {
  return ws.words[slot] + std::size(ws.words[slot]);
}

// `slot` is which half of the workspace the plane uses: two are coded at once.
void prepare_palette_plane(const std::uint8_t* plane, std::size_t n,
                           const entropy::Palette& palette, int slot, Workspace& ws,
                           CodedPlane& coded) noexcept {
  std::uint8_t lut[256];
  std::memset(lut, palette.size, sizeof lut);
  for (int i = 0; i < palette.size; ++i) lut[palette.values[i]] = static_cast<std::uint8_t>(i);
  const auto escape = static_cast<std::uint8_t>(palette.size);
  coded.escapes = ws.escapes[slot];
  coded.header.num_escapes = static_cast<std::uint32_t>(
      kernels().map_palette(plane, n, lut, escape, ws.symbols[slot], ws.escapes[slot]));
  coded.header.table_bytes = entropy::kPaletteTableBytes;
  coded.header.palette_size = escape;
  entropy::write_palette(palette, coded.table);
  coded.model.first = palette.table;
  // Index 0 is the commonest symbol, so padding with it is cheap.
  coded.set_stream(ws.symbols[slot], (n + 1) / 2, 0, words_end(ws, slot));
}

void prepare_byte_plane(const std::uint8_t* plane, std::size_t n,
                        const std::uint32_t (&histogram)[256], Workspace& ws,
                        CodedPlane& coded) noexcept {
  std::uint64_t cost;
  entropy::make_byte_model(histogram, coded.model, cost);
  std::uint8_t commonest = 0;
  for (int v = 0; v < 256; ++v)
    if (histogram[v] > histogram[commonest]) commonest = static_cast<std::uint8_t>(v);
  for (std::size_t i = 0; i < n; ++i) ws.symbols[0][i] = swap_nibbles(plane[i]);
  coded.header.table_bytes =
      static_cast<std::uint16_t>(entropy::write_byte_model(coded.model, coded.table));
  coded.set_stream(ws.symbols[0], n, swap_nibbles(commonest), words_end(ws, 0));
}

// Planes of one block in memory; plane 0 of 16-bit types is nearly always
// stored raw, so it is split straight into its place in the payload.
struct Planes {
  std::uint8_t* at[8];
  bool first_in_place;

  Planes(const std::uint8_t* src, std::size_t n, std::size_t width, bool rotate, const Out& out,
         Workspace& ws) noexcept
      : first_in_place(width == 2) {
    for (std::size_t p = 0; p < width; ++p) at[p] = ws.planes[p];
    if (first_in_place) at[0] = out.pos;
    split_planes(src, n, width, rotate, at);
  }

  // Stores plane p, of `used` bytes, as the next bytes of the payload.
  bool put(std::size_t p, std::size_t used, Out& out) const noexcept {
    std::uint8_t* to = out.take(align_up(used));
    if (to == nullptr) return false;
    if (to != at[p]) std::memcpy(to, at[p], used);
    std::memset(to + used, 0, align_up(used) - used);
    return true;
  }
  // Frees the place of plane 0 for other bytes.
  void move_out(std::size_t n, Workspace& ws) noexcept {
    if (!first_in_place) return;
    std::memcpy(ws.planes[0], at[0], n);
    at[0] = ws.planes[0];
    first_in_place = false;
  }
};

void set_mode(frame::Entry& entry, std::size_t plane, PlaneMode mode) noexcept {
  entry.plane_modes = static_cast<std::uint16_t>(
      entry.plane_modes | frame::plane_mode_bits(static_cast<unsigned>(plane), mode));
}

// Returns false where the payload would not be smaller than the raw block.
bool encode_entropy(const BlockInput& in, Out out, Workspace& ws, frame::Entry& entry) noexcept {
  const std::size_t n = in.num_elems, width = elem_bytes(in.dtype);
  const std::uint8_t* start = out.pos;
  Planes planes(in.src, n, width, has_sign_bit(in.dtype), out, ws);
  std::uint32_t sample[256];
  sample_bytes(planes.at[width - 1], n, sample);
  const entropy::Palette palette = entropy::make_palette(sample);

  PlaneMode modes[8] = {};
  modes[width - 1] = choose_top_mode(sample, in.dtype, palette);
  bool any_coded = modes[width - 1] != PlaneMode::kRaw;
  for (std::size_t p = 0; p + 1 < width; ++p) {
    if (!worth_coding(planes.at[p], n)) continue;
    modes[p] = PlaneMode::kBytes;
    any_coded = true;
  }
  if (!any_coded) return false;

  // Raw planes come first: they can leave while the others are still being coded.
  if (modes[0] != PlaneMode::kRaw) planes.move_out(n, ws);
  for (std::size_t p = 0; p < width; ++p)
    if (modes[p] == PlaneMode::kRaw && !planes.put(p, n, out)) return false;
  for (std::size_t p = 0; p < width; ++p) {
    if (modes[p] == PlaneMode::kRaw) continue;
    CodedPlane coded;
    if (modes[p] == PlaneMode::kPalette) {
      prepare_palette_plane(planes.at[p], n, palette, 0, ws, coded);
    } else {
      std::uint32_t histogram[256];
      count_bytes(planes.at[p], n, histogram);
      if (histogram[planes.at[p][0]] == n)
        modes[p] = PlaneMode::kConstant;
      else
        prepare_byte_plane(planes.at[p], n, histogram, ws, coded);
    }
    set_mode(entry, p, modes[p]);
    if (modes[p] == PlaneMode::kConstant) {
      if (!planes.put(p, 1, out)) return false;
    } else {
      kernels().rans_encode(&coded.stream, 1, {});
      if (!coded.put(out)) return false;
    }
  }
  entry.codec = Codec::kEntropy;
  entry.num_bytes = static_cast<std::uint32_t>(out.pos - start);
  return out.pos < out.end;
}

bool encode_fixed(const BlockInput& in, Out out, Workspace& ws, frame::Entry& entry) noexcept {
  if (!has_fixed_codec(in.dtype)) return false;
  const std::size_t n = in.num_elems, width = elem_bytes(in.dtype);
  const std::uint8_t* start = out.pos;
  Planes planes(in.src, n, width, false, out, ws);
  const std::uint8_t* high = planes.at[width - 1];
  FixedHeader header;
  choose_fixed_palette(high, n, header.palette);
  std::uint8_t lut[128];
  std::memset(lut, 7, sizeof lut);
  for (int i = 7; i-- > 0;) lut[header.palette[i]] = static_cast<std::uint8_t>(i);

  // FP32 often holds narrower floats: planes of one repeated byte cost 16 bytes.
  PlaneMode modes[3] = {};
  if (width == 4)
    for (std::size_t p = 0; p < 3; ++p)
      if (is_constant(planes.at[p], n)) modes[p] = PlaneMode::kConstant;
  for (const PlaneMode pass : {PlaneMode::kRaw, PlaneMode::kConstant}) {
    for (std::size_t p = 0; p + 1 < width; ++p) {
      if (modes[p] != pass) continue;
      if (!planes.put(p, pass == PlaneMode::kRaw ? n : 1, out)) return false;
      set_mode(entry, p, pass);
    }
  }

  const std::size_t nibble_bytes = fixed_nibble_bytes(n);
  std::uint8_t* nibbles = out.take(align_up(nibble_bytes));
  std::uint8_t* header_at = out.take(FixedHeader::kBytes);
  if (nibbles == nullptr || header_at == nullptr) return false;
  std::memset(nibbles + nibble_bytes, 0, align_up(nibble_bytes) - nibble_bytes);
  const std::size_t room = static_cast<std::size_t>(out.end - out.pos) / 4;
  header.num_escapes =
      static_cast<std::uint32_t>(kernels().fixed_pack(high, n, lut, nibbles, out.pos, room));
  const std::size_t escape_bytes = std::size_t{header.num_escapes} * 4;
  std::uint8_t* escapes = out.take(align_up(escape_bytes));
  if (escapes == nullptr) return false;
  std::memset(escapes + escape_bytes, 0, align_up(escape_bytes) - escape_bytes);
  header.write(header_at);
  entry.codec = Codec::kFixed;
  entry.num_bytes = static_cast<std::uint32_t>(out.pos - start);
  return out.pos < out.end;
}

// Two BF16 blocks at once, low planes raw and exponents in a palette, as trained weights mostly
// come out; the next ones are fetched meanwhile. False if one of them wants something else: only
// time is lost.
bool encode_bf16_pair(std::span<const BlockInput> in, const std::uint8_t* next,
                      frame::Entry (&entries)[2], Workspace& ws) noexcept {
  constexpr std::size_t kWidth = 2;
  CodedPlane coded[2];
  Out outs[2];
  for (int i = 0; i < 2; ++i) {
    const std::size_t n = in[i].num_elems;
    outs[i] = {ws.payloads[i], ws.payloads[i] + frame::max_payload(n, kWidth)};
    std::uint8_t* planes[kWidth] = {outs[i].take(align_up(n)), ws.planes[1]};
    split_planes(in[i].src, n, kWidth, true, planes);
    std::memset(planes[0] + n, 0, align_up(n) - n);
    std::uint32_t sample[256];
    sample_bytes(planes[1], n, sample);
    const entropy::Palette palette = entropy::make_palette(sample);
    if (choose_top_mode(sample, DType::kBF16, palette) != PlaneMode::kPalette ||
        worth_coding(planes[0], n))
      return false;
    prepare_palette_plane(planes[1], n, palette, i, ws, coded[i]);
  }
  entropy::EncodeStream streams[2] = {coded[0].stream, coded[1].stream};
  // A symbol byte of both streams stands for 8 bytes of input.
  kernels().rans_encode(streams, 2, {next, 8});
  for (int i = 0; i < 2; ++i) {
    coded[i].stream = streams[i];
    if (!coded[i].put(outs[i]) || outs[i].pos >= outs[i].end) return false;
    entries[i] = {};
    entries[i].codec = Codec::kEntropy;
    set_mode(entries[i], 1, PlaneMode::kPalette);
    entries[i].num_bytes = static_cast<std::uint32_t>(outs[i].pos - ws.payloads[i]);
  }
  return true;
}

bool is_constant_block(const BlockInput& in) noexcept {
  const std::size_t width = elem_bytes(in.dtype);
  return std::memcmp(in.src, in.src + width, (in.num_elems - 1) * width) == 0;
}

frame::Entry encode_block(const BlockInput& in, Codec codec, std::uint8_t* dst,
                          Workspace& ws) noexcept {
  const std::size_t width = elem_bytes(in.dtype);
  frame::Entry entry;
  const Out out{dst, dst + frame::max_payload(in.num_elems, width)};
  if (codec != Codec::kRaw && is_constant_block(in)) {
    std::memset(dst, 0, frame::kAlign);
    std::memcpy(dst, in.src, width);
    entry.codec = Codec::kConstant;
    entry.num_bytes = frame::kAlign;
  } else if ((codec == Codec::kEntropy && encode_entropy(in, out, ws, entry)) ||
             (codec == Codec::kFixed && encode_fixed(in, out, ws, entry))) {
    // The entry is filled in.
  } else {
    entry = {};
    std::memset(out.end - frame::kAlign, 0, frame::kAlign);
    std::memcpy(dst, in.src, in.num_elems * width);
    entry.num_bytes = static_cast<std::uint32_t>(out.end - dst);
  }
  return entry;
}

}  // namespace

void encode_blocks(std::span<const BlockInput> in, Codec codec, const std::uint8_t* next,
                   frame::Entry (&entries)[2], Workspace& ws) noexcept {
  const bool bf16_pair = in.size() == 2 && codec == Codec::kEntropy &&
                         in[0].dtype == DType::kBF16 && !is_constant_block(in[0]) &&
                         !is_constant_block(in[1]);
  if (bf16_pair && encode_bf16_pair(in, next, entries, ws)) return;
  for (std::size_t i = 0; i < in.size(); ++i)
    entries[i] = encode_block(in[i], codec, ws.payloads[i], ws);
}

}  // namespace snug::codec
