#include "frame/frame.h"

#include <cstring>

#include "frame/bytes.h"
#include "frame/checksum.h"

namespace snug::frame {
namespace {

constexpr std::size_t kChecksumOffset = 32;

Status corrupt(const char* what, std::uint64_t byte, std::uint64_t found,
               std::uint64_t expected = kNowhere, std::uint64_t block = kNowhere) noexcept {
  return {Code::kCorrupt, what, block, byte, found, expected};
}

}  // namespace

int default_log2_block(DType dtype) noexcept {
  // 256 KiB of data: lane states and tables cost 0.1 % of a BF16 block, and a
  // block with its coded form stays in a 1 MiB L2 cache.
  switch (elem_bytes(dtype)) {
    case 4: return 16;
    case 8: return 15;
    default: return 17;
  }
}

Result<Header> make_header(std::span<const std::byte> tail, std::uint64_t raw_bytes, DType dtype,
                           int log2_block) noexcept {
  const std::size_t width = elem_bytes(dtype);
  if (width == 0)
    return Status{Code::kUsage, "not a dtype", kNowhere, kNowhere,
                  static_cast<std::uint64_t>(dtype)};
  if (log2_block == 0) log2_block = default_log2_block(dtype);
  if (log2_block < kMinLog2Block || log2_block > kMaxLog2Block)
    return Status{Code::kUsage, "log2_block must be 0 or 12 to 17", kNowhere, kNowhere,
                  static_cast<std::uint64_t>(log2_block)};
  // One index entry a block must stay below 0.2 % of the data.
  if (width == 1 && log2_block < kMinLog2Block + 1) log2_block = kMinLog2Block + 1;
  if (raw_bytes > kMaxRawBytes)
    return Status{Code::kUsage, "tensor too large", kNowhere, kNowhere, raw_bytes, kMaxRawBytes};
  Header header;
  header.dtype = dtype;
  header.log2_block = log2_block;
  header.num_elems = raw_bytes / width;
  header.num_tail_bytes = static_cast<std::uint8_t>(raw_bytes % width);
  if (!tail.empty()) std::memcpy(header.tail, tail.data(), header.num_tail_bytes);
  return header;
}

void write_header(const Header& header, std::uint8_t* dst) noexcept {
  std::memset(dst, 0, kHeaderBytes);
  store(dst, kMagic);
  dst[4] = kVersion;
  dst[5] = static_cast<std::uint8_t>(header.dtype);
  dst[6] = static_cast<std::uint8_t>(header.log2_block);
  dst[7] = header.num_tail_bytes;
  store(dst + 8, header.num_elems);
  store(dst + 16, header.frame_bytes);
  std::memcpy(dst + 24, header.tail, 8);
  store(dst + kChecksumOffset, header.checksum);
}

void write_entry(const Entry& entry, std::uint8_t* dst) noexcept {
  store(dst, entry.offset / kAlign | std::uint64_t{static_cast<std::uint8_t>(entry.codec)} << 40 |
                 std::uint64_t{entry.plane_modes} << 48);
  store(dst + 8, entry.num_bytes);
  store(dst + 12, entry.checksum);
}

Entry read_entry(const std::uint8_t* src) noexcept {
  const auto word = load<std::uint64_t>(src);
  Entry entry;
  entry.offset = (word & ((std::uint64_t{1} << 40) - 1)) * kAlign;
  entry.codec = static_cast<Codec>((word >> 40) & 0xFF);
  entry.plane_modes = static_cast<std::uint16_t>(word >> 48);
  entry.num_bytes = load<std::uint32_t>(src + 8);
  entry.checksum = load<std::uint32_t>(src + 12);
  return entry;
}

Result<Header> read_header(std::span<const std::byte> frame) noexcept {
  if (frame.size() < kHeaderBytes)
    return corrupt("frame shorter than its header", 0, frame.size(), kHeaderBytes);
  const auto* p = reinterpret_cast<const std::uint8_t*>(frame.data());
  if (load<std::uint32_t>(p) != kMagic)
    return Status{Code::kBadMagic, "not a Snug frame", kNowhere, 0, load<std::uint32_t>(p), kMagic};
  if (p[4] != kVersion)
    return Status{Code::kUnsupportedVersion,
                  "frame version not known to this Snug; update it",
                  kNowhere,
                  4,
                  p[4],
                  kVersion};
  Header header;
  header.dtype = static_cast<DType>(p[5]);
  header.log2_block = p[6];
  header.num_tail_bytes = p[7];
  header.num_elems = load<std::uint64_t>(p + 8);
  header.frame_bytes = load<std::uint64_t>(p + 16);
  std::memcpy(header.tail, p + 24, 8);
  header.checksum = load<std::uint32_t>(p + kChecksumOffset);

  const std::size_t width = elem_bytes(header.dtype);
  if (width == 0) return corrupt("unknown dtype", 5, p[5]);
  if (header.log2_block < kMinLog2Block || header.log2_block > kMaxLog2Block)
    return corrupt("block size out of range", 6, p[6]);
  if (header.num_tail_bytes >= width)
    return corrupt("tail as long as an element", 7, p[7], width - 1);
  for (std::size_t i = header.num_tail_bytes; i < 8; ++i)
    if (header.tail[i] != 0)
      return corrupt("unused tail byte is not zero", 24 + i, header.tail[i], 0);
  for (std::size_t i = kChecksumOffset + 4; i < kHeaderBytes; ++i)
    if (p[i] != 0) return corrupt("reserved byte is not zero", i, p[i], 0);
  if (header.num_elems > kMaxRawBytes / width)
    return corrupt("element count too large", 8, header.num_elems, kMaxRawBytes / width);
  if (header.frame_bytes % kAlign != 0 || header.frame_bytes < header.payload_start())
    return corrupt("frame size impossible", 16, header.frame_bytes, header.payload_start());
  return header;
}

std::uint32_t head_checksum(std::span<const std::byte> head) noexcept {
  const auto* p = reinterpret_cast<const std::uint8_t*>(head.data());
  // The checksum field itself counts as zero: take its term out again.
  const std::uint64_t own = std::uint64_t{load<std::uint32_t>(p + kChecksumOffset)} *
                            checksum_multiplier(kChecksumOffset / 4);
  return checksum_finish(checksum_terms(p, head.size(), 0) - own, head.size());
}

Status check_index(const Header& header, std::span<const std::byte> head) noexcept {
  if (head.size() != header.payload_start())
    return corrupt("frame ends inside its block index", kHeaderBytes, head.size(),
                   header.payload_start());
  const std::uint32_t sum = head_checksum(head);
  if (sum != header.checksum)
    return corrupt("header checksum does not match", kChecksumOffset, sum, header.checksum);
  const auto* index = reinterpret_cast<const std::uint8_t*>(head.data()) + kHeaderBytes;
  std::uint64_t end = header.payload_start();
  const std::size_t width = elem_bytes(header.dtype);
  for (std::uint64_t i = 0; i < header.num_blocks(); ++i) {
    const Entry entry = read_entry(index + i * kEntryBytes);
    const std::uint64_t at = kHeaderBytes + i * kEntryBytes;
    if (entry.offset != end)
      return corrupt("block not where it should start", at, entry.offset, end, i);
    if (static_cast<int>(entry.codec) >= kNumCodecs)
      return corrupt("unknown codec", at, static_cast<std::uint64_t>(entry.codec), kNowhere, i);
    if (entry.num_bytes % kAlign != 0 || entry.num_bytes == 0 ||
        entry.num_bytes > max_payload(header.elems_in_block(i), width))
      return corrupt("block size impossible", at + 8, entry.num_bytes,
                     max_payload(header.elems_in_block(i), width), i);
    end += entry.num_bytes;
  }
  if (end != header.frame_bytes)
    return corrupt("frame size does not match its blocks", 16, header.frame_bytes, end);
  return {};
}

}  // namespace snug::frame
