// snug/patch.h - what changed between two checkpoints: files or whole folders.
//
// A patch turns BASE into NEW byte for byte. Tensors that both have are held as
// deltas (snug/delta.h), wherever they are in the files; what is new, as frames; all
// else (headers, other files) under zstd. BASE may be compressed by Snug: its
// plain content counts. NEW is taken as it is. src/store/patch_spec.md is the format.
//
// Memory:  below 256 MiB whatever the file size, with up to 64 threads.
// Threads: functions are reentrant.
// Trust:   patches may be hostile; nothing is allocated that their size does
//          not justify, and no name leaves the output folder.
// Output:  goes to a temporary name, is verified against the recorded hash of NEW and
//          renamed. Neither BASE nor the patch is changed.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "snug/status.h"
#include "snug/store.h"

namespace snug {

// The name of a version: 32 hexadecimal digits. For a file XXH3-128 of its bytes; for a
// folder, XXH3-128 of the names, sizes and hashes of its files. Of files compressed by
// Snug the plain content counts, so a version keeps its name when it is compressed.
StoreResult<std::string> version_of(const std::string& path,
                                    const StoreOptions& options = {}) noexcept;

struct PatchInfo {
  bool is_folder = false;
  std::string base_version;
  std::string target_version;      // of the bytes of NEW, compressed or not
  std::uint64_t num_files = 0;     // in NEW
  std::uint64_t base_bytes = 0;    // plain size of all files of BASE
  std::uint64_t target_bytes = 0;  // size of all files of NEW
  std::uint64_t patch_bytes = 0;
  // Bytes of NEW by where they come from, and what they take in the patch.
  std::uint64_t copied_bytes = 0;                   // equal to bytes of BASE
  std::uint64_t delta_bytes = 0, delta_stored = 0;  // changed tensors
  std::uint64_t full_bytes = 0, full_stored = 0;    // new data
  std::uint64_t num_changed = 0;                    // elements of changed tensors
};

struct PatchReport {
  std::string output;  // path written
  PatchInfo info;
  double seconds = 0;
};

// Writes to `patch` what turns `base` into `next`: two files or two folders. Every
// piece is applied again and compared before it is written. options.codec is not
// used.
StoreResult<PatchReport> diff_path(const std::string& base, const std::string& next,
                                   const std::string& patch,
                                   const StoreOptions& options = {}) noexcept;

// Writes NEW to `out`. kWrongBase if `base` is not the version the patch was made
// for; the message names both versions.
StoreResult<PatchReport> patch_path(const std::string& base, const std::string& patch,
                                    const std::string& out,
                                    const StoreOptions& options = {}) noexcept;

// Reads and checks everything in a patch that can be checked without its base.
StoreResult<PatchInfo> inspect_patch(const std::string& patch) noexcept;

}  // namespace snug
