// transfer/part_folder.h - the folder of an unfinished transfer. It survives a broken connection,
// and becomes the final file or folder.
#pragma once
#include <sys/types.h>

#include <functional>
#include <span>
#include <string>

#include "os/descriptor.h"
#include "store/file_io.h"
#include "transfer/manifest.h"

namespace snug::transfer {

using os::Descriptor;

class PartFolder {
 public:
  // Creates or continues `folder`/.NAME.snug-part. kExists if the final name exists, unless
  // `force`, if it is a folder where a file comes, or if the part may be another user's; kTimeout
  // if another transfer of this name holds it; kIo if the disk has not enough room.
  static StoreResult<PartFolder> open(const std::string& folder, const FileManifest& manifest,
                                      bool force);

  // Opens a file of the manifest, no longer than announced, and creates its folders. Never follows
  // a link. kIo for a file of another user, or one that has another name too.
  StoreResult<store::File> open_file(const ManifestFile& file) const;
  // Removes what is not in the manifest, calls `check` (if there is one), syncs, and gives it its
  // final name, which is returned. With `force` an older folder of that name is deleted if it holds
  // no files but `known`; otherwise it gets another name, which goes to `kept`.
  StoreResult<std::string> commit(const FileManifest& manifest, bool force,
                                  const std::function<StoreStatus(const std::string&)>& check,
                                  std::span<const std::string> known, std::string& kept);
  // Removes what is not in the manifest.
  StoreStatus remove_strangers(const FileManifest& manifest) const;
  // Deletes the folder and its contents.
  void discard();
  // The same for the part folder at `path`, unless a transfer holds it.
  static void remove_abandoned(const std::string& path);

  const std::string& path() const noexcept { return path_; }

 private:
  StoreStatus check_owner() const;
  StoreStatus check_room(const FileManifest& manifest) const;
  void make_private() const;
  // What a new folder may have here: 0755, or less by the umask or an ACL.
  StoreResult<mode_t> usual_mode() const;
  void open_to_others(mode_t mode) const;

  std::string folder_, path_;
  Descriptor root_;  // holds the lock
};

}  // namespace snug::transfer
