#include "store/output_folder.h"

#include <algorithm>
#include <filesystem>

#include "store/file_io.h"
#include "store/folder.h"

namespace snug::store {
namespace {

namespace fs = std::filesystem;

void copy_permissions(const std::string& from, const std::string& to) {
  std::error_code error;
  const fs::perms perms = fs::status(from, error).permissions();
  if (!error && perms != fs::perms::unknown)
    fs::permissions(to, perms | fs::perms::owner_all, error);
}

}  // namespace

OutputFolder::OutputFolder(const std::string& path, const std::string& like,
                           std::vector<std::string> sub_folders)
    : like_(like),
      final_(path),
      temporary_(temporary_name(path)),
      sub_folders_(std::move(sub_folders)) {}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

StoreStatus OutputFolder::create() {
  std::error_code error;
  if (!fs::create_directory(temporary_, error)) return io_error("cannot create", temporary_, error);
  fs::permissions(temporary_, fs::perms::owner_all, error);
  for (const std::string& name : sub_folders_)
    if (!fs::create_directory(path_of(name), error))
      return io_error("cannot create", path_of(name), error);
  return {};
}

StoreStatus OutputFolder::commit(bool force) {
  for (const std::string& name : sub_folders_) copy_permissions(like_ + "/" + name, path_of(name));
  copy_permissions(like_, temporary_);
  if (StoreStatus s = sync_folder(temporary_); !s.ok()) return s;
  if (StoreStatus s = rename_folder(temporary_, final_, force); !s.ok()) return s;
  committed_ = true;
  return {};
}

StoreStatus check_target_folder(const std::string& out, std::span<const std::string> names,
                                bool force) {
  if (!force) return refuse_existing(out);
  std::error_code error;
  if (!fs::exists(fs::symlink_status(out, error))) return {};
  if (!fs::is_directory(fs::symlink_status(out, error)))
    return {{Code::kExists, "is no folder; not replaced"}, out};
  Folder old;
  old.root = out;
  if (StoreStatus s = list_files(old); !s.ok()) return s;
  for (const FolderFile& file : old.files)
    if (!std::binary_search(names.begin(), names.end(), file.name))
      return {{Code::kExists, "holds a file that is not part of the output; not replaced"},
              out,
              {},
              file.name};
  return {};
}

StoreStatus check_not_inside(const std::string& in, const std::string& out) {
  std::error_code error;
  const fs::path inner = fs::weakly_canonical(out, error), outer = fs::weakly_canonical(in, error);
  const auto [at, _] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  if (at == outer.end()) return {{Code::kUsage, "output lies inside the input folder"}, out};
  return {};
}

}  // namespace snug::store
