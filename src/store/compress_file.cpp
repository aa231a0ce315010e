// One plain file to one compressed file.
#include <zstd.h>

#include <cassert>
#include <cstring>
#include <thread>

#include "codec/frame_writer.h"
#include "store/file_hash.h"
#include "store/file_jobs.h"
#include "store/json_reader.h"

namespace snug::store {
namespace {

constexpr int kHeaderZstdLevel = 19;  // a header is small and compressed once
constexpr int kLargeHeaderZstdLevel = 3;
constexpr std::size_t kLargeHeaderBytes = std::size_t{1} << 20;

void append_slot(std::string& json, const std::string& name, std::uint64_t begin, std::uint64_t end,
                 std::uint64_t num_bytes) {
  append_json_string(json, name);
  json += ":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(num_bytes) + "],\"data_offsets\":[" +
          std::to_string(begin) + "," + std::to_string(end) + "]}";
}

// What all threads of one compression share.
class FileCompressor {
 public:
  FileCompressor(const TensorFile& in, const File& out, Codec codec)
      : in_(in),
        out_(out),
        codec_(codec),
        frames_(in.plain().slots.size()),
        slots_(in.plain().slots.size()) {}

  // Where the data of the output starts: behind a header that holds any outcome.
  StoreStatus plan();
  StoreStatus run(int num_threads, ProgressMeter& meter);
  StoreStatus finish();
  std::string hash_hex() const { return hash_.hex(); }

 private:
  struct StoredSlot {
    std::uint64_t begin = 0, end = 0;  // relative to data_start_
  };
  // The frame of a tensor, from its first chunk until its last block is written.
  struct OpenFrame {
    OpenFrame(const frame::Header& header, Codec codec)
        : head(header.payload_start()), writer(header, codec, head) {}

    std::uint64_t start = 0;  // in the file
    std::vector<std::byte> head;
    codec::FrameWriter writer;
  };

  std::string header_json(const std::string& hash, bool largest) const;
  std::string header_tensor_name() const;
  std::shared_ptr<OpenFrame> frame_of(std::size_t idx);
  StoreStatus compress(const Chunk& chunk, codec::Turnstile& turn, codec::Workspace& workspace);

  const TensorFile& in_;
  const File& out_;
  const Codec codec_;
  std::string packed_header_;
  std::uint64_t largest_ = 0;  // offset that no tensor can pass
  std::uint64_t data_start_ = 0, data_end_ = 0;
  std::mutex mutex_;
  std::vector<std::shared_ptr<OpenFrame>> frames_;  // under the mutex

  // Touched only by the thread whose turn it is, so that the bytes do not depend on threads.
  FileHash hash_;
  std::vector<StoredSlot> slots_;
};

std::string FileCompressor::header_tensor_name() const {
  std::string name = kHeaderTensor;
  for (int i = 1; in_.plain().find(name) != nullptr; ++i)
    name = kHeaderTensor + ("." + std::to_string(i));
  return name;
}

// The JSON of the output; `largest` stands in for sizes not known yet.
std::string FileCompressor::header_json(const std::string& hash, bool largest) const {
  const Layout& plain = in_.plain();
  const std::string header_tensor = header_tensor_name();
  std::string json = "{\"__metadata__\":{";
  const auto put = [&json](std::string_view key, std::string_view value) {
    if (json.back() != '{') json.push_back(',');
    append_json_string(json, key);
    json.push_back(':');
    append_json_string(json, value);
  };
  put(kFormatKey, kFormatVersion);
  put(kSizeKey, std::to_string(plain.file_bytes));
  put(kHashKey, hash);
  put(kHeaderKey, header_tensor);
  for (const auto& [key, value] : plain.metadata)
    if (key.rfind(kKeyPrefix, 0) != 0) put(key, value);
  json += "}";
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const StoredSlot slot = largest ? StoredSlot{largest_, largest_} : slots_[i];
    json += ",";
    append_slot(json, plain.slots[i].name, slot.begin, slot.end,
                largest ? largest_ : slot.end - slot.begin);
  }
  json += ",";
  const std::uint64_t begin = largest ? largest_ : data_end_ - data_start_;
  append_slot(json, header_tensor, begin, begin + (largest ? 0 : packed_header_.size()),
              packed_header_.size());
  json += "}";
  return json;
}

StoreStatus FileCompressor::plan() {
  const std::string& header = in_.plain_header();
  packed_header_.resize(ZSTD_compressBound(header.size()));
  const std::size_t packed =
      ZSTD_compress(packed_header_.data(), packed_header_.size(), header.data(), header.size(),
                    header.size() > kLargeHeaderBytes ? kLargeHeaderZstdLevel : kHeaderZstdLevel);
  if (ZSTD_isError(packed)) return {{Code::kInternal, "out of memory"}, in_.path()};
  packed_header_.resize(packed);

  largest_ = packed;
  for (const Slot& slot : in_.plain().slots) {
    const auto frame_header = frame::make_header({}, slot.num_bytes(), dtype_of(slot.dtype), 0);
    if (!frame_header) return {frame_header.status(), in_.path(), slot.name};
    largest_ += encode_bound(slot.num_bytes(), {.dtype = dtype_of(slot.dtype)});
  }
  const std::string json = header_json(std::string(32, '0'), true);
  // Frames are multiples of 16 bytes, so all of them start at such offsets.
  data_start_ = frame::align_up(kLengthBytes + json.size());
  if (data_start_ - kLengthBytes > kMaxHeaderBytes)
    return {frame::failure(Code::kUsage, "too many tensors for one safetensors header",
                           data_start_ - kLengthBytes, kMaxHeaderBytes),
            in_.path()};
  return {};
}

std::shared_ptr<FileCompressor::OpenFrame> FileCompressor::frame_of(std::size_t idx) {
  const std::lock_guard lock(mutex_);
  if (frames_[idx] == nullptr) {
    const Slot& slot = in_.plain().slots[idx];
    const auto header = frame::make_header({}, slot.num_bytes(), dtype_of(slot.dtype), 0);
    assert(header.ok() && header->num_tail_bytes == 0);  // plan() has checked
    frames_[idx] = std::make_shared<OpenFrame>(*header, codec_);
  }
  return frames_[idx];
}

// A chunk is a pair of blocks.
StoreStatus FileCompressor::compress(const Chunk& chunk, codec::Turnstile& turn,
                                     codec::Workspace& workspace) {
  const std::shared_ptr<OpenFrame> frame = frame_of(chunk.tensor_idx);
  const frame::Header& header = frame->writer.header();
  codec::CodedPair coded = frame->writer.encode(chunk.offset / (2 * header.block_bytes()),
                                                frame::bytes_of(chunk.raw), nullptr, workspace);
  std::span<const std::uint8_t> pieces[2];
  for (std::size_t i = 0; i < coded.num_blocks; ++i) {
    pieces[i] = {workspace.payloads[i], coded.entries[i].num_bytes};
    coded.entries[i].checksum = codec::payload_checksum(pieces[i].data(), pieces[i].size());
  }

  std::uint64_t at;
  if (!turn.wait_for(chunk.ticket, at)) return {};
  if (chunk.first) {
    frame->start = at;
    at += header.payload_start();
  }
  const std::uint64_t end = at + coded.num_bytes();
  if (chunk.last) slots_[chunk.tensor_idx] = {frame->start - data_start_, end - data_start_};
  hash_.update(chunk.raw.data(), chunk.raw.size());
  turn.pass(end);

  if (StoreStatus s = out_.write_at(at, {pieces, coded.num_blocks}); !s.ok()) return s;
  out_.start_writeback(at, end);
  if (!frame->writer.enter(coded, at - frame->start)) return {};
  {
    const std::lock_guard lock(mutex_);
    frames_[chunk.tensor_idx].reset();
  }
  return out_.write_at(frame->start, frame->head.data(), frame->head.size());
}

StoreStatus FileCompressor::run(int num_threads, ProgressMeter& meter) {
  hash_.update(in_.plain_header().data(), in_.plain_header().size());
  StoreStatus status =
      scan_tensors(in_, num_threads, data_start_, meter,
                   [this](const Chunk& chunk, codec::Turnstile& turn, codec::Workspace& workspace) {
                     return compress(chunk, turn, workspace);
                   });
  data_end_ = data_start_ + (slots_.empty() ? 0 : slots_.back().end);
  return status;
}

StoreStatus FileCompressor::finish() {
  if (StoreStatus s = out_.write_at(data_end_, packed_header_.data(), packed_header_.size());
      !s.ok())
    return s;
  const std::uint64_t json_bytes = data_start_ - kLengthBytes;
  std::string header(kLengthBytes, '\0');
  std::memcpy(header.data(), &json_bytes, kLengthBytes);
  header += header_json(hash_.hex(), false);
  assert(header.size() <= data_start_);
  header.resize(data_start_, ' ');
  return out_.write_at(0, header.data(), header.size());
}

// Reads the written file back and restores it in memory while the disk takes it in. The hash to
// meet is the one taken from the input.
StoreStatus sync_and_verify(const File& out, const std::string& hash, const StoreOptions& options,
                            ProgressMeter& meter, FileReport& report) {
  StoreStatus synced;
  std::thread syncing;
  try {
    syncing = std::thread([&] { synced = out.sync(); });
  } catch (const std::system_error&) {
    synced = out.sync();
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

StoreResult<FileReport> compress_file(const TensorFile& in, const std::string& path,
                                      const StoreOptions& options, ProgressMeter& meter) {
  auto output = OutputFile::create(path, options.force);
  if (!output) return output.status();
  const File& out = output->file();
  FileCompressor compressor(in, out, options.codec);
  if (StoreStatus s = compressor.plan(); !s.ok()) return s;
  meter.set_phase("compressing");
  if (StoreStatus s = compressor.run(options.num_threads, meter); !s.ok()) return s;
  if (StoreStatus s = compressor.finish(); !s.ok()) return s;
  out.copy_attributes(in.file());
  meter.set_phase("verifying");
  FileReport report;
  if (StoreStatus s = sync_and_verify(out, compressor.hash_hex(), options, meter, report); !s.ok())
    return s;
  if (StoreStatus s = in.file().check_unchanged(); !s.ok()) return s;
  if (StoreStatus s = output->commit(); !s.ok()) return s;
  report.name = path;
  return report;
}

}  // namespace snug::store
