// gpu/forged_blocks.h - entropy blocks made plane by plane, in any mode, and frames of them:
// what no encoder writes but the format allows, and a start for what it does not.
#pragma once
#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "codec/entropy/model.h"
#include "codec/kernels.h"
#include "codec/sections.h"
#include "frame/frame.h"
#include "support/inputs.h"
#include "support/reseal.h"

namespace snug::test {

using Plane = std::vector<std::uint8_t>;

struct ForgedBlock {
  Codec codec = Codec::kEntropy;
  unsigned plane_modes = 0;
  std::size_t num_elems = 0;
  Plane payload;
  std::vector<std::size_t> sections;  // where they start
};

inline void pad_payload(Plane& payload) { payload.resize(frame::align_up(payload.size())); }

// Codes symbol bytes, a multiple of 128, and appends a whole section.
inline void append_section(Plane& payload, codec::SectionHeader header, const Plane& table,
                           const codec::entropy::Model& model, const Plane& symbols,
                           const Plane& escapes) {
  std::vector<std::uint16_t> words(symbols.size() + 64);
  codec::entropy::EncodeStream stream{
      symbols.data(), symbols.size(), &model, words.data() + words.size(), 0, {}};
  codec::kScalarKernels.rans_encode(&stream, 1, {});
  header.num_words = static_cast<std::uint32_t>(stream.num_words);
  header.num_escapes = static_cast<std::uint32_t>(escapes.size());
  header.table_bytes = static_cast<std::uint16_t>(table.size());
  const std::size_t at = payload.size();
  payload.resize(at + header.section_bytes());
  header.write(&payload[at]);
  std::memcpy(&payload[at + codec::kStatesOffset], stream.states, sizeof stream.states);
  std::memcpy(&payload[at + codec::kTableOffset], table.data(), table.size());
  std::memcpy(payload.data() + at + header.words_offset(), stream.words_end - stream.num_words,
              2 * stream.num_words);
  std::copy(escapes.begin(), escapes.end(),
            payload.begin() + static_cast<std::ptrdiff_t>(at + header.escapes_offset()));
}

// The max_size commonest values are the palette.
inline void append_palette(Plane& payload, const Plane& plane, int max_size) {
  std::uint32_t counts[256] = {};
  for (const auto v : plane) ++counts[v];
  std::vector<std::uint8_t> live;
  for (unsigned v = 0; v < 256; ++v)
    if (counts[v] != 0) live.push_back(static_cast<std::uint8_t>(v));
  std::stable_sort(live.begin(), live.end(), [&](auto a, auto b) { return counts[a] > counts[b]; });
  live.resize(std::min(live.size(), static_cast<std::size_t>(max_size)));
  codec::entropy::Palette palette;
  palette.size = static_cast<int>(live.size());
  const auto escape = static_cast<std::uint8_t>(live.size());
  std::uint8_t lut[256];
  std::memset(lut, escape, sizeof lut);
  std::uint32_t symbol_counts[16] = {};
  std::uint32_t left = static_cast<std::uint32_t>(plane.size());
  for (std::size_t s = 0; s < live.size(); ++s) {
    palette.values[s] = live[s];
    lut[live[s]] = static_cast<std::uint8_t>(s);
    symbol_counts[s] = counts[live[s]];
    left -= counts[live[s]];
  }
  symbol_counts[live.size()] = std::max(left, 1u);  // a frequency of 256 has no byte
  codec::entropy::normalize(symbol_counts, palette.size + 1, palette.table);
  Plane table(codec::entropy::kPaletteTableBytes), escapes(plane.size() + 64),
      symbols(codec::padded_symbols((plane.size() + 1) / 2) + 64);
  codec::entropy::write_palette(palette, table.data());
  escapes.resize(codec::kScalarKernels.map_palette(plane.data(), plane.size(), lut, escape,
                                                   symbols.data(), escapes.data()));
  symbols.resize(codec::padded_symbols((plane.size() + 1) / 2));
  codec::SectionHeader header;
  header.palette_size = escape;
  codec::entropy::Model model;
  model.first = palette.table;
  append_section(payload, header, table, model, symbols, escapes);
}

// With a table of its own for every high nibble in use, or for those that it pays for.
inline void append_bytes(Plane& payload, const Plane& plane, bool all_tables) {
  std::uint32_t counts[256] = {};
  for (const auto v : plane) ++counts[v];
  codec::entropy::Model model;
  std::uint64_t cost = 0;
  codec::entropy::make_byte_model(counts, model, cost);
  for (unsigned first = 0; all_tables && first < 16; ++first)
    if (model.first.freq[first] != 0)
      codec::entropy::normalize(counts + 16 * first, 16, model.second[first]);
  Plane table(codec::entropy::kMaxByteTableBytes),
      symbols(codec::padded_symbols(plane.size()), codec::swap_nibbles(plane[0]));
  table.resize(codec::entropy::write_byte_model(model, table.data()));
  std::transform(plane.begin(), plane.end(), symbols.begin(), codec::swap_nibbles);
  append_section(payload, {}, table, model, symbols, {});
}

struct CodedAs {
  int palette_size = 15;
  bool all_tables = false;
};

// A block of these planes; of a constant one, the first value counts.
inline ForgedBlock forge_block(std::span<const Plane> planes, unsigned plane_modes, CodedAs how) {
  ForgedBlock block;
  block.plane_modes = plane_modes;
  block.num_elems = planes[0].size();
  const auto mode = [&](std::size_t p) { return plane_modes >> (2 * p) & 3; };
  for (std::size_t p = 0; p < planes.size(); ++p) {
    if (mode(p) != 0) continue;
    block.payload.insert(block.payload.end(), planes[p].begin(), planes[p].end());
    pad_payload(block.payload);
  }
  for (std::size_t p = 0; p < planes.size(); ++p) {
    if (mode(p) == 1) {
      block.payload.push_back(planes[p][0]);
      pad_payload(block.payload);
    } else if (mode(p) != 0) {
      block.sections.push_back(block.payload.size());
      if (mode(p) == 3)
        append_palette(block.payload, planes[p], how.palette_size);
      else
        append_bytes(block.payload, planes[p], how.all_tables);
    }
  }
  return block;
}

// Whether a frame may hold a block so large.
inline bool fits(const ForgedBlock& block, DType dtype) {
  return block.payload.size() <= frame::max_payload(block.num_elems, elem_bytes(dtype));
}

// All checksums are right, whatever the blocks are. All but the last have 4096 elements.
inline Bytes forge_frame(DType dtype, std::span<const ForgedBlock> blocks) {
  frame::Header header;
  header.dtype = dtype;
  header.log2_block = 12;
  for (const auto& block : blocks) header.num_elems += block.num_elems;
  std::size_t at = frame::kHeaderBytes + blocks.size() * frame::kEntryBytes;
  header.frame_bytes = at;
  for (const auto& block : blocks) header.frame_bytes += block.payload.size();
  Bytes frame(header.frame_bytes);
  auto* bytes = reinterpret_cast<std::uint8_t*>(frame.data());
  frame::write_header(header, bytes);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const frame::Entry entry{at, blocks[i].codec, static_cast<std::uint16_t>(blocks[i].plane_modes),
                             static_cast<std::uint32_t>(blocks[i].payload.size()), 0};
    frame::write_entry(entry, bytes + frame::kHeaderBytes + i * frame::kEntryBytes);
    std::copy(blocks[i].payload.begin(), blocks[i].payload.end(), bytes + at);
    at += entry.num_bytes;
  }
  reseal(frame);
  return frame;
}

}  // namespace snug::test
