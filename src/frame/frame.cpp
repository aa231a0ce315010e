#include "frame/frame.h"

#include <cstring>

#include "frame/container.h"

namespace snug::frame {
namespace {

constexpr ContainerRules kRules = {
    .magic = kMagic,
    .version = kVersion,
    .max_log2_block = kMaxLog2Block,
    .max_raw_bytes = kMaxRawBytes,
    .tail_offset = 24,
    .checksum_offset = 32,
    .not_this = "not a Snug frame",
    .bad_log2_block = "log2_block must be 0 or 12 to 17",
};

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
  if (log2_block == 0) log2_block = default_log2_block(dtype);
  Header header;
  if (Status s = describe_tensor(kRules, raw_bytes, tail, dtype, log2_block, header); !s.ok())
    return s;
  // One index entry a block must stay below 0.2 % of the data.
  if (elem_bytes(dtype) == 1 && log2_block == kMinLog2Block) ++header.log2_block;
  return header;
}

void write_header(const Header& header, std::uint8_t* dst) noexcept {
  write_common(kRules, header, dst);
  store(dst + 16, header.frame_bytes);
}

void seal(Header header, std::span<std::byte> head) noexcept {
  std::uint8_t* dst = bytes_of(head);
  write_header(header, dst);
  header.checksum = head_checksum(head);
  write_header(header, dst);
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
  Header header;
  if (Status s = read_common(kRules, frame, header); !s.ok()) return s;
  header.frame_bytes = load<std::uint64_t>(bytes_of(frame) + 16);
  if (Status s = check_reserved(frame.data(), kRules.checksum_offset + 4); !s.ok()) return s;
  if (header.frame_bytes % kAlign != 0 || header.frame_bytes < header.payload_start())
    return corrupt("frame size impossible", 16, header.frame_bytes, header.payload_start());
  return header;
}

std::uint32_t head_checksum(std::span<const std::byte> head) noexcept {
  return common_checksum(kRules, bytes_of(head), head.size());
}

namespace {

Status bad_checksum(std::uint32_t sum, const Header& header) noexcept {
  return corrupt("header checksum does not match", kRules.checksum_offset, sum, header.checksum);
}

Status bad_end(std::uint64_t end, const Header& header) noexcept {
  return corrupt("frame size does not match its blocks", 16, header.frame_bytes, end);
}

// Entries of blocks `first` and following, whose payloads start at `end`; moves it on.
Status check_run(const Header& header, std::uint64_t first, std::span<const std::byte> entries,
                 std::uint64_t& end) noexcept {
  const std::uint8_t* p = bytes_of(entries);
  const std::size_t width = elem_bytes(header.dtype);
  for (std::uint64_t i = first; i < first + entries.size() / kEntryBytes; ++i, p += kEntryBytes) {
    const std::uint64_t at = entry_offset(i);
    const Entry entry = read_entry(p);
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
  return {};
}

}  // namespace

Status check_index(const Header& header, std::span<const std::byte> head) noexcept {
  if (head.size() != header.payload_start())
    return corrupt("frame ends inside its block index", kHeaderBytes, head.size(),
                   header.payload_start());
  const std::uint32_t sum = head_checksum(head);
  if (sum != header.checksum) return bad_checksum(sum, header);
  std::uint64_t end = header.payload_start();
  if (Status s = check_run(header, 0, head.subspan(kHeaderBytes), end); !s.ok()) return s;
  return end == header.frame_bytes ? Status{} : bad_end(end, header);
}

IndexCheck::IndexCheck(const Header& header) noexcept
    : header_(header), end_(header.payload_start()) {
  std::uint8_t bytes[kHeaderBytes];
  Header without = header;
  without.checksum = 0;
  write_header(without, bytes);
  sum_ = checksum_terms(bytes, sizeof bytes, 0);
}

Status IndexCheck::add(std::span<const std::byte> entries) noexcept {
  sum_ += checksum_terms(bytes_of(entries), entries.size(), entry_offset(num_blocks_) / 4);
  const std::uint64_t first = num_blocks_;
  num_blocks_ += entries.size() / kEntryBytes;
  return check_run(header_, first, entries, end_);
}

Status IndexCheck::finish() const noexcept {
  const std::uint32_t sum = checksum_finish(sum_, header_.payload_start());
  if (sum != header_.checksum) return bad_checksum(sum, header_);
  return end_ == header_.frame_bytes ? Status{} : bad_end(end_, header_);
}

Status check_entries(const Header& header, std::uint64_t first,
                     std::span<const std::byte> entries) noexcept {
  if (entries.empty()) return {};
  std::uint64_t end = read_entry(bytes_of(entries)).offset;
  if (end < header.payload_start())
    return corrupt("block not where it should start", entry_offset(first), end,
                   header.payload_start(), first);
  if (Status s = check_run(header, first, entries, end); !s.ok()) return s;
  return end <= header.frame_bytes ? Status{} : bad_end(end, header);
}

}  // namespace snug::frame
