#include "store/folder.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "store/file_jobs.h"
#include "store/json_reader.h"

namespace snug::store {
namespace {

namespace fs = std::filesystem;

constexpr char kIndexSuffix[] = ".safetensors.index.json";
constexpr char kTensorsSuffix[] = ".safetensors";

bool ends_with(const std::string& text, std::string_view suffix) {
  return text.size() >= suffix.size() &&
         text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

StoreStatus system_error(const char* what, const std::string& path, const std::error_code& error) {
  return io_error(what, path, error.value());
}

StoreStatus list_files(Folder& folder) {
  std::error_code error;
  fs::recursive_directory_iterator it(folder.root, error), end;
  if (error) return system_error("cannot list", folder.root, error);
  while (it != end) {
    const std::string path = it->path().string();
    const std::string name = it->path().lexically_relative(folder.root).generic_string();
    const fs::file_status status = it->status(error);  // of what a link points to
    if (error) return system_error("cannot open", path, error);
    if (fs::is_regular_file(status)) {
      folder.files.push_back({name, ends_with(name, kTensorsSuffix), 0});
    } else if (fs::is_directory(status) && !it->is_symlink()) {
      folder.sub_folders.push_back(name);
    } else {
      return {{Code::kUsage, fs::is_directory(status) ? "link to a folder is not followed"
                                                      : "neither file nor folder"},
              path,
              {},
              {}};
    }
    it.increment(error);
    if (error) return system_error("cannot list", folder.root, error);
  }
  std::sort(folder.files.begin(), folder.files.end(),
            [](const FolderFile& a, const FolderFile& b) { return a.name < b.name; });
  std::sort(folder.sub_folders.begin(), folder.sub_folders.end());
  return {};
}

StoreStatus check_tensors(const Folder& folder, FolderFile& file, bool expect_compressed) {
  auto tensors = TensorFile::open(folder.path_of(file.name));
  if (!tensors) return tensors.status();
  if ((*tensors)->compressed() != expect_compressed)
    return {expect_compressed ? Status{Code::kBadMagic, "plain safetensors, not compressed by Snug"}
                              : Status{Code::kUsage, "already compressed by Snug"},
            (*tensors)->path(),
            {},
            {}};
  file.raw_bytes = (*tensors)->plain().file_bytes;
  return {};
}

// The shard names of an index: {"weight_map": {tensor: shard, ...}, ...}.
StoreResult<std::set<std::string>> read_index(const std::string& path) {
  auto file = File::open(path);
  if (!file) return file.status();
  if (file->num_bytes() > kMaxHeaderBytes)
    return StoreStatus{
        {Code::kCorrupt, "index too long", kNowhere, kNowhere, file->num_bytes(), kMaxHeaderBytes},
        path,
        {},
        {}};
  std::string text(file->num_bytes(), '\0');
  if (StoreStatus s = file->read_at(0, text.data(), text.size()); !s.ok()) return s;
  JsonReader json(text);
  std::set<std::string> shards;
  std::string key, shard;
  json.expect('{');
  for (bool first = true; json.next_member('}', first);) {
    if (!json.read_key(key)) break;
    if (key != "weight_map") {
      if (!json.skip_value()) break;
      continue;
    }
    if (!json.expect('{')) break;
    for (bool first_tensor = true; json.next_member('}', first_tensor);) {
      if (!json.read_key(key) || !json.read_string(shard)) break;
      shards.insert(shard);
    }
  }
  if (!json.expect_end()) return StoreStatus{json.status(), path, {}, {}};
  return shards;
}

StoreStatus check_index(const Folder& folder, const std::string& index_name) {
  auto shards = read_index(folder.path_of(index_name));
  if (!shards) return shards.status();
  const fs::path parent = fs::path(index_name).parent_path();
  for (const std::string& shard : *shards) {
    const std::string name = (parent / shard).lexically_normal().generic_string();
    const bool found = std::any_of(folder.files.begin(), folder.files.end(),
                                   [&](const FolderFile& file) { return file.name == name; });
    if (!found)
      return {{Code::kNotFound, "shard named by the index is missing"},
              folder.path_of(index_name),
              {},
              shard};
  }
  return {};
}

StoreStatus copy_file(const std::string& from, const std::string& to) {
  auto in = File::open(from);
  if (!in) return in.status();
  auto out = OutputFile::create(to, false);
  if (!out) return out.status();
  Buffer buffer;
  for (std::uint64_t at = 0; at < in->num_bytes(); at += kChunkBytes) {
    const auto n =
        static_cast<std::size_t>(std::min<std::uint64_t>(kChunkBytes, in->num_bytes() - at));
    if (StoreStatus s = in->read_at(at, buffer.ensure(kChunkBytes), n); !s.ok()) return s;
    if (StoreStatus s = out->file().write_at(at, buffer.ensure(0), n); !s.ok()) return s;
  }
  out->file().copy_attributes(*in);
  if (StoreStatus s = in->check_unchanged(); !s.ok()) return s;
  if (StoreStatus s = out->file().sync(); !s.ok()) return s;
  return out->commit();
}

// A folder under a temporary name; deleted with all it holds if not committed.
class OutputFolder {
 public:
  OutputFolder(const std::string& path, const Folder& in)
      : in_(in), final_(path), temporary_(temporary_name(path)) {}
  ~OutputFolder() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(temporary_, ignored);
  }

  StoreStatus create() {
    std::error_code error;
    if (!fs::create_directory(temporary_, error))
      return system_error("cannot create", temporary_, error);
    fs::permissions(temporary_, fs::perms::owner_all, error);
    for (const std::string& name : in_.sub_folders)
      if (!fs::create_directory(path_of(name), error))
        return system_error("cannot create", path_of(name), error);
    return {};
  }

  StoreStatus commit(bool force) {
    for (const std::string& name : in_.sub_folders)
      copy_permissions(in_.path_of(name), path_of(name));
    copy_permissions(in_.root, temporary_);
    sync_parent(path_of("any"));
    for (const std::string& name : in_.sub_folders) sync_parent(path_of(name) + "/any");
    std::error_code error;
    const bool replace = force && fs::exists(final_, error);
    const std::string old = temporary_name(final_);
    if (replace)
      if (StoreStatus s = rename_path(final_, old, false); !s.ok()) return s;
    if (StoreStatus s = rename_path(temporary_, final_, false); !s.ok()) {
      if (replace) fs::rename(old, final_, error);
      return s;
    }
    committed_ = true;
    sync_parent(final_);
    if (replace) fs::remove_all(old, error);
    return {};
  }

  std::string path_of(const std::string& name) const { return temporary_ + "/" + name; }

 private:
  static void copy_permissions(const std::string& from, const std::string& to) {
    std::error_code error;
    const fs::perms perms = fs::status(from, error).permissions();
    if (!error) fs::permissions(to, perms | fs::perms::owner_all, error);
  }

  const Folder& in_;
  const std::string final_, temporary_;
  bool committed_ = false;
};

// --force replaces a folder only if that loses no file that has no successor.
StoreStatus check_target(const Folder& in, const std::string& out, bool force) {
  if (!force) return refuse_existing(out);
  std::error_code error;
  if (!fs::exists(fs::symlink_status(out, error))) return {};
  Folder old;
  old.root = out;
  if (!fs::is_directory(fs::symlink_status(out, error)))
    return {{Code::kExists, "is no folder; not replaced"}, out, {}, {}};
  if (StoreStatus s = list_files(old); !s.ok()) return s;
  for (const FolderFile& file : old.files) {
    const bool replaced = std::any_of(in.files.begin(), in.files.end(),
                                      [&](const FolderFile& f) { return f.name == file.name; });
    if (!replaced)
      return {{Code::kExists, "holds a file that is not part of the output; not replaced"},
              out,
              {},
              file.name};
  }
  return {};
}

// Output inside the input would be part of the next run's input.
StoreStatus check_not_inside(const std::string& in, const std::string& out) {
  std::error_code error;
  const fs::path inner = fs::weakly_canonical(out, error), outer = fs::weakly_canonical(in, error);
  const auto [at, _] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  if (at == outer.end())
    return {{Code::kUsage, "output lies inside the input folder"}, out, {}, {}};
  return {};
}

void add_report(StoreReport& total, FileReport file, const std::string& name) {
  file.name = name;
  total.raw_bytes += file.raw_bytes;
  total.stored_bytes += file.stored_bytes;
  total.files.push_back(std::move(file));
}

}  // namespace

std::uint64_t Folder::raw_bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const FolderFile& file : files) sum += file.raw_bytes;
  return sum;
}

StoreResult<Folder> read_folder(const std::string& root, bool expect_compressed) {
  Folder folder;
  folder.root = root;
  if (StoreStatus s = list_files(folder); !s.ok()) return s;
  for (const FolderFile& file : folder.files)
    if (ends_with(file.name, kIndexSuffix))
      if (StoreStatus s = check_index(folder, file.name); !s.ok()) return s;
  bool any = false;
  for (FolderFile& file : folder.files) {
    if (!file.is_tensors) continue;
    any = true;
    if (StoreStatus s = check_tensors(folder, file, expect_compressed); !s.ok()) return s;
  }
  if (!any)
    return StoreStatus{{Code::kNotFound, "no .safetensors file in this folder"}, root, {}, {}};
  return folder;
}

StoreResult<StoreReport> convert_folder(const Folder& in, const std::string& out, FolderJob job,
                                        const StoreOptions& options) {
  if (StoreStatus s = check_not_inside(in.root, out); !s.ok()) return s;
  if (StoreStatus s = check_target(in, out, options.force); !s.ok()) return s;
  const bool compress = job == FolderJob::kCompress;
  ProgressMeter meter(options, in.raw_bytes(), compress ? kCompressPasses : kRestorePasses);
  OutputFolder output(out, in);
  if (StoreStatus s = output.create(); !s.ok()) return s;
  StoreReport report;
  for (const FolderFile& file : in.files) {
    const std::string from = in.path_of(file.name), to = output.path_of(file.name);
    if (!file.is_tensors) {
      if (StoreStatus s = copy_file(from, to); !s.ok()) return s;
      ++report.num_copied_files;
      continue;
    }
    auto tensors = TensorFile::open(from);
    if (!tensors) return tensors.status();
    auto done = compress ? compress_file(**tensors, to, options, meter)
                         : restore_file(**tensors, to, options, meter);
    if (!done) return done.status();
    add_report(report, std::move(*done), file.name);
  }
  if (StoreStatus s = output.commit(options.force); !s.ok()) return s;
  report.output = out;
  return report;
}

StoreResult<StoreReport> verify_folder(const Folder& in, const StoreOptions& options) {
  ProgressMeter meter(options, in.raw_bytes(), 1);
  meter.set_phase("verifying");
  StoreReport report;
  for (const FolderFile& file : in.files) {
    if (!file.is_tensors) continue;
    auto tensors = TensorFile::open(in.path_of(file.name));
    if (!tensors) return tensors.status();
    auto done = verify_file(**tensors, options, meter);
    if (!done) return done.status();
    add_report(report, std::move(*done), file.name);
  }
  return report;
}

}  // namespace snug::store
