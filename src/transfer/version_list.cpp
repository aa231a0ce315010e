#include "transfer/version_list.h"

#include "store/file_io.h"
#include "transfer/manifest.h"

namespace snug::transfer {

std::vector<NamedVersion> read_version_list(const std::string& path) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 20;
  std::vector<NamedVersion> versions;
  auto file = store::File::open(path);
  if (!file || file->num_bytes() > kMaxBytes) return versions;
  std::string text(file->num_bytes(), '\0');
  if (!file->read_at(0, text.data(), text.size()).ok()) return versions;
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string line = text.substr(at, end - at);
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) continue;
    NamedVersion version{line.substr(0, space), line.substr(space + 1)};
    if (is_version_name(version.name)) versions.push_back(std::move(version));
  }
  return versions;
}

StoreStatus write_version_list(const std::string& path, const std::vector<NamedVersion>& versions) {
  std::string text;
  for (const NamedVersion& version : versions) text += version.hash + " " + version.name + "\n";
  auto out = store::OutputFile::create(path, true);
  if (!out) return out.status();
  if (StoreStatus s = out->file().write_at(0, text.data(), text.size()); !s.ok()) return s;
  if (StoreStatus s = out->file().sync(); !s.ok()) return s;
  return out->commit();
}

}  // namespace snug::transfer
