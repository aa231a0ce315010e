#include "transfer/manifest.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "store/file_io.h"
#include "store/folder.h"
#include "store/json_reader.h"
#include "store/output.h"

namespace snug::transfer {
namespace {

namespace fs = std::filesystem;
using store::JsonReader;

constexpr std::size_t kMaxNameBytes = 4096;
constexpr std::size_t kMaxComponentBytes = store::kMaxFileNameBytes;
static_assert(1 + kMaxComponentBytes + sizeof kPartSuffix - 1 <= 255);

StoreStatus refused_by_receivers(const std::string& path) {
  return {{Code::kUsage,
           "a name that receivers refuse: hidden, of more than 241 bytes, with unusual characters, "
           "or one that Snug uses"},
          path};
}

StoreStatus bad_manifest(const char* what, const std::string& name = {}) {
  return {.status = {Code::kPeer, what}, .detail = name};
}

bool read_files(JsonReader& json, std::vector<ManifestFile>& files) {
  if (!json.expect('[')) return false;
  for (bool first = true; json.next_member(']', first);) {
    ManifestFile file;
    std::uint64_t mode = 0;
    if (files.size() >= kMaxFiles) return json.fail("too many files", files.size());
    if (!json.expect('[') || !json.read_string(file.name) || !json.expect(',') ||
        !json.read_uint(file.num_bytes) || !json.expect(',') || !json.read_uint(mode) ||
        !json.expect(']'))
      return false;
    file.mode = static_cast<unsigned>(mode & 0777);
    files.push_back(std::move(file));
  }
  return json.ok();
}

StoreStatus check_files(const FileManifest& manifest) {
  if (!is_safe_name(manifest.name) || manifest.name.find('/') != std::string::npos ||
      manifest.name[0] == '.')
    return bad_manifest("the peer sends a name that is not safe", manifest.name);
  if (!manifest.is_folder &&
      (manifest.files.size() != 1 || manifest.files[0].name != manifest.name))
    return bad_manifest("the peer announces a file without its name");
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const ManifestFile& file = manifest.files[i];
    if (!is_safe_name(file.name))
      return bad_manifest("the peer sends a name that is not safe", file.name);
    if (i > 0 && !(manifest.files[i - 1].name < file.name))
      return bad_manifest("the peer sends a name twice", file.name);
    constexpr std::uint64_t kMax = std::uint64_t{1} << 60;
    if (file.num_bytes > kMax || (sum += file.num_bytes) > kMax)
      return bad_manifest("the peer announces an impossible size", file.name);
  }
  return {};
}

// Names travel as JSON, which cannot express bytes that are not UTF-8.
bool is_utf8(const std::string& name) {
  std::string json, again;
  store::append_json_string(json, name);
  return JsonReader(json).read_string(again);
}

StoreResult<ManifestFile> describe(const std::string& path, std::string name) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return store::io_error("cannot open", path, errno);
  if (!S_ISREG(info.st_mode)) return StoreStatus{{Code::kUsage, "neither file nor folder"}, path};
  return ManifestFile{std::move(name), static_cast<std::uint64_t>(info.st_size),
                      info.st_mode & 0777u};
}

StoreStatus list_folder(const std::string& root, FileManifest& manifest) {
  store::Folder folder;
  folder.root = root;
  if (StoreStatus s = store::list_files(folder); !s.ok()) return s;
  if (folder.files.size() > kMaxFiles) return {{Code::kUsage, "too many files"}, root};
  for (store::FolderFile& listed : folder.files) {
    const std::string path = folder.path_of(listed.name);
    if (!is_safe_name(listed.name) || !is_utf8(listed.name)) return refused_by_receivers(path);
    auto file = describe(path, std::move(listed.name));
    if (!file) return file.status();
    manifest.files.push_back(std::move(*file));
  }
  return {};
}

}  // namespace

std::uint64_t FileManifest::num_bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const ManifestFile& file : files) sum += file.num_bytes;
  return sum;
}

bool is_safe_name(std::string_view name) noexcept {
  if (name.empty() || name.size() > kMaxNameBytes) return false;
  for (const char c : name)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F || c == '\\') return false;
  while (true) {
    const std::string_view part = name.substr(0, name.find('/'));
    if (part.empty() || part == "." || part == ".." || part.size() > kMaxComponentBytes ||
        part.ends_with(kPartSuffix))
      return false;
    if (part.size() == name.size()) return true;
    name.remove_prefix(part.size() + 1);
  }
}

bool is_version_name(std::string_view name) noexcept {
  return is_safe_name(name) && name.find('/') == std::string_view::npos && name[0] != '.' &&
         name != "current" && name.find(".tmp-") == std::string_view::npos &&
         name.find(".kept-") == std::string_view::npos;
}

std::string to_json(const FileManifest& manifest) {
  std::string json = "{\"name\":";
  store::append_json_string(json, manifest.name);
  json += ",\"folder\":" + std::to_string(manifest.is_folder ? 1 : 0) + ",\"files\":[";
  for (const ManifestFile& file : manifest.files) {
    if (json.back() != '[') json += ',';
    json += '[';
    store::append_json_string(json, file.name);
    json += ',' + std::to_string(file.num_bytes) + ',' + std::to_string(file.mode) + ']';
  }
  json += ']';
  if (!manifest.version.empty()) json += ",\"version\":\"" + manifest.version + '"';
  return json + '}';
}

StoreResult<FileManifest> parse_manifest(std::string_view text) {
  JsonReader json(text);
  FileManifest manifest;
  std::string key;
  std::uint64_t is_folder = 0;
  json.expect('{');
  for (bool first = true; json.next_member('}', first);) {
    if (!json.read_key(key)) break;
    const bool read = key == "name"      ? json.read_string(manifest.name)
                      : key == "folder"  ? json.read_uint(is_folder)
                      : key == "files"   ? read_files(json, manifest.files)
                      : key == "version" ? json.read_string(manifest.version)
                                         : json.skip_value();
    if (!read) break;
  }
  if (!json.expect_end()) return bad_manifest("the peer's list of files makes no sense");
  manifest.is_folder = is_folder != 0;
  if (StoreStatus s = check_files(manifest); !s.ok()) return s;
  return manifest;
}

std::size_t parsing_cost(std::size_t json_bytes) noexcept {
  // The vector has up to twice the room it needs, and half as much again while it moves.
  const std::size_t most_files = std::min(json_bytes / 8 + 1, kMaxFiles);
  return 2 * json_bytes + most_files * sizeof(ManifestFile) * 5 / 2;
}

std::size_t memory_cost(const FileManifest& manifest) noexcept {
  std::size_t sum = manifest.files.capacity() * sizeof(ManifestFile);
  for (const ManifestFile& file : manifest.files) sum += file.name.capacity() + 32;
  return sum;
}

StoreResult<FileManifest> list_path(const std::string& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error) return store::io_error("cannot open", path, error.value());
  FileManifest manifest;
  manifest.name = real.filename().string();
  manifest.is_folder = fs::is_directory(real, error);
  if (!is_safe_name(manifest.name) || manifest.name[0] == '.' || !is_utf8(manifest.name))
    return refused_by_receivers(path);
  if (manifest.is_folder) {
    if (StoreStatus s = list_folder(path, manifest); !s.ok()) return s;
    return manifest;
  }
  auto file = describe(path, manifest.name);
  if (!file) return file.status();
  manifest.files.push_back(std::move(*file));
  return manifest;
}

}  // namespace snug::transfer
