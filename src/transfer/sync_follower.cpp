// Following versions: ask for the newest, verify it, give it its name.
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "snug/store.h"
#include "store/output.h"
#include "store/patch_jobs.h"
#include "transfer/dialogue.h"
#include "transfer/file_buffers.h"
#include "transfer/held_versions.h"
#include "wire/connection_core.h"
#include "wire/handshake.h"

namespace snug {
namespace transfer {
namespace {

namespace fs = std::filesystem;

// In the part folder of a version that arrives as a patch.
constexpr char kPatchName[] = "update.patch", kResultName[] = "update.result";

const StoreStatus kBroken{{Code::kPeer, "the server broke the protocol"}};

struct Announcement {
  bool is_patch = false;
  std::string hash, name;
  std::uint64_t num_bytes = 0;
};

bool parse_bytes(std::string_view digits, std::uint64_t& num_bytes) {
  const char* const last = digits.data() + digits.size();
  const auto [end, error] = std::from_chars(digits.data(), last, num_bytes);
  return error == std::errc{} && end == last;
}

// "patch HASH BYTES NAME" or "full HASH 0 NAME".
bool parse_announcement(std::string_view text, Announcement& out) {
  const auto word = [&text] {
    const std::string_view first = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), first.size() + 1));
    return first;
  };
  const std::string_view kind = word();
  out.is_patch = kind == "patch";
  out.hash = word();
  const std::string_view digits = word();
  out.name = text;
  const bool hex =
      out.hash.size() == 32 && out.hash.find_first_not_of("0123456789abcdef") == std::string::npos;
  return (out.is_patch || kind == "full") && hex && parse_bytes(digits, out.num_bytes) &&
         is_version_name(out.name);
}

class SyncFollower {
 public:
  SyncFollower(const std::string& address, const std::string& folder, const SyncOptions& options)
      : address_(address), folder_(folder), options_(options), held_(folder) {}

  StoreStatus run() {
    const StopScope scope([this] { return going(); });
    if (options_.num_kept < 1)
      return {{Code::kUsage, "at least one version must be kept"}, folder_};
    std::error_code error;
    if (!fs::is_directory(folder_, error)) return {{Code::kNotFound, "no such folder"}, folder_};
    if (StoreStatus s = held_.check_current(); !s.ok()) return s;
    held_.load();
    remove_dead_patches();
    for (int failures = 0; going();) {
      const int before = num_updates_;
      const StoreStatus s = follow_once();
      if (s.ok() || !may_come_back(s)) return s;
      // Servers may be restarted with another token: one that this follower knows is waited for.
      if (!was_connected_ && wire::is_mismatch(s.status)) return s;
      failures = num_updates_ > before ? 1 : failures + 1;
      if (options_.once && failures > options_.num_retries) return s;
      if (options_.on_error && going()) options_.on_error(s);
      back_off(failures - 1, [this] { return going(); });
    }
    return {};
  }

 private:
  bool going() const { return !options_.keep_going || options_.keep_going(); }

  // An error of the server, say a version that was deleted while it was sent, may be gone the next
  // time. A peer that is no server of versions stays one.
  static bool may_come_back(const StoreStatus& status) {
    const Code code = status.status.code;
    if (came_from_peer(status)) return code != Code::kPeer;
    return worth_retrying(code) || code == Code::kWrongBase;
  }

  // OK if the work is done or the caller wants no more.
  StoreStatus follow_once() {
    auto connection = wire::connect(address_, options_.wire, [this] { return going(); });
    if (!going()) return {};
    if (!connection) return {.status = connection.status(), .detail = address_};
    was_connected_ = true;
    connection->core()->limit_notes(kMaxFileNoteBytes);
    for (;;) {
      const auto* newest = held_.newest();
      const std::string have = newest == nullptr || base_is_bad_ ? "-" : newest->hash;
      const std::string question = "have " + have + (options_.once ? " once" : "");
      if (Status s = connection->send_note(question); !s.ok())
        return {.status = s, .detail = address_};
      const Answer answer = wait_for_announcement(*connection);
      if (!going()) return {};
      if (!answer.status.ok()) return answer.status;
      if (options_.once && answer.text == "current") return {};
      if (StoreStatus s = update(*connection, answer.text); !s.ok()) return s;
      // Asking again might never end.
      if (options_.once) return {};
    }
  }

  // A new version may take any time to appear, unless this follower asked once. From then on, the
  // server has to say in time what it sends.
  Answer wait_for_announcement(Connection& connection) const {
    const auto timeout = options_.wire.timeout;
    const auto going_on = [this] { return going(); };
    const Deadline first = options_.once ? net::after(timeout) : Deadline::max();
    Answer answer = wait_for_note(connection, going_on, first);
    constexpr std::string_view kNewer = "newer ";
    if (!answer.text.starts_with(kNewer)) return answer;
    const std::string_view digits = std::string_view(answer.text).substr(kNewer.size());
    std::uint64_t num_bytes = 0;
    if (!parse_bytes(digits, num_bytes)) return {{}, kBroken};
    return wait_for_note(connection, going_on, net::after(patience_for(timeout, num_bytes)));
  }

  StoreStatus update(Connection& connection, const std::string& text) {
    Announcement next;
    if (!parse_announcement(text, next)) return kBroken;
    for (const StoreStatus& s : {held_.check_current(), refuse_stranger(next)})
      if (!s.ok()) return send_error(connection, s), s;
    // Nothing else is deleted if the new version has the name of an older one.
    const auto known = HeldVersions::file_names(folder_ + "/" + next.name);
    const auto start = Clock::now();
    const std::uint64_t before = connection.stats().wire_bytes;
    std::uint64_t raw_bytes = 0;
    StoreStatus s = next.is_patch ? take_patch(connection, next, known, raw_bytes)
                                  : take_full(connection, next, known, raw_bytes);
    if (!s.ok()) return s;
    base_is_bad_ = false;
    ++num_updates_;
    s = held_.add(next.hash, next.name, static_cast<std::size_t>(options_.num_kept),
                  options_.on_error);
    if (!s.ok()) return s;
    if (options_.on_event)
      options_.on_event({next.name, connection.peer_name(), next.is_patch, raw_bytes,
                         connection.stats().wire_bytes - before, seconds_since(start)});
    return {};
  }

  // A version replaces only what this follower fetched. If the follower was killed between the
  // rename and the journal, the version is not recorded, but its contents are equal.
  StoreStatus refuse_stranger(const Announcement& next) const {
    const std::string path = folder_ + "/" + next.name;
    std::error_code error;
    if (!fs::exists(fs::symlink_status(path, error)) || held_.still_has(next.name)) return {};
    const auto hash = version_of(path);
    if (!going()) return interrupted();
    if (hash && *hash == next.hash) return {};
    return {{Code::kExists, "not fetched by snug sync, so not replaced; move it away"}, path};
  }

  // Followers that were killed may have left parts as large as a model. One that is at work in this
  // folder holds its part.
  void remove_dead_patches() const {
    std::vector<fs::path> parts;
    std::error_code error;
    for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error))
      if (it->path().native().ends_with(kPartSuffix)) parts.push_back(it->path());
    for (const fs::path& part : parts)
      if (holds_only_a_patch(part)) PartFolder::remove_abandoned(part.string());
  }

  // Other parts belong to transfers that may continue.
  static bool holds_only_a_patch(const fs::path& part) {
    std::error_code error;
    for (fs::directory_iterator it(part, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (name != kPatchName && !name.starts_with(kResultName)) return false;
    }
    return !error;
  }

  StoreStatus take_patch(Connection& connection, const Announcement& next,
                         std::span<const std::string> known, std::uint64_t& raw_bytes) {
    const auto* base = held_.newest();
    if (base == nullptr) return kBroken;
    const FileManifest manifest{next.name, true, {{kPatchName, next.num_bytes, 0600}}};
    auto part = PartFolder::open(folder_, manifest, true);
    if (!part) return part.status();
    if (StoreStatus s = part->remove_strangers(manifest); !s.ok()) return s;
    auto sink = std::make_shared<FileSink>(*part, manifest.files[0]);
    const Transfer transfer = connection.recv(0, sink);
    StoreStatus s = wait(connection, transfer, *sink);
    if (s.ok()) s = apply_patch(*base, part->path(), next, known, raw_bytes);
    part->discard();
    return s;
  }

  StoreStatus wait(Connection& connection, const Transfer& transfer, const FileSink& sink) {
    // Waits to the very end: the part folder must outlive the last write to it.
    const Deadline deadline = Clock::now() + options_.wire.timeout;
    bool late = false;
    const auto s = end_of(transfer, [&] {
      late = late || (!sink.has_begun() && Clock::now() >= deadline);
      if (late || !going()) connection.close();
      return true;
    });
    if (s->ok()) return {};
    if (late) return says_nothing();
    const StoreStatus own = sink.error();
    return own.ok() ? last_words(connection, *s).status : own;
  }

  // Works inside the part folder, which is deleted in any case.
  StoreStatus apply_patch(const VersionRecord& base, const std::string& part,
                          const Announcement& next, std::span<const std::string> known,
                          std::uint64_t& raw_bytes) {
    const std::string patch = part + "/" + kPatchName, result = part + "/" + kResultName,
                      final = folder_ + "/" + next.name;
    const auto info = inspect_patch(patch);
    if (info && info->target_version != next.hash)
      return {.status = {Code::kPeer, "the server sent a patch to another version"},
              .detail = next.name};
    const auto report = patch_path(folder_ + "/" + base.name, patch, result);
    if (report) {
      raw_bytes = report->info.target_bytes;
      if (StoreStatus s = store::check_compressed(result); !s.ok()) return s;
      if (!going()) return interrupted();
      if (report->info.is_folder) return replace_folder(result, final, known);
      const StoreStatus s = store::rename_path(result, final, true);
      store::sync_parent(final);
      return s;
    }
    // If the base was damaged here, a full copy helps.
    base_is_bad_ = report.status().status.code != Code::kIo;
    StoreStatus s = report.status();
    if (base_is_bad_) s.status.code = Code::kWrongBase;
    return s;
  }

  StoreStatus replace_folder(const std::string& result, const std::string& final,
                             std::span<const std::string> known) const {
    std::string kept;
    const StoreStatus s = store::replace_folder(result, final, known, kept);
    if (s.ok()) report_kept(kept);
    return s;
  }

  void report_kept(const std::string& kept) const {
    if (!kept.empty() && options_.on_error)
      options_.on_error(
          {{Code::kExists, "changed while its successor arrived, so not deleted"}, kept});
  }

  StoreStatus take_full(Connection& connection, const Announcement& next,
                        const std::vector<std::string>& known, std::uint64_t& raw_bytes) {
    FileManifest manifest;
    ReceiveRules rules;
    rules.force = true;
    rules.known = &known;
    rules.wanted_name = next.name;
    rules.patience = options_.wire.timeout;
    rules.check = [&](const std::string& path) -> StoreStatus {
      const auto hash = version_of(path);
      if (!hash) return hash.status();
      if (*hash == next.hash) return {};
      return {{Code::kCorrupt, "what arrived is not the version that was announced"}, path};
    };
    rules.progress = [this](const Progress&) { return going(); };
    held_.begin(next.name);
    std::string kept;
    const auto path = receive_files(connection, folder_, rules, manifest, kept);
    report_kept(kept);
    raw_bytes = manifest.num_bytes();
    // A full disk stays full as long as the part is there.
    if (!path && path.status().status.code == Code::kIo && going())
      PartFolder::remove_abandoned(folder_ + "/." + next.name + kPartSuffix);
    return path.status();
  }

  const std::string& address_;
  const std::string& folder_;
  const SyncOptions& options_;
  HeldVersions held_;
  bool base_is_bad_ = false, was_connected_ = false;
  int num_updates_ = 0;
};

}  // namespace
}  // namespace transfer

StoreStatus follow_versions(const std::string& address, const std::string& folder,
                            const SyncOptions& options) noexcept try {
  return transfer::SyncFollower(address, folder, options).run();
} catch (const std::exception&) {
  return {{Code::kInternal, "out of memory or threads"}, folder};
}

}  // namespace snug
