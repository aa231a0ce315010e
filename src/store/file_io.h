// store/file_io.h - files with errors that name them, and outputs that appear
// under their final name only when they are complete.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <system_error>

#include "snug/store.h"

namespace snug::store {

// A status that says which file, and why in the system's words.
StoreStatus io_error(const char* what, const std::string& path, int error,
                     std::uint64_t byte = kNowhere);
StoreStatus io_error(const char* what, const std::string& path, const std::error_code& error);

// A failure of which more is to be said than which file.
StoreStatus failure(Code code, const char* what, const std::string& path,
                    const std::string& detail);

// An open file. Reads and writes name their position, so that threads share it.
class File {
 public:
  File() noexcept = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  // Both refuse what is no regular file. `adopt` takes over an open descriptor.
  static StoreResult<File> open(const std::string& path);
  static StoreResult<File> adopt(int fd, const std::string& path);

  StoreStatus read_at(std::uint64_t offset, void* dst, std::size_t num_bytes) const;
  StoreStatus write_at(std::uint64_t offset, const void* src, std::size_t num_bytes) const;
  // Several pieces of memory to neighbouring places, in one call to the system.
  StoreStatus write_at(std::uint64_t offset,
                       std::span<const std::span<const std::uint8_t>> pieces) const;
  StoreStatus sync() const;
  // Fails if size or modification time differ from when it was opened: what was
  // read may then be a mixture that never existed.
  StoreStatus check_unchanged() const;
  // Copies permissions and modification time of `source`.
  void copy_attributes(const File& source) const noexcept;
  // Copies permissions alone: for what is new, not a copy.
  void copy_permissions(const File& source) const noexcept;
  // After a write to [begin, end): lets the disk start on what lies some way behind it, without
  // waiting. Most calls do nothing.
  void start_writeback(std::uint64_t begin, std::uint64_t end) const noexcept;
  // Takes disk space now, so that a full disk is known before the work is done.
  StoreStatus reserve(std::uint64_t num_bytes) const;

  std::uint64_t num_bytes() const noexcept { return num_bytes_; }  // when it was opened
  const std::string& path() const noexcept { return path_; }
  int fd() const noexcept { return fd_; }
  bool same_file(const std::string& other_path) const noexcept;

 private:
  friend class OutputFile;
  int fd_ = -1;
  std::uint64_t num_bytes_ = 0;
  std::int64_t modified_ = 0;  // nanoseconds
  std::string path_;
};

// A file under a temporary name until `commit`; deleted if that never comes.
class OutputFile {
 public:
  OutputFile() noexcept = default;
  OutputFile(OutputFile&& other) noexcept = default;
  ~OutputFile();

  static StoreResult<OutputFile> create(const std::string& path, bool force);

  const File& file() const noexcept { return file_; }
  // Renames to the final name; the caller has synced the file. Fails with
  // kExists if the name was taken meanwhile, unless created with force.
  StoreStatus commit();
  // The same inside a folder that has no name yet: sync_folder comes later, for all.
  StoreStatus commit_unsynced();

 private:
  File file_;
  std::string final_path_;
  bool force_ = false;
};

// kExists if `path` exists.
StoreStatus refuse_existing(const std::string& path);

// Unused name next to `path` for work in progress.
std::string temporary_name(const std::string& path);

// Renames; without `force` it never replaces anything.
StoreStatus rename_path(const std::string& from, const std::string& to, bool force);

// Gives a complete folder `from` its name. With `force` an older folder or file of that name is
// deleted; where the file system can exchange names, the name exists at all times.
StoreStatus rename_folder(const std::string& from, const std::string& to, bool force);

// Makes the folder and all that lies below it survive a power cut.
StoreStatus sync_folder(const std::string& root);

// Makes names created or renamed in the folder of `path` survive a power cut.
void sync_parent(const std::string& path) noexcept;

}  // namespace snug::store
