// The accept thread: prepares the sink of an offered message, and answers the offer.
#include "wire/connection_core.h"

namespace snug::wire {

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
  const ChunkTable& table = message->table;
  if (Status s = message->sink->begin(table.extents(), table.num_bytes()); !s.ok()) return s;
  if (Status s = hash_existing(*message); !s.ok()) return s;
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
Status Connection::Core::hash_existing(Incoming& message) {
  const std::uint64_t existing = message.sink->existing_bytes();
  std::vector<std::byte> buffer;
  for (std::uint64_t i = 0; i < message.table.num_chunks(); ++i) {
    const ChunkPlace place = message.table.at(i);
    if (place.offset + place.num_bytes > existing || i >= kMaxControlBytes / 8) break;
    buffer.resize(place.num_bytes);
    if (Status s = message.sink->read_back(place.offset, buffer); !s.ok()) return s;
    message.known.push_back(hash_bytes(buffer));
  }
  return {};
}

}  // namespace snug::wire
