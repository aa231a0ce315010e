// Serving versions. The follower asks, the server answers:
//
//   follower                          server
//   "have HASH" or "have HASH once"
//                                     "current" (only to "once"), or as soon as
//                                     there is something newer:
//                                     "newer BYTES": it may have to read as much, then
//                                     "patch HASH BYTES NAME", then the patch as message 0
//                                     "full HASH 0 NAME", then files as in dialogue.h
//   "have HASH" ...
#include <atomic>
#include <thread>

#include "transfer/dialogue.h"
#include "transfer/file_buffers.h"
#include "transfer/versions.h"
#include "wire/connection_core.h"

namespace snug {
namespace transfer {
namespace {

using namespace std::chrono_literals;

// Both sides print it.
constexpr Status kSenderHere{Code::kPeer,
                             "snug send has reached snug sync --serve; it needs snug recv"};

constexpr Status kNoVersion{Code::kNotFound, "there is no complete version yet"};

class SyncServer {
 public:
  SyncServer(wire::Listener& listener, const std::string& folder, const SyncOptions& options)
      : listener_(listener),
        catalog_(folder, [this](const StoreStatus& status) { report_error(status); }),
        options_(options) {}

  StoreStatus run() {
    const StopScope scope([this] { return going(); });
    if (StoreStatus s = catalog_.scan(); !s.ok()) return s;
    std::thread scanning([this] { keep_scanning(); });
    serve_peers(
        listener_, [this](Connection& connection) { return serve(connection); },
        [this](const StoreStatus& status) { report_error(status); }, [this] { return going(); });
    stopping_ = true;
    scanning.join();
    return {};
  }

 private:
  bool going() const { return !stopping_ && (!options_.keep_going || options_.keep_going()); }

  void keep_scanning() {
    const StopScope scope([this] { return going(); });
    // A folder that is gone is reported once, though it is looked for many times a second.
    for (std::string last; going(); std::this_thread::sleep_for(50ms)) {
      const StoreStatus s = catalog_.scan();
      const std::string text = s.ok() ? std::string() : to_string(s);
      if (!s.ok() && text != last) report_error(s);
      last = text;
    }
  }

  StoreStatus serve(Connection& connection) {
    const StopScope scope([this] { return going(); });
    Deadline deadline = net::after(std::min(kFirstWords, options_.wire.timeout));
    for (;;) {
      const auto offers_files = [&] { return connection.core()->has_offers(); };
      const Answer asked = wait_for_note(
          connection, [&] { return going() && !offers_files(); }, deadline);
      if (offers_files()) return give_up(connection, {kSenderHere});
      if (!asked.status.ok()) return hung_up(asked.status);
      if (!asked.text.starts_with("have "))
        return give_up(connection, {{Code::kPeer, "a follower broke the protocol"}});
      std::string have = asked.text.substr(5);
      const bool once = have.ends_with(" once");
      if (once) have.resize(have.size() - 5);
      const Version next = wait_for_newer(connection, have, once);
      if (Status s = connection.status(); !s.ok()) return hung_up({s});
      if (!going()) return {};
      if (next.name.empty()) return give_up(connection, {kNoVersion});
      const StoreStatus s = next.hash == have ? StoreStatus{connection.send_note("current")}
                                              : send_version(connection, have, next);
      if (!s.ok()) return s;
      // Before it asks again, the follower reads its base and writes and verifies the version.
      deadline = net::after(patience_for(options_.wire.timeout, 2 * next.num_bytes));
    }
  }

  // The version to send; `have` itself if a follower that asked once has the newest. Nameless if
  // the connection has ended, or if there is no version soon enough for one that asked once.
  Version wait_for_newer(Connection& connection, const std::string& have, bool once) const {
    const Deadline deadline = once ? net::after(options_.wire.timeout / 2) : Deadline::max();
    for (;;) {
      Version next = catalog_.newest(have);
      const bool here = !next.name.empty();
      if (here && (once || next.hash != have)) return next;
      if (!connection.status().ok() || !going() || Clock::now() >= deadline) return {};
      std::this_thread::sleep_for(20ms);
    }
  }

  // A follower may leave whenever it is not in the middle of an update.
  static StoreStatus hung_up(const StoreStatus& status) {
    return status.status.code == Code::kPeer ? StoreStatus{} : status;
  }

  StoreStatus send_version(Connection& connection, const std::string& have, const Version& next) {
    const auto start = Clock::now();
    const std::uint64_t before = connection.stats().wire_bytes;
    const std::string newer = "newer " + std::to_string(2 * next.num_bytes);
    if (Status s = connection.send_note(newer); !s.ok()) return {s};
    const auto patch = catalog_.patch(have, next);
    // If somebody has just deleted the patch, a full copy is sent.
    std::shared_ptr<FileSource> source;
    if (patch)
      if (auto opened = FileSource::open(patch->path())) source = *opened;
    const StoreStatus s =
        source ? send_patch(connection, source, next) : send_full(connection, next);
    if (!s.ok() || !options_.on_event) return s;
    const std::lock_guard lock(event_mutex_);
    options_.on_event({next.name, connection.peer_name(), source != nullptr, next.num_bytes,
                       connection.stats().wire_bytes - before, seconds_since(start)});
    return {};
  }

  StoreStatus send_patch(Connection& connection, const std::shared_ptr<FileSource>& patch,
                         const Version& next) {
    const std::string note =
        "patch " + next.hash + " " + std::to_string(patch->file().num_bytes()) + " " + next.name;
    if (Status s = connection.send_note(note); !s.ok()) return {s};
    const Transfer transfer = connection.send(0, patch);
    const Deadline deadline = net::after(patience_for(options_.wire.timeout, next.num_bytes));
    bool late = false;
    const auto s = end_of(transfer, [&] {
      late = transfer.done_bytes() == 0 && Clock::now() >= deadline;
      return !late && going();
    });
    if (late) return says_nothing();
    if (!s) return interrupted();
    if (const StoreStatus own = patch->error(); !own.ok()) return give_up(connection, own);
    return s->ok() ? StoreStatus{} : last_words(connection, *s).status;
  }

  // The follower is told why, and retries.
  static StoreStatus give_up(Connection& connection, const StoreStatus& status) {
    send_error(connection, status);
    return status;
  }

  StoreStatus send_full(Connection& connection, const Version& next) {
    auto manifest = list_path(next.path);
    if (!manifest) return give_up(connection, manifest.status());
    // The target of a link may have another name.
    if (!manifest->is_folder) manifest->files[0].name = next.name;
    manifest->name = next.name;
    if (Status s = connection.send_note("full " + next.hash + " 0 " + next.name); !s.ok())
      return {s};
    // The follower may have to read what it has under that name.
    const SendRules rules{options_.wire.timeout, next.num_bytes,
                          [this](std::uint64_t) { return going(); }};
    return send_files(connection, *manifest, next.path, rules).status;
  }

  void report_error(const StoreStatus& status) {
    const std::lock_guard lock(event_mutex_);
    if (options_.on_error && going()) options_.on_error(status);
  }

  wire::Listener& listener_;
  VersionCatalog catalog_;
  const SyncOptions& options_;
  std::atomic<bool> stopping_{false};
  std::mutex event_mutex_;
};

}  // namespace
}  // namespace transfer

StoreStatus serve_versions(wire::Listener& listener, const std::string& folder,
                           const SyncOptions& options) noexcept try {
  return transfer::SyncServer(listener, folder, options).run();
} catch (const std::exception&) {
  return {{Code::kInternal, "out of memory or threads"}, folder};
}

}  // namespace snug
