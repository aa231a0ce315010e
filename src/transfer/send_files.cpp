// Sending files: announce, send, check that nothing changed meanwhile, commit.
#include <deque>

#include "snug/store.h"
#include "transfer/dialogue.h"
#include "transfer/file_buffers.h"
#include "wire/connection_core.h"
#include "wire/handshake.h"
#include "wire/memory_buffers.h"

namespace snug {
namespace transfer {
namespace {

// Small files overlap each other's round trips.
constexpr std::size_t kMaxAtOnce = 16;
const StoreStatus kBroken{{Code::kPeer, "the receiver broke the protocol"}};

struct FileOnItsWay {
  std::shared_ptr<FileSource> source;
  Transfer transfer;
};

class FileSender {
 public:
  FileSender(Connection& connection, const FileManifest& manifest, const std::string& path,
             const SendRules& rules)
      : connection_(connection), manifest_(manifest), path_(path), rules_(rules) {}

  FilesReport run() {
    const std::string json = to_json(manifest_);
    const std::span<const std::byte> bytes[] = {std::as_bytes(std::span(json))};
    const Transfer announced = connection_.send(0, DType::kBytes, bytes);
    const Answer answer = wait(rules_.bytes_before_ok);
    if (!answer.status.ok()) {
      // The message refers to `json`.
      if (!announced.done()) connection_.close();
      (void)announced.wait();
      return {answer.status, answer.refused};
    }
    // An answer to a list that was never fetched.
    if (!announced.wait_for(rules_.timeout).ok()) {
      connection_.close();
      (void)announced.wait();
      return {kBroken};
    }
    if (answer.text == "done" && !manifest_.version.empty()) return {};
    if (StoreStatus s = send_all(); !s.ok()) {
      connection_.close();
      for (const FileOnItsWay& file : on_the_way_) (void)file.transfer.wait();
      return {s, refused_};
    }
    return commit();
  }

 private:
  // Waits for a note that the receiver owes.
  Answer wait(std::uint64_t bytes_to_read) {
    const auto patience = patience_for(rules_.timeout, bytes_to_read);
    return wait_for_note(
        connection_, [this] { return report(); }, net::after(patience));
  }

  StoreStatus send_all() {
    moved_at_ = Clock::now();
    for (std::size_t i = 0; i < manifest_.files.size(); ++i) {
      const std::string path = manifest_.is_folder ? path_ + "/" + manifest_.files[i].name : path_;
      auto source = FileSource::open(path);
      if (source && (*source)->file().num_bytes() != manifest_.files[i].num_bytes)
        return give_up({{Code::kIo, "file changed while it was sent"}, path});
      if (!source) return give_up(source.status());
      on_the_way_.push_back({*source, connection_.send(i + 1, *source)});
      if (on_the_way_.size() >= kMaxAtOnce)
        if (StoreStatus s = finish_first(); !s.ok()) return s;
    }
    while (!on_the_way_.empty())
      if (StoreStatus s = finish_first(); !s.ok()) return s;
    return {};
  }

  StoreStatus finish_first() {
    FileOnItsWay& file = on_the_way_.front();
    bool late = false;
    const auto s = end_of(file.transfer, [&] { return !(late = is_late()) && report(); });
    if (late) return says_nothing();
    if (!s) return give_up(interrupted());
    if (!s->ok()) {
      if (StoreStatus own = file.source->error(); !own.ok()) return give_up(own);
      const Answer answer = last_words(connection_, *s);
      refused_ = answer.refused;
      return answer.status;
    }
    if (StoreStatus changed = file.source->file().check_unchanged(); !changed.ok())
      return give_up(changed);
    finished_bytes_ += file.source->file().num_bytes();
    on_the_way_.pop_front();
    moved_at_ = Clock::now();
    return {};
  }

  // The deadline counts from the last bytes that moved. Before the first bytes of a file, the
  // receiver may have to hash what it has of it.
  bool is_late() {
    std::uint64_t bytes_to_hash = 0;
    for (const FileOnItsWay& file : on_the_way_)
      if (file.transfer.done_bytes() == 0) bytes_to_hash += file.source->file().num_bytes();
    if (const std::uint64_t done = done_bytes(); done != moved_bytes_) {
      moved_bytes_ = done;
      moved_at_ = Clock::now();
    }
    return Clock::now() - moved_at_ >= patience_for(rules_.timeout, bytes_to_hash);
  }

  FilesReport commit() {
    if (Status s = connection_.send_note("commit"); !s.ok()) return {{s}, false, true};
    const Answer answer = wait(manifest_.num_bytes());
    if (!answer.status.ok()) return {answer.status, answer.refused, true};
    if (answer.text != "done") return {kBroken, true, true};
    return {};
  }

  StoreStatus give_up(const StoreStatus& status) {
    refused_ = true;
    send_error(connection_, status);
    return status;
  }

  std::uint64_t done_bytes() const {
    std::uint64_t done = finished_bytes_;
    for (const FileOnItsWay& file : on_the_way_) done += file.transfer.done_bytes();
    return done;
  }

  bool report() const { return !rules_.progress || rules_.progress(done_bytes()); }

  Connection& connection_;
  const FileManifest& manifest_;
  const std::string& path_;
  const SendRules& rules_;
  std::deque<FileOnItsWay> on_the_way_;
  std::uint64_t finished_bytes_ = 0, moved_bytes_ = 0;
  Clock::time_point moved_at_;
  bool refused_ = false;
};

}  // namespace

FilesReport send_files(Connection& connection, const FileManifest& manifest,
                       const std::string& path, const SendRules& rules) {
  return FileSender(connection, manifest, path, rules).run();
}

}  // namespace transfer

namespace {

void add_stats(wire::Stats& sum, const wire::Stats& more) {
  sum.raw_bytes += more.raw_bytes;
  sum.wire_bytes += more.wire_bytes;
  sum.known_bytes += more.known_bytes;
  sum.encode_seconds += more.encode_seconds;
  sum.send_wait_seconds += more.send_wait_seconds;
  for (int i = 0; i < wire::kNumModes; ++i) {
    sum.num_chunks[i] += more.num_chunks[i];
    sum.goodput[i] = more.goodput[i];
  }
}

}  // namespace

StoreResult<TransferReport> send_path(const std::string& path, const std::string& address,
                                      const TransferOptions& options) noexcept try {
  const auto start = transfer::Clock::now();
  auto manifest = transfer::list_path(path);
  if (!manifest) return manifest.status();
  TransferReport report;
  report.name = manifest->name;
  report.num_files = manifest->files.size();
  report.raw_bytes = manifest->num_bytes();
  const auto progress = [&](std::uint64_t done) {
    return !options.progress || options.progress({done, report.raw_bytes, "sending"});
  };
  const auto keep_going = [&] { return progress(0); };
  const StopScope scope(keep_going);
  bool was_connected = false;
  for (int failures = 0;; ++report.num_attempts) {
    auto connection = wire::connect(address, options.wire, keep_going);
    const bool may_pass = connection.status().what == wire::kSentAwayText ||
                          connection.status().code == Code::kCorrupt;
    transfer::FilesReport sent{{.status = connection.status(), .detail = address},
                               !was_connected && !may_pass};
    if (connection) {
      was_connected = true;
      connection->core()->limit_notes(transfer::kMaxFileNoteBytes);
      // With a version, the receiver may have to read what it has.
      const std::uint64_t to_read = manifest->version.empty() ? 0 : report.raw_bytes;
      sent = transfer::send_files(*connection, *manifest, path,
                                  {options.wire.timeout, to_read, progress});
      const wire::Stats stats = connection->stats();
      if (stats.wire_bytes > (std::uint64_t{1} << 20)) failures = 0;
      add_stats(report.stats, stats);
    }
    if (sent.status.ok()) break;
    // A receiver that is busy with an earlier attempt (kTimeout) will soon notice its end.
    const Code code = sent.status.status.code;
    const bool final = sent.refused && code != Code::kTimeout;
    if (final || !transfer::worth_retrying(code) || ++failures > options.num_retries ||
        !keep_going())
      return sent.status;
    if (sent.committed && manifest->version.empty())
      if (auto version = version_of(path)) manifest->version = std::move(*version);
    transfer::back_off(failures, keep_going);
  }
  report.seconds = transfer::seconds_since(start);
  return report;
} catch (const std::bad_alloc&) {
  return StoreStatus{{Code::kInternal, "out of memory"}, path};
}

}  // namespace snug
