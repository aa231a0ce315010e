#include "mount/piece_cache.h"

#include <algorithm>
#include <system_error>

namespace snug::mount {

struct PieceCache::Entry {
  explicit Entry(const Piece& what) : piece(what) {}

  const Piece piece;
  std::condition_variable decoded;
  State state = State::kQueued;
  int pins = 0;
  bool is_ahead = false;  // decoded, or to be decoded, for nobody yet
  std::uint64_t delivered = 0;
  std::unique_ptr<std::byte[]> bytes;
  List* list = nullptr;
  List::iterator at;
  StoreStatus status;
};

namespace {

// Buffers of almost the usual size are of that size, so that they can be used again: memory that is
// fresh from the system takes longer than the decoding. Huge pages do not help: on virtual machines
// whose host takes free memory back they are ten times slower.
std::uint64_t buffer_bytes(std::uint64_t num_bytes) {
  return num_bytes > kPieceBytes / 2 && num_bytes < kPieceBytes ? kPieceBytes : num_bytes;
}

}  // namespace

// ---- readers ----------------------------------------------------------------

PieceCache::Hold::~Hold() {
  if (cache_ == nullptr || entries_.empty()) return;
  const std::lock_guard lock(cache_->mutex_);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    entries_[i]->delivered += delivered_[i];
    cache_->unpin(*entries_[i]);
  }
}

std::span<const std::byte> PieceCache::Hold::bytes(std::size_t idx) const noexcept {
  const Entry& entry = *entries_[idx];
  return {entry.bytes.get(), static_cast<std::size_t>(entry.piece.num_bytes)};
}

StoreResult<PieceCache::Hold> PieceCache::get(std::span<const Piece> pieces) {
  Hold hold;
  hold.cache_ = this;
  hold.entries_.reserve(pieces.size());
  hold.delivered_.resize(pieces.size());
  std::unique_lock lock(mutex_);
  for (const Piece& piece : pieces) {
    std::shared_ptr<Entry> entry = find(piece);
    const bool is_new = entry == nullptr;
    if (is_new) entry = add(piece);
    const bool was_ahead = entry->is_ahead;
    not_ahead(*entry);
    // One that is queued behind what others wait for moves up. It stays in the other queue, too,
    // where it is found to be done.
    if (is_new || (was_ahead && entry->state == State::kQueued)) {
      wanted_.push_back(entry);
      has_work_.notify_one();
    }
    pin(*entry);
    hold.entries_.push_back(std::move(entry));
  }
  StoreStatus status;
  for (const auto& entry : hold.entries_) {
    entry->decoded.wait(
        lock, [&] { return entry->state == State::kReady || entry->state == State::kFailed; });
    if (entry->state == State::kFailed && status.ok()) status = entry->status;
  }
  lock.unlock();  // `hold` takes it
  if (!status.ok()) return status;
  return hold;
}

void PieceCache::read_ahead(std::span<const Piece> pieces) {
  const std::lock_guard lock(mutex_);
  for (const Piece& piece : pieces) {
    if (find(piece) != nullptr) continue;
    while (ahead_bytes_ + piece.num_bytes > capacity_ / 2 && !unread_.empty())
      remove(*unread_.front());
    if (ahead_bytes_ + piece.num_bytes > capacity_ / 2) return;
    const std::shared_ptr<Entry> entry = add(piece);
    entry->is_ahead = true;
    ahead_bytes_ += piece.num_bytes;
    ahead_.push_back(entry);
    has_work_.notify_one();
  }
}

PieceCache::Counters PieceCache::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

// ---- decoding ---------------------------------------------------------------

PieceCache::PieceCache(const PieceSource& source, std::uint64_t capacity, int num_threads)
    : source_(source),
      capacity_(capacity),
      num_threads_(static_cast<std::size_t>(std::max(num_threads, 1))) {
  threads_.reserve(num_threads_);
  try {
    for (std::size_t i = 0; i < num_threads_; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    if (threads_.empty()) throw;  // fewer do the same work
  }
}

PieceCache::~PieceCache() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  has_work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void PieceCache::work() {
  const std::unique_ptr<Scratch> scratch(new Scratch);
  for (;;) {
    std::vector<std::shared_ptr<Entry>> job;
    {
      std::unique_lock lock(mutex_);
      for (;; has_work_.wait(lock)) {
        if (stopping_ && wanted_.empty()) return;
        job = take_job();
        if (!job.empty()) break;
      }
      for (const auto& entry : job) allocate(*entry);
    }
    run_job(job, *scratch);
  }
}

// The next piece, and its neighbour if that is the next one to do.
std::vector<std::shared_ptr<PieceCache::Entry>> PieceCache::take_job() {
  std::vector<std::shared_ptr<Entry>> job;
  for (std::deque<std::shared_ptr<Entry>>* queue : {&wanted_, &ahead_}) {
    while (!queue->empty() && job.size() < 2) {
      Entry& next = *queue->front();
      if (next.state == State::kQueued) {
        if (!job.empty() &&
            (next.piece.file != job[0]->piece.file || next.piece.offset != job[0]->piece.end()))
          return job;
        next.state = State::kDecoding;
        job.push_back(queue->front());
      }
      queue->pop_front();
    }
    if (!job.empty()) return job;
  }
  return job;
}

void PieceCache::run_job(const std::vector<std::shared_ptr<Entry>>& job, Scratch& scratch) {
  std::vector<Piece> pieces;
  std::vector<std::byte*> dst;
  StoreStatus statuses[2];
  for (std::size_t i = 0; i < job.size(); ++i) {
    pieces.push_back(job[i]->piece);
    dst.push_back(job[i]->bytes.get());
    if (dst.back() == nullptr) statuses[i] = {{Code::kInternal, "out of memory"}};
  }
  const auto decode = [&](std::size_t first, std::size_t count) {
    return store::guarded([&] {
      return source_.decode(std::span(pieces).subspan(first, count),
                            std::span(dst).subspan(first, count), scratch);
    });
  };
  const bool all_there = std::find(dst.begin(), dst.end(), nullptr) == dst.end();
  // Where one of two is damaged, the other one is not lost.
  if (!all_there || !decode(0, job.size()).ok())
    for (std::size_t i = 0; i < job.size(); ++i)
      if (statuses[i].ok()) statuses[i] = decode(i, 1);

  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < job.size(); ++i) {
    Entry& entry = *job[i];
    ++counters_.num_decoded;
    entry.state = statuses[i].ok() ? State::kReady : State::kFailed;
    entry.status = std::move(statuses[i]);
    entry.decoded.notify_all();
    if (entry.state == State::kFailed) {
      remove(entry);  // the next one who asks tries again
    } else if (entry.pins == 0) {
      enlist(entry);
    }
  }
}

// ---- memory -----------------------------------------------------------------

std::shared_ptr<PieceCache::Entry> PieceCache::find(const Piece& piece) {
  const auto at = entries_.find({piece.file, piece.offset});
  return at == entries_.end() ? nullptr : at->second;
}

std::shared_ptr<PieceCache::Entry> PieceCache::add(const Piece& piece) {
  auto entry = std::make_shared<Entry>(piece);
  entries_.emplace(Key{piece.file, piece.offset}, entry);
  return entry;
}

void PieceCache::pin(Entry& entry) {
  ++entry.pins;
  unlist(entry);
}

void PieceCache::unpin(Entry& entry) {
  if (--entry.pins == 0 && entry.state == State::kReady) enlist(entry);
}

void PieceCache::enlist(Entry& entry) {
  entry.list = entry.is_ahead                             ? &unread_
               : entry.delivered >= entry.piece.num_bytes ? &spent_
                                                          : &partial_;
  entry.at = entry.list->insert(entry.list->end(), &entry);
  make_room(0);  // readers may have used more than there is
}

void PieceCache::not_ahead(Entry& entry) {
  if (entry.is_ahead) ahead_bytes_ -= entry.piece.num_bytes;
  entry.is_ahead = false;
}

void PieceCache::unlist(Entry& entry) {
  if (entry.list != nullptr) entry.list->erase(entry.at);
  entry.list = nullptr;
}

// What the kernel has got goes first, newest first: its memory is still in the CPU's cache, and who
// reads a file again and again starts with what is old. Then what was used longest ago.
void PieceCache::make_room(std::uint64_t num_bytes) {
  while (counters_.num_bytes + num_bytes > capacity_) {
    if (!spent_.empty()) {
      remove(*spent_.back());
    } else if (!partial_.empty()) {
      remove(*partial_.front());
    } else if (!unread_.empty()) {
      remove(*unread_.front());
    } else {
      return;
    }
  }
}

void PieceCache::allocate(Entry& entry) {
  const std::uint64_t num_bytes = buffer_bytes(entry.piece.num_bytes);
  make_room(num_bytes);
  if (num_bytes == kPieceBytes && !free_buffers_.empty()) {
    entry.bytes = std::move(free_buffers_.back());
    free_buffers_.pop_back();
  } else {
    entry.bytes.reset(new (std::nothrow) std::byte[static_cast<std::size_t>(num_bytes)]);
    if (entry.bytes == nullptr) return;
  }
  counters_.num_bytes += num_bytes;
  counters_.max_bytes = std::max(counters_.max_bytes, counters_.num_bytes);
}

void PieceCache::remove(Entry& entry) {
  unlist(entry);
  not_ahead(entry);
  if (entry.bytes != nullptr) {
    const std::uint64_t num_bytes = buffer_bytes(entry.piece.num_bytes);
    counters_.num_bytes -= num_bytes;
    // One for each thread is enough: whoever makes room needs it at once.
    if (num_bytes == kPieceBytes && free_buffers_.size() < num_threads_)
      free_buffers_.push_back(std::move(entry.bytes));
    entry.bytes.reset();
  }
  entries_.erase({entry.piece.file, entry.piece.offset});  // `entry` may be gone from here on
}

}  // namespace snug::mount
