// Decoding of blocks: every length is checked here, before any kernel runs.
#include <cstring>

#include "codec/block.h"
#include "codec/entropy/model.h"
#include "codec/planes.h"
#include "codec/sections.h"
#include "frame/checksum.h"

namespace snug::codec {
namespace {

using frame::align_up;
using frame::PlaneMode;

// A cursor over one payload that says where it failed.
struct In {
  const BlockJob& job;
  std::size_t pos = 0;

  Status corrupt(const char* what, std::uint64_t found = kNowhere,
                 std::uint64_t expected = kNowhere) const noexcept {
    return {Code::kCorrupt, what, job.block_idx, job.entry.offset + pos, found, expected};
  }
  std::size_t left() const noexcept { return job.entry.num_bytes - pos; }
  const std::uint8_t* take(std::size_t num_bytes) noexcept {
    if (num_bytes > left()) return nullptr;
    const std::uint8_t* at = job.payload + pos;
    pos += num_bytes;
    return at;
  }
};

// An entropy-coded plane, parsed and checked, ready to decode.
struct CodedPlane {
  entropy::Model model;
  entropy::Palette palette;
  SectionHeader header;
  std::uint32_t states[entropy::kLanes];
  const std::uint8_t* escapes = nullptr;
  entropy::Stream stream;
};

Status read_section(In& in, PlaneMode mode, std::uint8_t* symbols, CodedPlane& plane) noexcept {
  if (in.left() < kTableOffset) return in.corrupt("payload ends inside a section header");
  const std::uint8_t* at = in.job.payload + in.pos;
  SectionHeader& header = plane.header;
  if (!header.read(at)) return in.corrupt("reserved byte is not zero");
  const std::size_t n = in.job.num_elems;
  const std::size_t num_symbols = mode == PlaneMode::kPalette ? (n + 1) / 2 : n;
  if (header.num_words > padded_symbols(num_symbols))
    return in.corrupt("too many words", header.num_words, padded_symbols(num_symbols));
  if (header.num_escapes > (mode == PlaneMode::kPalette ? n : 0))
    return in.corrupt("too many escapes", header.num_escapes, n);
  if (header.section_bytes() > in.left())
    return in.corrupt("section longer than its block", header.section_bytes(), in.left());
  if (mode == PlaneMode::kPalette) {
    plane.palette.size = header.palette_size;
    if (header.table_bytes != entropy::kPaletteTableBytes ||
        !entropy::read_palette(at + kTableOffset, plane.palette))
      return in.corrupt("palette or its frequencies not valid");
    plane.model.first = plane.palette.table;
  } else if (header.palette_size != 0 ||
             !entropy::read_byte_model(at + kTableOffset, header.table_bytes, plane.model)) {
    return in.corrupt("frequency table not valid");
  }
  std::memcpy(plane.states, at + kStatesOffset, sizeof plane.states);
  plane.escapes = at + header.escapes_offset();
  plane.stream = {at + header.words_offset(), header.num_words, plane.states, &plane.model, symbols,
                  padded_symbols(num_symbols)};
  in.pos += header.section_bytes();
  return {};
}

// Symbol bytes to the plane they stand for.
bool expand_symbols(const CodedPlane& plane, PlaneMode mode, std::size_t n,
                    std::uint8_t* dst) noexcept {
  const std::uint8_t* symbols = plane.stream.symbols;
  if (mode == PlaneMode::kPalette)
    return kernels().unmap_palette(symbols, n, plane.palette.values,
                                   static_cast<std::uint8_t>(plane.palette.size), plane.escapes,
                                   plane.header.num_escapes, dst) == plane.header.num_escapes;
  for (std::size_t i = 0; i < n; ++i) dst[i] = swap_nibbles(symbols[i]);
  return true;
}

constexpr const char* kBadStream = "entropy-coded data not valid";

// The planes of a block: where they are, or will be decoded to.
struct PlaneMap {
  const std::uint8_t* planes[8] = {};
  PlaneMode modes[8] = {};

  explicit PlaneMap(const frame::Entry& entry) noexcept {
    for (unsigned p = 0; p < 8; ++p) modes[p] = entry.mode(p);
  }

  // Raw planes are the first in a payload.
  Status take_raw(In& in, std::size_t num_planes) noexcept {
    for (std::size_t p = 0; p < num_planes; ++p) {
      if (modes[p] != PlaneMode::kRaw) continue;
      planes[p] = in.take(align_up(in.job.num_elems));
      if (planes[p] == nullptr) return in.corrupt("payload ends inside a raw plane");
    }
    return {};
  }
  Status take_constant(In& in, std::size_t p, Workspace& ws) noexcept {
    const std::uint8_t* at = in.take(frame::kAlign);
    if (at == nullptr) return in.corrupt("payload ends inside a constant plane");
    std::memset(ws.planes[p], *at, in.job.num_elems);
    planes[p] = ws.planes[p];
    return {};
  }
};

Status decode_entropy(const BlockJob& job, DType dtype, Workspace& ws) noexcept {
  const std::size_t width = elem_bytes(dtype);
  In in{job};
  PlaneMap map(job.entry);
  for (std::size_t p = width; p < 8; ++p)
    if (map.modes[p] != PlaneMode::kRaw) return in.corrupt("mode of a plane that is not there");
  if (Status s = map.take_raw(in, width); !s.ok()) return s;
  for (std::size_t p = 0; p < width; ++p) {
    if (map.modes[p] == PlaneMode::kRaw) continue;
    if (map.modes[p] == PlaneMode::kConstant) {
      if (Status s = map.take_constant(in, p, ws); !s.ok()) return s;
      continue;
    }
    map.planes[p] = ws.planes[p];
    CodedPlane plane;
    if (Status s = read_section(in, map.modes[p], ws.symbols[0], plane); !s.ok()) return s;
    if (kernels().rans_decode(&plane.stream, 1) != 1 ||
        !expand_symbols(plane, map.modes[p], job.num_elems, ws.planes[p]))
      return in.corrupt(kBadStream);
  }
  if (in.left() != 0) return in.corrupt("bytes left over in a block", in.left(), 0);
  merge_planes(map.planes, job.num_elems, width, has_sign_bit(dtype), job.dst);
  return {};
}

// BF16 blocks as encoders mostly write them: low plane raw, exponents in a palette.
constexpr std::uint32_t kBf16Modes = frame::plane_mode_bits(1, PlaneMode::kPalette);

bool is_common_bf16(const BlockJob& job, DType dtype) noexcept {
  return dtype == DType::kBF16 && job.entry.codec == Codec::kEntropy &&
         job.entry.plane_modes == kBf16Modes;
}

Status decode_bf16_pair(std::span<const BlockJob> jobs, Workspace& ws) noexcept {
  CodedPlane planes[2];
  Bf16Block blocks[2];
  for (std::size_t i = 0; i < 2; ++i) {
    In in{jobs[i]};
    PlaneMap map(jobs[i].entry);
    if (Status s = map.take_raw(in, 2); !s.ok()) return s;
    if (Status s = read_section(in, PlaneMode::kPalette, ws.symbols[i], planes[i]); !s.ok())
      return s;
    if (in.left() != 0) return in.corrupt("bytes left over in a block", in.left(), 0);
    blocks[i] = {planes[i].stream,
                 map.planes[0],
                 planes[i].palette.values,
                 planes[i].header.palette_size,
                 planes[i].escapes,
                 planes[i].header.num_escapes,
                 jobs[i].dst,
                 jobs[i].num_elems};
  }
  // The payloads of the next blocks follow these; a symbol byte of both streams
  // stands for less than 6 bytes of them.
  const unsigned intact =
      kernels().decode_bf16_pair(blocks, {jobs[1].payload + jobs[1].entry.num_bytes, 6});
  for (std::size_t i = 0; i < 2; ++i)
    if ((intact >> i & 1) == 0) return In{jobs[i]}.corrupt(kBadStream);
  return {};
}

Status decode_fixed(const BlockJob& job, DType dtype, Workspace& ws) noexcept {
  const std::size_t width = elem_bytes(dtype), n = job.num_elems;
  In in{job};
  if (!has_fixed_codec(dtype)) return in.corrupt("fixed codec on a dtype it is not made for");
  PlaneMap map(job.entry);
  for (std::size_t p = 0; p < 8; ++p)
    if (map.modes[p] != PlaneMode::kRaw && (map.modes[p] != PlaneMode::kConstant || p + 1 >= width))
      return in.corrupt("plane mode not allowed in a fixed block");
  if (Status s = map.take_raw(in, width - 1); !s.ok()) return s;
  for (std::size_t p = 0; p + 1 < width; ++p)
    if (map.modes[p] == PlaneMode::kConstant)
      if (Status s = map.take_constant(in, p, ws); !s.ok()) return s;
  const std::uint8_t* nibbles = in.take(align_up(fixed_nibble_bytes(n)));
  const std::uint8_t* header_at = in.take(FixedHeader::kBytes);
  if (nibbles == nullptr || header_at == nullptr)
    return in.corrupt("payload ends inside the nibble plane");
  FixedHeader header;
  if (!header.read(header_at)) return in.corrupt("palette not valid");
  if (header.num_escapes > n) return in.corrupt("too many escapes", header.num_escapes, n);
  const std::uint8_t* escapes = in.take(align_up(std::size_t{header.num_escapes} * 4));
  if (escapes == nullptr) return in.corrupt("payload ends inside the escapes", header.num_escapes);
  if (in.left() != 0) return in.corrupt("bytes left over in a block", in.left(), 0);

  constexpr std::size_t kPiece = 4096;
  for (std::size_t first = 0; first < n; first += kPiece) {
    const std::size_t count = n - first < kPiece ? n - first : kPiece;
    std::uint8_t* high = ws.planes[7];
    kernels().fixed_unpack(nibbles + first / 2, count, header.palette, high);
    const std::uint8_t* planes[8] = {};
    for (std::size_t p = 0; p + 1 < width; ++p) planes[p] = map.planes[p] + first;
    planes[width - 1] = high;
    merge_planes(planes, count, width, false, job.dst + first * width);
  }
  for (std::uint32_t i = 0; i < header.num_escapes; ++i) {
    std::uint32_t escape;
    std::memcpy(&escape, escapes + 4 * i, 4);
    const std::size_t pos = escape & 0xFFFFFF;
    if (pos >= n) return in.corrupt("escape outside its block", pos, n);
    job.dst[pos * width + width - 1] = static_cast<std::uint8_t>(escape >> 24);
  }
  return {};
}

Status decode_simple(const BlockJob& job, DType dtype) noexcept {
  const std::size_t width = elem_bytes(dtype);
  In in{job};
  if (job.entry.plane_modes != 0) return in.corrupt("plane modes on a block without planes");
  if (job.entry.codec == Codec::kRaw) {
    if (job.entry.num_bytes != align_up(job.num_elems * width))
      return in.corrupt("raw block of the wrong size", job.entry.num_bytes,
                        align_up(job.num_elems * width));
    std::memcpy(job.dst, job.payload, job.num_elems * width);
    return {};
  }
  if (job.entry.num_bytes != frame::kAlign)
    return in.corrupt("constant block of the wrong size", job.entry.num_bytes, 16);
  frame::with_width(width, [&](auto value) {
    std::memcpy(&value, job.payload, sizeof value);
    for (std::size_t i = 0; i < job.num_elems; ++i)
      std::memcpy(job.dst + i * sizeof value, &value, sizeof value);
  });
  return {};
}

Status decode_block(const BlockJob& job, DType dtype, Workspace& ws) noexcept {
  switch (job.entry.codec) {
    case Codec::kRaw:
    case Codec::kConstant: return decode_simple(job, dtype);
    case Codec::kFixed: return decode_fixed(job, dtype, ws);
    case Codec::kEntropy: return decode_entropy(job, dtype, ws);
  }
  return In{job}.corrupt("unknown codec");
}

}  // namespace

std::uint32_t payload_checksum(const std::uint8_t* payload, std::size_t num_bytes) noexcept {
  return frame::checksum_finish(kernels().checksum_terms(payload, num_bytes), num_bytes);
}

Status check_payload(const frame::Entry& entry, std::uint64_t block_idx,
                     const std::uint8_t* payload) noexcept {
  const std::uint32_t sum = payload_checksum(payload, entry.num_bytes);
  if (sum != entry.checksum)
    return {Code::kCorrupt, "checksum does not match", block_idx, entry.offset, sum,
            entry.checksum};
  return {};
}

Status decode_blocks(std::span<const BlockJob> jobs, DType dtype, Workspace& ws) noexcept {
  Status status;
  for (const BlockJob& job : jobs)
    if (status.ok()) status = check_payload(job.entry, job.block_idx, job.payload);
  if (!status.ok()) return status;
  if (jobs.size() == 2 && kernels().decode_bf16_pair != nullptr && is_common_bf16(jobs[0], dtype) &&
      is_common_bf16(jobs[1], dtype)) {
    status = decode_bf16_pair(jobs, ws);
  } else {
    for (const BlockJob& job : jobs)
      if (status.ok()) status = decode_block(job, dtype, ws);
  }
  kernels().finish_writes();
  return status;
}

}  // namespace snug::codec
