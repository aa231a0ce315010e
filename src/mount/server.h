// mount/server.h - answers the kernel's requests for one mount.
#pragma once
#include <sys/uio.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "mount/fuse_channel.h"
#include "mount/mount.h"
#include "mount/mount_tree.h"

namespace snug::mount {

struct Request;

inline struct iovec to_iovec(const void* bytes, std::size_t num_bytes) {
  return {const_cast<void*>(bytes), num_bytes};
}

class Server {
 public:
  Server(std::unique_ptr<MountTree> tree, FuseChannel channel, const MountOptions& options)
      : tree_(std::move(tree)), channel_(std::move(channel)), options_(options) {}

  const MountTree& tree() const noexcept { return *tree_; }
  const FuseChannel& channel() const noexcept { return channel_; }
  StoreStatus serve(const std::function<bool()>& keep_going);

 private:
  void work();
  bool answer_next(std::vector<std::byte>& buffer, std::vector<std::byte>& content) noexcept;
  void answer(const Request& request, std::vector<std::byte>& content);

  void init(const Request& request);
  void lookup(const Request& request);
  void get_attributes(const Request& request);
  void open_file(const Request& request);
  void read_folder(const Request& request);
  void read_file(const Request& request, std::vector<std::byte>& content);
  void read_pieces(const Request& request, const MountedFile& file, std::uint64_t offset,
                   std::uint64_t num_bytes);
  void read_ahead(const MountedFile& file, std::uint64_t begin, std::uint64_t end);
  void statistics(const Request& request);

  void reply(const Request& request, std::vector<struct iovec> parts);
  void reply(const Request& request, const void* bytes, std::size_t num_bytes);
  void reply_error(const Request& request, int error);
  // Whoever logs has answered the kernel before: `options_.log` may wait for its reader.
  void log(const std::string& name, const StoreStatus& status);
  std::string name_of(std::uint64_t number) const;

  const std::unique_ptr<MountTree> tree_;
  FuseChannel channel_;
  const MountOptions options_;
  std::unique_ptr<PieceCache> cache_;

  std::mutex mutex_;
  std::condition_variable thread_ended_;
  // These are under the mutex.
  int num_running_ = 0;
  std::set<std::string> known_lines_;
  std::deque<std::string> lines_;  // to log
  bool is_logging_ = false;

  std::atomic<bool> stopping_{false};
  std::atomic<bool> is_gone_{false};  // somebody else has unmounted it
};

}  // namespace snug::mount
