#include "mount/piece_cache.h"

#include <algorithm>

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
  // Its node is in `list`, or else in `own`: to move it needs no memory.
  List own{this};
  const List::iterator at = own.begin();
  List* list = nullptr;
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

StoreResult<PieceCache::Hold> PieceCache::get(std::span<const Piece> pieces, Piece* failed) {
  Hold hold;
  hold.cache_ = this;
  hold.entries_.reserve(pieces.size());
  hold.delivered_.resize(pieces.size());
  std::unique_lock lock(mutex_);
  for (const Piece& piece : pieces) {
    std::shared_ptr<Entry> entry = find(piece);
    if (entry == nullptr) {
      entry = add(piece, wanted_);
    } else if (entry->is_ahead && entry->state == State::kQueued) {
      // One that is queued behind what others wait for moves up. It stays in the other queue, too,
      // where it is found to be done.
      wanted_.push_back(entry);
      has_work_.notify_one();
    }
    not_ahead(*entry);
    pin(*entry);
    hold.entries_.push_back(std::move(entry));
  }
  StoreStatus status;
  for (const auto& entry : hold.entries_) {
    entry->decoded.wait(
        lock, [&] { return entry->state == State::kReady || entry->state == State::kFailed; });
    if (entry->state != State::kFailed || !status.ok()) continue;
    status = entry->status;
    if (failed != nullptr) *failed = entry->piece;
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
    add(piece, ahead_)->is_ahead = true;
    ahead_bytes_ += piece.num_bytes;
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
  // From here on only readers need memory that they could lack, and they can say so.
  free_buffers_.reserve(num_threads_);
  threads_.reserve(num_threads_);
  try {
    while (threads_.size() < num_threads_) {
      scratches_.push_back(std::make_unique_for_overwrite<Scratch>());
      threads_.emplace_back([this, scratch = scratches_.back().get()] { work(*scratch); });
    }
  } catch (const std::exception&) {
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

void PieceCache::work(Scratch& scratch) noexcept {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      for (;; has_work_.wait(lock)) {
        if (stopping_ && wanted_.empty()) return;
        job = take_job();
        if (job.size > 0) break;
      }
      for (std::size_t i = 0; i < job.size; ++i) allocate(*job.entries[i]);
    }
    run_job(job, scratch);
  }
}

// The next piece, and its neighbour if that is the next one to do.
PieceCache::Job PieceCache::take_job() noexcept {
  Job job;
  for (Queue* queue : {&wanted_, &ahead_}) {
    while (!queue->empty() && job.size < job.entries.size()) {
      Entry& next = *queue->front();
      if (next.state == State::kQueued) {
        if (job.size > 0 && (next.piece.file != job.entries[0]->piece.file ||
                             next.piece.offset != job.entries[0]->piece.end()))
          return job;
        next.state = State::kDecoding;
        job.entries[job.size++] = queue->front();
      }
      queue->pop_front();
    }
    if (job.size > 0) return job;
  }
  return job;
}

void PieceCache::run_job(const Job& job, Scratch& scratch) noexcept {
  Piece pieces[2];
  std::byte* dst[2];
  StoreStatus statuses[2];
  bool all_there = true;
  for (std::size_t i = 0; i < job.size; ++i) {
    pieces[i] = job.entries[i]->piece;
    dst[i] = job.entries[i]->bytes.get();
    if (dst[i] != nullptr) continue;
    statuses[i] = {{Code::kInternal, "out of memory"}};
    all_there = false;
  }
  const auto decode = [&](std::size_t first, std::size_t count) {
    return store::guarded([&] {
      return source_.decode(std::span(pieces).subspan(first, count),
                            std::span(dst).subspan(first, count), scratch);
    });
  };
  // Where one of two is damaged, the other one is not lost.
  if (!all_there || !decode(0, job.size).ok())
    for (std::size_t i = 0; i < job.size; ++i)
      if (statuses[i].ok()) statuses[i] = decode(i, 1);

  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < job.size; ++i) {
    Entry& entry = *job.entries[i];
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

std::shared_ptr<PieceCache::Entry> PieceCache::find(const Piece& piece) noexcept {
  const auto at = entries_.find({piece.file, piece.offset});
  return at == entries_.end() ? nullptr : at->second;
}

std::shared_ptr<PieceCache::Entry> PieceCache::add(const Piece& piece, Queue& queue) {
  auto entry = std::make_shared<Entry>(piece);
  queue.push_back(entry);
  try {
    entries_.emplace(Key{piece.file, piece.offset}, entry);
  } catch (...) {
    queue.pop_back();
    throw;
  }
  has_work_.notify_one();
  return entry;
}

void PieceCache::pin(Entry& entry) noexcept {
  ++entry.pins;
  unlist(entry);
}

void PieceCache::unpin(Entry& entry) noexcept {
  if (--entry.pins == 0 && entry.state == State::kReady) enlist(entry);
}

void PieceCache::enlist(Entry& entry) noexcept {
  entry.list = entry.is_ahead                             ? &unread_
               : entry.delivered >= entry.piece.num_bytes ? &spent_
                                                          : &partial_;
  entry.list->splice(entry.list->end(), entry.own);
  make_room(0);  // readers may have used more than there is
}

void PieceCache::not_ahead(Entry& entry) noexcept {
  if (entry.is_ahead) ahead_bytes_ -= entry.piece.num_bytes;
  entry.is_ahead = false;
}

void PieceCache::unlist(Entry& entry) noexcept {
  if (entry.list != nullptr) entry.own.splice(entry.own.begin(), *entry.list, entry.at);
  entry.list = nullptr;
}

// What the kernel has got goes first, newest first: its memory is still in the CPU's cache, and who
// reads a file again and again starts with what is old. Then what was used longest ago.
void PieceCache::make_room(std::uint64_t num_bytes) noexcept {
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

void PieceCache::allocate(Entry& entry) noexcept {
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

void PieceCache::remove(Entry& entry) noexcept {
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
