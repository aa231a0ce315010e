// mount/fuse_channel.h - a mount point of FUSE, and the descriptor on which the kernel's requests
// for it arrive.
//
// The kernel's interface (linux/fuse.h) is used as it is. It never changes for those who use it,
// whereas libfuse is not everywhere, and has two incompatible versions of its shared library.
#pragma once
#include <string>

#include "os/descriptor.h"
#include "snug/store.h"

namespace snug::mount {

class FuseChannel {
 public:
  // Mounts at `folder`, which must be empty. `source` is what tables of mounts show.
  // `allow_other`: users other than this one may read, too.
  static StoreResult<FuseChannel> mount(const std::string& source, const std::string& folder,
                                        bool allow_other);
  FuseChannel() = default;
  FuseChannel(FuseChannel&& other) noexcept;
  FuseChannel& operator=(FuseChannel&& other) noexcept;
  ~FuseChannel();

  int fd() const noexcept { return fd_.get(); }
  const std::string& folder() const noexcept { return folder_; }  // an absolute path
  // Takes it out of the tree of files, as the destructor does. Who still reads from it gets errors
  // once this object is gone. After a failure the mount stays, and says that nobody serves it.
  StoreStatus unmount() noexcept;
  // Somebody else has unmounted it.
  void forget_mount() noexcept { is_mounted_ = false; }
  // Lets the kernel read ahead in larger steps, where the system allows it.
  void raise_kernel_read_ahead() const noexcept;

 private:
  os::Descriptor fd_;
  bool is_mounted_ = false, by_helper_ = false;
  std::string folder_;
};

// What to run to unmount a folder, less its name.
const char* unmount_command() noexcept;

// Fails with a sentence if nothing can be mounted at `folder`.
StoreStatus check_mount_point(const std::string& folder);

}  // namespace snug::mount
