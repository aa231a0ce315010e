// mount/mount.h - compressed files, seen through a folder as their originals.
//
// Everything that the kernel asks for is read-only. Bytes that cannot be restored exactly are an
// error for the one who reads them (EIO) and a line for `log`.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "snug/store.h"

namespace snug::mount {

struct MountOptions {
  std::uint64_t cache_bytes = std::uint64_t{256} << 20;  // at least kMinCacheBytes
  int num_threads = 0;                                   // that decode; 0: one per CPU
  bool allow_other = false;                              // other users may read, too
  std::function<void(const std::string& line)> log;      // called on any thread
};
inline constexpr std::uint64_t kMinCacheBytes = std::uint64_t{16} << 20;

class Server;

class Mount {
 public:
  // Shows `source`, a compressed file or a folder with such files, at `folder`, which is empty.
  // Starts no thread: whoever looks at `folder` waits for `serve`.
  static StoreResult<Mount> open(const std::string& source, const std::string& folder,
                                 const MountOptions& options) noexcept;
  Mount() noexcept;
  Mount(Mount&&) noexcept;
  Mount& operator=(Mount&&) noexcept;
  ~Mount();

  const std::string& folder() const noexcept;  // an absolute path
  std::string how_to_unmount() const;          // a command
  std::uint64_t num_files() const noexcept;
  std::uint64_t raw_bytes() const noexcept;     // of all files, as they are shown
  std::uint64_t stored_bytes() const noexcept;  // of all files, as they are stored

  // Answers until somebody unmounts it or `keep_going`, asked ten times a second, says no. Then
  // it unmounts it; programs that still read from it get errors.
  StoreStatus serve(const std::function<bool()>& keep_going) noexcept;

 private:
  explicit Mount(std::unique_ptr<Server> server) noexcept;
  std::unique_ptr<Server> server_;
};

}  // namespace snug::mount
