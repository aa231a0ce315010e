#include "wire/protocol.h"

#include <algorithm>
#include <cstring>

#include "hash/xxh3.h"

namespace snug::wire {

const char* mode_name(Mode mode) noexcept {
  switch (mode) {
    case Mode::kRaw: return "raw";
    case Mode::kFixed: return "fixed";
    case Mode::kEntropy: return "entropy";
    case Mode::kAuto: return "auto";
  }
  return "unknown";
}

std::uint64_t hash_bytes(std::span<const std::byte> bytes) noexcept {
  return hash::xxh3().hash64(bytes.data(), bytes.size());
}

namespace {

template <class Header>
std::uint64_t header_hash(const Header& header) noexcept {
  return hash::xxh3().hash64(&header, offsetof(Header, header_hash));
}

template <class Header>
Status check_header(const Header& header, std::uint32_t magic) noexcept {
  if (header.magic != magic || header.header_hash != header_hash(header))
    return {Code::kCorrupt, "a header was damaged on the wire"};
  return {};
}

}  // namespace

void seal(ControlHeader& header) noexcept { header.header_hash = header_hash(header); }
void seal(LaneHeader& header) noexcept { header.header_hash = header_hash(header); }
Status check(const ControlHeader& header) noexcept { return check_header(header, kControlMagic); }
Status check(const LaneHeader& header) noexcept { return check_header(header, kChunkMagic); }

Result<ChunkTable> ChunkTable::make(std::vector<Extent> extents, std::size_t chunk_bytes) {
  if (chunk_bytes < kMinChunkBytes || chunk_bytes > kMaxChunkBytes || chunk_bytes % kMinChunkBytes)
    return Status{Code::kUsage, "chunk size is not a multiple of 64 KiB, up to 4 MiB", kNowhere,
                  kNowhere, chunk_bytes};
  ChunkTable table;
  table.chunk_bytes_ = chunk_bytes;
  for (const Extent& extent : extents) {
    if (extent.num_bytes == 0) continue;
    if (elem_bytes(extent.dtype) == 0 || extent.num_bytes > kMaxMessageBytes - table.num_bytes_)
      return Status{Code::kUsage, "message too large, or of an unknown type"};
    table.starts_.push_back({table.num_chunks_, table.num_bytes_});
    table.num_bytes_ += extent.num_bytes;
    table.num_chunks_ += (extent.num_bytes + chunk_bytes - 1) / chunk_bytes;
    table.extents_.push_back(extent);
  }
  if (table.extents_.size() > kMaxExtents)
    return Status{Code::kUsage, "message has too many extents", kNowhere,
                  kNowhere,     table.extents_.size(),          kMaxExtents};
  return table;
}

ChunkPlace ChunkTable::at(std::uint64_t chunk_idx) const noexcept {
  const auto next = std::ranges::upper_bound(starts_, chunk_idx, {}, &Start::chunk_idx);
  const auto i = static_cast<std::size_t>(next - starts_.begin() - 1);
  const std::uint64_t inside = (chunk_idx - starts_[i].chunk_idx) * chunk_bytes_;
  const std::uint64_t left = extents_[i].num_bytes - inside;
  return {starts_[i].offset + inside,
          static_cast<std::size_t>(std::min<std::uint64_t>(left, chunk_bytes_)), extents_[i].dtype};
}

std::string offer_payload(std::uint64_t tag, const ChunkTable& table) {
  const OfferHead head{tag, table.num_bytes(), table.chunk_bytes(), table.extents().size()};
  std::string payload(reinterpret_cast<const char*>(&head), sizeof head);
  for (const Extent& extent : table.extents()) {
    const OfferExtent entry{extent.num_bytes, static_cast<std::uint64_t>(extent.dtype)};
    payload.append(reinterpret_cast<const char*>(&entry), sizeof entry);
  }
  return payload;
}

Result<Offer> parse_offer(std::span<const std::byte> payload) {
  constexpr Status kBad{Code::kPeer, "the peer offers a message that makes no sense"};
  OfferHead head;
  if (payload.size() < sizeof head) return kBad;
  std::memcpy(&head, payload.data(), sizeof head);
  payload = payload.subspan(sizeof head);
  if (head.num_extents > kMaxExtents || payload.size() != head.num_extents * sizeof(OfferExtent))
    return kBad;
  std::vector<Extent> extents(head.num_extents);
  for (std::size_t i = 0; i < extents.size(); ++i) {
    OfferExtent entry;
    std::memcpy(&entry, payload.data() + i * sizeof entry, sizeof entry);
    if (entry.dtype >= kNumDTypes || entry.num_bytes == 0) return kBad;
    extents[i] = {static_cast<DType>(entry.dtype), entry.num_bytes};
  }
  auto table = ChunkTable::make(std::move(extents), head.chunk_bytes);
  if (!table || table->num_bytes() != head.num_bytes) return kBad;
  return Offer{head.tag, std::move(*table)};
}

}  // namespace snug::wire
