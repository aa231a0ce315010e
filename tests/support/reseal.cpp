#include "support/reseal.h"

#include <cstring>

#include "frame/checksum.h"
#include "frame/frame.h"

namespace snug::test {
namespace {

constexpr std::size_t kHeadChecksumAt = 32;
constexpr std::size_t kEntryChecksumAt = 12;

void put(std::byte* at, std::uint32_t value) noexcept { std::memcpy(at, &value, sizeof value); }

// Bytes of header and index; 0 where the header claims what is not there.
std::size_t head_bytes(std::span<const std::byte> frame) noexcept {
  const auto header = frame::read_header(frame);
  if (!header || header->payload_start() > frame.size()) return 0;
  return header->payload_start();
}

}  // namespace

void reseal_head(std::span<std::byte> frame) noexcept {
  if (const std::size_t head = head_bytes(frame); head != 0)
    put(frame.data() + kHeadChecksumAt, frame::head_checksum(frame.first(head)));
}

void reseal(std::span<std::byte> frame) noexcept {
  const std::size_t head = head_bytes(frame);
  for (std::size_t at = frame::kHeaderBytes; at < head; at += frame::kEntryBytes) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(frame.data());
    const frame::Entry entry = frame::read_entry(bytes + at);
    if (entry.offset > frame.size() || entry.num_bytes > frame.size() - entry.offset) continue;
    const std::uint64_t terms =
        frame::checksum_terms(bytes + entry.offset, entry.num_bytes & ~3u, 0);
    put(frame.data() + at + kEntryChecksumAt, frame::checksum_finish(terms, entry.num_bytes));
  }
  reseal_head(frame);
}

}  // namespace snug::test
