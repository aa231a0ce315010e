// One plain file to one compressed file.
#include <zstd.h>

#include <cassert>
#include <cstring>
#include <thread>

#include "store/file_hash.h"
#include "store/file_jobs.h"
#include "store/json_reader.h"

namespace snug::store {
namespace {

constexpr int kHeaderZstdLevel = 19;  // a header is small and compressed once
constexpr int kLargeHeaderZstdLevel = 3;
constexpr std::size_t kLargeHeaderBytes = std::size_t{1} << 20;
constexpr std::uint64_t kWritebackBytes = std::uint64_t{16} << 20;

using frame::Entry;
using frame::Header;

void append_slot(std::string& json, const std::string& name, std::uint64_t begin, std::uint64_t end,
                 std::uint64_t num_bytes) {
  append_json_string(json, name);
  json += ":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(num_bytes) + "],\"data_offsets\":[" +
          std::to_string(begin) + "," + std::to_string(end) + "]}";
}

// What all threads of one compression share. Members below `turn-ordered` are
// touched only by the holder of the turn, so the bytes do not depend on threads.
class FileCompressor {
 public:
  FileCompressor(const TensorFile& in, const File& out, Codec codec)
      : in_(in), out_(out), codec_(codec) {
    slots_.resize(in.plain().slots.size());
  }

  // Where the data of the output starts: behind a header that holds any outcome.
  StoreStatus plan();
  StoreStatus run(int num_threads, ProgressMeter& meter);
  StoreStatus finish();
  std::string hash_hex() const { return hash_.hex(); }

 private:
  friend class CompressVisitor;
  struct StoredSlot {
    std::uint64_t begin = 0, end = 0;  // relative to data_start_
  };
  struct OpenFrame {
    Header header;
    std::uint64_t start = 0;  // in the file
    std::vector<std::uint8_t> head;
  };

  std::string header_json(const std::string& hash, bool largest) const;
  std::string header_tensor_name() const;
  Header frame_header(std::size_t idx) const noexcept;

  const TensorFile& in_;
  const File& out_;
  const Codec codec_;
  std::string packed_header_;
  std::uint64_t largest_ = 0;  // offset that no tensor can pass
  std::uint64_t data_start_ = 0, data_end_ = 0;

  // turn-ordered
  FileHash hash_;
  OpenFrame frame_;
  std::vector<StoredSlot> slots_;
};

Header FileCompressor::frame_header(std::size_t idx) const noexcept {
  const Slot& slot = in_.plain().slots[idx];
  auto header = frame::make_header({}, slot.num_bytes(), dtype_of(slot.dtype), 0);
  assert(header.ok() && header->num_tail_bytes == 0);  // plan() has checked
  return *header;
}

std::string FileCompressor::header_tensor_name() const {
  std::string name = kHeaderTensor;
  for (int i = 1; in_.plain().find(name) != nullptr; ++i) {
    name = kHeaderTensor;
    name += '.';
    name += std::to_string(i);
  }
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
  if (ZSTD_isError(packed)) return {{Code::kInternal, "out of memory"}, in_.path(), {}, {}};
  packed_header_.resize(packed);

  largest_ = packed;
  for (const Slot& slot : in_.plain().slots) {
    const auto frame_header = frame::make_header({}, slot.num_bytes(), dtype_of(slot.dtype), 0);
    if (!frame_header) return {frame_header.status(), in_.path(), slot.name, {}};
    largest_ += encode_bound(slot.num_bytes(), {.dtype = dtype_of(slot.dtype)});
  }
  const std::string json = header_json(std::string(32, '0'), true);
  // Frames are multiples of 16 bytes, so all of them start at such offsets.
  data_start_ = frame::align_up(kLengthBytes + json.size());
  if (data_start_ - kLengthBytes > kMaxHeaderBytes)
    return {{Code::kUsage, "too many tensors for one safetensors header", kNowhere, kNowhere,
             data_start_ - kLengthBytes, kMaxHeaderBytes},
            in_.path(),
            {},
            {}};
  return {};
}

class CompressVisitor : public ChunkVisitor {
 public:
  explicit CompressVisitor(FileCompressor& shared) : shared_(shared) {}

  StoreStatus visit(const Chunk& chunk, codec::Turnstile& turn,
                    codec::Workspace& workspace) override {
    const Header header = shared_.frame_header(chunk.tensor_idx);
    encode(chunk, header, workspace);

    std::uint64_t pos;
    if (!turn.wait_for(chunk.ticket, pos)) return {};
    auto& frame = shared_.frame_;
    if (chunk.first) {
      frame.header = header;
      frame.start = pos;
      frame.head.resize(header.payload_start());
      pos += header.payload_start();
    }
    const std::uint64_t payload_at = pos;
    pos = put_entries(chunk, header, pos);
    FileCompressor::OpenFrame done;
    if (chunk.last) {
      shared_.slots_[chunk.tensor_idx] = {frame.start - shared_.data_start_,
                                          pos - shared_.data_start_};
      frame.header.frame_bytes = pos - frame.start;
      std::swap(done, frame);
    }
    shared_.hash_.update(chunk.raw.data(), chunk.raw.size());
    turn.pass(pos);

    if (StoreStatus s = write_payloads(payload_at, workspace); !s.ok()) return s;
    if (pos / kWritebackBytes != payload_at / kWritebackBytes && pos > 2 * kWritebackBytes)
      shared_.out_.start_writeback(pos - 2 * kWritebackBytes, kWritebackBytes);
    return chunk.last ? write_head(done) : StoreStatus{};
  }

 private:
  void encode(const Chunk& chunk, const Header& header, codec::Workspace& workspace) noexcept {
    const std::size_t width = elem_bytes(header.dtype);
    const std::size_t block_bytes = static_cast<std::size_t>(header.block_elems()) * width;
    codec::BlockInput inputs[2];
    num_entries_ = 0;
    for (std::size_t at = 0; at < chunk.raw.size(); at += block_bytes) {
      const std::size_t n = std::min(block_bytes, chunk.raw.size() - at);
      inputs[num_entries_++] = {chunk.raw.data() + at, n / width, header.dtype};
    }
    if (num_entries_ == 0) return;
    codec::encode_blocks({inputs, num_entries_}, shared_.codec_, entries_, workspace);
    for (std::size_t i = 0; i < num_entries_; ++i)
      entries_[i].checksum = codec::payload_checksum(workspace.payloads[i], entries_[i].num_bytes);
  }

  // Enters the chunk's blocks into the index; returns the end of their payloads.
  std::uint64_t put_entries(const Chunk& chunk, const Header& header, std::uint64_t pos) noexcept {
    const std::uint64_t first = chunk.offset / elem_bytes(header.dtype) >> header.log2_block;
    for (std::size_t i = 0; i < num_entries_; ++i) {
      entries_[i].offset = pos - shared_.frame_.start;
      frame::write_entry(entries_[i], shared_.frame_.head.data() + frame::kHeaderBytes +
                                          (first + i) * frame::kEntryBytes);
      pos += entries_[i].num_bytes;
    }
    return pos;
  }

  StoreStatus write_payloads(std::uint64_t at, const codec::Workspace& workspace) const {
    std::span<const std::uint8_t> pieces[2];
    for (std::size_t i = 0; i < num_entries_; ++i)
      pieces[i] = {workspace.payloads[i], entries_[i].num_bytes};
    return shared_.out_.write_at(at, {pieces, num_entries_});
  }

  StoreStatus write_head(FileCompressor::OpenFrame& frame) {
    frame::write_header(frame.header, frame.head.data());
    frame.header.checksum = frame::head_checksum(std::as_bytes(std::span(frame.head)));
    frame::write_header(frame.header, frame.head.data());
    return shared_.out_.write_at(frame.start, frame.head.data(), frame.head.size());
  }

  FileCompressor& shared_;
  Entry entries_[2];  // a chunk is one or two blocks
  std::size_t num_entries_ = 0;
};

StoreStatus FileCompressor::run(int num_threads, ProgressMeter& meter) {
  hash_.update(in_.plain_header().data(), in_.plain_header().size());
  StoreStatus status = scan_tensors(in_, num_threads, data_start_, meter,
                                    [this] { return std::make_unique<CompressVisitor>(*this); });
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

// Reads the written file back and restores it in memory while the disk takes
// it in; the hash to meet is the one taken from the input.
StoreStatus sync_and_verify(const File& out, const std::string& hash, const StoreOptions& options,
                            ProgressMeter& meter, FileReport& report) {
  StoreStatus synced;
  std::thread syncing;
  try {
    syncing = std::thread([&] { synced = out.sync(); });
  } catch (const std::system_error&) {
    synced = out.sync();
  }
  StoreStatus status;
  try {
    auto written = TensorFile::open(out.path());
    status = written.status();
    if (status.ok()) {
      auto verified = verify_file(**written, options, meter);
      status = verified.status();
      if (status.ok()) report = std::move(*verified);
      if (status.ok() && (*written)->recorded_hash() != hash)
        status = {{Code::kInternal, "written file does not restore the input"}, out.path(), {}, {}};
    }
  } catch (const std::bad_alloc&) {
    status = {{Code::kInternal, "out of memory"}, out.path(), {}, {}};
  }
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
