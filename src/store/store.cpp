// The public store API: a file or a folder in, a report out.
#include "snug/store.h"

#include <cerrno>
#include <filesystem>

#include "store/folder.h"

namespace snug {
namespace {

using namespace store;
namespace fs = std::filesystem;

constexpr std::string_view kPlainSuffix = ".safetensors";
constexpr std::string_view kSnugSuffix = ".snug.safetensors";
constexpr std::string_view kFolderSuffix = ".snug";

bool is_folder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// `text` without `suffix`; empty if it does not end in it or is nothing else.
std::string without(const std::string& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return {};
  const std::string rest = text.substr(0, text.size() - suffix.size());
  return rest.empty() || rest.back() == '/' ? std::string() : rest;
}

// What to write to: as asked, into a folder that is there, or by rule.
StoreResult<std::string> choose_output(const std::string& in, const std::string& out,
                                       const std::string& by_rule) {
  const std::string target = without_slashes(out);
  if (!target.empty() && (is_folder(in) || !is_folder(target))) return target;
  std::error_code error;
  if (!fs::exists(in, error)) return io_error("cannot open", in, error ? error.value() : ENOENT);
  if (by_rule.empty())
    return StoreStatus{{Code::kUsage, "no rule for the output's name: give one"}, in};
  return target.empty() ? by_rule : target + "/" + fs::path(by_rule).filename().string();
}

// `out` is empty if nothing is written.
StoreResult<StoreReport> run(FileJob job, const std::string& in, const std::string& out,
                             const StoreOptions& options) {
  const bool compress = job == FileJob::kCompress;
  if (is_folder(in)) {
    auto folder = read_folder(without_slashes(in), !compress);
    if (!folder) return folder.status();
    return run_folder_job(job, *folder, out, options);
  }
  auto tensors = TensorFile::open(in);
  if (!tensors) return tensors.status();
  if (StoreStatus s = (*tensors)->check_kind(!compress); !s.ok()) return s;
  if (!out.empty() && (*tensors)->file().same_file(out))
    return StoreStatus{{Code::kUsage, "input and output are the same file"}, out};
  ProgressMeter meter(options, (*tensors)->plain().file_bytes, num_passes(job));
  auto done = run_job(job, **tensors, out, false, options, meter);
  if (!done) return done.status();
  StoreReport report;
  report.output = out;
  add_report(report, std::move(*done));
  return report;
}

}  // namespace

std::string to_string(const StoreStatus& status) {
  // Status knows its own order; the names go between its code and its place.
  std::string text = to_string(status.status);
  if (status.ok()) return text;
  std::string names;
  if (!status.file.empty()) names += ": " + status.file;
  if (!status.tensor.empty()) names += ": tensor \"" + status.tensor + "\"";
  text.insert(std::string_view(code_name(status.status.code)).size(), names);
  if (!status.detail.empty()) text += ": " + status.detail;
  // Names come from files: one line must stay one line.
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  return text;
}

std::string default_compressed_path(const std::string& in) {
  if (!is_folder(in)) {
    const std::string stem = without(in, kPlainSuffix);
    return stem.empty() ? stem : stem + std::string(kSnugSuffix);
  }
  const std::string folder = without_slashes(in);
  const std::string name = fs::path(folder).filename().string();
  return name.empty() || name == "." || name == ".." ? std::string()
                                                     : folder + std::string(kFolderSuffix);
}

std::string default_restored_path(const std::string& in) {
  if (is_folder(in)) return without(without_slashes(in), kFolderSuffix);
  const std::string stem = without(in, kSnugSuffix);
  return stem.empty() ? stem : stem + std::string(kPlainSuffix);
}

StoreResult<StoreReport> compress_path(const std::string& in, const std::string& out,
                                       const StoreOptions& options) noexcept {
  return timed([&]() -> StoreResult<StoreReport> {
    if (static_cast<int>(options.codec) >= kNumCodecs)
      return StoreStatus{{Code::kUsage, "not a codec"}};
    const auto target = choose_output(in, out, default_compressed_path(in));
    return target ? run(FileJob::kCompress, in, *target, options) : target.status();
  });
}

StoreResult<StoreReport> decompress_path(const std::string& in, const std::string& out,
                                         const StoreOptions& options) noexcept {
  return timed([&]() -> StoreResult<StoreReport> {
    const auto target = choose_output(in, out, default_restored_path(in));
    return target ? run(FileJob::kRestore, in, *target, options) : target.status();
  });
}

StoreResult<StoreReport> verify_path(const std::string& in, const StoreOptions& options) noexcept {
  return timed([&] { return run(FileJob::kVerify, in, {}, options); });
}

}  // namespace snug
