// frame/frame.h - the container: header, block index, payloads. Knows no codec
// beyond its number. docs/format.md is the normative description.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "frame/container.h"
#include "snug/status.h"
#include "snug/tensor.h"

namespace snug::frame {

inline constexpr std::uint32_t kMagic = 0x47554E53;  // "SNUG"
inline constexpr std::uint8_t kVersion = 1;
inline constexpr std::size_t kEntryBytes = 16;
inline constexpr std::size_t kAlign = 16;
inline constexpr int kMaxLog2Block = 17;
inline constexpr std::size_t kMaxBlockElems = std::size_t{1} << kMaxLog2Block;
inline constexpr std::uint64_t kMaxRawBytes = std::uint64_t{1} << 43;  // 8 TiB

constexpr std::uint64_t entry_offset(std::uint64_t block_idx) noexcept {
  return kHeaderBytes + block_idx * kEntryBytes;
}

inline constexpr std::size_t align_up(std::size_t n) noexcept {
  return (n + kAlign - 1) & ~(kAlign - 1);
}

struct Header {
  DType dtype = DType::kBytes;
  int log2_block = 0;
  std::uint64_t num_elems = 0;
  std::uint64_t frame_bytes = 0;
  std::uint8_t num_tail_bytes = 0;  // bytes beyond the last whole element
  std::uint8_t tail[8] = {};
  std::uint32_t checksum = 0;  // over header and index

  BlockGrid grid() const noexcept { return {num_elems, log2_block}; }
  std::uint64_t block_elems() const noexcept { return grid().block_elems(); }
  std::uint64_t num_blocks() const noexcept { return grid().num_blocks(); }
  std::uint64_t elems_in_block(std::uint64_t block_idx) const noexcept {
    return grid().elems_in_block(block_idx);
  }
  std::size_t block_bytes() const noexcept { return elem_bytes(dtype) << log2_block; }
  std::uint64_t raw_bytes() const noexcept {
    return num_elems * elem_bytes(dtype) + num_tail_bytes;
  }
  std::uint64_t payload_start() const noexcept { return entry_offset(num_blocks()); }
};

// What a plane of an entropy-coded or fixed block holds.
enum class PlaneMode : std::uint8_t { kRaw = 0, kConstant = 1, kBytes = 2, kPalette = 3 };

// The part of Entry::plane_modes that gives `plane` this mode, and the mode it gives.
constexpr std::uint32_t plane_mode_bits(unsigned plane, PlaneMode mode) noexcept {
  return static_cast<std::uint32_t>(mode) << (2 * plane);
}
constexpr PlaneMode plane_mode(std::uint32_t plane_modes, unsigned plane) noexcept {
  return static_cast<PlaneMode>(plane_modes >> (2 * plane) & 3);
}

struct Entry {
  std::uint64_t offset = 0;  // bytes from the start of the frame, a multiple of 16
  Codec codec = Codec::kRaw;
  std::uint16_t plane_modes = 0;  // two bits a plane, lowest plane first
  std::uint32_t num_bytes = 0;    // a multiple of 16
  std::uint32_t checksum = 0;

  PlaneMode mode(unsigned plane) const noexcept { return plane_mode(plane_modes, plane); }
};

// A header for `raw_bytes` bytes; frame_bytes and checksum are still open.
Result<Header> make_header(std::span<const std::byte> tail, std::uint64_t raw_bytes, DType dtype,
                           int log2_block) noexcept;
int default_log2_block(DType dtype) noexcept;

void write_header(const Header& header, std::uint8_t* dst) noexcept;
// Writes the header, with its checksum, to `head`, which has the index already.
void seal(Header header, std::span<std::byte> head) noexcept;
void write_entry(const Entry& entry, std::uint8_t* dst) noexcept;
Entry read_entry(const std::uint8_t* src) noexcept;

// Checks every field that can be checked from the first 64 bytes alone.
Result<Header> read_header(std::span<const std::byte> frame) noexcept;

// The checksum over header and index, `head` being payload_start() bytes.
std::uint32_t head_checksum(std::span<const std::byte> head) noexcept;

// Checks that `head`, the first payload_start() bytes of a frame of header.frame_bytes, has a good
// checksum and that payloads follow each other without gap or overlap up to the end of the frame.
Status check_index(const Header& header, std::span<const std::byte> head) noexcept;

// The same for an index that comes in pieces of whole entries.
class IndexCheck {
 public:
  explicit IndexCheck(const Header& header) noexcept;
  Status add(std::span<const std::byte> entries) noexcept;
  Status finish() const noexcept;

 private:
  const Header header_;
  std::uint64_t sum_, end_, num_blocks_ = 0;
};

// Checks what can be checked of the entries of blocks `first` and following alone: they can be used
// without harm, though they may not be those of the frame.
Status check_entries(const Header& header, std::uint64_t first,
                     std::span<const std::byte> entries) noexcept;

// Largest payload a block of `num_elems` may have: what it takes raw, or the
// 16 bytes of a constant.
inline std::uint64_t max_payload(std::uint64_t num_elems, std::size_t bytes_per_elem) noexcept {
  return align_up(num_elems * bytes_per_elem);
}

}  // namespace snug::frame
