// The public patch API: paths in, a report out.
#include <algorithm>

#include "snug/store.h"
#include "store/folder.h"
#include "store/output.h"
#include "store/patch_jobs.h"

namespace snug {
namespace store {

namespace {

using PlainFiles = std::vector<std::unique_ptr<PlainFile>>;

// Opens the files of the manifest's base, found below `version`.
StoreResult<PlainFiles> match_base(const Manifest& manifest, const OpenVersion& version,
                                   const std::shared_ptr<FilePool>& pool) {
  if (manifest.is_folder != version.is_folder)
    return StoreStatus{{Code::kWrongBase, manifest.is_folder ? "the patch is for a folder"
                                                             : "the patch is for a file"},
                       version.root};
  PlainFiles files;
  for (const PatchFile& wanted : manifest.base) {
    if (!std::binary_search(version.names.begin(), version.names.end(), wanted.name))
      return failure(Code::kWrongBase, "a file that the patch needs is missing", version.root,
                     wanted.name);
    auto file = open_file(version, wanted.name, true, pool);
    if (!file) return file.status();
    if ((*file)->num_bytes() != wanted.num_bytes)
      return StoreStatus{{Code::kWrongBase, "another size than the patch was made for", kNowhere,
                          kNowhere, (*file)->num_bytes(), wanted.num_bytes},
                         (*file)->path()};
    files.push_back(std::move(*file));
  }
  return files;
}

// After a failure: if a file of the base is not what it should be, that is the reason.
StoreStatus explain(StoreStatus reason, const Manifest& manifest, const PlainFiles& base,
                    const StoreOptions& options) {
  const Code code = reason.status.code;
  if (code != Code::kCorrupt && code != Code::kWrongBase) return reason;
  const StoreOptions silent;
  ProgressMeter meter(silent, 0, 1);
  for (std::size_t i = 0; i < base.size(); ++i) {
    const auto hash = base[i]->hash(options, meter);
    if (hash && *hash != manifest.base[i].hash)
      return failure(Code::kWrongBase, "another version than the patch was made for",
                     base[i]->path(), "is " + *hash + ", needs " + manifest.base[i].hash);
  }
  return reason;
}

// Whose permissions a new file gets: those of its predecessor, or of any file of BASE.
const PlainFile* predecessor(const OpenPatch& patch, const std::string& name) {
  const auto& files = patch.manifest.base;
  const auto at = std::ranges::lower_bound(files, name, {}, &PatchFile::name);
  if (at != files.end() && at->name == name)
    return patch.base[static_cast<std::size_t>(at - files.begin())].get();
  return patch.base.empty() ? nullptr : patch.base[0].get();
}

StoreStatus write_file(const OpenPatch& patch, std::size_t idx, std::uint64_t& pieces_offset,
                       const std::string& path, const StoreOptions& options, ProgressMeter& meter) {
  auto output = OutputFile::create(path, options.force, patch.manifest.is_folder);
  if (!output) return output.status();
  const File& out = output->file();
  StoreStatus status = apply_patch(patch, idx, pieces_offset, out, options.num_threads, meter);
  if (!status.ok()) return status;
  pieces_offset += patch.manifest.files[idx].pieces.stored_bytes();
  if (const PlainFile* like = predecessor(patch, patch.manifest.files[idx].name))
    out.copy_permissions(like->file());
  if (StoreStatus s = output->sync(); !s.ok()) return s;
  return output->commit();
}

StoreStatus write_version(const OpenPatch& patch, const std::string& root, const std::string& out,
                          const StoreOptions& options, std::string& kept) {
  const Manifest& manifest = patch.manifest;
  ProgressMeter meter(options, manifest.target_bytes(), 1);
  meter.set_phase("patching");
  std::uint64_t pieces_offset = kPatchHeaderBytes;
  if (!manifest.is_folder) return write_file(patch, 0, pieces_offset, out, options, meter);
  std::vector<std::string> names;
  for (const PatchFile& file : manifest.files) names.push_back(file.name);
  std::sort(names.begin(), names.end());
  if (StoreStatus s = check_target_folder(out, names, options.force); !s.ok()) return s;
  OutputFolder folder(out, root, manifest.sub_folders);
  StoreStatus status = folder.create();
  for (std::size_t i = 0; status.ok() && i < manifest.files.size(); ++i)
    status =
        write_file(patch, i, pieces_offset, folder.path_of(manifest.files[i].name), options, meter);
  return status.ok() ? folder.commit(options.force, names, kept) : status;
}

StoreStatus refuse_input(const OpenVersion& version, const PlainFiles& files,
                         const std::string& out) {
  if (version.is_folder)
    if (StoreStatus s = check_not_inside(version.root, out); !s.ok()) return s;
  for (const auto& file : files)
    if (file->file().same_file(out))
      return {{Code::kUsage, "input and output are the same file"}, out};
  return {};
}

StoreStatus same_shape(const OpenVersion& base, const OpenVersion& next) {
  if (base.is_folder == next.is_folder) return {};
  return {
      {Code::kUsage, "BASE and NEW must be two files or two folders"}, base.root, {}, next.root};
}

StoreResult<PatchReport> diff(const std::string& base_path, const std::string& next_path,
                              const std::string& patch_path, const StoreOptions& options) {
  const auto pool = std::make_shared<FilePool>();
  auto base = open_version(base_path, true, pool);
  if (!base) return base.status();
  auto next = open_version(next_path, false, pool);
  if (!next) return next.status();
  for (const StoreStatus& s :
       {same_shape(*base, *next), refuse_input(*base, base->files, patch_path),
        refuse_input(*next, next->files, patch_path)})
    if (!s.ok()) return s;
  auto output = OutputFile::create(patch_path, options.force);
  if (!output) return output.status();
  ProgressMeter meter(options, next->num_bytes(), 1);
  auto info = write_patch(*base, *next, output->file(), options, meter);
  if (!info) return info.status();
  if (!next->files.empty()) output->file().copy_permissions(next->files[0]->file());
  if (StoreStatus s = output->file().sync(); !s.ok()) return s;
  if (StoreStatus s = output->commit(); !s.ok()) return s;
  return PatchReport{patch_path, std::move(*info), {}, 0};
}

StoreResult<PatchReport> patch(const std::string& base_path, const std::string& patch_path,
                               const std::string& out, const StoreOptions& options) {
  auto file = File::open(patch_path);
  if (!file) return file.status();
  auto manifest = read_manifest(*file);
  if (!manifest) return manifest.status();
  const auto version = list_names(base_path);
  if (!version) return version.status();
  const auto base = match_base(*manifest, *version, std::make_shared<FilePool>());
  if (!base) return base.status();
  const std::string target = without_slashes(out);
  if (StoreStatus s = refuse_input(*version, *base, target); !s.ok()) return s;
  if (file->same_file(target))
    return StoreStatus{{Code::kUsage, "input and output are the same file"}, target};
  PatchReport report{target, info_of(*manifest, file->num_bytes()), {}, 0};
  if (StoreStatus s =
          write_version({*file, *manifest, *base}, version->root, target, options, report.kept);
      !s.ok())
    return explain(std::move(s), *manifest, *base, options);
  return report;
}

}  // namespace
}  // namespace store

StoreResult<PatchReport> diff_path(const std::string& base, const std::string& next,
                                   const std::string& patch, const StoreOptions& options) noexcept {
  return store::timed([&] { return store::diff(base, next, patch, options); });
}

StoreResult<PatchReport> patch_path(const std::string& base, const std::string& patch,
                                    const std::string& out, const StoreOptions& options) noexcept {
  return store::timed([&] { return store::patch(base, patch, out, options); });
}

StoreResult<PatchInfo> inspect_patch(const std::string& patch) noexcept {
  return store::guarded([&]() -> StoreResult<PatchInfo> {
    auto file = store::File::open(patch);
    if (!file) return file.status();
    const auto manifest = store::read_manifest(*file);
    if (!manifest) return manifest.status();
    return store::info_of(*manifest, file->num_bytes());
  });
}

}  // namespace snug
