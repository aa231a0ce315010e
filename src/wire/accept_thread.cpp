// The accept thread: prepares the sink of an offered message, and answers the offer.
#include <algorithm>

#include "wire/connection_core.h"

namespace snug::wire {
namespace {

// Every extent may have one chunk that is not full.
std::uint64_t most_known(const ChunkTable& table, std::uint64_t existing_bytes) {
  if (existing_bytes == 0) return 0;
  return std::min({table.num_chunks(),
                   existing_bytes / table.chunk_bytes() + table.extents().size(),
                   std::uint64_t{kMaxControlBytes / 8}});
}

}  // namespace

void Connection::Core::run_accept() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !to_accept_.empty() || !status_.ok(); });
    if (!status_.ok()) return;
    ToAccept job = std::move(to_accept_.front());
    to_accept_.pop_front();
    lock.unlock();
    const Status s = accept_message(job);
    if (!s.ok()) fail(s);
    lock.lock();
    if (!s.ok()) finish_if_failed(*job.incoming);
  }
}

Status Connection::Core::accept_message(ToAccept& job) noexcept try {
  const std::shared_ptr<Incoming>& message = job.incoming;
  message->number = job.offered.number;
  message->table = std::move(job.offered.table);
  message->table_share = std::move(job.offered.share);
  const ChunkTable& table = message->table;
  if (Status s = message->sink->begin(table.extents(), table.num_bytes()); !s.ok()) return s;
  // One bit for every chunk, and the hashes of those that may be there.
  const std::uint64_t num_known = most_known(table, message->sink->existing_bytes());
  auto share = reserve(table.num_chunks() / 8 + 8 * num_known);
  if (!share) return share.status();
  message->known_share = std::move(*share);
  message->known.reserve(num_known);
  if (Status s = hash_existing(*message, num_known); !s.ok()) return s;
  message->arrived.resize(table.num_chunks());
  message->num_left = table.num_chunks();
  {
    const std::lock_guard lock(mutex_);
    if (!status_.ok()) return status_;
    touch_in();
    if (message->num_left > 0) incoming_[message->number] = message;
  }
  const auto known = std::as_bytes(std::span(message->known));
  if (Status s = send_control(ControlType::kAccept, message->number, known); !s.ok()) return s;
  if (table.num_chunks() > 0) return {};
  if (Status s = send_control(ControlType::kDone, message->number, {}); !s.ok()) return s;
  message->state->finish({});
  return {};
} catch (const std::exception&) {
  return kOutOfMemory;
}

// Hashes the chunks that may be there from an earlier attempt.
Status Connection::Core::hash_existing(Incoming& message, std::uint64_t most) {
  if (most == 0) return {};
  const std::uint64_t existing = message.sink->existing_bytes();
  auto buffer = receive_buffers().take(message.table.chunk_bytes(), deadline(), while_connected());
  if (!buffer) return buffer.status();
  for (std::uint64_t i = 0; i < most; ++i) {
    const ChunkPlace place = message.table.at(i);
    if (place.offset + place.num_bytes > existing) break;
    if (Status s = status(); !s.ok()) return s;
    const std::span<std::byte> bytes = buffer->span().first(place.num_bytes);
    if (Status s = message.sink->read_back(place.offset, bytes); !s.ok()) return s;
    message.known.push_back(hash_bytes(bytes));
  }
  return {};
}

}  // namespace snug::wire
