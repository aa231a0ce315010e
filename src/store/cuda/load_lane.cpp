#include "store/cuda/load_lane.h"

#include <algorithm>
#include <cstring>

#include "frame/frame.h"

namespace snug::cuda {
namespace {

using store::LoadPiece;
using store::TensorFile;

StoreStatus named(cudaError_t error) { return {from_cuda(error)}; }

// What most blocks of a frame are, so that decode takes the kernel for them.
Codec main_codec(const FrameStats& stats) {
  for (const Codec codec : {Codec::kEntropy, Codec::kFixed})
    if (stats.num_blocks[static_cast<int>(codec)] > 0) return codec;
  return Codec::kRaw;
}

// A frame of some blocks of another one: header and index, to `head`. `reader` has their entries.
frame::Header write_head(const frame::Header& whole, const codec::FrameReader& reader,
                         std::uint64_t first, std::uint64_t count, bool has_tail, std::byte* head) {
  frame::Header part = whole;
  part.num_elems =
      std::min(count << whole.log2_block, whole.num_elems - (first << whole.log2_block));
  if (!has_tail) {
    part.num_tail_bytes = 0;
    std::memset(part.tail, 0, sizeof part.tail);
  }
  std::uint64_t offset = part.payload_start();
  for (std::uint64_t i = 0; i < count; ++i) {
    frame::Entry entry = reader.entry(first + i);
    entry.offset = offset;
    offset += entry.num_bytes;
    frame::write_entry(entry, reinterpret_cast<std::uint8_t*>(head) + frame::entry_offset(i));
  }
  part.frame_bytes = offset;
  frame::seal(part, {head, static_cast<std::size_t>(part.payload_start())});
  return part;
}

}  // namespace

// Most pieces need less than three quarters of their size, those of BF16 weights two thirds. Memory
// that grows is pinned twice, so this much is taken at once, and more when a piece needs it.
StoreStatus LoadSlot::reserve(std::size_t frame_bytes, std::size_t piece_bytes) {
  const std::size_t num_bytes = std::max(kResultBytes + frame_bytes, piece_bytes / 4 * 3);
  if (const cudaError_t error = host_.ensure(num_bytes); error != cudaSuccess) return named(error);
  return named(device_.ensure(host_.num_bytes()));
}

StoreStatus LoadSlot::start(const TensorFile& file, const LoadPiece& piece, std::size_t piece_bytes,
                            cudaEvent_t ready) {
  if (StoreStatus s = finish(file); !s.ok()) return s;
  if (const cudaError_t error = stream_.ensure(); error != cudaSuccess) return named(error);
  if (const cudaError_t error = cudaStreamWaitEvent(stream_.get(), ready, 0); error != cudaSuccess)
    return named(error);
  piece_ = piece;
  is_busy_ = true;
  is_decoding_ = false;  // until there will be a result
  return piece.head != nullptr ? decode_blocks(file, piece, piece_bytes)
                               : copy_unframed(file, piece, piece_bytes);
}

StoreStatus LoadSlot::copy_unframed(const TensorFile& file, const LoadPiece& piece,
                                    std::size_t piece_bytes) {
  const auto num_bytes = static_cast<std::size_t>(piece.to - piece.from);
  if (StoreStatus s = reserve(num_bytes, piece_bytes); !s.ok()) return s;
  if (StoreStatus s = file.read_unframed(piece.idx, piece.from, {host_frame(), num_bytes}); !s.ok())
    return s;
  return named(
      cudaMemcpyAsync(piece.dst, host_frame(), num_bytes, cudaMemcpyHostToDevice, stream_.get()));
}

StoreStatus LoadSlot::decode_blocks(const TensorFile& file, const LoadPiece& piece,
                                    std::size_t piece_bytes) {
  const frame::Header& whole = piece.head->header;
  const std::uint64_t blocks_end = whole.num_elems * elem_bytes(whole.dtype);
  const std::uint64_t first = piece.from / whole.block_bytes();
  const std::uint64_t count =
      (std::min(piece.to, blocks_end) + whole.block_bytes() - 1) / whole.block_bytes() - first;
  std::vector<std::byte> window;
  const auto reader = file.index_of(piece.idx, *piece.head, first, count, window);
  if (!reader) return reader.status();
  std::uint64_t bound = frame::entry_offset(count);
  for (std::uint64_t i = 0; i < count; ++i) bound += reader->entry(first + i).num_bytes;
  if (StoreStatus s = reserve(static_cast<std::size_t>(bound), piece_bytes); !s.ok()) return s;
  const frame::Header part =
      write_head(whole, *reader, first, count, piece.to > blocks_end, host_frame());
  const auto head_bytes = static_cast<std::size_t>(part.payload_start());
  const auto frame_bytes = static_cast<std::size_t>(part.frame_bytes);
  if (count > 0)
    if (StoreStatus s =
            file.file().read_at(file.stored_offset(piece.idx) + reader->entry(first).offset,
                                host_frame() + head_bytes, frame_bytes - head_bytes);
        !s.ok())
      return s;

  DecodeOptions options;
  options.dtype = whole.dtype;
  options.codec = main_codec(piece.head->stats);
  options.log2_block = whole.log2_block;
  options.host_result = host_result();
  const auto raw_bytes = static_cast<std::size_t>(piece.to - piece.from);
  const std::size_t workspace_bytes = decode_workspace_bytes(raw_bytes, options);
  if (const cudaError_t error = workspace_.ensure(workspace_bytes); error != cudaSuccess)
    return named(error);
  if (const cudaError_t error = cudaMemcpyAsync(device_frame(), host_frame(), frame_bytes,
                                                cudaMemcpyHostToDevice, stream_.get());
      error != cudaSuccess)
    return named(error);
  const Status status = decode({device_frame(), frame_bytes}, {piece.dst, raw_bytes},
                               {workspace_.as<void>(), workspace_bytes}, device_.as<DeviceResult>(),
                               options, stream_.get());
  is_decoding_ = status.ok();
  return status.ok() ? StoreStatus{} : file.blame(piece.idx, status);
}

StoreStatus LoadSlot::finish(const TensorFile& file) {
  if (!is_busy_) return {};
  is_busy_ = false;
  if (const cudaError_t error = stream_.wait(); error != cudaSuccess) return named(error);
  if (!is_decoding_) return {};
  Status status = to_status(*host_result());
  if (status.ok()) return {};
  if (status.block != kNowhere) status.block += piece_.from / piece_.head->header.block_bytes();
  status.byte = kNowhere;  // it counts from the start of the piece
  return file.blame(piece_.idx, status);
}

}  // namespace snug::cuda
