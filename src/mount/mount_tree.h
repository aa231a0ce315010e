// mount/mount_tree.h - the files and folders that a mount shows.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mount/mounted_file.h"

namespace snug::mount {

class MountTree final : public PieceSource {
 public:
  // Opens a compressed file, or a folder with such files, and checks every header. The tree does
  // not change afterwards. `for_others`: users other than this one will see it.
  static StoreResult<std::unique_ptr<MountTree>> open(const std::string& source, bool for_others);

  struct Node {
    std::string name;
    std::uint64_t parent = 0;
    const MountedFile* file = nullptr;         // null for folders
    std::vector<std::uint64_t> children = {};  // of folders, sorted by name
    struct stat attributes = {};
  };
  static constexpr std::uint64_t kRoot = 1;  // the kernel's number for it

  // Null if there is none. Numbers count from kRoot without a gap.
  const Node* node(std::uint64_t number) const noexcept {
    return number - kRoot < nodes_.size() ? &nodes_[number - kRoot] : nullptr;
  }
  std::uint64_t num_nodes() const noexcept { return nodes_.size(); }
  // The child of that name; 0 if there is none.
  std::uint64_t find(const Node& folder, std::string_view name) const;

  std::uint64_t num_files() const noexcept { return files_.size(); }
  std::uint64_t num_bytes() const noexcept { return num_bytes_; }        // as shown
  std::uint64_t stored_bytes() const noexcept { return stored_bytes_; }  // as stored

  StoreStatus decode(std::span<const Piece> pieces, std::span<std::byte* const> dst,
                     Scratch& scratch) const override {
    return files_[pieces[0].file]->decode(pieces, dst, scratch);
  }

 private:
  StoreStatus add_file(const std::string& path, const std::string& name, bool is_tensors);
  StoreStatus add_folder(const std::string& path, const std::string& name);
  // `path` is that of the source.
  void add_node(const std::string& path, const std::string& name, Node node);

  std::shared_ptr<store::FilePool> pool_ = std::make_shared<store::FilePool>();
  std::vector<std::unique_ptr<MountedFile>> files_;
  std::vector<Node> nodes_;
  std::uint64_t num_bytes_ = 0, stored_bytes_ = 0, header_bytes_ = 0;
  bool for_others_ = false;
};

}  // namespace snug::mount
