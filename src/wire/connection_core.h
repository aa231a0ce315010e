// wire/connection_core.h - the state of one connection, and which thread does what:
//
//   control thread   reads the control channel, sends pings, looks for stalls
//   accept thread    answers offers for which a receive was posted
//   send lanes       claim chunks of accepted messages, encode and send them
//   receive lanes    read chunks, decode and place them
//
// Lanes and the accept thread start with the first message in their direction. The first error ends
// the connection: all channels are shut down, and every message ends as soon as no thread touches
// its memory any more.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "snug/wire.h"
#include "wire/arrival_meter.h"
#include "wire/channel.h"
#include "wire/controller.h"
#include "wire/memory_budget.h"
#include "wire/message_rules.h"
#include "wire/protocol.h"
#include "wire/transfer_state.h"

namespace snug::wire {

inline constexpr Status kOutOfMemory{Code::kInternal, "out of memory"};

// Calls a Source or Sink of the application: an exception ends the message, not the lane's count of
// messages that it works on.
template <class Work>
Status guarded(Work work) noexcept {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  } catch (const std::exception&) {
    return {Code::kInternal, "a source or sink has thrown an exception"};
  }
}

// A mutex with a deadline. GCC 12's thread sanitizer does not understand std::timed_mutex.
class TurnTaker {
 public:
  bool take(Deadline deadline) {
    std::unique_lock lock(mutex_);
    if (!free_again_.wait_until(lock, deadline, [this] { return !taken_; })) return false;
    return taken_ = true;
  }
  void give_back() {
    const std::lock_guard lock(mutex_);
    taken_ = false;
    free_again_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable free_again_;
  bool taken_ = false;
};

// What a table of chunks takes of the budget.
inline std::size_t table_cost(const ChunkTable& table) noexcept {
  return 256 + 32 * table.extents().size();
}

struct Message {
  std::uint64_t number = 0;
  ChunkTable table;
  Reservation table_share, known_share;  // of table_budget()
  std::shared_ptr<Transfer::State> state = std::make_shared<Transfer::State>();
  std::vector<std::uint64_t> known;  // hashes of chunks that the receiver has
  int busy = 0;                      // lanes at work on it; guarded by Core::mutex_
};

struct Outgoing : Message {
  std::shared_ptr<Source> source;
  CompressionProbe probes[kNumDTypes];
  // Guarded by Core::mutex_.
  bool accepted = false, confirmed = false;
  std::uint64_t next_chunk = 0;
};

struct Incoming : Message {
  std::shared_ptr<Sink> sink;
  // Guarded by Core::mutex_.
  std::vector<bool> arrived;
  std::uint64_t num_left = 0;
};

class Connection::Core {
 public:
  // `channels`: control, then the lanes.
  Core(Options options, std::vector<ChannelPtr> channels);
  ~Core();
  Status start() noexcept;

  Transfer send(std::uint64_t tag, std::shared_ptr<Source> source);
  Transfer recv(std::uint64_t tag, std::shared_ptr<Sink> sink);
  Status send_note(const std::string& note);
  Result<std::string> recv_note(std::chrono::milliseconds patience);
  bool has_offers() const;  // for which no receive was posted
  // Longer notes end the connection.
  void limit_notes(std::size_t max_bytes);
  std::size_t num_lanes() const noexcept { return lanes_.size(); }
  Stats stats() const;
  Status status() const;
  std::string peer_name() const { return control_->peer_name(); }

  // Ends the connection; the first reason counts. The peer is told `tell`.
  void fail(const Status& status) noexcept { fail(status, status.code); }
  void fail(const Status& status, Code tell) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Lane {
    ChannelPtr channel;
    std::thread sender, receiver;
  };
  struct Offered {
    std::uint64_t number;
    ChunkTable table;
    Reservation share;
  };
  struct Note {
    std::string text;
    Reservation share;
  };
  struct ToAccept {
    Offered offered;
    std::shared_ptr<Incoming> incoming;
  };

  // control_thread.cpp
  void run_control() noexcept;
  Status read_control();
  std::size_t max_payload_bytes(const ControlHeader& header) const;
  Status handle_control(const ControlHeader& header, std::span<const std::byte> payload);
  Status handle_offer(std::uint64_t number, std::span<const std::byte> payload);
  Status handle_accept(std::uint64_t number, std::span<const std::byte> payload);
  Status handle_progress(std::span<const std::byte> payload);
  Status handle_done(std::uint64_t number);
  Status handle_fail(std::span<const std::byte> payload);
  Status handle_note(std::span<const std::byte> payload);
  Status check_stalls();
  Status send_control(ControlType type, std::uint64_t message, std::span<const std::byte> payload,
                      Deadline deadline);
  Status send_control(ControlType type, std::uint64_t message, std::span<const std::byte> payload) {
    return send_control(type, message, payload, deadline());
  }

  // accept_thread.cpp
  void run_accept() noexcept;
  Status accept_message(ToAccept& job) noexcept;
  Status hash_existing(Incoming& message, std::uint64_t most);

  // send_lane.cpp, receive_lane.cpp
  class SendLane;
  class ReceiveLane;
  void run_send_lane(Channel& channel) noexcept;
  void run_receive_lane(Channel& channel) noexcept;

  void start_senders();
  void start_receivers();
  void lane_failed(const Status& status) noexcept;
  // Both with mutex_ held.
  void finish_if_failed(const Message& message) noexcept;
  void count_chunk(const LaneHeader& header) noexcept;
  Deadline deadline() const { return Clock::now() + options_.timeout; }
  KeepGoing while_connected() const {
    return [this] { return status().ok(); };
  }
  // A share of table_budget(). Waits for it.
  Result<Reservation> reserve(std::size_t num_bytes) const;
  void touch_in() { last_in_ = Clock::now().time_since_epoch().count(); }
  void touch_out() { last_out_ = Clock::now().time_since_epoch().count(); }

  const Options options_;
  ChannelPtr control_;
  std::vector<Lane> lanes_;
  std::thread control_thread_, accept_thread_;
  std::mutex offer_mutex_;  // offers are sent in the order of their numbers
  TurnTaker control_turn_;
  Controller controller_;
  ArrivalMeter meter_;
  std::atomic<Clock::rep> last_in_{0}, last_out_{0};  // when data last moved

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // work for lanes, notes, failure
  Status status_;
  bool senders_started_ = false, receivers_started_ = false;
  std::uint64_t next_number_ = 1;
  std::unordered_map<std::uint64_t, std::shared_ptr<Outgoing>> outgoing_;
  std::deque<std::shared_ptr<Outgoing>> to_send_;  // accepted, with chunks left
  // Chunks sent, and what the peer has reported about them.
  std::uint64_t num_chunks_out_ = 0, num_reports_ = 0, reported_bytes_ = 0;
  std::map<std::uint64_t, std::deque<Offered>> offers_;  // by tag, no receive posted
  std::size_t num_offers_ = 0, num_offered_extents_ = 0;
  std::uint64_t last_offer_ = 0;
  std::map<std::uint64_t, std::deque<std::shared_ptr<Incoming>>> posted_;  // by tag
  std::deque<ToAccept> to_accept_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Incoming>> incoming_;  // accepted
  std::deque<Note> notes_;
  std::size_t max_note_bytes_ = kMaxNoteBytes;
  Stats stats_;
};

// Wraps channels that are connected and greeted.
Result<Connection> make_connection(const Options& options, std::vector<ChannelPtr> channels);
Status check_options(const Options& options) noexcept;

}  // namespace snug::wire
