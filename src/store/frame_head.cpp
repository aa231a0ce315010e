// Headers and indexes of the frames in a file.
#include <algorithm>

#include "store/tensor_file.h"

namespace snug::store {
namespace {

// A longer index belongs to a tensor of more than 256 MiB, 16 GiB with the usual blocks. It is
// checked in pieces of this size, and its entries are read again when they are needed.
constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{1} << 20;

void count_entries(std::span<const std::byte> entries, FrameStats& stats) {
  for (std::size_t at = 0; at < entries.size(); at += frame::kEntryBytes) {
    const frame::Entry entry = frame::read_entry(frame::bytes_of(entries) + at);
    ++stats.num_blocks[static_cast<int>(entry.codec)];
    stats.num_bytes[static_cast<int>(entry.codec)] += entry.num_bytes;
  }
}

}  // namespace

StoreResult<std::shared_ptr<const FrameHead>> TensorFile::load_head(std::size_t idx) const {
  {
    const std::lock_guard lock(mutex_);
    if (last_head_ != nullptr && last_idx_ == idx) return last_head_;
  }
  auto head = read_head(idx);
  if (!head) return head;
  const std::lock_guard lock(mutex_);
  last_head_ = *head;
  last_idx_ = idx;
  return head;
}

StoreResult<std::shared_ptr<const FrameHead>> TensorFile::read_head(std::size_t idx) const {
  const std::uint64_t at = stored_offset(idx), size = stored_bytes(idx);
  auto head = std::make_shared<FrameHead>();
  std::byte first[frame::kHeaderBytes];
  const std::size_t num_first = size < sizeof first ? static_cast<std::size_t>(size) : sizeof first;
  if (StoreStatus s = file_.read_at(at, first, num_first); !s.ok()) return s;
  auto header = frame::read_header({first, num_first});
  if (!header) return blame(idx, header.status());
  if (header->frame_bytes != size)
    return blame(idx, frame::corrupt("frame size does not match the tensor's", 16,
                                     header->frame_bytes, size));
  if (header->raw_bytes() != raw_bytes(idx))
    return blame(idx, frame::corrupt("frame holds another number of bytes", 8, header->raw_bytes(),
                                     raw_bytes(idx)));
  head->header = *header;
  if (header->payload_start() > frame::kHeaderBytes + kMaxIndexBytes) {
    if (StoreStatus s = load_long_index(idx, *head); !s.ok()) return s;
  } else {
    head->bytes.resize(header->payload_start());
    if (StoreStatus s = file_.read_at(at, head->bytes.data(), head->bytes.size()); !s.ok())
      return s;
    if (Status s = frame::check_index(head->header, head->bytes); !s.ok()) return blame(idx, s);
    count_entries(std::span(head->bytes).subspan(frame::kHeaderBytes), head->stats);
  }
  if (StoreStatus s = check_tie(idx, first); !s.ok()) return s;
  return std::shared_ptr<const FrameHead>(std::move(head));
}

StoreStatus TensorFile::load_long_index(std::size_t idx, FrameHead& head) const {
  frame::IndexCheck check(head.header);
  std::vector<std::byte> piece(kMaxIndexBytes);
  const std::uint64_t end = head.header.payload_start();
  for (std::uint64_t at = frame::kHeaderBytes; at < end; at += piece.size()) {
    piece.resize(static_cast<std::size_t>(std::min(kMaxIndexBytes, end - at)));
    if (StoreStatus s = file_.read_at(stored_offset(idx) + at, piece.data(), piece.size()); !s.ok())
      return s;
    if (Status s = check.add(piece); !s.ok()) return blame(idx, s);
    count_entries(piece, head.stats);
  }
  const Status status = check.finish();
  return status.ok() ? StoreStatus{} : blame(idx, status);
}

StoreResult<codec::FrameReader> TensorFile::index_of(std::size_t idx, const FrameHead& head,
                                                     std::uint64_t first, std::uint64_t count,
                                                     std::vector<std::byte>& window) const {
  if (!head.bytes.empty()) return codec::FrameReader(head.header, head.bytes);
  window.resize(static_cast<std::size_t>(count) * frame::kEntryBytes);
  if (StoreStatus s = file_.read_at(stored_offset(idx) + frame::entry_offset(first), window.data(),
                                    window.size());
      !s.ok())
    return s;
  // The file may have changed since the whole index was checked.
  if (Status s = frame::check_entries(head.header, first, window); !s.ok()) return blame(idx, s);
  return codec::FrameReader(head.header, window, first);
}

}  // namespace snug::store
