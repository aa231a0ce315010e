// snug/store.h - checkpoints: safetensors files and model folders, compressed and restored byte
// for byte, read tensor by tensor, and compared with each other.
//
// A compressed file is itself a valid safetensors file: every tensor keeps its name and holds one
// Snug frame as U8, or, if it is tiny, is stored as it is. One more tensor holds the original
// header, so that the original file can be restored with the same SHA-256. docs/store.md is the
// format.
//
// Memory:  below 256 MiB for every file, with up to 64 threads: tensors of up to 1 TiB, headers of
//          up to 100 MB. Patches need more if both versions have more than a million tensors.
// Threads: functions are reentrant; const members of one Reader may be called concurrently.
// Trust:   files and patches may be hostile. Nothing is allocated that their size does not
//          justify, nothing is written before the input was checked, and no name leads out of the
//          output folder.
// Output:  is written under a temporary name next to its target, synced, verified and renamed. A
//          process that is killed leaves only the temporary name. An input that changes meanwhile
//          is an error: its size and times are compared before and after. That misses a process
//          that writes through a shared mapping whose pages it had written to before, because the
//          system updates the times only at the first such write. The result is then the bytes that
//          were read, which may never have been the file's content at one moment.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "snug/codec.h"
#include "snug/status.h"
#include "snug/tensor.h"

namespace snug {

// A Status with names.
struct [[nodiscard]] StoreStatus {
  Status status;            // status.byte counts from the start of `file`
  std::string file = {};    // empty where no file is the cause
  std::string tensor = {};  // empty where no tensor is the cause
  std::string detail = {};  // the operating system's reason, or a name

  bool ok() const noexcept { return status.ok(); }
};

// One line: corrupt: m.snug.safetensors: tensor "x": block 17, byte 81920: checksum ...
std::string to_string(const StoreStatus& status);

template <class T>
using StoreResult = BasicResult<T, StoreStatus>;

// ---- stop ------------------------------------------------------------------

// As long as it lives, calls on this thread ask `keep_going` wherever they are: StoreOptions's
// `progress` is not called while headers are read. Once it has returned false, they fail with kIo,
// and nothing gets its final name. It is asked at every read and write, so it should only look at a
// flag. If it is empty, calls inside go on to their end. The innermost scope counts.
class StopScope {
 public:
  explicit StopScope(std::function<bool()> keep_going);
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

  bool is_stopped() const;  // asks

 private:
  const std::function<bool()> keep_going_;
  const StopScope* const outer_;
  mutable bool stopped_ = false;  // once and for all
};

// ---- compress and restore --------------------------------------------------

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
  // Called on any thread, one call at a time. Returning false cancels the work: temporary files
  // are removed and the call fails with kIo.
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
  std::vector<FileReport> files;  // every safetensors file, sorted by name
  std::uint64_t num_copied_files = 0;
  std::uint64_t raw_bytes = 0;  // sums over `files`
  std::uint64_t stored_bytes = 0;
  // Where the folder that `force` replaced is now, if files without a successor were put into it
  // during the call; usually empty.
  std::string kept;
  std::vector<std::string> notes;  // what the user should know, in sentences
  double seconds = 0;
};

// Compresses a safetensors file, or a folder with safetensors files at any depth; other files of
// the folder are copied, and its config.json is marked (docs/store.md). Before it returns, it reads
// its output back, restores it in memory and compares it with the input. An empty `out` means
// default_compressed_path(in).
StoreResult<StoreReport> compress_path(const std::string& in, const std::string& out,
                                       const StoreOptions& options = {}) noexcept;

// Restores the input of compress_path byte for byte. Checks it against the recorded hash of the
// original before the output gets its name.
StoreResult<StoreReport> decompress_path(const std::string& in, const std::string& out,
                                         const StoreOptions& options = {}) noexcept;

// The same as decompress_path, but writes nothing.
StoreResult<StoreReport> verify_path(const std::string& in,
                                     const StoreOptions& options = {}) noexcept;

// Default output names: x.safetensors to x.snug.safetensors, folder x to x.snug, and back. Empty
// if there is no such rule for this name.
std::string default_compressed_path(const std::string& in);
std::string default_restored_path(const std::string& in);

// A file or folder under a temporary name that no process works on any more.
struct Leftover {
  std::string path;
  std::uint64_t num_bytes = 0;
};

// What killed processes that wrote to `path` have left behind. It may be deleted. Files that a live
// process is working on are not included.
std::vector<Leftover> find_leftovers(const std::string& path);

// ---- read tensors ----------------------------------------------------------

struct TensorEntry {
  std::string name;
  std::string dtype;  // as the safetensors header spells it: "BF16", "F8_E4M3", ...
  DType kind = DType::kBytes;
  std::vector<std::uint64_t> shape;
  std::uint64_t raw_bytes = 0;
  std::uint64_t stored_bytes = 0;  // raw_bytes in a plain file
  std::uint64_t file_offset = 0;   // of the stored bytes
  std::size_t idx = 0;             // its place in the order of the data

  std::uint64_t num_rows() const noexcept { return shape.empty() ? 1 : shape[0]; }
};

// How far the values of a tensor can be compressed.
struct TensorStats {
  std::vector<std::uint64_t> histogram;  // of exponents; of bytes if the dtype has no exponent
  bool of_exponents = false;
  double entropy_bits = 0;  // of the histogram, per exponent or byte
  // Smallest size relative to raw_bytes if exponents are coded at their entropy and all other
  // bits are stored as they are. Bytes without exponent, and mantissa bytes that are far from
  // random, count at their own entropy.
  double bound = 1;
};

// Where a tensor goes: `dst` has TensorEntry::raw_bytes.
struct TensorTarget {
  std::size_t idx = 0;  // TensorEntry::idx
  std::span<std::byte> dst;
};

// Called on any thread, one call at a time, in any order of tensors.
using StatsVisit = std::function<void(std::size_t tensor_idx, const TensorStats& stats)>;

class TensorList;
class Reader;
namespace store {
class TensorFile;
const TensorFile& file_of(const Reader& reader) noexcept;
}  // namespace store

// Reads plain and compressed safetensors files.
class Reader {
 public:
  // Checks the whole header. Each frame is checked when it is read: that it is intact, and that it
  // was stored under this name.
  static StoreResult<Reader> open(const std::string& path) noexcept;

  Reader() noexcept;
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;
  ~Reader();

  bool compressed() const noexcept;
  const std::string& path() const noexcept;
  std::uint64_t raw_bytes() const noexcept;     // size of the plain file
  std::uint64_t stored_bytes() const noexcept;  // size of this file

  // Entries of __metadata__, in the order of the file; a zero byte follows each text. Valid as long
  // as the Reader.
  std::size_t num_metadata() const noexcept;
  std::pair<std::string_view, std::string_view> metadata(std::size_t idx) const noexcept;

  // In the order of their data. Entries are made on request: a file may have millions.
  TensorList tensors() const noexcept;
  std::size_t num_tensors() const noexcept;
  TensorEntry tensor(std::size_t idx) const;
  std::optional<TensorEntry> find(std::string_view name) const;

  // Restores the whole tensor; dst.size() must be raw_bytes.
  StoreStatus read(const TensorEntry& tensor, std::span<std::byte> dst,
                   int num_threads = 1) const noexcept;

  // Restores dst.size() bytes of the tensor, starting at byte `first`. Reads only the blocks that
  // hold them.
  StoreStatus read_bytes(const TensorEntry& tensor, std::uint64_t first, std::span<std::byte> dst,
                         int num_threads = 1) const noexcept;

  // Restores many tensors side by side. On an error, what the targets hold is unspecified.
  StoreStatus read_all(std::span<const TensorTarget> targets, int num_threads = 1) const noexcept;

  // The byte range (first, count) of rows [first_row, last_row) along dimension 0.
  StoreResult<std::pair<std::uint64_t, std::uint64_t>> row_bytes(
      const TensorEntry& tensor, std::uint64_t first_row, std::uint64_t last_row) const noexcept;

  // Blocks and bytes by codec; kUsage for a plain file. None for a tensor that is stored as it is.
  StoreResult<FrameStats> frame_stats(const TensorEntry& tensor) const noexcept;

  // Statistics of every tensor, in one pass over the file. A TensorStats takes 2 KB; `visit_stats`
  // keeps none.
  StoreStatus visit_stats(const StatsVisit& visit, const StoreOptions& options = {}) const noexcept;
  StoreResult<std::vector<TensorStats>> stats(const StoreOptions& options = {}) const noexcept;

 private:
  friend const store::TensorFile& store::file_of(const Reader& reader) noexcept;
  struct Impl;
  explicit Reader(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

// The tensors of a Reader, which must outlive it. Elements are made when they are asked for.
class TensorList {
 public:
  class Iterator {
   public:
    Iterator(const Reader& reader, std::size_t idx) noexcept : reader_(&reader), idx_(idx) {}
    TensorEntry operator*() const { return reader_->tensor(idx_); }
    Iterator& operator++() noexcept { return ++idx_, *this; }
    bool operator!=(const Iterator& other) const noexcept { return idx_ != other.idx_; }

   private:
    const Reader* reader_;
    std::size_t idx_;
  };

  explicit TensorList(const Reader& reader) noexcept : reader_(&reader) {}
  std::size_t size() const noexcept { return reader_->num_tensors(); }
  TensorEntry operator[](std::size_t idx) const { return reader_->tensor(idx); }
  Iterator begin() const noexcept { return {*reader_, 0}; }
  Iterator end() const noexcept { return {*reader_, size()}; }

 private:
  const Reader* reader_;
};

// ---- patches ---------------------------------------------------------------
//
// A patch turns BASE into NEW, two files or two folders, byte for byte. Tensors that exist in both
// are stored as deltas (snug/delta.h), wherever they are in the files; new tensors as frames;
// headers and other files under zstd. BASE may be compressed by Snug: its plain content counts.
// NEW is taken as it is. docs/patch.md is the format.

// Identifies a version by the bytes on disk, which are read: 32 hexadecimal digits. For a file
// XXH3-128 of its bytes; for a folder, XXH3-128 of the names, sizes and hashes of its files. What
// Snug has compressed is restored in memory too: a file that does not give its original has no
// version (kCorrupt).
StoreResult<std::string> version_of(const std::string& path,
                                    const StoreOptions& options = {}) noexcept;

struct PatchInfo {
  bool is_folder = false;
  std::string base_version;        // of the plain content of BASE
  std::string target_version;      // of the bytes of NEW, compressed or not
  std::uint64_t num_files = 0;     // in NEW
  std::uint64_t base_bytes = 0;    // plain size of all files of BASE
  std::uint64_t target_bytes = 0;  // size of all files of NEW
  std::uint64_t patch_bytes = 0;
  // Bytes of NEW by their origin, and the size that they take in the patch.
  std::uint64_t copied_bytes = 0;                   // equal to bytes of BASE
  std::uint64_t delta_bytes = 0, delta_stored = 0;  // changed tensors
  std::uint64_t full_bytes = 0, full_stored = 0;    // new data
  std::uint64_t num_changed = 0;                    // elements of changed tensors
};

struct PatchReport {
  std::string output;  // path written
  PatchInfo info;
  std::string kept;  // as in StoreReport
  double seconds = 0;
};

// Writes the patch from `base` to `next`. Every piece is applied and compared before it is
// written. options.codec is not used.
StoreResult<PatchReport> diff_path(const std::string& base, const std::string& next,
                                   const std::string& patch,
                                   const StoreOptions& options = {}) noexcept;

// Writes NEW to `out` and verifies it against the recorded hash. kWrongBase if `base` is another
// version than the patch was made for; the message names both.
StoreResult<PatchReport> patch_path(const std::string& base, const std::string& patch,
                                    const std::string& out,
                                    const StoreOptions& options = {}) noexcept;

// Reads a patch and checks all that can be checked without its base.
StoreResult<PatchInfo> inspect_patch(const std::string& patch) noexcept;

}  // namespace snug
