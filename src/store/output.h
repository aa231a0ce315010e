// store/output.h - files and folders that appear under their final name only when they are
// complete.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "os/descriptor.h"
#include "store/file_io.h"

namespace snug::store {

// Shows others that a file or folder under a temporary name is in use, until this process ends.
class PathLock {
 public:
  PathLock() noexcept = default;
  explicit PathLock(const std::string& path);
  // Whether another process, or another lock of this one, holds `path`.
  static bool is_held(const std::string& path);

 private:
  os::Descriptor fd_;
};

// A file under a temporary name until `commit`; deleted if that never comes.
class OutputFile {
 public:
  OutputFile() noexcept = default;
  OutputFile(OutputFile&& other) noexcept = default;
  ~OutputFile();

  // `in_folder`: part of an OutputFolder, which syncs all of its files at once in the end.
  static StoreResult<OutputFile> create(const std::string& path, bool force,
                                        bool in_folder = false);

  const File& file() const noexcept { return file_; }
  // Brings the contents to the disk, unless the folder will. Large files need not wait for that.
  StoreStatus sync() const;
  // Renames to the final name; the caller has synced the file. Fails with
  // kExists if the name was taken meanwhile, unless created with force.
  StoreStatus commit();

 private:
  File file_;
  std::string final_path_;
  bool force_ = false, in_folder_ = false;
};

// A folder under a temporary name; deleted with all it holds if not committed.
class OutputFolder {
 public:
  // Permissions are taken from `like`, a folder with much the same sub_folders (parents first).
  OutputFolder(const std::string& path, const std::string& like,
               std::vector<std::string> sub_folders);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  StoreStatus create();
  // `known` and `kept` as in replace_folder, which is used with `force`.
  StoreStatus commit(bool force, std::span<const std::string> known, std::string& kept);
  std::string path_of(const std::string& name) const { return temporary_ + "/" + name; }

 private:
  const std::string like_, final_, temporary_;
  const std::vector<std::string> sub_folders_;
  PathLock lock_;
  bool committed_ = false;
};

// Whether a folder with files of these names (sorted) may be written to `out`. --force
// replaces a folder only if that loses no file that has no successor.
StoreStatus check_target_folder(const std::string& out, std::span<const std::string> names,
                                bool force);

// Output inside the input would be part of the next run's input.
StoreStatus check_not_inside(const std::string& in, const std::string& out);

// kExists if `path` exists.
StoreStatus refuse_existing(const std::string& path);
// kExists if `path` is something that no file replaces: a folder, a pipe.
StoreStatus refuse_other_kind(const std::string& path);

// The longest name of a file or folder that Snug makes: .kept-XXXXXXXX may have to go behind it.
inline constexpr std::size_t kMaxFileNameBytes = 255 - 14;
StoreStatus refuse_long_name(const std::string& path);

// Unused name next to `path` for work in progress.
std::string temporary_name(const std::string& path);
// Whether a file of this name could be work in progress on one named `target`.
bool is_temporary_name(std::string_view name, std::string_view target) noexcept;

// Renames; without `force` it never replaces anything.
StoreStatus rename_path(const std::string& from, const std::string& to, bool force);

// Gives a complete folder `from` its name, which nothing has yet.
StoreStatus rename_folder(const std::string& from, const std::string& to);

// Deletes the file or folder `root` if it holds no files but `known` (relative names, sorted; an
// empty name stands for `root` itself as a file). Deletes by name, so that what appears meanwhile
// survives. False if something is left.
bool remove_files(const std::string& root, std::span<const std::string> known);

// rename_folder where something may have that name already, of which the files `known` may be
// deleted. If it holds anything else, it stays under another name, which goes to `kept`. Where the
// file system can exchange names, the name exists at all times.
StoreStatus replace_folder(const std::string& from, const std::string& to,
                           std::span<const std::string> known, std::string& kept);

// Makes the folder and all that lies below it survive a power cut.
StoreStatus sync_folder(const std::string& root);

// Makes names created or renamed in the folder of `path` survive a power cut.
void sync_parent(const std::string& path) noexcept;

}  // namespace snug::store
