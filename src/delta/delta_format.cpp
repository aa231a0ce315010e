#include "delta/delta_format.h"

namespace snug::delta {
namespace {

using frame::corrupt;
using frame::load;
using frame::store;

constexpr frame::ContainerRules kRules = {
    .magic = kMagic,
    .version = kVersion,
    .max_log2_block = kMaxLog2Block,
    .max_raw_bytes = kMaxRawBytes,
    .tail_offset = 48,
    .checksum_offset = 56,
    .not_this = "not a Snug delta",
    .bad_log2_block = "log2_block must be 0 or 12 to 16",
};

void write_header(const Header& header, std::uint8_t* dst) noexcept {
  frame::write_common(kRules, header, dst);
  store(dst + 16, header.delta_bytes);
  store(dst + 24, header.base_hash);
  store(dst + 32, header.target_hash);
  store(dst + 40, header.num_changed);
  dst[60] = static_cast<std::uint8_t>(header.kind);
}

}  // namespace

Result<Header> make_header(std::span<const std::byte> target, DType dtype,
                           int log2_block) noexcept {
  Header header;
  if (Status s = frame::describe_tensor(kRules, target.size(), frame::tail_of(target, dtype), dtype,
                                        log2_block == 0 ? kDefaultLog2Block : log2_block, header);
      !s.ok())
    return s;
  return header;
}

std::size_t seal(Header header, std::span<std::byte> delta) noexcept {
  std::uint8_t* dst = frame::bytes_of(delta);
  write_header(header, dst);
  header.checksum = head_checksum(dst, header.payload_start());
  write_header(header, dst);
  return header.delta_bytes;
}

Result<Header> read_header(std::span<const std::byte> delta) noexcept {
  Header header;
  if (Status s = frame::read_common(kRules, delta, header); !s.ok()) return s;
  const std::uint8_t* p = frame::bytes_of(delta);
  header.delta_bytes = load<std::uint64_t>(p + 16);
  header.base_hash = load<std::uint64_t>(p + 24);
  header.target_hash = load<std::uint64_t>(p + 32);
  header.num_changed = load<std::uint64_t>(p + 40);
  header.kind = static_cast<Kind>(p[60]);
  if (p[60] > 1) return corrupt("unknown kind of delta", 60, p[60]);
  if (Status s = frame::check_reserved(delta.data(), 61); !s.ok()) return s;
  if (header.num_changed > header.num_elems)
    return corrupt("more changes than elements", 40, header.num_changed, header.num_elems);
  if (header.delta_bytes < header.payload_start() || header.delta_bytes % 4 != 0)
    return corrupt("delta size impossible", 16, header.delta_bytes, header.payload_start());
  return header;
}

std::uint32_t head_checksum(const std::uint8_t* head, std::size_t num_bytes) noexcept {
  return frame::common_checksum(kRules, head, num_bytes);
}

Status check_index(const Header& header, std::span<const std::byte> delta) noexcept {
  if (delta.size() < header.delta_bytes)
    return corrupt("delta cut short", delta.size(), delta.size(), header.delta_bytes);
  const std::uint8_t* head = frame::bytes_of(delta);
  const std::uint32_t sum = head_checksum(head, header.payload_start());
  if (sum != header.checksum)
    return corrupt("header checksum does not match", kRules.checksum_offset, sum, header.checksum);
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
