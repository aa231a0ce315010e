// snug send: a file or folder to a host that runs snug recv.
#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/json_text.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "cli/wire_options.h"

namespace snug::cli {
namespace {

struct SendArgs {
  std::string path, address;
  int num_retries = 5;
  WireArgs wire;
};

int run_send(const SendArgs& args) {
  auto wire_options = to_wire_options(args.wire);
  if (!wire_options) return print_error(wire_options.status());
  TransferOptions options;
  options.wire = std::move(*wire_options);
  options.num_retries = args.num_retries;
  auto bar = std::make_unique<ProgressBar>(args.path);
  options.progress = [&bar](const Progress& progress) { return bar->update(progress); };
  const auto report = send_path(args.path, args.address, options);
  bar.reset();
  if (!report) return print_error(report.status());
  if (args.wire.json) {
    Json json = {{"command", "send"},
                 {"name", report->name},
                 {"num_files", report->num_files},
                 {"raw_bytes", report->raw_bytes},
                 {"seconds", report->seconds},
                 {"num_attempts", report->num_attempts}};
    json.update(stats_json(report->stats));
    return print_stdout(json_text(json) + "\n");
  }
  if (args.wire.quiet) return 0;
  return print_stdout(
      fmt::format("{}  {}\n", printable(report->name),
                  transfer_text(report->raw_bytes, report->stats, report->seconds)));
}

}  // namespace

void add_send(CLI::App& app, int& exit_code) {
  auto* cmd = app.add_subcommand("send", "Send a file or folder to a host that runs snug recv");
  auto args = std::make_shared<SendArgs>();
  cmd->add_option("PATH", args->path, "File or folder; safetensors files are sent tensor by tensor")
      ->required();
  cmd->add_option("ADDRESS", args->address, "HOST:PORT of the receiver")->required();
  cmd->add_option("--retries", args->num_retries, "Retries in a row before it gives up")
      ->check(CLI::Range(0, 1000).description(""))
      ->type_name("N")
      ->capture_default_str();
  add_wire_options(*cmd, args->wire);
  cmd->footer(
      "Returns when the receiver has everything, verified, under its final name. If\n"
      "the connection breaks, it reconnects and continues where it stopped; so does a\n"
      "later run of the same command. Everything is encrypted (TLS 1.3).\n\n"
      "Examples:\n"
      "  snug send model.safetensors gpu7:7000 --token-file secret\n"
      "  snug send Llama-3-8B/ 127.0.0.1:7000        # this host: needs no token\n");
  cmd->callback([args, &exit_code] { exit_code = run_send(*args); });
}

}  // namespace snug::cli
