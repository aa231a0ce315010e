#include "transfer/version_order.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "store/file_io.h"

namespace snug::transfer {
namespace {

constexpr std::size_t kMaxRemembered = 4096;

// Numbers inside names count as numbers: step-9 comes before step-10.
bool natural_less(const std::string& a, const std::string& b) {
  std::size_t i = 0, j = 0;
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      const auto end_of = [&](const std::string& text, std::size_t at) {
        while (at < text.size() && digit(text[at])) ++at;
        return at;
      };
      while (i + 1 < a.size() && a[i] == '0' && digit(a[i + 1])) ++i;
      while (j + 1 < b.size() && b[j] == '0' && digit(b[j + 1])) ++j;
      const std::size_t end_a = end_of(a, i), end_b = end_of(b, j);
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

VersionOrder::VersionOrder(std::string folder) : folder_(std::move(folder)) { read_again(); }

std::size_t VersionOrder::place_of(const NamedVersion& version) const {
  return static_cast<std::size_t>(std::find(versions_.begin(), versions_.end(), version) -
                                  versions_.begin());
}

// Somebody else may have written: another server, or this one before the volume that holds
// the folder was mounted again. What the file says comes first.
void VersionOrder::read_again() {
  std::vector<NamedVersion> read = read_version_list(path());
  if (read.empty() || read == saved_) return;
  saved_ = read;
  versions_.swap(read);
  for (NamedVersion& ours : read)
    if (place_of(ours) == versions_.size()) versions_.push_back(std::move(ours));
}

void VersionOrder::add(std::vector<NamedVersion> found,
                       const std::function<bool(const NamedVersion&)>& is_present) {
  if (found.empty()) return;
  read_again();
  std::erase_if(found, [&](const NamedVersion& v) { return place_of(v) < versions_.size(); });
  std::sort(found.begin(), found.end(), [](const NamedVersion& a, const NamedVersion& b) {
    return natural_less(a.name, b.name);
  });
  for (NamedVersion& version : found) {
    std::erase_if(versions_, [&](const NamedVersion& v) { return v.name == version.name; });
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
  if (StoreStatus s = write_version_list(path(), versions_); !s.ok()) return s;
  saved_ = versions_;
  return {};
}

}  // namespace snug::transfer
