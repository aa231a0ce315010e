// frame/container.h - what frames and deltas have in common: blocks of a power of two elements, a
// header of 64 bytes that starts with the same 16, an index, and one checksum over both.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "frame/bytes.h"
#include "frame/checksum.h"
#include "snug/status.h"
#include "snug/tensor.h"

namespace snug::frame {

inline constexpr std::size_t kHeaderBytes = 64;
inline constexpr int kMinLog2Block = 12;

constexpr Status corrupt(const char* what, std::uint64_t byte = kNowhere,
                         std::uint64_t found = kNowhere, std::uint64_t expected = kNowhere,
                         std::uint64_t block = kNowhere) noexcept {
  return {Code::kCorrupt, what, block, byte, found, expected};
}

// A failure that has no place in the data.
constexpr Status failure(Code code, const char* what, std::uint64_t found = kNowhere,
                         std::uint64_t expected = kNowhere) noexcept {
  return {code, what, kNowhere, kNowhere, found, expected};
}

// Every block has 2^log2_block elements, except for the last, which has the rest.
struct BlockGrid {
  std::uint64_t num_elems;
  int log2_block;

  constexpr std::uint64_t block_elems() const noexcept { return std::uint64_t{1} << log2_block; }
  constexpr std::uint64_t num_blocks() const noexcept {
    return (num_elems + block_elems() - 1) >> log2_block;
  }
  constexpr std::uint64_t elems_in_block(std::uint64_t block_idx) const noexcept {
    const std::uint64_t left = num_elems - (block_idx << log2_block);
    return left < block_elems() ? left : block_elems();
  }
};

struct ContainerRules {
  std::uint32_t magic;
  std::uint8_t version;
  int max_log2_block;
  std::uint64_t max_raw_bytes;
  std::size_t tail_offset, checksum_offset;  // in the header
  const char *not_this, *bad_log2_block;     // messages
};

// Bytes after the last whole element. Empty for sizes that no buffer has: describe_tensor refuses
// them, and even a pointer to their end would be undefined.
inline std::span<const std::byte> tail_of(std::span<const std::byte> raw, DType dtype) noexcept {
  const std::size_t width = elem_bytes(dtype);
  if (width == 0 || raw.size() > PTRDIFF_MAX) return {};
  return raw.last(raw.size() % width);
}

// Fills in the fields that describe the tensor. `tail` may be empty where only sizes matter.
template <class Header>
Status describe_tensor(const ContainerRules& rules, std::uint64_t raw_bytes,
                       std::span<const std::byte> tail, DType dtype, int log2_block,
                       Header& header) noexcept {
  const std::size_t width = elem_bytes(dtype);
  if (width == 0) return failure(Code::kUsage, "not a dtype", static_cast<std::uint64_t>(dtype));
  if (log2_block < kMinLog2Block || log2_block > rules.max_log2_block)
    return failure(Code::kUsage, rules.bad_log2_block, static_cast<std::uint64_t>(log2_block));
  if (raw_bytes > rules.max_raw_bytes)
    return failure(Code::kUsage, "tensor too large", raw_bytes, rules.max_raw_bytes);
  header.dtype = dtype;
  header.log2_block = log2_block;
  header.num_elems = raw_bytes / width;
  header.num_tail_bytes = static_cast<std::uint8_t>(raw_bytes % width);
  if (!tail.empty()) std::memcpy(header.tail, tail.data(), header.num_tail_bytes);
  return {};
}

// Writes 64 bytes: the common fields, and zeros for the caller to fill.
template <class Header>
void write_common(const ContainerRules& rules, const Header& header, std::uint8_t* dst) noexcept {
  std::memset(dst, 0, kHeaderBytes);
  store(dst, rules.magic);
  dst[4] = rules.version;
  dst[5] = static_cast<std::uint8_t>(header.dtype);
  dst[6] = static_cast<std::uint8_t>(header.log2_block);
  dst[7] = header.num_tail_bytes;
  store(dst + 8, header.num_elems);
  std::memcpy(dst + rules.tail_offset, header.tail, 8);
  store(dst + rules.checksum_offset, header.checksum);
}

// Reads and checks the common fields of `bytes`, which may be hostile.
template <class Header>
Status read_common(const ContainerRules& rules, std::span<const std::byte> bytes,
                   Header& header) noexcept {
  if (bytes.size() < kHeaderBytes)
    return corrupt("shorter than its header", 0, bytes.size(), kHeaderBytes);
  const std::uint8_t* p = bytes_of(bytes);
  const auto magic = load<std::uint32_t>(p);
  if (magic != rules.magic)
    return {Code::kBadMagic, rules.not_this, kNowhere, 0, magic, rules.magic};
  if (p[4] != rules.version)
    return {Code::kUnsupportedVersion,
            "version not known to this Snug; update it",
            kNowhere,
            4,
            p[4],
            rules.version};
  header.dtype = static_cast<DType>(p[5]);
  header.log2_block = p[6];
  header.num_tail_bytes = p[7];
  header.num_elems = load<std::uint64_t>(p + 8);
  std::memcpy(header.tail, p + rules.tail_offset, 8);
  header.checksum = load<std::uint32_t>(p + rules.checksum_offset);

  const std::size_t width = elem_bytes(header.dtype);
  if (width == 0) return corrupt("unknown dtype", 5, p[5]);
  if (header.log2_block < kMinLog2Block || header.log2_block > rules.max_log2_block)
    return corrupt("block size out of range", 6, p[6]);
  if (header.num_tail_bytes >= width)
    return corrupt("tail as long as an element", 7, p[7], width - 1);
  for (std::size_t i = header.num_tail_bytes; i < 8; ++i)
    if (header.tail[i] != 0)
      return corrupt("unused tail byte is not zero", rules.tail_offset + i, header.tail[i], 0);
  if (header.num_elems > rules.max_raw_bytes / width)
    return corrupt("element count too large", 8, header.num_elems, rules.max_raw_bytes / width);
  return {};
}

// Checks that the header's bytes from `first` on, which are reserved, are zero.
inline Status check_reserved(const std::byte* header, std::size_t first) noexcept {
  for (std::size_t i = first; i < kHeaderBytes; ++i)
    if (header[i] != std::byte{0})
      return corrupt("reserved byte is not zero", i, static_cast<std::uint64_t>(header[i]), 0);
  return {};
}

// The checksum over header and index, its own field counted as zero.
inline std::uint32_t common_checksum(const ContainerRules& rules, const std::uint8_t* head,
                                     std::size_t num_bytes) noexcept {
  const std::uint64_t own = std::uint64_t{load<std::uint32_t>(head + rules.checksum_offset)} *
                            checksum_multiplier(rules.checksum_offset / 4);
  return checksum_finish(checksum_terms(head, num_bytes, 0) - own, num_bytes);
}

}  // namespace snug::frame
