// Serving versions. The follower asks, the server answers:
//
//   follower                          server
//   "have HASH" or "have HASH once"
//                                     "current" (only to "once"), or as soon as
//                                     there is something newer:
//                                     "patch HASH BYTES NAME", then the patch as message 0
//                                     "full HASH 0 NAME", then files as in dialogue.h
//   "have HASH" ...
#include <atomic>
#include <list>
#include <system_error>
#include <thread>

#include "transfer/dialogue.h"
#include "transfer/file_buffers.h"
#include "transfer/refusals.h"
#include "transfer/versions.h"
#include "wire/connection_core.h"

namespace snug {
namespace transfer {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxFollowers = 256;
// Both sides print it.
constexpr Status kSenderHere{Code::kPeer,
                             "snug send has reached snug sync --serve; it needs snug recv"};

class SyncServer {
 public:
  SyncServer(wire::Listener& listener, const std::string& folder, const SyncOptions& options)
      : listener_(listener), catalog_(folder), options_(options) {}

  StoreStatus run() {
    if (StoreStatus s = scan(); !s.ok()) return s;
    std::thread scanning([this] { keep_scanning(); });
    while (going()) {
      auto connection = listener_.accept(100ms);
      if (connection && followers_.size() < kMaxFollowers) start(std::move(*connection));
      std::erase_if(followers_, [](Follower& f) { return f.done && (f.thread.join(), true); });
      if (const auto s = refusals_.news(listener_, options_.wire)) report_error(*s);
    }
    stopping_ = true;
    for (Follower& follower : followers_) follower.thread.join();
    scanning.join();
    return {};
  }

 private:
  struct Follower {
    std::thread thread;
    std::atomic<bool> done{false};
  };

  bool going() const { return !stopping_ && (!options_.keep_going || options_.keep_going()); }

  void keep_scanning() {
    // A folder that is gone is looked for many times a second, and missed once.
    for (std::string last; going(); std::this_thread::sleep_for(50ms)) {
      const StoreStatus s = scan();
      const std::string text = s.ok() ? std::string() : to_string(s);
      if (!s.ok() && text != last) report_error(s);
      last = text;
    }
  }
  StoreStatus scan() {
    return catalog_.scan([this](const StoreStatus& status) { report_error(status); });
  }

  void start(Connection connection) {
    Follower& follower = followers_.emplace_back();
    try {
      follower.thread =
          std::thread([this, &follower, connection = std::move(connection)]() mutable {
            const std::string peer = connection.peer_name();  // unknown once it is closed
            StoreStatus s = serve(connection);
            if (!s.ok() && going()) {
              s.detail = s.detail.empty() ? peer : peer + ": " + s.detail;
              report_error(s);
            }
            follower.done = true;
          });
    } catch (const std::system_error&) {
      followers_.pop_back();  // this follower comes back; the others are not to suffer
      report_error({{Code::kIo, "cannot start a thread for a follower"}, {}, {}, {}});
    }
  }

  StoreStatus serve(Connection& connection) {
    // Later on a follower may need any time to check what it got.
    for (Deadline deadline = Clock::now() + std::min(kFirstWords, options_.wire.timeout);;
         deadline = Deadline::max()) {
      const auto offers_files = [&] { return connection.core()->has_offers(); };
      const Answer asked = wait_for_note(
          connection, [&] { return going() && !offers_files(); }, deadline);
      if (offers_files()) return give_up(connection, {kSenderHere, {}, {}, {}});
      if (!asked.status.ok()) return hung_up(connection, asked.status);
      if (!asked.text.starts_with("have "))
        return give_up(connection, {{Code::kPeer, "a follower broke the protocol"}, {}, {}, {}});
      std::string have = asked.text.substr(5);
      const bool once = have.ends_with(" once");
      if (once) have.resize(have.size() - 5);
      Version next;
      while ((next = catalog_.newest(have)).hash == have || next.name.empty()) {
        if (once && !next.name.empty()) break;
        if (Status s = connection.status(); !s.ok()) return hung_up(connection, {s, {}, {}, {}});
        if (!going()) return {};
        std::this_thread::sleep_for(20ms);
      }
      const StoreStatus s = next.hash == have
                                ? StoreStatus{connection.send_note("current"), {}, {}, {}}
                                : send_version(connection, have, next);
      if (!s.ok()) return s;
    }
  }

  // A follower may leave whenever it is not in the middle of an update.
  static StoreStatus hung_up(const Connection&, const StoreStatus& status) {
    return status.status.code == Code::kPeer ? StoreStatus{} : status;
  }

  StoreStatus send_version(Connection& connection, const std::string& have, const Version& next) {
    const auto start = Clock::now();
    const std::uint64_t before = connection.stats().wire_bytes;
    const auto patch = catalog_.patch(have, next);
    // Whoever clears the folder just now does not keep a follower from its version.
    std::shared_ptr<FileSource> source;
    if (patch)
      if (auto opened = FileSource::open(patch->path())) source = *opened;
    const StoreStatus s =
        source ? send_patch(connection, source, next) : send_full(connection, next);
    if (!s.ok() || !options_.on_event) return s;
    const std::lock_guard lock(event_mutex_);
    options_.on_event({next.name, connection.peer_name(), source != nullptr, next.num_bytes,
                       connection.stats().wire_bytes - before,
                       std::chrono::duration<double>(Clock::now() - start).count()});
    return {};
  }

  StoreStatus send_patch(Connection& connection, const std::shared_ptr<FileSource>& patch,
                         const Version& next) {
    const std::string note =
        "patch " + next.hash + " " + std::to_string(patch->file().num_bytes()) + " " + next.name;
    if (Status s = connection.send_note(note); !s.ok()) return {s, {}, {}, {}};
    const Transfer transfer = connection.send(0, patch);
    const auto s = end_of(transfer, [this] { return going(); });
    if (!s) return interrupted();
    if (const StoreStatus own = patch->error(); !own.ok()) return give_up(connection, own);
    return s->ok() ? StoreStatus{} : last_words(connection, *s).status;
  }

  // Followers are told why, and come back.
  static StoreStatus give_up(Connection& connection, const StoreStatus& status) {
    send_error(connection, status);
    return status;
  }

  StoreStatus send_full(Connection& connection, const Version& next) {
    auto manifest = list_path(next.path);
    if (!manifest) return give_up(connection, manifest.status());
    // Behind a link the file or folder itself may have another name.
    if (!manifest->is_folder) manifest->files[0].name = next.name;
    manifest->name = next.name;
    if (Status s = connection.send_note("full " + next.hash + " 0 " + next.name); !s.ok())
      return {s, {}, {}, {}};
    return send_files(connection, *manifest, next.path, [this](std::uint64_t) { return going(); })
        .status;
  }

  void report_error(const StoreStatus& status) {
    const std::lock_guard lock(event_mutex_);
    if (options_.on_error) options_.on_error(status);
  }

  wire::Listener& listener_;
  VersionCatalog catalog_;
  const SyncOptions& options_;
  std::atomic<bool> stopping_{false};
  std::list<Follower> followers_;
  std::mutex event_mutex_;
  Refusals refusals_;
};

}  // namespace
}  // namespace transfer

StoreStatus serve_versions(wire::Listener& listener, const std::string& folder,
                           const SyncOptions& options) noexcept try {
  return transfer::SyncServer(listener, folder, options).run();
} catch (const std::exception&) {
  return {{Code::kInternal, "out of memory or threads"}, folder, {}, {}};
}

}  // namespace snug
