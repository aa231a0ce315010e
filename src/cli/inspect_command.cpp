// snug inspect: what is in a file, and how small it could be.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <tuple>

#include "cli/commands.h"
#include "cli/inspect_report.h"
#include "cli/new_file.h"
#include "cli/terminal.h"

namespace snug::cli {
namespace {

namespace fs = std::filesystem;

struct InspectArgs {
  std::string path, html;
  int num_threads = 0;
  bool json = false, force = false;
};

double entropy_bits(const std::vector<std::uint64_t>& counts) {
  double total = 0, sum = 0;
  for (const std::uint64_t count : counts) total += static_cast<double>(count);
  for (const std::uint64_t count : counts)
    if (count != 0)
      sum -= static_cast<double>(count) * std::log2(static_cast<double>(count) / total);
  return total == 0 ? 0 : sum / total;
}

void add_to_groups(const TensorEntry& tensor, const TensorStats& stats,
                   std::vector<ExponentGroup>& groups) {
  auto at = std::find_if(groups.begin(), groups.end(),
                         [&](const ExponentGroup& g) { return g.dtype == tensor.dtype; });
  if (at == groups.end()) at = groups.insert(at, {tensor.dtype, tensor.kind, 0, 0, {}, 0});
  at->histogram.resize(stats.histogram.size());
  for (std::size_t i = 0; i < at->histogram.size(); ++i) at->histogram[i] += stats.histogram[i];
  at->num_bytes += tensor.raw_bytes;
  at->num_values += tensor.raw_bytes / elem_bytes(tensor.kind);
}

StoreStatus inspect_file(const std::string& path, const std::string& name, const InspectArgs& args,
                         InspectReport& report) {
  auto opened = Reader::open(path);
  if (!opened) return opened.status();
  const auto reader = std::make_shared<const Reader>(std::move(*opened));
  ProgressBar bar(path);
  StoreOptions options;
  options.num_threads = args.num_threads;
  options.progress = [&bar](const Progress& progress) { return bar.update(progress); };
  InspectedFile file = {path, name, std::vector<RowStats>(reader->num_tensors())};
  StoreStatus status = reader->visit_stats(
      [&](std::size_t idx, const TensorStats& stats) {
        file.stats[idx] = {stats.entropy_bits, stats.bound};
        const TensorEntry tensor = reader->tensor(idx);
        if (stats.of_exponents && tensor.raw_bytes > 0) add_to_groups(tensor, stats, report.groups);
        report.any_bytes |= !stats.of_exponents;
        report.raw_bytes += tensor.raw_bytes;
        report.stored_bytes += tensor.stored_bytes;
      },
      options);
  if (!status.ok()) return status;
  // In order, so that the sum does not depend on threads.
  for (std::size_t i = 0; i < file.stats.size(); ++i)
    report.bound += static_cast<double>(reader->tensor(i).raw_bytes) * file.stats[i].bound;
  report.compressed |= reader->compressed();
  report.raw_file_bytes += reader->raw_bytes();
  report.stored_file_bytes += reader->stored_bytes();
  report.num_tensors += file.stats.size();
  report.files.push_back(std::move(file));
  report.only = report.files.size() == 1 ? reader : nullptr;
  return {};
}

StoreResult<std::vector<std::string>> list_tensor_files(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error))
    if (it->path().extension() == ".safetensors")
      names.push_back(it->path().lexically_relative(folder).string());
  if (error) return StoreStatus{{Code::kIo, "cannot list"}, folder, {}, error.message()};
  if (names.empty())
    return StoreStatus{{Code::kNotFound, "no .safetensors file in this folder"}, folder, {}, {}};
  std::sort(names.begin(), names.end());
  return names;
}

StoreResult<InspectReport> inspect(const InspectArgs& args) {
  InspectReport report;
  report.path = args.path;
  report.bound = 0;
  std::error_code ignored;
  if (fs::is_directory(args.path, ignored)) {
    const auto names = list_tensor_files(args.path);
    if (!names) return names.status();
    for (const std::string& name : *names)
      if (StoreStatus s = inspect_file(args.path + "/" + name, name, args, report); !s.ok())
        return s;
  } else if (StoreStatus s = inspect_file(args.path, {}, args, report); !s.ok()) {
    return s;
  }
  report.bound = report.raw_bytes == 0 ? 1 : report.bound / static_cast<double>(report.raw_bytes);
  for (ExponentGroup& group : report.groups) group.entropy_bits = entropy_bits(group.histogram);
  std::stable_sort(report.groups.begin(), report.groups.end(),
                   [](const ExponentGroup& a, const ExponentGroup& b) {
                     return std::tuple(b.num_bytes, a.dtype) < std::tuple(a.num_bytes, b.dtype);
                   });
  return report;
}

// --force replaces an older page, never a model.
bool is_page(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // a FIFO would wait
  if (fd < 0) return false;
  struct stat info;
  char start[15] = {};
  const bool read = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
                    ::pread(fd, start, sizeof start, 0) == ssize_t{sizeof start};
  ::close(fd);
  return read && std::memcmp(start, "<!doctype html>", sizeof start) == 0;
}

int write_html(const InspectReport& report, const InspectArgs& args) {
  struct stat info;
  if (args.force && ::lstat(args.html.c_str(), &info) == 0 && !is_page(args.html))
    return print_error({{Code::kExists, "not an HTML page; not replaced"}, args.html, {}, {}});
  auto file = NewFile::create(args.html, args.force);
  if (!file) return print_error(file.status());
  TextOut out([&](const void* bytes, std::size_t n) { return file->write(bytes, n); });
  if (StoreStatus s = inspect_html(report, out); !s.ok()) return print_error(s);
  out.flush();
  const StoreStatus s = file->commit();
  return s.ok() ? 0 : print_error(s);
}

int run_inspect(const InspectArgs& args) {
  const auto report = inspect(args);
  if (!report) return print_error(report.status());
  if (!args.html.empty())
    if (const int code = write_html(*report, args); code != 0) return code;
  TextOut out(write_stdout);
  const StoreStatus status = args.json ? inspect_json(*report, out) : inspect_text(*report, out);
  if (!status.ok()) return print_error(status);
  return out.flush() ? 0 : stdout_error();
}

}  // namespace

StoreStatus InspectReport::visit_rows(const std::function<bool(const InspectRow&)>& visit) const {
  for (const InspectedFile& file : files) {
    std::shared_ptr<const Reader> reader = only;
    if (reader == nullptr) {
      auto opened = Reader::open(file.path);
      if (!opened) return opened.status();
      reader = std::make_shared<const Reader>(std::move(*opened));
    }
    if (reader->num_tensors() != file.stats.size())
      return {{Code::kIo, "file changed while it was read"}, file.path, {}, {}};
    for (std::size_t i = 0; i < file.stats.size(); ++i)
      if (!visit({file.name, *reader, reader->tensor(i), file.stats[i]})) return {};
  }
  return {};
}

bool TextOut::put(std::string_view text) {
  constexpr std::size_t kFlushBytes = std::size_t{64} << 10;
  text_ += text;
  return text_.size() < kFlushBytes || flush();
}

bool TextOut::flush() {
  if (error_ == 0 && !write_(text_.data(), text_.size())) error_ = errno;
  text_.clear();
  errno = error_;
  return error_ == 0;
}

void add_inspect(CLI::App& app, int& exit_code) {
  auto* cmd =
      app.add_subcommand("inspect", "Show tensors, ratios, exponent entropy and the size bound");
  auto args = std::make_shared<InspectArgs>();
  cmd->add_option("PATH", args->path, "A plain or compressed safetensors file, or a folder of them")
      ->required();
  cmd->add_flag("--json", args->json, "Print everything as JSON");
  cmd->add_option("--html", args->html, "Also write a self-contained page with plots")
      ->type_name("FILE");
  cmd->add_flag("-f,--force", args->force, "Replace an existing page");
  add_threads(*cmd, args->num_threads);
  cmd->footer(
      "\"bound\" is the size if exponents took exactly their entropy H and all other\n"
      "bits were stored unchanged: (8 + H)/16 for BF16.\n\n"
      "Example:\n  snug inspect model.snug.safetensors --html report.html\n");
  cmd->callback([args, &exit_code] { exit_code = run_inspect(*args); });
}

}  // namespace snug::cli
