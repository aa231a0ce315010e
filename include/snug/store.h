// snug/store.h - checkpoints: safetensors files and model folders, compressed
// and restored byte for byte, and read tensor by tensor.
//
// A compressed file is itself a valid safetensors file: every tensor keeps its
// name and holds one Snug frame as U8. One more tensor holds the original
// header, so that the original file comes back with the same SHA-256.
//
// Memory:  below 256 MiB whatever the file size, with up to 64 threads, for
//          headers of up to 10 MB; about 10 times the header beyond (a million
//          tensors).
// Threads: functions are reentrant; const members of one Reader may be called
//          from several threads at once.
// Trust:   files may be hostile; nothing is allocated that their size does not
//          justify, and nothing is written before the input was checked.
// Output:  goes to a temporary name next to its target, is synced, verified and
//          renamed. A process killed halfway leaves only the temporary name.
//          An input that changes meanwhile is an error.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "snug/codec.h"
#include "snug/status.h"
#include "snug/tensor.h"

namespace snug {

// A Status together with the names that a Status has no room for.
struct [[nodiscard]] StoreStatus {
  Status status;            // status.byte counts from the start of `file`
  std::string file = {};    // empty where no file is to blame
  std::string tensor = {};  // empty where no tensor is to blame
  std::string detail = {};  // the operating system's reason, or a name

  bool ok() const noexcept { return status.ok(); }
};

// One line: corrupt: m.snug.safetensors: tensor "x": block 17, byte 81920: checksum ...
std::string to_string(const StoreStatus& status);

// Either a value or the reason why there is none; Result<T> with names.
template <class T>
class [[nodiscard]] StoreResult {
 public:
  StoreResult(T value) noexcept : value_(std::move(value)) {}
  StoreResult(StoreStatus status) noexcept : status_(std::move(status)) {}

  bool ok() const noexcept { return status_.ok(); }
  explicit operator bool() const noexcept { return ok(); }
  const StoreStatus& status() const noexcept { return status_; }
  T& operator*() noexcept { return value_; }
  const T& operator*() const noexcept { return value_; }
  T* operator->() noexcept { return &value_; }
  const T* operator->() const noexcept { return &value_; }

 private:
  StoreStatus status_;
  T value_{};
};

// How far a call is, in bytes of original data.
struct Progress {
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;
  const char* phase = "";  // "compressing", "verifying", "restoring", ...
};

struct StoreOptions {
  Codec codec = Codec::kEntropy;
  int num_threads = 0;  // 0: one per CPU; more than 64 count as 64
  bool force = false;   // replace an existing output
  // Called now and then, one call at a time, on any thread. Returning false
  // stops the work: temporary files are removed and the call fails with kIo.
  std::function<bool(const Progress&)> progress;
};

struct FileReport {
  std::string name;  // of the output, or of what was verified; relative to the folder
  std::uint64_t num_tensors = 0;
  std::uint64_t raw_bytes = 0;     // size of the plain file
  std::uint64_t stored_bytes = 0;  // size of the compressed file
};

struct StoreReport {
  std::string output;             // path written; empty after verify
  std::vector<FileReport> files;  // every safetensors file, in order of names
  std::uint64_t num_copied_files = 0;
  std::uint64_t raw_bytes = 0;  // sums over `files`
  std::uint64_t stored_bytes = 0;
  double seconds = 0;
};

// Where compress_path and decompress_path write if not told: x.safetensors to
// x.snug.safetensors, folder x to x.snug, and back. Empty if there is no such rule
// for this name.
std::string default_compressed_path(const std::string& in);
std::string default_restored_path(const std::string& in);

// Compresses a safetensors file, or a folder with safetensors files at any
// depth; all other files of a folder are copied. Before it returns, it has read
// its output back, restored it in memory and compared it with what it read. An
// empty `out` means default_compressed_path(in).
StoreResult<StoreReport> compress_path(const std::string& in, const std::string& out,
                                       const StoreOptions& options = {}) noexcept;

// Restores what compress_path wrote, byte for byte, and checks it against the
// recorded hash of the original before the output gets its name.
StoreResult<StoreReport> decompress_path(const std::string& in, const std::string& out,
                                         const StoreOptions& options = {}) noexcept;

// Does all that decompress_path does except writing.
StoreResult<StoreReport> verify_path(const std::string& in,
                                     const StoreOptions& options = {}) noexcept;

struct TensorEntry {
  std::string name;
  std::string dtype;  // as the safetensors header spells it: "BF16", "F8_E4M3", ...
  DType kind = DType::kBytes;
  std::vector<std::uint64_t> shape;
  std::uint64_t raw_bytes = 0;
  std::uint64_t stored_bytes = 0;  // raw_bytes in a plain file
  std::uint64_t file_offset = 0;   // where the stored bytes begin

  std::uint64_t num_rows() const noexcept { return shape.empty() ? 1 : shape[0]; }
};

// What the values of one tensor say about how small it can get.
struct TensorStats {
  // Counts of exponents; of bytes where the dtype has no exponent.
  std::vector<std::uint64_t> histogram;
  bool of_exponents = false;
  double entropy_bits = 0;  // of the histogram, per exponent or byte
  // Smallest size relative to raw_bytes if exponents are coded at their entropy
  // and everything else is stored as it is; bytes of a mantissa that are far
  // from noise, such as zeros, and bytes without exponent count at their own entropy.
  double bound = 1;
};

// Reads plain and compressed safetensors files alike.
class Reader {
 public:
  // Checks the whole header. Frames are checked as they are read.
  static StoreResult<Reader> open(const std::string& path) noexcept;

  Reader() noexcept;
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;
  ~Reader();

  bool compressed() const noexcept;
  const std::string& path() const noexcept;
  std::uint64_t raw_bytes() const noexcept;     // size of the plain file
  std::uint64_t stored_bytes() const noexcept;  // size of this file
  std::span<const std::pair<std::string, std::string>> metadata() const noexcept;

  // In the order of their data. Valid as long as the Reader.
  std::span<const TensorEntry> tensors() const noexcept;
  const TensorEntry* find(std::string_view name) const noexcept;

  // Restores the whole tensor; dst.size() must be raw_bytes.
  StoreStatus read(const TensorEntry& tensor, std::span<std::byte> dst,
                   int num_threads = 1) const noexcept;

  // Restores dst.size() bytes from byte `first` of the tensor on, touching only
  // the blocks that hold them.
  StoreStatus read_bytes(const TensorEntry& tensor, std::uint64_t first, std::span<std::byte> dst,
                         int num_threads = 1) const noexcept;

  // The byte range (first, count) of rows [first_row, last_row) along dimension 0.
  StoreResult<std::pair<std::uint64_t, std::uint64_t>> row_bytes(
      const TensorEntry& tensor, std::uint64_t first_row, std::uint64_t last_row) const noexcept;

  // Blocks and bytes of each codec; kUsage for a plain file.
  StoreResult<FrameStats> frame_stats(const TensorEntry& tensor) const noexcept;

  // Statistics of every tensor, in one pass over the file.
  StoreResult<std::vector<TensorStats>> stats(const StoreOptions& options = {}) const noexcept;

 private:
  struct Impl;
  explicit Reader(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

// ---- patches --------------------------------------------------------------
//
// A patch turns BASE into NEW, two files or two folders, byte for byte. Tensors that exist in
// both are stored as deltas (snug/delta.h), wherever they are in the files; new tensors as
// frames; everything else (headers, other files) under zstd. BASE may be compressed by Snug:
// its plain content counts. NEW is taken as it is. docs/patch.md is the format.
//
// Trust:   no name in a hostile patch leads out of the output folder.
// Output:  is verified against the recorded hash of NEW before it gets its name.

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
