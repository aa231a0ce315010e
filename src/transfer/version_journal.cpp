#include "transfer/version_journal.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "store/output.h"
#include "transfer/manifest.h"

namespace snug::transfer {
namespace {

constexpr std::uint64_t kMaxJournalBytes = std::uint64_t{64} << 20;
constexpr std::size_t kMaxRemembered = 4096;

// Numbers inside names compare as numbers: step-9 comes before step-10.
bool natural_less(const std::string& a, const std::string& b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto skip = [](const std::string& text, std::size_t at, auto skipped) {
    while (at < text.size() && skipped(text[at])) ++at;
    return at;
  };
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      const auto zero = [](char c) { return c == '0'; };
      i = skip(a, i, zero), j = skip(b, j, zero);
      const std::size_t end_a = skip(a, i, digit), end_b = skip(b, j, digit);
      if (end_a - i != end_b - j) return end_a - i < end_b - j;
      const int order = a.compare(i, end_a - i, b, j, end_b - j);
      if (order != 0) return order < 0;
      i = end_a, j = end_b;
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i, ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

}  // namespace

std::vector<VersionRecord> read_journal(const std::string& path) {
  std::vector<VersionRecord> versions;
  auto file = store::File::open(path);
  if (!file || file->num_bytes() > kMaxJournalBytes) return versions;
  std::string text(file->num_bytes(), '\0');
  if (!file->read_at(0, text.data(), text.size()).ok()) return versions;
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string line = text.substr(at, end - at);
    const std::size_t space = line.find(' '), colon = line.find(':');
    if (space == std::string::npos) continue;
    VersionRecord version{line.substr(0, std::min(space, colon)), line.substr(space + 1)};
    if (colon < space) version.identity = line.substr(colon + 1, space - colon - 1);
    if (is_version_name(version.name)) versions.push_back(std::move(version));
  }
  return versions;
}

StoreStatus write_journal(const std::string& path, const std::vector<VersionRecord>& versions) {
  std::string text;
  for (const VersionRecord& v : versions)
    text += v.hash + (v.identity.empty() ? "" : ":") + v.identity + " " + v.name + "\n";
  auto out = store::OutputFile::create(path, true);
  if (!out) return out.status();
  if (StoreStatus s = out->file().write_at(0, text.data(), text.size()); !s.ok()) return s;
  if (StoreStatus s = out->file().sync(); !s.ok()) return s;
  return out->commit();
}

VersionOrder::VersionOrder(std::string folder) : folder_(std::move(folder)) { read_again(); }

std::size_t VersionOrder::place_of(const VersionRecord& version) const {
  return static_cast<std::size_t>(std::find(versions_.begin(), versions_.end(), version) -
                                  versions_.begin());
}

// Another server may have written, or this one before the folder's volume was mounted again. The
// order in the file has precedence.
void VersionOrder::read_again() {
  std::vector<VersionRecord> read = read_journal(path());
  if (read.empty() || read == saved_) return;
  saved_ = read;
  versions_.swap(read);
  for (VersionRecord& ours : read)
    if (place_of(ours) == versions_.size()) versions_.push_back(std::move(ours));
}

void VersionOrder::add(std::vector<VersionRecord> found,
                       const std::function<bool(const VersionRecord&)>& is_present) {
  if (found.empty()) return;
  read_again();
  std::erase_if(found, [&](const VersionRecord& v) { return place_of(v) < versions_.size(); });
  std::sort(found.begin(), found.end(), [](const VersionRecord& a, const VersionRecord& b) {
    return natural_less(a.name, b.name);
  });
  for (VersionRecord& version : found) {
    std::erase_if(versions_, [&](const VersionRecord& v) { return v.name == version.name; });
    versions_.push_back(std::move(version));
  }
  for (std::size_t i = 0; i < versions_.size() && versions_.size() > kMaxRemembered;) {
    if (is_present(versions_[i]))
      ++i;
    else
      versions_.erase(versions_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

StoreStatus VersionOrder::save() {
  if (versions_ == saved_) return {};
  if (::mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST)
    return store::io_error("cannot create", folder_, errno);
  if (StoreStatus s = write_journal(path(), versions_); !s.ok()) return s;
  saved_ = versions_;
  return {};
}

}  // namespace snug::transfer
