// transfer/part_folder.h - where a transfer grows: a folder under a temporary name
// that survives a broken connection, and turns into the final file or folder.
#pragma once
#include <functional>
#include <string>

#include "net/descriptor.h"
#include "snug/store.h"
#include "transfer/manifest.h"

namespace snug::transfer {

using net::Descriptor;

class PartFolder {
 public:
  // Takes or retakes `folder`/.NAME.snug-part. kExists if the final name is
  // taken, unless `force`; kTimeout if another transfer of this name stays at
  // work; kIo if there is not enough room on the disk.
  static StoreResult<PartFolder> open(const std::string& folder, const FileManifest& manifest,
                                      bool force);

  // Opens a file of the manifest, making its folders. Never follows a link.
  StoreResult<Descriptor> open_file(const ManifestFile& file) const;
  // Syncs what was written, removes what is not in the manifest, lets `check` (if
  // there is one) look at it and gives it its final name, which is returned.
  StoreResult<std::string> commit(const FileManifest& manifest, bool force,
                                  const std::function<StoreStatus(const std::string&)>& check);
  // Removes what is not in the manifest.
  StoreStatus remove_strangers(const FileManifest& manifest) const;
  // Removes it with all it holds.
  void discard();
  // The same for the part folder at `path`, unless a transfer is at work in it.
  static void remove_abandoned(const std::string& path);

  const std::string& path() const noexcept { return path_; }

 private:
  StoreStatus check_room(const FileManifest& manifest) const;

  std::string folder_, path_;
  Descriptor root_;  // holds the lock
};

}  // namespace snug::transfer
