#include "store/packed_header.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "store/safetensors.h"

namespace snug::store {
namespace {

constexpr int kZstdLevel = 19;  // a header is small and compressed once
constexpr int kLargeZstdLevel = 3;

constexpr std::uint64_t kMaxPlainHeader = kLengthBytes + kMaxHeaderBytes;

StoreStatus damaged(const File& file, const char* what, std::uint64_t at) {
  return {{Code::kCorrupt, what, kNowhere, at}, file.path()};
}

std::size_t piece_bytes(std::uint64_t idx, std::uint64_t num_bytes) noexcept {
  return static_cast<std::size_t>(
      std::min<std::uint64_t>(kHeaderPieceBytes, num_bytes - idx * kHeaderPieceBytes));
}

}  // namespace

StoreStatus PackedHeader::open(const File& file, std::uint64_t begin, std::uint64_t end) {
  Buffer buffer;
  while (begin < end) {
    if (num_bytes_ % kHeaderPieceBytes != 0)
      return damaged(file, "original header damaged: a piece is too short", begin);
    const std::span<std::byte> packed = buffer.span(static_cast<std::size_t>(
        std::min<std::uint64_t>(ZSTD_compressBound(kHeaderPieceBytes), end - begin)));
    if (StoreStatus s = file.read_at(begin, packed.data(), packed.size()); !s.ok()) return s;
    const std::size_t size = ZSTD_findFrameCompressedSize(packed.data(), packed.size());
    const unsigned long long raw = ZSTD_getFrameContentSize(packed.data(), packed.size());
    if (ZSTD_isError(size)) return damaged(file, "original header damaged", begin);
    if (raw == 0 || raw > kHeaderPieceBytes || num_bytes_ + raw > kMaxPlainHeader)
      return damaged(file, "original header of impossible size", begin);
    pieces_.push_back({begin, static_cast<std::uint32_t>(size)});
    num_bytes_ += raw;
    begin += size;
  }
  if (num_bytes_ < kLengthBytes) return damaged(file, "original header missing", begin);
  return {};
}

StoreStatus PackedHeader::read(const File& file, std::uint64_t offset,
                               std::span<std::byte> dst) const {
  Buffer packed_buffer, raw_buffer;
  while (!dst.empty()) {
    const std::uint64_t idx = offset / kHeaderPieceBytes;
    const auto skip = static_cast<std::size_t>(offset % kHeaderPieceBytes);
    const Piece& piece = pieces_[static_cast<std::size_t>(idx)];
    const std::span<std::byte> packed = packed_buffer.span(piece.num_bytes);
    const std::span<std::byte> raw = raw_buffer.span(piece_bytes(idx, num_bytes_));
    if (StoreStatus s = file.read_at(piece.at, packed.data(), packed.size()); !s.ok()) return s;
    if (ZSTD_decompress(raw.data(), raw.size(), packed.data(), packed.size()) != raw.size())
      return damaged(file, "original header damaged", piece.at);
    const std::size_t n = std::min(dst.size(), raw.size() - skip);
    std::memcpy(dst.data(), raw.data() + skip, n);
    offset += n;
    dst = dst.subspan(n);
  }
  return {};
}

StoreStatus write_packed_header(const ReadRange& read, std::uint64_t num_bytes, const File& out,
                                std::uint64_t& at) {
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(),
                                                                     ZSTD_freeCCtx);
  if (context == nullptr) throw std::bad_alloc();
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel,
                         num_bytes > kHeaderPieceBytes ? kLargeZstdLevel : kZstdLevel);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
  Buffer raw_buffer, packed_buffer;
  for (std::uint64_t i = 0; i * kHeaderPieceBytes < num_bytes; ++i) {
    const std::span<std::byte> raw = raw_buffer.span(piece_bytes(i, num_bytes));
    const std::span<std::byte> packed = packed_buffer.span(ZSTD_compressBound(raw.size()));
    if (StoreStatus s = read(i * kHeaderPieceBytes, raw); !s.ok()) return s;
    const std::size_t size =
        ZSTD_compress2(context.get(), packed.data(), packed.size(), raw.data(), raw.size());
    if (ZSTD_isError(size)) return {{Code::kInternal, "out of memory"}, out.path()};
    if (StoreStatus s = out.write_at(at, packed.data(), size); !s.ok()) return s;
    at += size;
  }
  return {};
}

std::uint64_t packed_header_bound(std::uint64_t num_bytes) noexcept {
  const std::uint64_t num_pieces = num_bytes / kHeaderPieceBytes + 1;
  return num_pieces * ZSTD_compressBound(kHeaderPieceBytes);
}

}  // namespace snug::store
