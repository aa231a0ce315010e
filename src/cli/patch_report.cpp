#include "cli/patch_report.h"

#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/json_text.h"
#include "cli/leftovers_report.h"
#include "cli/terminal.h"
#include "cli/units.h"

namespace snug::cli {
namespace {

Json to_json(const PatchReport& report, const std::vector<Leftover>& leftovers,
             const char* command) {
  const PatchInfo& info = report.info;
  return {{"command", command},
          {"output", report.output},
          {"base_version", info.base_version},
          {"target_version", info.target_version},
          {"num_files", info.num_files},
          {"target_bytes", info.target_bytes},
          {"patch_bytes", info.patch_bytes},
          {"ratio", ratio(info.patch_bytes, info.target_bytes, 0)},
          {"copied_bytes", info.copied_bytes},
          {"delta_bytes", info.delta_bytes},
          {"delta_stored", info.delta_stored},
          {"full_bytes", info.full_bytes},
          {"full_stored", info.full_stored},
          {"num_changed", info.num_changed},
          {"kept", report.kept},
          {"leftovers", leftovers_json(leftovers)},
          {"seconds", report.seconds},
          {"verified", true}};
}

std::string to_text(const PatchReport& report) {
  const PatchInfo& info = report.info;
  std::string text;
  const auto line = [&](const char* what, std::uint64_t bytes, std::uint64_t stored) {
    if (bytes > 0)
      text += fmt::format("  {:<9} {:>9} -> {}\n", what, format_bytes(bytes), format_bytes(stored));
  };
  line("unchanged", info.copied_bytes, 0);
  line("changed", info.delta_bytes, info.delta_stored);
  line("new", info.full_bytes, info.full_stored);
  text += fmt::format("{}  {} of {}  {}  {}  verified\n", printable(report.output),
                      format_bytes(info.patch_bytes), format_bytes(info.target_bytes),
                      format_percent(ratio(info.patch_bytes, info.target_bytes, 0), 2),
                      format_rate(info.target_bytes, report.seconds));
  text += fmt::format("{} -> {}\n", info.base_version, info.target_version);
  return text;
}

}  // namespace

void add_patch_options(CLI::App& cmd, PatchArgs& args, const char* output_name) {
  cmd.add_option("-o,--output", args.out, "Path of the output")->required()->type_name(output_name);
  add_threads(cmd, args.num_threads);
  cmd.add_flag("-f,--force", args.force, "Replace an existing output");
  add_output_flags(cmd, args.json, args.quiet);
}

int run_patch_work(const PatchArgs& args, const char* command, PatchWork work) {
  StoreOptions options;
  options.num_threads = args.num_threads;
  options.force = args.force;
  auto bar = std::make_unique<ProgressBar>(args.first);
  options.progress = [&bar](const Progress& progress) { return bar->update(progress); };
  const auto report = work(args.first, args.second, args.out, options);
  bar.reset();
  const auto leftovers = report_leftovers(args.out, args.quiet);
  if (!report) return print_error(report.status());
  print_kept(report->kept);
  if (args.json) return print_stdout(json_text(to_json(*report, leftovers, command)) + "\n");
  return args.quiet ? 0 : print_stdout(to_text(*report));
}

}  // namespace snug::cli
