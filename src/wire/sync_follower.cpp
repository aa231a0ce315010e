// Following versions: ask for what is newer, verify it, give it its name.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <thread>

#include "snug/patch.h"
#include "wire/dialogue.h"
#include "wire/file_buffers.h"
#include "wire/version_list.h"

namespace snug {
namespace wire {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr char kPatchName[] = "update.patch";

using Held = NamedVersion;

// The versions this follower fetched, oldest first, as noted in .snug-sync.
class HeldVersions {
 public:
  explicit HeldVersions(std::string folder) : folder_(std::move(folder)) {}

  void load() {
    versions_ = read_version_list(path());
    std::error_code error;
    std::erase_if(versions_,
                  [&](const Held& held) { return !fs::exists(folder_ + "/" + held.name, error); });
  }

  const Held* newest() const { return versions_.empty() ? nullptr : &versions_.back(); }
  bool has(const std::string& name) const {
    return std::any_of(versions_.begin(), versions_.end(),
                       [&](const Held& held) { return held.name == name; });
  }

  // Notes a version that has its name now, points `current` to it and removes
  // the oldest ones.
  StoreStatus add(Held version, std::size_t num_kept) {
    std::erase_if(versions_, [&](const Held& held) { return held.name == version.name; });
    versions_.push_back(std::move(version));
    if (StoreStatus s = point_current(); !s.ok()) return s;
    std::error_code ignored;
    for (; versions_.size() > num_kept; versions_.erase(versions_.begin()))
      fs::remove_all(folder_ + "/" + versions_.front().name, ignored);
    return write_version_list(path(), versions_);
  }

 private:
  std::string path() const { return folder_ + "/.snug-sync"; }

  StoreStatus point_current() {
    const std::string link = folder_ + "/current",
                      temporary = store::temporary_name(folder_ + "/.current");
    if (::symlink(versions_.back().name.c_str(), temporary.c_str()) != 0)
      return store::io_error("cannot create", link, errno);
    return store::rename_path(temporary, link, true);
  }

  const std::string folder_;
  std::vector<Held> versions_;
};

struct Announcement {
  bool is_patch = false;
  std::string hash, name;
  std::uint64_t num_bytes = 0;
};

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
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), out.num_bytes);
  const bool hex =
      out.hash.size() == 32 && out.hash.find_first_not_of("0123456789abcdef") == std::string::npos;
  return (out.is_patch || kind == "full") && hex && error == std::errc{} &&
         end == digits.data() + digits.size() && is_version_name(out.name);
}

class SyncFollower {
 public:
  SyncFollower(const std::string& address, const std::string& folder, const SyncOptions& options)
      : address_(address), folder_(folder), options_(options), held_(folder) {}

  StoreStatus run() {
    if (options_.num_kept < 1)
      return {{Code::kUsage, "at least one version must be kept"}, folder_, {}, {}};
    std::error_code error;
    if (!fs::is_directory(folder_, error))
      return {{Code::kNotFound, "no such folder"}, folder_, {}, {}};
    held_.load();
    for (int failures = 0; going();) {
      const int before = num_updates_;
      const StoreStatus s = follow_once();
      if (s.ok()) return s;
      if (!may_come_back(s)) return s;
      failures = num_updates_ > before ? 1 : failures + 1;
      if (options_.once && failures > options_.num_retries) return s;
      if (options_.on_error && going()) options_.on_error(s);
      pause(failures);
    }
    return {};
  }

 private:
  bool going() const { return !options_.keep_going || options_.keep_going(); }

  // What goes wrong at the server, say a version that was deleted while it was sent, may
  // be right the next time.
  static bool may_come_back(const StoreStatus& status) {
    const Code code = status.status.code;
    return code == Code::kPeer || code == Code::kTimeout || code == Code::kCorrupt ||
           code == Code::kWrongBase || came_from_peer(status);
  }

  void pause(int failures) const {
    const auto until = Clock::now() + 250ms * (1 << std::min(failures - 1, 4));
    while (going() && Clock::now() < until) std::this_thread::sleep_for(50ms);
  }

  // OK if the work is done or the caller wants no more.
  StoreStatus follow_once() {
    auto connection = connect(address_, options_.wire, [this] { return going(); });
    if (!going()) return {};
    if (!connection) return {connection.status(), {}, {}, address_};
    for (;;) {
      const Held* newest = held_.newest();
      const std::string have = newest == nullptr || base_is_bad_ ? "-" : newest->hash;
      if (Status s = connection->send_note("have " + have + (options_.once ? " once" : ""));
          !s.ok())
        return {s, {}, {}, address_};
      const Answer answer = wait_for_note(*connection, [this] { return going(); });
      if (!going()) return {};
      if (!answer.status.ok()) return answer.status;
      if (options_.once && answer.text == "current") return {};
      if (StoreStatus s = update(*connection, answer.text); !s.ok()) return s;
      // What was newest when it was asked for; asking again might never end.
      if (options_.once) return {};
    }
  }

  StoreStatus update(Connection& connection, const std::string& text) {
    Announcement next;
    if (!parse_announcement(text, next))
      return {{Code::kPeer, "the server broke the protocol"}, {}, {}, {}};
    if (StoreStatus s = refuse_stranger(next); !s.ok()) {
      send_error(connection, s);
      return s;
    }
    const auto start = Clock::now();
    const std::uint64_t before = connection.stats().wire_bytes;
    std::uint64_t raw_bytes = 0;
    if (StoreStatus s = next.is_patch ? take_patch(connection, next, raw_bytes)
                                      : take_full(connection, next, raw_bytes);
        !s.ok())
      return s;
    base_is_bad_ = false;
    ++num_updates_;
    // Nobody will send the rest of a version that was given up for this one.
    if (!unfinished_.empty() && unfinished_ != next.name) remove_part(unfinished_);
    unfinished_.clear();
    if (StoreStatus s =
            held_.add({next.hash, next.name}, static_cast<std::size_t>(options_.num_kept));
        !s.ok())
      return s;
    if (options_.on_event)
      options_.on_event({next.name, connection.peer_name(), next.is_patch, raw_bytes,
                         connection.stats().wire_bytes - before,
                         std::chrono::duration<double>(Clock::now() - start).count()});
    return {};
  }

  // Versions replace each other, but nothing that somebody else has put here. A version
  // that was complete when this follower was killed is not noted yet, but is equal.
  StoreStatus refuse_stranger(const Announcement& next) const {
    const std::string path = folder_ + "/" + next.name;
    std::error_code error;
    if (held_.has(next.name) || !fs::exists(fs::symlink_status(path, error))) return {};
    const auto hash = version_of(path);
    if (hash && *hash == next.hash) return {};
    return {
        {Code::kExists, "not fetched by snug sync, so not replaced; move it away"}, path, {}, {}};
  }

  void remove_part(const std::string& name) const {
    std::error_code ignored;
    fs::remove_all(folder_ + "/." + name + kPartSuffix, ignored);
  }

  StoreStatus take_patch(Connection& connection, const Announcement& next,
                         std::uint64_t& raw_bytes) {
    const Held* base = held_.newest();
    if (base == nullptr) return {{Code::kPeer, "the server broke the protocol"}, {}, {}, {}};
    const Manifest manifest{next.name, true, {{kPatchName, next.num_bytes, 0600}}};
    auto part = PartFolder::open(folder_, manifest, true);
    if (!part) return part.status();
    auto sink = std::make_shared<FileSink>(*part, manifest.files[0]);
    const Transfer transfer = connection.recv(0, sink);
    StoreStatus s = wait(connection, transfer, *sink);
    if (s.ok()) s = apply_patch(*base, part->path() + "/" + kPatchName, next, raw_bytes);
    part->discard();
    return s;
  }

  StoreStatus wait(Connection& connection, const Transfer& transfer, const FileSink& sink) {
    // To the very end: the part folder must outlive the last write to it.
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

  StoreStatus apply_patch(const Held& base, const std::string& patch, const Announcement& next,
                          std::uint64_t& raw_bytes) {
    const auto info = inspect_patch(patch);
    if (info && info->target_version != next.hash)
      return {{Code::kPeer, "the server sent a patch to another version"}, {}, {}, next.name};
    StoreOptions options;
    options.force = true;
    const auto report =
        patch_path(folder_ + "/" + base.name, patch, folder_ + "/" + next.name, options);
    if (report) {
      raw_bytes = report->info.target_bytes;
      return {};
    }
    // A base that was damaged here is no reason to give up: ask for all of it.
    base_is_bad_ = report.status().status.code != Code::kIo;
    StoreStatus s = report.status();
    if (base_is_bad_) s.status.code = Code::kWrongBase;
    return s;
  }

  StoreStatus take_full(Connection& connection, const Announcement& next,
                        std::uint64_t& raw_bytes) {
    Manifest manifest;
    ReceiveRules rules;
    rules.force = true;
    rules.wanted_name = next.name;
    rules.patience = options_.wire.timeout;
    rules.check = [&](const std::string& path) -> StoreStatus {
      const auto hash = version_of(path);
      if (!hash) return hash.status();
      if (*hash == next.hash) return {};
      return {{Code::kCorrupt, "what arrived is not the version that was announced"}, path, {}, {}};
    };
    rules.progress = [this](const Progress&) { return going(); };
    const auto path = receive_files(connection, folder_, rules, manifest);
    raw_bytes = manifest.num_bytes();
    // A disk that is full stays full as long as the unfinished part lies there.
    if (!path && path.status().status.code == Code::kIo && going()) remove_part(next.name);
    if (!path) unfinished_ = next.name;
    return path.status();
  }

  const std::string& address_;
  const std::string& folder_;
  const SyncOptions& options_;
  HeldVersions held_;
  bool base_is_bad_ = false;
  std::string unfinished_;  // the version whose part lies here
  int num_updates_ = 0;
};

}  // namespace
}  // namespace wire

StoreStatus follow_versions(const std::string& address, const std::string& folder,
                            const SyncOptions& options) noexcept try {
  return wire::SyncFollower(address, folder, options).run();
} catch (const std::exception&) {
  return {{Code::kInternal, "out of memory or threads"}, folder, {}, {}};
}

}  // namespace snug
