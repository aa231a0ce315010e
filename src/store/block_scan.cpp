#include "store/block_scan.h"

#include <algorithm>
#include <cstring>

namespace snug::store {
namespace {

constexpr int kMaxThreads = 64;  // what the memory promise is made for
constexpr std::size_t kManyTensors = 500'000;
constexpr std::uint64_t kTinyBytes = 4096;
constexpr std::uint64_t kReportBytes = std::uint64_t{2} << 20;
constexpr std::uint64_t kReportAdds = 1024;  // of tiny tensors

struct ScanJob {
  Chunk chunk;
  std::size_t num_bytes = 0;
  std::shared_ptr<const FrameHead> head;  // frames only
  std::uint64_t first_block = 0, num_blocks = 0;
};

// Hands out chunks in file order; loads frame heads as tensors come up.
class JobQueue {
 public:
  explicit JobQueue(const TensorFile& file) : file_(file) {}

  // False at the end, or if `status` says why there is no next one.
  bool next(ScanJob& job, StoreStatus& status) {
    const std::lock_guard lock(mutex_);
    if (tensor_idx_ == file_.plain().slots.size()) return false;
    const Slot slot = file_.plain().slots[tensor_idx_];
    const std::uint64_t left = slot.num_bytes() - offset_;
    job.chunk = {ticket_++, tensor_idx_, offset_, offset_ == 0, false};
    const DType dtype = dtype_of(slot.dtype);
    std::uint64_t step = std::uint64_t{2} * elem_bytes(dtype) << frame::default_log2_block(dtype);
    job.head = nullptr;
    if (file_.is_frame(tensor_idx_)) {
      if (offset_ == 0) {
        auto head = file_.load_head(tensor_idx_);
        status = head.status();
        if (!head) return false;
        head_ = std::move(*head);
      }
      const frame::Header& header = head_->header;
      const std::uint64_t per_chunk =
          std::max<std::uint64_t>(1, kChunkBytes / header.block_bytes());
      step = per_chunk * header.block_bytes();
      job.head = head_;
      job.first_block = offset_ / header.block_bytes();
      job.num_blocks = std::min(per_chunk, header.num_blocks() - job.first_block);
      // A tail of less than an element belongs to the last block.
      if (job.first_block + job.num_blocks == header.num_blocks()) step = left;
    }
    job.num_bytes = static_cast<std::size_t>(std::min(step, left));
    offset_ += job.num_bytes;
    job.chunk.last = job.num_bytes == left;
    if (job.chunk.last) {
      ++tensor_idx_;
      offset_ = 0;
    }
    return true;
  }

 private:
  const TensorFile& file_;
  std::mutex mutex_;
  std::size_t tensor_idx_ = 0;
  std::uint64_t offset_ = 0, ticket_ = 0;
  std::shared_ptr<const FrameHead> head_;
};

class Scan {
 public:
  Scan(const TensorFile& file, std::uint64_t start, ProgressMeter& meter, const Visit& visit)
      : file_(file), queue_(file), workers_(start), meter_(meter), visit_(visit) {}

  StoreStatus run(int num_threads) {
    return workers_.run(num_threads, [this] { return work(); });
  }

 private:
  StoreStatus work() {
    const std::unique_ptr<codec::Workspace> workspace(new codec::Workspace);
    Buffer raw, payload;
    ScanJob job;
    for (StoreStatus status; !workers_.failed();) {
      const bool found = queue_.next(job, status);
      if (found) status = load(job, raw, payload, *workspace);
      if (found && status.ok()) status = visit_(job.chunk, workers_.turn, *workspace);
      if (found && status.ok()) status = meter_.add(job.num_bytes, file_.path());
      if (!status.ok()) workers_.fail(job.chunk.ticket, std::move(status));
      if (!found) break;
    }
    return {};
  }

  StoreStatus load(ScanJob& job, Buffer& raw, Buffer& payload, codec::Workspace& workspace) {
    const std::span<std::byte> dst = raw.span(job.num_bytes);
    job.chunk.raw = dst;
    const std::size_t idx = job.chunk.tensor_idx;
    if (job.head == nullptr) return file_.read_unframed(idx, job.chunk.offset, dst);
    const frame::Header& header = job.head->header;
    if (job.chunk.last)
      std::memcpy(dst.data() + dst.size() - header.num_tail_bytes, header.tail,
                  header.num_tail_bytes);
    return read_blocks(file_, idx, *job.head, job.first_block, job.num_blocks, dst.data(), payload,
                       workspace);
  }

  const TensorFile& file_;
  JobQueue queue_;
  Workers workers_;
  ProgressMeter& meter_;
  const Visit& visit_;
};

}  // namespace

StoreStatus ProgressMeter::add(std::uint64_t num_bytes, const std::string& path) {
  if (!callback_) return {};
  const std::lock_guard lock(mutex_);
  work_ += num_bytes;
  const std::uint64_t done = work_ / num_passes_;
  const bool is_due = done - reported_ >= kReportBytes || ++num_adds_ % kReportAdds == 0;
  if (!stopped_ && (is_due || done >= total_)) {
    reported_ = done;
    stopped_ = !callback_({done, total_, phase_});
  }
  return stopped_ ? StoreStatus{{Code::kIo, "stopped on request"}, path} : StoreStatus{};
}

StoreStatus scan_tensors(const TensorFile& file, int num_threads, std::uint64_t start,
                         ProgressMeter& meter, const Visit& visit) {
  const Layout& plain = file.plain();
  const std::uint64_t data_bytes = plain.file_bytes - plain.data_start;
  // Threads that pass on tiny tensors in order would only wait for each other.
  const std::uint64_t num_chunks =
      data_bytes / kTinyBytes < plain.slots.size() ? 1 : data_bytes / kChunkBytes + 1;
  // What a long header takes is not there for threads.
  const int max_threads = plain.slots.size() > kManyTensors ? kMaxThreads / 2 : kMaxThreads;
  return Scan(file, start, meter, visit)
      .run(codec::thread_count(std::min(store_threads(num_threads), max_threads), num_chunks));
}

StoreStatus read_blocks(const TensorFile& file, std::size_t idx, const FrameHead& head,
                        std::uint64_t first, std::uint64_t count, std::byte* dst, Buffer& payload,
                        codec::Workspace& workspace) {
  const std::size_t block_bytes = head.header.block_bytes();
  return read_blocks(
      file, idx, head, first, count,
      [=](std::uint64_t block) { return dst + (block - first) * block_bytes; }, payload, workspace);
}

StoreStatus read_blocks(const TensorFile& file, std::size_t idx, const FrameHead& head,
                        std::uint64_t first, std::uint64_t count, const BlockPlace& place,
                        Buffer& payload, codec::Workspace& workspace) {
  if (count == 0) return {};
  std::vector<std::byte> window;
  const auto index = file.index_of(idx, head, first, count, window);
  if (!index) return index.status();
  const codec::FrameReader& reader = *index;
  const std::uint64_t begin = reader.entry(first).offset;
  const frame::Entry last = reader.entry(first + count - 1);
  const auto bytes = payload.span(static_cast<std::size_t>(last.offset + last.num_bytes - begin));
  if (StoreStatus s =
          file.file().read_at(file.stored_offset(idx) + begin, bytes.data(), bytes.size());
      !s.ok())
    return s;
  const Status status = reader.decode_to(
      first, count, frame::bytes_of(bytes),
      [&](std::uint64_t block) { return reinterpret_cast<std::uint8_t*>(place(block)); },
      workspace);
  return status.ok() ? StoreStatus{} : file.blame(idx, status);
}

int store_threads(int asked) noexcept {
  const int num_threads = asked > 0 ? asked : static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(num_threads, 1, kMaxThreads);
}

}  // namespace snug::store
