// store/file_io.h - files with errors that name them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <system_error>

#include "snug/store.h"
#include "store/file_pool.h"

namespace snug::store {

// A status that says which file, and why in the system's words.
StoreStatus io_error(const char* what, const std::string& path, int error,
                     std::uint64_t byte = kNowhere);
StoreStatus io_error(const char* what, const std::string& path, const std::error_code& error);

// A failure of which more is to be said than which file.
StoreStatus failure(Code code, const char* what, const std::string& path,
                    const std::string& detail);

// What was read may be a mixture that never existed.
StoreStatus file_changed(const std::string& path);

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

  // Lets `pool` close it between reads. It is opened again under its name, and must then be the
  // same file, unchanged.
  void share(std::shared_ptr<FilePool> pool);

  StoreStatus read_at(std::uint64_t offset, void* dst, std::size_t num_bytes) const;
  StoreStatus write_at(std::uint64_t offset, const void* src, std::size_t num_bytes) const;
  // Several pieces of memory to neighbouring places, in one call to the system.
  StoreStatus write_at(std::uint64_t offset,
                       std::span<const std::span<const std::uint8_t>> pieces) const;
  StoreStatus sync() const;
  // Fails if size, modification or change time differ from when it was opened: what was read may
  // then be a mixture that never existed. The change time also tells of writers who put the
  // modification time back. A file that was replaced or deleted meanwhile is unchanged.
  StoreStatus check_unchanged() const;
  // Copies permissions and modification time of `source`.
  void copy_attributes(const File& source) const noexcept;
  // Copies permissions alone: for what is new, not a copy.
  void copy_permissions(const File& source) const;
  // After a write to [begin, end): lets the disk start on what lies some way behind it, without
  // waiting. Most calls do nothing.
  void start_writeback(std::uint64_t begin, std::uint64_t end) const noexcept;
  // Takes disk space now, so that a full disk is known before the work is done.
  StoreStatus reserve(std::uint64_t num_bytes) const;

  std::uint64_t num_bytes() const noexcept { return num_bytes_; }  // when it was opened
  const std::string& path() const noexcept { return path_; }
  int fd() const noexcept { return fd_; }  // -1 if it is shared
  bool same_file(const std::string& other_path) const noexcept;

 private:
  friend class OutputFile;
  StoreStatus compare(int fd) const;
  StoreResult<FilePool::Lease> open_again() const;
  // Calls `use` with the descriptor.
  template <class Use>
  StoreStatus with_descriptor(Use use) const;

  int fd_ = -1;
  std::shared_ptr<FilePool> pool_;  // if it is shared
  std::uint64_t pool_id_ = 0;
  std::uint64_t device_ = 0, inode_ = 0;
  std::uint64_t num_bytes_ = 0;
  std::int64_t modified_ = 0, changed_ = 0;  // nanoseconds
  std::uint64_t num_links_ = 0;
  std::string path_;
};

}  // namespace snug::store
