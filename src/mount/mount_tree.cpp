#include "mount/mount_tree.h"

#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "store/folder.h"

namespace snug::mount {

namespace fs = std::filesystem;

// They stay in memory. To open one more takes up to 200 MB.
constexpr std::uint64_t kMaxHeldHeaders = std::uint64_t{48} << 20;

StoreResult<std::unique_ptr<MountTree>> MountTree::open(const std::string& source,
                                                        bool for_others) {
  auto self = std::make_unique<MountTree>();
  self->for_others_ = for_others;
  std::error_code error;
  // The process may change its working folder.
  const std::string path = fs::absolute(store::without_slashes(source), error).string();
  if (error) return store::io_error("cannot open", source, error);
  if (!fs::is_directory(path, error)) {
    // A file is shown alone, under the name that decompress gives it.
    const std::string plain = default_restored_path(path);
    const std::string name = fs::path(plain.empty() ? path : plain).filename().string();
    if (StoreStatus s = self->add_folder(fs::path(path).parent_path().string(), {}); !s.ok())
      return s;
    if (StoreStatus s = self->add_file(path, name, true); !s.ok()) return s;
    return self;
  }
  auto folder = store::read_folder(path, true);
  if (!folder) return folder.status();
  if (StoreStatus s = self->add_folder(path, {}); !s.ok()) return s;
  for (const std::string& name : folder->sub_folders)
    if (StoreStatus s = self->add_folder(folder->path_of(name), name); !s.ok()) return s;
  for (const store::FolderFile& file : folder->files)
    if (StoreStatus s = self->add_file(folder->path_of(file.name), file.name, file.is_tensors);
        !s.ok())
      return s;
  return self;
}

StoreStatus MountTree::add_file(const std::string& path, const std::string& name, bool is_tensors) {
  if (is_tensors && header_bytes_ > kMaxHeldHeaders)
    return {
        {Code::kUsage, "the files before this one have headers of more than 48 MiB; mount fewer"},
        path};
  auto file = is_tensors ? MountedFile::open_tensors(path, files_.size(), pool_)
                         : MountedFile::open_other(path, name == store::kConfigName, pool_);
  if (!file) return file.status();
  Node node;
  node.file = file->get();
  node.attributes = (*file)->attributes();
  node.attributes.st_size = static_cast<off_t>((*file)->num_bytes());
  num_bytes_ += (*file)->num_bytes();
  stored_bytes_ += (*file)->stored_bytes();
  header_bytes_ += (*file)->header_bytes();
  files_.push_back(std::move(*file));
  add_node(path, name, std::move(node));
  return {};
}

StoreStatus MountTree::add_folder(const std::string& path, const std::string& name) {
  Node node;
  if (::stat(path.empty() ? "." : path.c_str(), &node.attributes) != 0)
    return store::io_error("cannot open", path, errno);
  node.attributes.st_size = 0;
  add_node(path, name, std::move(node));
  return {};
}

// `name` is a path below the root; its folders are there. The root has none.
void MountTree::add_node(const std::string& path, const std::string& name, Node node) {
  // Where there is an ACL, the bits of the group are its mask: the most that it allows anybody.
  if (for_others_ && ::getxattr(path.c_str(), "system.posix_acl_access", nullptr, 0) > 0)
    node.attributes.st_mode &= ~static_cast<mode_t>(S_IRWXG);
  node.parent = kRoot;
  if (!name.empty()) {
    const fs::path shown(name);
    for (const fs::path& part : shown.parent_path())
      node.parent = find(nodes_[node.parent - kRoot], part.string());
    node.name = shown.filename().string();
    std::vector<std::uint64_t>& siblings = nodes_[node.parent - kRoot].children;
    const auto at = std::lower_bound(siblings.begin(), siblings.end(), node.name,
                                     [this](std::uint64_t number, const std::string& text) {
                                       return nodes_[number - kRoot].name < text;
                                     });
    siblings.insert(at, kRoot + nodes_.size());
  }
  nodes_.push_back(std::move(node));
}

std::uint64_t MountTree::find(const Node& folder, std::string_view name) const {
  const auto at = std::lower_bound(folder.children.begin(), folder.children.end(), name,
                                   [this](std::uint64_t number, std::string_view text) {
                                     return nodes_[number - kRoot].name < text;
                                   });
  return at != folder.children.end() && nodes_[*at - kRoot].name == name ? *at : 0;
}

}  // namespace snug::mount
