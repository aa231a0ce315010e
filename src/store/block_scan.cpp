#include "store/block_scan.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace snug::store {
namespace {

constexpr int kMaxThreads = 64;  // what the memory promise is made for
constexpr std::uint64_t kReportBytes = std::uint64_t{2} << 20;

struct ScanJob {
  Chunk chunk;
  std::size_t num_bytes = 0;
  std::shared_ptr<const FrameHead> head;  // compressed files only
  std::uint64_t first_block = 0, num_blocks = 0;
};

// Hands out chunks in file order; loads frame heads as tensors come up.
class JobQueue {
 public:
  explicit JobQueue(const TensorFile& file) : file_(file) {}

  // False at the end, or if `status` says why there is no next one.
  bool next(ScanJob& job, StoreStatus& status) {
    const std::lock_guard lock(mutex_);
    if (stopped_ || tensor_idx_ == file_.plain().slots.size()) return false;
    const Slot& slot = file_.plain().slots[tensor_idx_];
    const std::uint64_t total = slot.num_bytes();
    job.chunk = {ticket_++, tensor_idx_, offset_, offset_ == 0, false, {}};
    const DType dtype = dtype_of(slot.dtype);
    std::uint64_t step = std::uint64_t{2} * elem_bytes(dtype) << frame::default_log2_block(dtype);
    if (file_.compressed()) {
      if (offset_ == 0) {
        auto head = file_.load_head(tensor_idx_);
        if (!head) {
          status = head.status();
          stopped_ = true;
          return false;
        }
        head_ = std::move(*head);
      }
      const frame::Header& header = head_->header;
      const std::uint64_t block_bytes = header.block_elems() * elem_bytes(header.dtype);
      const std::uint64_t per_chunk = std::max<std::uint64_t>(1, kChunkBytes / block_bytes);
      step = per_chunk * block_bytes;
      job.head = head_;
      job.first_block = offset_ / block_bytes;
      job.num_blocks = std::min(per_chunk, header.num_blocks() - job.first_block);
      // A tail of less than an element belongs to the last block.
      if (job.first_block + job.num_blocks == header.num_blocks()) step = total - offset_;
    }
    job.num_bytes = static_cast<std::size_t>(std::min(step, total - offset_));
    offset_ += job.num_bytes;
    job.chunk.last = offset_ == total;
    if (job.chunk.last) {
      ++tensor_idx_;
      offset_ = 0;
    }
    return true;
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  std::uint64_t current_ticket() {
    const std::lock_guard lock(mutex_);
    return ticket_;
  }

 private:
  const TensorFile& file_;
  std::mutex mutex_;
  std::size_t tensor_idx_ = 0;
  std::uint64_t offset_ = 0, ticket_ = 0;
  std::shared_ptr<const FrameHead> head_;
  bool stopped_ = false;
};

class Scan {
 public:
  Scan(const TensorFile& file, std::uint64_t start, ProgressMeter& meter,
       const MakeVisitor& make_visitor)
      : file_(file), queue_(file), turn_(start), meter_(meter), make_visitor_(make_visitor) {}

  StoreStatus run(int num_threads) {
    codec::parallel(num_threads, [this] { work_guarded(); });
    return std::move(error_);
  }

 private:
  void work_guarded() noexcept {
    try {
      work();
    } catch (const std::bad_alloc&) {
      fail(0, {{Code::kInternal, "out of memory"}, file_.path(), {}, {}});
    } catch (const std::exception&) {
      fail(0,
           {{Code::kInternal, "unexpected error of the standard library"}, file_.path(), {}, {}});
    }
  }

  void work() {
    const std::unique_ptr<codec::Workspace> workspace(new codec::Workspace);
    const std::unique_ptr<ChunkVisitor> visitor = make_visitor_();
    Buffer raw, payload;
    ScanJob job;
    for (;;) {
      StoreStatus status;
      if (!queue_.next(job, status)) {
        if (!status.ok()) fail(queue_.current_ticket(), std::move(status));
        return;
      }
      status = load(job, raw, payload, *workspace);
      if (status.ok()) status = visitor->visit(job.chunk, turn_, *workspace);
      if (status.ok() && !meter_.add(job.num_bytes))
        status = {{Code::kIo, "stopped on request"}, file_.path(), {}, {}};
      if (!status.ok()) return fail(job.chunk.ticket, std::move(status));
    }
  }

  StoreStatus load(ScanJob& job, Buffer& raw, Buffer& payload, codec::Workspace& workspace) {
    std::uint8_t* dst = raw.ensure(job.num_bytes);
    job.chunk.raw = {dst, job.num_bytes};
    const std::size_t idx = job.chunk.tensor_idx;
    if (!file_.compressed())
      return file_.file().read_at(file_.stored_offset(idx) + job.chunk.offset, dst, job.num_bytes);
    const frame::Header& header = job.head->header;
    if (job.chunk.last)
      std::memcpy(dst + job.num_bytes - header.num_tail_bytes, header.tail, header.num_tail_bytes);
    return read_blocks(file_, idx, *job.head, job.first_block, job.num_blocks, dst, payload,
                       workspace);
  }

  void fail(std::uint64_t ticket, StoreStatus status) {
    {
      const std::lock_guard lock(error_mutex_);
      if (error_.ok() || ticket < error_ticket_) {
        error_ = std::move(status);
        error_ticket_ = ticket;
      }
    }
    queue_.stop();
    turn_.fail();
  }

  const TensorFile& file_;
  JobQueue queue_;
  codec::Turnstile turn_;
  ProgressMeter& meter_;
  const MakeVisitor& make_visitor_;
  std::mutex error_mutex_;
  std::uint64_t error_ticket_ = 0;
  StoreStatus error_;
};

}  // namespace

bool ProgressMeter::add(std::uint64_t num_bytes) {
  if (!callback_) return true;
  const std::lock_guard lock(mutex_);
  work_ += num_bytes;
  const std::uint64_t done = work_ / num_passes_;
  if (done - reported_ < kReportBytes && done < total_) return !stopped_;
  reported_ = done;
  if (!stopped_) stopped_ = !callback_({done, total_, phase_});
  return !stopped_;
}

StoreStatus scan_tensors(const TensorFile& file, int num_threads, std::uint64_t start,
                         ProgressMeter& meter, const MakeVisitor& make_visitor) {
  const std::uint64_t num_chunks = file.plain().file_bytes / kChunkBytes + 1;
  return Scan(file, start, meter, make_visitor)
      .run(codec::thread_count(store_threads(num_threads), num_chunks));
}

StoreStatus read_blocks(const TensorFile& file, std::size_t idx, const FrameHead& head,
                        std::uint64_t first, std::uint64_t count, std::uint8_t* dst,
                        Buffer& payload, codec::Workspace& workspace) {
  if (count == 0) return {};
  const frame::Header& header = head.header;
  const std::uint64_t begin = head.entry(first).offset;
  const frame::Entry last = head.entry(first + count - 1);
  const auto num_bytes = static_cast<std::size_t>(last.offset + last.num_bytes - begin);
  std::uint8_t* bytes = payload.ensure(num_bytes);
  if (StoreStatus s = file.file().read_at(file.stored_offset(idx) + begin, bytes, num_bytes);
      !s.ok())
    return s;
  const std::uint64_t block_bytes = header.block_elems() * elem_bytes(header.dtype);
  for (std::uint64_t i = 0; i < count; i += 2) {
    codec::BlockJob jobs[2];
    const std::size_t num_jobs = count - i < 2 ? 1 : 2;
    for (std::size_t j = 0; j < num_jobs; ++j) {
      const std::uint64_t block = first + i + j;
      const frame::Entry entry = head.entry(block);
      jobs[j] = {entry, block, bytes + (entry.offset - begin),
                 static_cast<std::size_t>(header.elems_in_block(block)),
                 dst + (i + j) * block_bytes};
    }
    if (Status s = codec::decode_blocks({jobs, num_jobs}, header.dtype, workspace); !s.ok())
      return file.blame(idx, s);
  }
  return {};
}

int store_threads(int asked) noexcept {
  const int num_threads = asked > 0 ? asked : static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(num_threads, 1, kMaxThreads);
}

}  // namespace snug::store
