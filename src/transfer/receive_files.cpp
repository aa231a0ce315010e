// Receiving files: check what is announced, take the chunks, commit.
#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>

#include "snug/store.h"
#include "transfer/dialogue.h"
#include "transfer/file_buffers.h"
#include "wire/memory_budget.h"

namespace snug {
namespace transfer {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::size_t kMaxAtOnce = 16;
const StoreStatus kBroken{{Code::kPeer, "the sender broke the protocol"}};

// The list of files, up to a limit. Waits for its share of the memory that peers may take.
class ListSink : public Sink {
 public:
  explicit ListSink(std::chrono::milliseconds patience) : patience_(patience) {}

  Status begin(std::span<const Extent>, std::uint64_t num_bytes) override {
    begun_ = true;
    if (num_bytes > kMaxManifestBytes) return {Code::kPeer, "the peer's list of files is too long"};
    const std::size_t cost = parsing_cost(num_bytes);
    if (Status s = wire::table_budget().take(cost, net::after(patience_)); !s.ok()) return s;
    share_ = wire::Reservation(wire::table_budget(), cost);
    text_.resize(num_bytes);
    return {};
  }
  std::span<std::byte> view(std::uint64_t offset, std::size_t num_bytes) override {
    return std::as_writable_bytes(std::span(text_)).subspan(offset, num_bytes);
  }
  Status write(std::uint64_t, std::span<const std::byte>) override { return {}; }
  bool has_begun() const { return begun_; }

  // After the message is done. `share` is what the manifest takes.
  StoreResult<FileManifest> parse(wire::Reservation& share) {
    auto manifest = parse_manifest(text_);
    text_ = {};
    if (manifest) share_.shrink_to(memory_cost(*manifest));
    share = std::move(share_);
    return manifest;
  }

 private:
  const std::chrono::milliseconds patience_;
  wire::Reservation share_;
  std::string text_;
  std::atomic<bool> begun_{false};
};

struct FileOnItsWay {
  std::shared_ptr<FileSink> sink;
  Transfer transfer;
  std::uint64_t num_bytes;
};

class FileReceiver {
 public:
  FileReceiver(Connection& connection, const ReceiveRules& rules, FileManifest& manifest)
      : connection_(connection), rules_(rules), manifest_(manifest) {}

  StoreResult<std::string> run(const std::string& folder) {
    auto sink = std::make_shared<ListSink>(rules_.patience);
    const auto first = std::min(rules_.patience, kFirstWords);
    if (StoreStatus s = wait(connection_.recv(0, sink), *sink, first); !s.ok()) return s;
    auto parsed = sink->parse(manifest_share_);
    if (!parsed) return parsed.status();
    manifest_ = std::move(*parsed);
    if (!rules_.wanted_name.empty() && manifest_.name != rules_.wanted_name)
      return StoreStatus{.status = {Code::kPeer, "the peer sends another name"},
                         .detail = manifest_.name};
    const auto here = is_here_already(folder);
    if (!here) return here.status();
    if (*here) return folder + "/" + manifest_.name;
    auto part = PartFolder::open(folder, manifest_, rules_.force);
    if (!part) return part.status();
    if (Status s = connection_.send_note("ok"); !s.ok()) return StoreStatus{s};
    if (StoreStatus s = receive_all(*part); !s.ok()) {
      // No transfer may write into the part folder after its lock is released.
      send_error(connection_, s);
      connection_.close();
      for (const FileOnItsWay& file : on_the_way_) (void)file.transfer.wait();
      return s;
    }
    const Answer answer = wait_for_note(
        connection_, [this] { return report(); }, net::after(rules_.patience));
    if (!answer.status.ok()) return answer.status;
    if (answer.text != "commit") return kBroken;
    return commit(*part);
  }

  // False if the caller wants to stop.
  bool report() const {
    std::uint64_t done = finished_bytes_;
    for (const FileOnItsWay& file : on_the_way_) done += file.transfer.done_bytes();
    return !rules_.progress || rules_.progress({done, manifest_.num_bytes(), "receiving"});
  }

  std::string kept;

 private:
  StoreResult<std::string> commit(PartFolder& part) {
    std::vector<std::string> names;
    if (rules_.force && rules_.known == nullptr)
      for (const ManifestFile& file : manifest_.files) names.push_back(file.name);
    const std::vector<std::string>& known = rules_.known != nullptr ? *rules_.known : names;
    return part.commit(manifest_, rules_.force, rules_.check, known, kept);
  }

  // True if a receiver ended after the rename and before its "done". What a sender made up may take
  // much memory to list and to read: one at a time does either.
  StoreResult<bool> is_here_already(const std::string& folder) const {
    static wire::MemoryBudget one_lists(1), one_reads(1);
    const std::string path = folder + "/" + manifest_.name;
    std::error_code error;
    if (manifest_.version.empty() || rules_.force || !fs::exists(path, error)) return false;
    {
      const auto turn = take_turn(one_lists, path);
      if (!turn) return turn.status();
      if (!has_same_sizes(path)) return false;
    }
    const auto turn = take_turn(one_reads, path);
    if (!turn) return turn.status();
    const auto version = version_of(path);
    return version && *version == manifest_.version;
  }

  bool has_same_sizes(const std::string& path) const {
    const auto here = list_path(path);
    const auto same_size = [](const ManifestFile& a, const ManifestFile& b) {
      return a.name == b.name && a.num_bytes == b.num_bytes;
    };
    return here && here->is_folder == manifest_.is_folder &&
           std::equal(here->files.begin(), here->files.end(), manifest_.files.begin(),
                      manifest_.files.end(), same_size);
  }

  // Given back by its destructor.
  StoreResult<wire::Reservation> take_turn(wire::MemoryBudget& turns,
                                           const std::string& path) const {
    const Status s = turns.take(1, net::after(rules_.patience),
                                [this] { return connection_.status().ok() && report(); });
    if (s.ok()) return wire::Reservation(turns, 1);
    if (s.code == Code::kTimeout)
      return StoreStatus{{Code::kTimeout, "busy with what other senders have sent"}, path};
    return connection_.status().ok() ? interrupted() : StoreStatus{connection_.status()};
  }

  StoreStatus receive_all(const PartFolder& part) {
    for (std::size_t i = 0; i < manifest_.files.size(); ++i) {
      auto sink = std::make_shared<FileSink>(part, manifest_.files[i]);
      on_the_way_.push_back({sink, connection_.recv(i + 1, sink), manifest_.files[i].num_bytes});
      if (on_the_way_.size() >= kMaxAtOnce)
        if (StoreStatus s = finish_first(); !s.ok()) return s;
    }
    while (!on_the_way_.empty())
      if (StoreStatus s = finish_first(); !s.ok()) return s;
    return {};
  }

  StoreStatus finish_first() {
    FileOnItsWay& file = on_the_way_.front();
    if (StoreStatus s = wait(file.transfer, *file.sink, rules_.patience); !s.ok()) {
      for (const FileOnItsWay& other : on_the_way_)
        if (StoreStatus own = other.sink->error(); !own.ok()) return own;
      return s;
    }
    finished_bytes_ += file.num_bytes;
    on_the_way_.pop_front();
    return {};
  }

  // The connection itself notices when a message stalls; here only its begin has a deadline.
  template <class AnySink>
  StoreStatus wait(const Transfer& transfer, const AnySink& sink,
                   std::chrono::milliseconds patience) {
    const Deadline deadline = net::after(patience);
    bool late = false;
    std::optional<Answer> said;
    const auto s = end_of(transfer, [&] {
      late = !sink.has_begun() && Clock::now() >= deadline;
      // Before the manifest a sender has nothing to say.
      if (on_the_way_.empty() && !sink.has_begun()) said = next_note(connection_, 0ms);
      return !late && !said && report();
    });
    if (said) return out_of_turn(*said);
    if (late) return says_nothing();
    if (!s) return interrupted();
    return s->ok() ? StoreStatus{} : last_words(connection_, *s).status;
  }

  static StoreStatus out_of_turn(const Answer& said) {
    if (!said.status.ok()) return said.status;
    if (said.text.starts_with("have "))
      return {
          {Code::kPeer, "snug sync --follow has reached snug recv; it needs snug sync --serve"}};
    return kBroken;
  }

  Connection& connection_;
  const ReceiveRules& rules_;
  FileManifest& manifest_;
  wire::Reservation manifest_share_;
  std::deque<FileOnItsWay> on_the_way_;
  std::uint64_t finished_bytes_ = 0;
};

}  // namespace

StoreResult<std::string> receive_files(Connection& connection, const std::string& folder,
                                       const ReceiveRules& rules, FileManifest& manifest,
                                       std::string& kept) {
  FileReceiver receiver(connection, rules, manifest);
  const StopScope scope([&receiver] { return receiver.report(); });
  auto path = receiver.run(folder);
  kept = receiver.kept;
  if (!path) {
    send_error(connection, path.status());
  } else if (Status s = connection.send_note("done"); !s.ok()) {
    return StoreStatus{s};
  }
  return path;
}

}  // namespace transfer

StoreResult<TransferReport> receive_path(wire::Connection& connection, const std::string& folder,
                                         const TransferOptions& options) noexcept try {
  const auto start = transfer::Clock::now();
  transfer::FileManifest manifest;
  const transfer::ReceiveRules rules{
      .force = options.force, .patience = options.wire.timeout, .progress = options.progress};
  TransferReport report;
  auto path = transfer::receive_files(connection, folder, rules, manifest, report.kept);
  if (!path) return path.status();
  report.name = *path;
  report.num_files = manifest.files.size();
  report.raw_bytes = manifest.num_bytes();
  report.stats = connection.stats();
  report.seconds = transfer::seconds_since(start);
  return report;
} catch (const std::bad_alloc&) {
  return StoreStatus{{Code::kInternal, "out of memory"}, folder};
}

}  // namespace snug
