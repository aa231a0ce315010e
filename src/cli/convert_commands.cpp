// snug compress, decompress and verify.
#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/json_text.h"
#include "cli/leftovers_report.h"
#include "cli/terminal.h"
#include "cli/units.h"

namespace snug::cli {
namespace {

enum class Verb { kCompress, kDecompress, kVerify };

struct ConvertArgs {
  Verb verb = Verb::kCompress;
  std::string in, out, codec = "entropy";
  int num_threads = 0;
  bool force = false, json = false, quiet = false;
};

Json to_json(const StoreReport& report, const std::vector<Leftover>& leftovers, Verb verb) {
  static constexpr const char* kVerbs[] = {"compress", "decompress", "verify"};
  Json files = Json::array();
  for (const FileReport& file : report.files)
    files.push_back({{"name", file.name},
                     {"num_tensors", file.num_tensors},
                     {"raw_bytes", file.raw_bytes},
                     {"stored_bytes", file.stored_bytes},
                     {"ratio", ratio(file.stored_bytes, file.raw_bytes)}});
  return {{"command", kVerbs[static_cast<int>(verb)]},
          {"output", report.output},
          {"raw_bytes", report.raw_bytes},
          {"stored_bytes", report.stored_bytes},
          {"ratio", ratio(report.stored_bytes, report.raw_bytes)},
          {"num_copied_files", report.num_copied_files},
          {"kept", report.kept},
          {"notes", report.notes},
          {"leftovers", leftovers_json(leftovers)},
          {"seconds", report.seconds},
          {"verified", true},
          {"files", files}};
}

std::string sizes(std::uint64_t raw, std::uint64_t stored, Verb verb) {
  const std::string arrow = verb == Verb::kCompress
                                ? format_bytes(raw) + " -> " + format_bytes(stored)
                                : format_bytes(stored) + " -> " + format_bytes(raw);
  return fmt::format("{}  {}", arrow, format_percent(ratio(stored, raw)));
}

std::string to_text(const StoreReport& report, const ConvertArgs& args) {
  const bool folder = report.files.size() != 1 || report.num_copied_files > 0;
  std::string text;
  std::size_t width = 0;
  for (const FileReport& file : report.files)
    width = std::max(width, display_width(printable(file.name)));
  if (folder)
    for (const FileReport& file : report.files)
      text += fmt::format("  {}  {}\n", pad_right(printable(file.name), width),
                          sizes(file.raw_bytes, file.stored_bytes, args.verb));
  const std::string name = printable(report.output.empty() ? args.in : report.output);
  text +=
      fmt::format("{}  {}  {}  {}", name, sizes(report.raw_bytes, report.stored_bytes, args.verb),
                  format_rate(report.raw_bytes, report.seconds),
                  args.verb == Verb::kVerify ? "intact" : "verified");
  if (report.num_copied_files > 0)
    text += fmt::format("  (+ {} other file{} copied)", report.num_copied_files,
                        report.num_copied_files == 1 ? "" : "s");
  return text + "\n";
}

// Empty if nothing is written.
std::string expected_output(const ConvertArgs& args) {
  if (args.verb == Verb::kVerify || !args.out.empty()) return args.out;
  return args.verb == Verb::kCompress ? default_compressed_path(args.in)
                                      : default_restored_path(args.in);
}

int run_convert(const ConvertArgs& args) {
  StoreOptions options;
  options.num_threads = args.num_threads;
  options.force = args.force;
  options.codec = args.codec == "raw"     ? Codec::kRaw
                  : args.codec == "fixed" ? Codec::kFixed
                                          : Codec::kEntropy;
  auto bar = std::make_unique<ProgressBar>(args.in);
  options.progress = [&bar](const Progress& progress) { return bar->update(progress); };
  const auto report = args.verb == Verb::kCompress     ? compress_path(args.in, args.out, options)
                      : args.verb == Verb::kDecompress ? decompress_path(args.in, args.out, options)
                                                       : verify_path(args.in, options);
  bar.reset();
  const auto leftovers =
      report_leftovers(report ? report->output : expected_output(args), args.quiet);
  if (!report) return print_error(report.status());
  print_kept(report->kept);
  if (!args.quiet)
    for (const std::string& note : report->notes) print_stderr("snug: " + note + "\n");
  if (args.json) return print_stdout(json_text(to_json(*report, leftovers, args.verb)) + "\n");
  return args.quiet ? 0 : print_stdout(to_text(*report, args));
}

void add_common(CLI::App& cmd, ConvertArgs& args) {
  add_threads(cmd, args.num_threads);
  add_output_flags(cmd, args.json, args.quiet);
}

}  // namespace

void add_compress(CLI::App& app, int& exit_code) {
  auto* cmd = app.add_subcommand("compress", "Compress a safetensors file or a model folder");
  auto args = std::make_shared<ConvertArgs>();
  args->verb = Verb::kCompress;
  cmd->add_option("IN", args->in, "x.safetensors, or a folder with shards, index and other files")
      ->required();
  cmd->add_option("OUT,-o,--output", args->out, "Default: x.snug.safetensors, or folder x.snug");
  cmd->add_option("-c,--codec", args->codec, "entropy: smallest; fixed: fastest; raw: stored as is")
      ->check(CLI::IsMember({"entropy", "fixed", "raw"}).description(""))
      ->type_name("NAME")
      ->capture_default_str();
  cmd->add_flag("-f,--force", args->force, "Replace an existing output");
  add_common(*cmd, *args);
  cmd->footer(
      "The output is a valid safetensors file. It is read back and compared with the\n"
      "input before the command succeeds. Other files of a folder are copied. Its\n"
      "config.json gets a quantization_config that tells other programs to use Snug.\n\n"
      "Examples:\n"
      "  snug compress model.safetensors\n"
      "  snug compress Llama-3-8B/ Llama-3-8B.snug --threads 8\n");
  cmd->callback([args, &exit_code] { exit_code = run_convert(*args); });
}

void add_decompress(CLI::App& app, int& exit_code) {
  auto* cmd = app.add_subcommand("decompress", "Restore the original, byte for byte");
  auto args = std::make_shared<ConvertArgs>();
  args->verb = Verb::kDecompress;
  cmd->add_option("IN", args->in, "x.snug.safetensors, or a folder that compress wrote")
      ->required();
  cmd->add_option("OUT,-o,--output", args->out, "Default: x.safetensors, or folder x for x.snug");
  cmd->add_flag("-f,--force", args->force, "Replace an existing output");
  add_common(*cmd, *args);
  cmd->footer(
      "Examples:\n"
      "  snug decompress model.snug.safetensors\n"
      "  snug decompress Llama-3-8B.snug restored/\n");
  cmd->callback([args, &exit_code] { exit_code = run_convert(*args); });
}

void add_verify(CLI::App& app, int& exit_code) {
  auto* cmd =
      app.add_subcommand("verify", "Check that a compressed file or folder restores the original");
  auto args = std::make_shared<ConvertArgs>();
  args->verb = Verb::kVerify;
  cmd->add_option("IN", args->in, "A compressed file or folder")->required();
  add_common(*cmd, *args);
  cmd->footer(
      "Decodes in memory and checks every checksum and the hash of the original.\n"
      "Writes nothing.\n\n"
      "Example:\n  snug verify model.snug.safetensors && rm model.safetensors\n");
  cmd->callback([args, &exit_code] { exit_code = run_convert(*args); });
}

}  // namespace snug::cli
