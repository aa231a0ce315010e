// codec/frame_reader.h - the blocks of a frame whose header and index were checked.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/block.h"
#include "frame/frame.h"
#include "snug/codec.h"

namespace snug::codec {

class FrameReader {
 public:
  FrameReader() noexcept = default;
  // `head` is header and index; both arguments must outlive the reader.
  FrameReader(const frame::Header& header, std::span<const std::byte> head) noexcept
      : header_(&header), entries_(frame::bytes_of(head) + frame::kHeaderBytes) {}
  // For some blocks only: `entries` are those of block `first_block` and following.
  FrameReader(const frame::Header& header, std::span<const std::byte> entries,
              std::uint64_t first_block) noexcept
      : header_(&header), entries_(frame::bytes_of(entries)), first_block_(first_block) {}

  frame::Entry entry(std::uint64_t block_idx) const noexcept {
    return frame::read_entry(entries_ + (block_idx - first_block_) * frame::kEntryBytes);
  }

  // Checks and decodes blocks [first, first + count) to dst, two at a time: a pair takes less time
  // than two blocks. `payloads` starts with that of block `first`; those of the others follow.
  Status decode(std::uint64_t first, std::uint64_t count, const std::uint8_t* payloads,
                std::uint8_t* dst, Workspace& workspace) const noexcept {
    return decode_to(
        first, count, payloads,
        [&](std::uint64_t block_idx) { return dst + (block_idx - first) * header_->block_bytes(); },
        workspace);
  }

  // The same; block i goes to place(i).
  template <class Place>
  Status decode_to(std::uint64_t first, std::uint64_t count, const std::uint8_t* payloads,
                   Place place, Workspace& workspace) const noexcept {
    for (const std::uint64_t end = first + count; first < end;) {
      BlockJob jobs[2];
      std::size_t num_jobs = 0;
      for (; num_jobs < 2 && first < end; ++num_jobs, ++first) {
        const auto num_elems = static_cast<std::size_t>(header_->elems_in_block(first));
        jobs[num_jobs] = {entry(first), first, payloads, num_elems, place(first)};
        payloads += jobs[num_jobs].entry.num_bytes;
      }
      if (Status s = decode_blocks({jobs, num_jobs}, header_->dtype, workspace); !s.ok()) return s;
    }
    return {};
  }

  FrameStats stats() const noexcept {
    FrameStats stats;
    for (std::uint64_t i = 0; i < header_->num_blocks(); ++i) {
      const frame::Entry e = entry(i);
      ++stats.num_blocks[static_cast<int>(e.codec)];
      stats.num_bytes[static_cast<int>(e.codec)] += e.num_bytes;
    }
    return stats;
  }

 private:
  const frame::Header* header_ = nullptr;
  const std::uint8_t* entries_ = nullptr;
  std::uint64_t first_block_ = 0;
};

}  // namespace snug::codec
