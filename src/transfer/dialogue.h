// transfer/dialogue.h - the notes that two peers exchange about files:
//
//   sender                      receiver
//   message 0: the manifest
//                               "ok", or "error CODE TEXT", or "done": it is here already
//   message i + 1: file i
//   "commit", or "error ..."
//                               "done", or "error ..."
#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "net/socket.h"
#include "snug/store.h"
#include "snug/transfer.h"
#include "snug/wire.h"
#include "transfer/manifest.h"

namespace snug::transfer {

using net::Deadline;
using net::KeepGoing;
using wire::Connection;
using wire::Transfer;
using Clock = std::chrono::steady_clock;

// A peer that has said nothing yet gets less time than one at work.
inline constexpr std::chrono::milliseconds kFirstWords{10'000};

// How long a peer may take for what it owes if it has to read or sync `num_bytes` first, from a
// disk of 20 MB/s at worst. Pings do not extend it.
std::chrono::milliseconds patience_for(std::chrono::milliseconds timeout, std::uint64_t num_bytes);

// Names, sizes and errors are short.
inline constexpr std::size_t kMaxFileNoteBytes = 4096;

struct Answer {
  std::string text;
  StoreStatus status = {};  // what an "error" note carries, or why there is no note
  bool refused = false;     // an "error" note, not a lost connection
};
// Waits for a note as long as the connection lives, but not past the deadline: a peer that only
// sends pings must not hold this side for ever.
Answer wait_for_note(Connection& connection, const KeepGoing& keep_going,
                     Deadline deadline = Deadline::max());
// Nothing if no note has come by then.
std::optional<Answer> next_note(Connection& connection, std::chrono::milliseconds patience);
// What the other side said before the connection broke, or `status`.
Answer last_words(Connection& connection, const Status& status);
// Whether an error is the other side's and not of this host, whatever its code.
bool came_from_peer(const StoreStatus& status) noexcept;
void send_error(Connection& connection, const StoreStatus& status);

struct SendRules {
  std::chrono::milliseconds timeout{30'000};
  // What the receiver may have to read before it says "ok".
  std::uint64_t bytes_before_ok = 0;
  std::function<bool(std::uint64_t done_bytes)> progress = {};
};
// Both leave the connection usable if they succeed.
struct FilesReport {
  StoreStatus status = {};
  bool refused = false;    // by the other side: trying again would not help
  bool committed = false;  // `commit` was said: it may have succeeded whatever the status says
};
FilesReport send_files(Connection& connection, const FileManifest& manifest,
                       const std::string& path, const SendRules& rules);

struct ReceiveRules {
  bool force = false;
  // With `force`: the files that may be deleted with an older folder, sorted; null: those of the
  // same names as the sender's.
  const std::vector<std::string>* known = nullptr;
  std::string wanted_name = {};                // empty: any
  std::chrono::milliseconds patience{30'000};  // with a sender that owes something
  // Checks what has arrived, before it gets its final name; may be empty.
  std::function<StoreStatus(const std::string& path)> check = {};
  std::function<bool(const Progress&)> progress = {};
};
// Receives into `folder`; returns the final path. An older folder that held more than what may be
// deleted stays, under the name `kept`.
StoreResult<std::string> receive_files(Connection& connection, const std::string& folder,
                                       const ReceiveRules& rules, FileManifest& manifest,
                                       std::string& kept);

// How a transfer ended, or nothing if `keep_going`, called now and then, returned false before.
// wait_for's timeout may race with the end, so that is asked for separately.
template <class KeepWaiting>
std::optional<Status> end_of(const Transfer& transfer, KeepWaiting keep_going) {
  while (!transfer.done()) {
    (void)transfer.wait_for(std::chrono::milliseconds(50));
    if (!transfer.done() && !keep_going()) return std::nullopt;
  }
  return transfer.wait();
}

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Exponential backoff: 250 ms, doubled `exponent` times, at most 4 s.
void back_off(int exponent, const KeepGoing& keep_going);
// Whether another connection may succeed where one failed with this code.
bool worth_retrying(Code code) noexcept;
StoreStatus interrupted();
StoreStatus says_nothing();

}  // namespace snug::transfer
