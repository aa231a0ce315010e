#include "store/folder.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "store/json_reader.h"
#include "store/output.h"
#include "store/range_text.h"

namespace snug::store {
namespace {

namespace fs = std::filesystem;

constexpr char kIndexSuffix[] = ".safetensors.index.json";
constexpr char kTensorsSuffix[] = ".safetensors";

StoreStatus check_tensors(const Folder& folder, FolderFile& file, bool expect_compressed) {
  auto tensors = TensorFile::open(folder.path_of(file.name));
  if (!tensors) return tensors.status();
  file.raw_bytes = (*tensors)->plain().file_bytes;
  return (*tensors)->check_kind(expect_compressed);
}

// Whether the shards of an index are there: {"weight_map": {tensor: shard, ...}, ...}.
StoreStatus check_index(const Folder& folder, const std::string& index_name) {
  const std::string path = folder.path_of(index_name);
  auto file = File::open(path);
  if (!file) return file.status();
  if (file->num_bytes() > kMaxHeaderBytes)
    return {frame::corrupt("index too long", kNowhere, file->num_bytes(), kMaxHeaderBytes), path};
  const ReadRange read = [&](std::uint64_t offset, std::span<std::byte> dst) {
    return file->read_at(offset, dst.data(), dst.size());
  };
  RangeText text(read, 0, file->num_bytes());
  JsonReader json(text);
  const fs::path parent = fs::path(index_name).parent_path();
  std::string key, shard, last;  // most tensors are in the shard of the one before
  json.expect('{');
  for (bool first = true; json.next_member('}', first);) {
    if (!json.read_short_key(key)) break;
    if (key != "weight_map") {
      if (!json.skip_value()) break;
      continue;
    }
    if (!json.expect('{')) break;
    for (bool first_tensor = true; json.next_member('}', first_tensor);) {
      if (!json.skip_string() || !json.expect(':') || !json.read_short(shard)) break;
      if (shard == last) continue;
      const std::string name = (parent / shard).lexically_normal().generic_string();
      const auto at =
          std::lower_bound(folder.files.begin(), folder.files.end(), name,
                           [](const FolderFile& f, const std::string& n) { return f.name < n; });
      if (at == folder.files.end() || at->name != name)
        return failure(Code::kNotFound, "shard named by the index is missing", path, shard);
      last = shard;
    }
  }
  if (!text.status().ok()) return text.status();
  return json.expect_end() ? StoreStatus{} : StoreStatus{json.status(), path};
}

StoreStatus check_config(Folder& folder, bool expect_compressed) {
  const auto file = File::open(folder.path_of(kConfigName));
  if (!file) return file.status().status.code == Code::kNotFound ? StoreStatus{} : file.status();
  auto mark = find_mark(*file);
  if (!mark) return mark.status();
  folder.config = std::move(*mark);
  if (expect_compressed || folder.config.state != ConfigState::kMarked) return {};
  return {
      {Code::kUsage,
       "already compressed by Snug, says quantization_config: remove it if the tensors are not"},
      file->path()};
}

// Copies [begin, end) of `in` to `out` at `to`, and moves `to` behind it.
StoreStatus copy_range(const File& in, std::uint64_t begin, std::uint64_t end, const File& out,
                       std::uint64_t& to) {
  Buffer buffer;
  while (begin < end) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(kChunkBytes, end - begin));
    std::byte* bytes = buffer.span(n).data();
    if (StoreStatus s = in.read_at(begin, bytes, n); !s.ok()) return s;
    if (StoreStatus s = out.write_at(to, bytes, n); !s.ok()) return s;
    begin += n;
    to += n;
  }
  return {};
}

// The mark in `config`, or the place for it, as far as the job changes it.
StoreResult<ConfigMark> change_of_config(FileJob job, const File& config) {
  auto mark = find_mark(config);
  if (!mark) return mark;
  const bool compresses = job == FileJob::kCompress;
  if (compresses && mark->state == ConfigState::kMarked)  // read_folder saw none
    return file_changed(config.path());
  if (mark->state != (compresses ? ConfigState::kPlain : ConfigState::kMarked)) return ConfigMark{};
  return mark;
}

StoreStatus copy_file(FileJob job, bool is_config, const std::string& from, const std::string& to) {
  auto in = File::open(from);
  if (!in) return in.status();
  ConfigMark mark;
  if (is_config) {
    // Not the one that read_folder found: the file may have been edited since.
    auto change = change_of_config(job, *in);
    if (!change) return change.status();
    mark = std::move(*change);
  }
  auto out = OutputFile::create(to, false, true);
  if (!out) return out.status();
  std::uint64_t at = 0;
  if (StoreStatus s = copy_range(*in, 0, mark.begin, out->file(), at); !s.ok()) return s;
  if (StoreStatus s = out->file().write_at(at, mark.text.data(), mark.text.size()); !s.ok())
    return s;
  at += mark.text.size();
  if (StoreStatus s = copy_range(*in, mark.end, in->num_bytes(), out->file(), at); !s.ok())
    return s;
  out->file().copy_attributes(*in);
  if (StoreStatus s = in->check_unchanged(); !s.ok()) return s;
  return out->commit();
}

// What the user should know about config.json.
void add_notes(FileJob job, const ConfigMark& config, std::vector<std::string>& notes) {
  if (job == FileJob::kCompress && config.state == ConfigState::kQuantized)
    notes.emplace_back(
        "config.json has a quantization_config and stays as it is: vLLM, SGLang, snug.safe_open "
        "and snug mount read this folder, transformers cannot load it");
  if (job != FileJob::kCompress && config.is_edited)
    notes.emplace_back(
        job == FileJob::kVerify
            ? "config.json was edited after the folder was compressed"
            : "config.json was edited after the folder was compressed: the edits are kept");
}

}  // namespace

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

StoreStatus list_files(Folder& folder) {
  std::error_code error;
  fs::recursive_directory_iterator it(folder.root, error), end;
  if (error) return io_error("cannot list", folder.root, error);
  while (it != end) {
    const std::string path = it->path().string();
    const std::string name = it->path().lexically_relative(folder.root).generic_string();
    const fs::file_status status = it->status(error);  // of what a link points to
    if (error) return io_error("cannot open", path, error);
    if (fs::is_regular_file(status)) {
      folder.files.push_back({name, name.ends_with(kTensorsSuffix), 0});
    } else if (fs::is_directory(status) && !it->is_symlink()) {
      folder.sub_folders.push_back(name);
    } else {
      return {{Code::kUsage, fs::is_directory(status) ? "link to a folder is not followed"
                                                      : "neither file nor folder"},
              path};
    }
    it.increment(error);
    if (error) return io_error("cannot list", folder.root, error);
  }
  std::sort(folder.files.begin(), folder.files.end(),
            [](const FolderFile& a, const FolderFile& b) { return a.name < b.name; });
  std::sort(folder.sub_folders.begin(), folder.sub_folders.end());
  return {};
}

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
    if (file.name.ends_with(kIndexSuffix))
      if (StoreStatus s = check_index(folder, file.name); !s.ok()) return s;
  bool any = false;
  for (FolderFile& file : folder.files) {
    if (!file.is_tensors) continue;
    any = true;
    if (StoreStatus s = check_tensors(folder, file, expect_compressed); !s.ok()) return s;
  }
  if (!any) return StoreStatus{{Code::kNotFound, "no .safetensors file in this folder"}, root};
  if (StoreStatus s = check_config(folder, expect_compressed); !s.ok()) return s;
  return folder;
}

void add_report(StoreReport& total, FileReport file) {
  total.raw_bytes += file.raw_bytes;
  total.stored_bytes += file.stored_bytes;
  total.files.push_back(std::move(file));
}

StoreResult<StoreReport> run_folder_job(FileJob job, const Folder& in, const std::string& out,
                                        const StoreOptions& options) {
  std::optional<OutputFolder> output;
  std::vector<std::string> names;
  if (job != FileJob::kVerify) {
    for (const FolderFile& file : in.files) names.push_back(file.name);
    if (StoreStatus s = check_not_inside(in.root, out); !s.ok()) return s;
    if (StoreStatus s = check_target_folder(out, names, options.force); !s.ok()) return s;
    output.emplace(out, in.root, in.sub_folders);
    if (StoreStatus s = output->create(); !s.ok()) return s;
  }
  ProgressMeter meter(options, in.raw_bytes(), num_passes(job));
  StoreReport report;
  for (const FolderFile& file : in.files) {
    const std::string from = in.path_of(file.name), to = output ? output->path_of(file.name) : "";
    if (file.is_tensors) {
      auto tensors = TensorFile::open(from);
      if (!tensors) return tensors.status();
      auto done = run_job(job, **tensors, to, true, options, meter);
      if (!done) return done.status();
      done->name = file.name;
      add_report(report, std::move(*done));
    } else if (output) {
      if (StoreStatus s = copy_file(job, file.name == kConfigName, from, to); !s.ok()) return s;
      ++report.num_copied_files;
    }
  }
  if (output)
    if (StoreStatus s = output->commit(options.force, names, report.kept); !s.ok()) return s;
  add_notes(job, in.config, report.notes);
  report.output = out;
  return report;
}

}  // namespace snug::store
