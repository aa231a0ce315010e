#include "mount/mount.h"

#include <filesystem>

#include "mount/server.h"
#include "store/output.h"

namespace snug::mount {

namespace fs = std::filesystem;

Mount::Mount() noexcept = default;
Mount::Mount(std::unique_ptr<Server> server) noexcept : server_(std::move(server)) {}
Mount::Mount(Mount&&) noexcept = default;
Mount& Mount::operator=(Mount&&) noexcept = default;
Mount::~Mount() = default;

StoreResult<Mount> Mount::open(const std::string& source, const std::string& folder,
                               const MountOptions& options) noexcept {
  return store::guarded([&]() -> StoreResult<Mount> {
    if (StoreStatus s = check_mount_point(folder); !s.ok()) return s;
    // A server that reads through its own mount would wait for itself.
    if (!store::check_not_inside(source, folder).ok() ||
        !store::check_not_inside(folder, source).ok())
      return StoreStatus{{Code::kUsage, "a folder cannot be mounted into itself"}, folder};
    auto tree = MountTree::open(source, options.allow_other);
    if (!tree) return tree.status();
    std::error_code error;
    auto channel =
        FuseChannel::mount(fs::absolute(source, error).string(), folder, options.allow_other);
    if (!channel) return channel.status();
    return Mount(std::make_unique<Server>(std::move(*tree), std::move(*channel), options));
  });
}

const std::string& Mount::folder() const noexcept { return server_->channel().folder(); }
std::string Mount::how_to_unmount() const { return unmount_command() + (" " + folder()); }
std::uint64_t Mount::num_files() const noexcept { return server_->tree().num_files(); }
std::uint64_t Mount::raw_bytes() const noexcept { return server_->tree().num_bytes(); }
std::uint64_t Mount::stored_bytes() const noexcept { return server_->tree().stored_bytes(); }

StoreStatus Mount::serve(const std::function<bool()>& keep_going) noexcept {
  return store::guarded([&] { return server_->serve(keep_going); });
}

}  // namespace snug::mount
