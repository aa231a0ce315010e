// One plain file to one compressed file.
#include <cassert>
#include <cstring>
#include <map>
#include <thread>

#include "codec/frame_writer.h"
#include "store/compressed_header.h"
#include "store/file_hash.h"
#include "store/file_jobs.h"

namespace snug::store {
namespace {

// What all threads of one compression share.
class FileCompressor {
 public:
  FileCompressor(const TensorFile& in, const File& out, Codec codec)
      : in_(in), out_(out), codec_(codec), ties_(in.plain().slots.size()) {}

  StoreStatus plan();
  StoreStatus run(int num_threads, ProgressMeter& meter);
  StoreStatus finish();
  std::string hash_hex() const { return hash_.hex(); }

 private:
  // The frame of a tensor, from its first chunk until its last block is written.
  struct OpenFrame {
    OpenFrame(const frame::Header& header, Codec codec)
        : head(header.payload_start()), writer(header, codec, head) {}

    std::uint64_t start = 0;  // in the file
    std::vector<std::byte> head;
    codec::FrameWriter writer;
  };

  std::shared_ptr<OpenFrame> frame_of(std::size_t idx);
  void close_frame(std::size_t idx);
  StoreStatus visit(const Chunk& chunk, codec::Turnstile& turn, codec::Workspace& workspace);
  StoreStatus keep(const Chunk& chunk, codec::Turnstile& turn);
  StoreStatus write(const Chunk& chunk, OpenFrame& frame, codec::CodedPair& coded,
                    codec::Turnstile& turn, codec::Workspace& workspace);

  const TensorFile& in_;
  const File& out_;
  const Codec codec_;
  std::mutex mutex_;
  std::map<std::size_t, std::shared_ptr<OpenFrame>> frames_;  // under the mutex
  std::vector<std::uint64_t> ties_;                           // each written by one thread

  // Touched only by the thread whose turn it is, so that the bytes do not depend on threads.
  FileHash hash_;
  CompressedHeader header_;
};

StoreStatus FileCompressor::plan() {
  for (const Slot& slot : in_.plain().slots)
    if (const auto header = frame::make_header({}, slot.num_bytes(), dtype_of(slot.dtype), 0);
        !header)
      return {header.status(), in_.path(), std::string(slot.name)};
  return header_.plan(in_);
}

std::shared_ptr<FileCompressor::OpenFrame> FileCompressor::frame_of(std::size_t idx) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<OpenFrame>& frame = frames_[idx];
  if (frame == nullptr) {
    const Slot slot = in_.plain().slots[idx];
    const auto header = frame::make_header({}, slot.num_bytes(), dtype_of(slot.dtype), 0);
    assert(header.ok() && header->num_tail_bytes == 0);  // plan() has checked
    frame = std::make_shared<OpenFrame>(*header, codec_);
  }
  return frame;
}

void FileCompressor::close_frame(std::size_t idx) {
  const std::lock_guard lock(mutex_);
  frames_.erase(idx);
}

// A chunk is a pair of blocks.
StoreStatus FileCompressor::visit(const Chunk& chunk, codec::Turnstile& turn,
                                  codec::Workspace& workspace) {
  const bool whole = chunk.first && chunk.last;
  if (whole && chunk.raw.size() <= kMinFrameBytes) return keep(chunk, turn);
  const std::shared_ptr<OpenFrame> frame = frame_of(chunk.tensor_idx);
  const frame::Header& header = frame->writer.header();
  codec::CodedPair coded = frame->writer.encode(chunk.offset / (2 * header.block_bytes()),
                                                frame::bytes_of(chunk.raw), nullptr, workspace);
  if (!whole || !may_be_kept(chunk.raw.size()) ||
      header.payload_start() + coded.num_bytes() < chunk.raw.size())
    return write(chunk, *frame, coded, turn, workspace);
  close_frame(chunk.tensor_idx);
  return keep(chunk, turn);
}

// Stores a tensor as it is.
StoreStatus FileCompressor::keep(const Chunk& chunk, codec::Turnstile& turn) {
  ties_[chunk.tensor_idx] = tensor_tie(in_.plain().slots[chunk.tensor_idx], chunk.raw);
  std::uint64_t at;
  if (!turn.wait_for(chunk.ticket, at)) return {};
  hash_.update(chunk.raw.data(), chunk.raw.size());
  const bool placed = chunk.raw.size() <= kMinFrameBytes;  // by plan()
  const std::uint64_t begin = placed ? header_.place_of(chunk.tensor_idx) : at;
  if (!placed) header_.place(chunk.tensor_idx, at, at + chunk.raw.size());
  turn.pass(placed ? at : at + chunk.raw.size());
  return out_.write_at(begin, chunk.raw.data(), chunk.raw.size());
}

StoreStatus FileCompressor::write(const Chunk& chunk, OpenFrame& frame, codec::CodedPair& coded,
                                  codec::Turnstile& turn, codec::Workspace& workspace) {
  std::span<const std::uint8_t> pieces[2];
  for (std::size_t i = 0; i < coded.num_blocks; ++i) {
    pieces[i] = {workspace.payloads[i], coded.entries[i].num_bytes};
    coded.entries[i].checksum = codec::payload_checksum(pieces[i].data(), pieces[i].size());
  }

  std::uint64_t at;
  if (!turn.wait_for(chunk.ticket, at)) return {};
  if (chunk.first) {
    frame.start = at;
    at += frame.writer.header().payload_start();
  }
  const std::uint64_t end = at + coded.num_bytes();
  if (chunk.last) header_.place(chunk.tensor_idx, frame.start, end);
  hash_.update(chunk.raw.data(), chunk.raw.size());
  turn.pass(end);

  if (StoreStatus s = out_.write_at(at, {pieces, coded.num_blocks}); !s.ok()) return s;
  out_.start_writeback(at, end);
  if (!frame.writer.enter(coded, at - frame.start)) return {};
  close_frame(chunk.tensor_idx);
  ties_[chunk.tensor_idx] = tensor_tie(in_.plain().slots[chunk.tensor_idx],
                                       std::span(frame.head).first(frame::kHeaderBytes));
  return out_.write_at(frame.start, frame.head.data(), frame.head.size());
}

StoreStatus FileCompressor::run(int num_threads, ProgressMeter& meter) {
  if (StoreStatus s = in_.visit_header([this](std::uint64_t, std::span<const std::byte> piece) {
        hash_.update(piece.data(), piece.size());
        return StoreStatus{};
      });
      !s.ok())
    return s;
  return scan_tensors(
      in_, num_threads, header_.first_frame(), meter,
      [this](const Chunk& chunk, codec::Turnstile& turn, codec::Workspace& workspace) {
        return visit(chunk, turn, workspace);
      });
}

StoreStatus FileCompressor::finish() {
  std::uint64_t at = header_.data_end();
  const std::size_t tie_bytes = ties_.size() * kTieBytes;
  if (StoreStatus s = out_.write_at(at, ties_.data(), tie_bytes); !s.ok()) return s;
  at += tie_bytes;
  const ReadRange read = [this](std::uint64_t offset, std::span<std::byte> dst) {
    return in_.read_header(offset, dst);
  };
  if (StoreStatus s = write_packed_header(read, in_.plain().data_start, out_, at); !s.ok())
    return s;
  return header_.write(in_, hash_.hex(), at, out_);
}

// Reads the written file back and restores it in memory while the disk takes it in. The hash to
// meet is the one taken from the input.
StoreStatus sync_and_verify(const OutputFile& output, const std::string& hash,
                            const StoreOptions& options, ProgressMeter& meter, FileReport& report) {
  const File& out = output.file();
  StoreStatus synced;
  std::thread syncing;
  try {
    syncing = std::thread([&] { synced = output.sync(); });
  } catch (const std::system_error&) {
    synced = output.sync();
  }
  const StoreStatus status = guarded([&]() -> StoreStatus {
    auto written = TensorFile::open(out.path());
    if (!written) return written.status();
    auto verified = verify_file(**written, options, meter);
    if (!verified) return verified.status();
    report = std::move(*verified);
    if ((*written)->recorded_hash() == hash) return {};
    return {{Code::kInternal, "written file does not restore the input"}, out.path()};
  });
  if (syncing.joinable()) syncing.join();
  return synced.ok() ? status : synced;
}

}  // namespace

StoreResult<FileReport> compress_file(TensorFile& in, const std::string& path, bool in_folder,
                                      const StoreOptions& options, ProgressMeter& meter) {
  auto output = OutputFile::create(path, options.force, in_folder);
  if (!output) return output.status();
  const File& out = output->file();
  std::string hash;
  {
    FileCompressor compressor(in, out, options.codec);
    if (StoreStatus s = compressor.plan(); !s.ok()) return s;
    meter.set_phase("compressing");
    if (StoreStatus s = compressor.run(options.num_threads, meter); !s.ok()) return s;
    if (StoreStatus s = compressor.finish(); !s.ok()) return s;
    hash = compressor.hash_hex();
  }
  in.forget_layout();
  out.copy_attributes(in.file());
  meter.set_phase("verifying");
  FileReport report;
  if (StoreStatus s = sync_and_verify(*output, hash, options, meter, report); !s.ok()) return s;
  if (StoreStatus s = in.file().check_unchanged(); !s.ok()) return s;
  if (StoreStatus s = output->commit(); !s.ok()) return s;
  report.name = path;
  return report;
}

}  // namespace snug::store
