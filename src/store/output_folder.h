// store/output_folder.h - folders that appear under their final name only when they are
// complete.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "snug/store.h"

namespace snug::store {

// A folder under a temporary name; deleted with all it holds if not committed.
class OutputFolder {
 public:
  // Permissions are taken from `like`, a folder with much the same sub_folders
  // (parents first).
  OutputFolder(const std::string& path, const std::string& like,
               std::vector<std::string> sub_folders);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  StoreStatus create();
  StoreStatus commit(bool force);
  std::string path_of(const std::string& name) const { return temporary_ + "/" + name; }

 private:
  const std::string like_, final_, temporary_;
  const std::vector<std::string> sub_folders_;
  bool committed_ = false;
};

// Whether a folder with files of these names (sorted) may be written to `out`. --force
// replaces a folder only if that loses no file that has no successor.
StoreStatus check_target_folder(const std::string& out, std::span<const std::string> names,
                                bool force);

// Output inside the input would be part of the next run's input.
StoreStatus check_not_inside(const std::string& in, const std::string& out);

}  // namespace snug::store
