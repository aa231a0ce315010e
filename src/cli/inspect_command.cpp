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

void add_to_groups(const InspectRow& row, std::vector<ExponentGroup>& groups) {
  if (!row.stats.of_exponents || row.tensor.raw_bytes == 0) return;
  auto at = std::find_if(groups.begin(), groups.end(),
                         [&](const ExponentGroup& g) { return g.dtype == row.tensor.dtype; });
  if (at == groups.end()) at = groups.insert(at, {row.tensor.dtype, row.tensor.kind, 0, 0, {}, 0});
  at->histogram.resize(row.stats.histogram.size());
  for (std::size_t i = 0; i < at->histogram.size(); ++i) at->histogram[i] += row.stats.histogram[i];
  at->num_bytes += row.tensor.raw_bytes;
  at->num_values += row.tensor.raw_bytes / elem_bytes(row.tensor.kind);
}

StoreStatus inspect_file(const std::string& path, const std::string& name, const InspectArgs& args,
                         InspectReport& report) {
  const auto reader = Reader::open(path);
  if (!reader) return reader.status();
  ProgressBar bar(path);
  StoreOptions options;
  options.num_threads = args.num_threads;
  options.progress = [&bar](const Progress& progress) { return bar.update(progress); };
  auto stats = reader->stats(options);
  if (!stats) return stats.status();
  for (std::size_t i = 0; i < reader->tensors().size(); ++i) {
    InspectRow row{name, reader->tensors()[i], std::move((*stats)[i]), {}};
    if (reader->compressed()) {
      const auto frames = reader->frame_stats(row.tensor);
      if (!frames) return frames.status();
      row.frames = *frames;
    }
    report.raw_bytes += row.tensor.raw_bytes;
    report.stored_bytes += row.tensor.stored_bytes;
    report.bound +=
        static_cast<double>(row.tensor.raw_bytes) * row.stats.bound;  // a sum until the end
    add_to_groups(row, report.groups);
    report.rows.push_back(std::move(row));
  }
  report.compressed |= reader->compressed();
  report.raw_file_bytes += reader->raw_bytes();
  report.stored_file_bytes += reader->stored_bytes();
  ++report.num_files;
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
  std::stable_sort(
      report.groups.begin(), report.groups.end(),
      [](const ExponentGroup& a, const ExponentGroup& b) { return a.num_bytes > b.num_bytes; });
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
  if (!args.force && ::lstat(args.html.c_str(), &info) == 0)
    return print_error({{Code::kExists, "already there; --force replaces it"}, args.html, {}, {}});
  if (::lstat(args.html.c_str(), &info) == 0 && !is_page(args.html))
    return print_error({{Code::kExists, "not an HTML page; not replaced"}, args.html, {}, {}});
  const std::string page = inspect_html(report);
  NewFile file(args.html);
  if (file.create() && file.write(page.data(), page.size()) && file.commit()) return 0;
  return print_error({{Code::kIo, "cannot write"}, args.html, {}, std::strerror(errno)});
}

int run_inspect(const InspectArgs& args) {
  const auto report = inspect(args);
  if (!report) return print_error(report.status());
  if (!args.html.empty())
    if (const int code = write_html(*report, args); code != 0) return code;
  if (args.json) return print_stdout(inspect_json(*report));
  return print_stdout(inspect_text(*report));
}

}  // namespace

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
      "bits were stored as they are: (8 + H)/16 for BF16.\n\n"
      "Example:\n  snug inspect model.snug.safetensors --html report.html\n");
  cmd->callback([args, &exit_code] { exit_code = run_inspect(*args); });
}

}  // namespace snug::cli
