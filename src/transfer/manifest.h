// transfer/manifest.h - what a sender announces before it sends files, and the rules for names that
// come from outside.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "snug/store.h"

namespace snug::transfer {

inline constexpr std::size_t kMaxManifestBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxFiles = 200'000;
inline constexpr char kPartSuffix[] = ".snug-part";

struct ManifestFile {
  std::string name;  // relative, with '/'; the name itself for a single file
  std::uint64_t num_bytes = 0;
  unsigned mode = 0644;
};

struct FileManifest {
  std::string name;  // one component
  bool is_folder = false;
  std::vector<ManifestFile> files;  // sorted by name
  // version_of all of it, if the sender may have succeeded before without having heard of it;
  // mostly empty.
  std::string version = {};

  std::uint64_t num_bytes() const noexcept;
};

// Relative, '/' between components, none of them empty, ".", ".." or too long for a part's name, no
// control characters, no backslash, no suffix that Snug uses for unfinished work.
bool is_safe_name(std::string_view name) noexcept;
// A safe name of one component that is not hidden, unfinished or the link `current`.
bool is_version_name(std::string_view name) noexcept;

std::string to_json(const FileManifest& manifest);
// Accepts only what is_safe_name allows, in sorted order without duplicates.
StoreResult<FileManifest> parse_manifest(std::string_view json);
// The most memory that parse_manifest takes for a text, with the text itself; and what a manifest
// takes afterwards.
std::size_t parsing_cost(std::size_t json_bytes) noexcept;
std::size_t memory_cost(const FileManifest& manifest) noexcept;

// Lists a file or folder on disk. Links to files count as files.
StoreResult<FileManifest> list_path(const std::string& path);

}  // namespace snug::transfer
