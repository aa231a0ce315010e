#include "delta/delta_format.h"

#include <cstring>

#include "frame/bytes.h"
#include "frame/checksum.h"

namespace snug::delta {
namespace {

constexpr std::size_t kChecksumOffset = 56;

using frame::load;
using frame::store;

Status corrupt(const char* what, std::uint64_t byte, std::uint64_t found,
               std::uint64_t expected = kNowhere, std::uint64_t block = kNowhere) noexcept {
  return {Code::kCorrupt, what, block, byte, found, expected};
}

}  // namespace

void write_header(const Header& header, std::uint8_t* dst) noexcept {
  std::memset(dst, 0, kHeaderBytes);
  store(dst, kMagic);
  dst[4] = kVersion;
  dst[5] = static_cast<std::uint8_t>(header.dtype);
  dst[6] = static_cast<std::uint8_t>(header.log2_block);
  dst[7] = header.num_tail_bytes;
  store(dst + 8, header.num_elems);
  store(dst + 16, header.delta_bytes);
  store(dst + 24, header.base_hash);
  store(dst + 32, header.target_hash);
  store(dst + 40, header.num_changed);
  std::memcpy(dst + 48, header.tail, 8);
  store(dst + kChecksumOffset, header.checksum);
  dst[60] = static_cast<std::uint8_t>(header.kind);
}

Result<Header> read_header(std::span<const std::byte> delta) noexcept {
  if (delta.size() < kHeaderBytes)
    return corrupt("delta shorter than its header", 0, delta.size(), kHeaderBytes);
  const auto* p = reinterpret_cast<const std::uint8_t*>(delta.data());
  if (load<std::uint32_t>(p) != kMagic)
    return Status{Code::kBadMagic, "not a Snug delta", kNowhere, 0, load<std::uint32_t>(p), kMagic};
  if (p[4] != kVersion)
    return Status{Code::kUnsupportedVersion,
                  "delta version not known to this Snug; update it",
                  kNowhere,
                  4,
                  p[4],
                  kVersion};
  Header header;
  header.dtype = static_cast<DType>(p[5]);
  header.log2_block = p[6];
  header.num_tail_bytes = p[7];
  header.num_elems = load<std::uint64_t>(p + 8);
  header.delta_bytes = load<std::uint64_t>(p + 16);
  header.base_hash = load<std::uint64_t>(p + 24);
  header.target_hash = load<std::uint64_t>(p + 32);
  header.num_changed = load<std::uint64_t>(p + 40);
  std::memcpy(header.tail, p + 48, 8);
  header.checksum = load<std::uint32_t>(p + kChecksumOffset);
  header.kind = static_cast<Kind>(p[60]);

  const std::size_t width = elem_bytes(header.dtype);
  if (width == 0) return corrupt("unknown dtype", 5, p[5]);
  if (header.log2_block < kMinLog2Block || header.log2_block > kMaxLog2Block)
    return corrupt("block size out of range", 6, p[6]);
  if (header.num_tail_bytes >= width)
    return corrupt("tail as long as an element", 7, p[7], width - 1);
  for (std::size_t i = header.num_tail_bytes; i < 8; ++i)
    if (header.tail[i] != 0)
      return corrupt("unused tail byte is not zero", 48 + i, header.tail[i], 0);
  if (p[60] > 1) return corrupt("unknown kind of delta", 60, p[60]);
  for (std::size_t i = 61; i < kHeaderBytes; ++i)
    if (p[i] != 0) return corrupt("reserved byte is not zero", i, p[i], 0);
  if (header.num_elems > kMaxRawBytes / width)
    return corrupt("element count too large", 8, header.num_elems, kMaxRawBytes / width);
  if (header.num_changed > header.num_elems)
    return corrupt("more changes than elements", 40, header.num_changed, header.num_elems);
  if (header.delta_bytes < header.payload_start() || header.delta_bytes % 4 != 0)
    return corrupt("delta size impossible", 16, header.delta_bytes, header.payload_start());
  return header;
}

std::uint32_t head_checksum(const std::uint8_t* head, std::size_t num_bytes) noexcept {
  // The checksum field itself counts as zero: take its term out again.
  const std::uint64_t own = std::uint64_t{load<std::uint32_t>(head + kChecksumOffset)} *
                            frame::checksum_multiplier(kChecksumOffset / 4);
  return frame::checksum_finish(frame::checksum_terms(head, num_bytes, 0) - own, num_bytes);
}

Status check_index(const Header& header, std::span<const std::byte> delta) noexcept {
  if (delta.size() < header.delta_bytes)
    return corrupt("delta cut short", delta.size(), delta.size(), header.delta_bytes);
  const auto* head = reinterpret_cast<const std::uint8_t*>(delta.data());
  const std::uint32_t sum = head_checksum(head, header.payload_start());
  if (sum != header.checksum)
    return corrupt("header checksum does not match", kChecksumOffset, sum, header.checksum);
  std::uint64_t end = header.payload_start();
  const std::size_t width = elem_bytes(header.dtype);
  for (std::uint64_t i = 0; i < header.num_blocks(); ++i) {
    const std::uint64_t at = kHeaderBytes + i * kEntryBytes;
    const std::uint64_t next = std::uint64_t{load<std::uint32_t>(head + at)} * 4;
    const std::uint64_t most = end + raw_payload_bytes(header.elems_in_block(i), width);
    if (next < end || next > most) return corrupt("block size impossible", at, next, most, i);
    end = next;
  }
  if (header.kind == Kind::kBlocks && end != header.delta_bytes)
    return corrupt("delta size does not match its blocks", 16, header.delta_bytes, end);
  return {};
}

}  // namespace snug::delta
