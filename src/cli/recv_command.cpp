// snug recv: take what snug send sends.
#include <fmt/format.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>

#include "cli/commands.h"
#include "cli/json_text.h"
#include "cli/printer.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "cli/wire_options.h"

namespace snug::cli {
namespace {

struct RecvArgs {
  std::string folder, listen = "127.0.0.1:7000";
  bool once = false, force = false;
  WireArgs wire;
};

class ReceiveCommand {
 public:
  ReceiveCommand(const RecvArgs& args, const wire::Options& wire) : args_(args) {
    options_.wire = wire;
    options_.force = args.force;
  }

  StoreStatus run() {
    std::error_code error;
    if (!std::filesystem::is_directory(args_.folder, error))
      return {{Code::kNotFound, "no such folder"}, args_.folder, {}, {}};
    auto listener = wire::Listener::open(args_.listen, options_.wire);
    if (!listener) return {listener.status(), args_.listen, {}, {}};
    // On stderr, so that scripts can read the results from stdout alone.
    if (!args_.wire.quiet) printer_.print_stderr("listening on " + listener->address() + "\n");
    serve_peers(
        *listener, [this](wire::Connection& connection) { return receive(connection); },
        [this](const StoreStatus& status) {
          if (pending_signal() == 0) printer_.print_stderr(error_line(status));
        },
        [this] { return pending_signal() == 0 && !(args_.once && num_received_ > 0); });
    return {};
  }

 private:
  StoreStatus receive(wire::Connection& connection) {
    const std::string peer = connection.peer_name();  // unknown once it is closed
    // The bars of several senders would overwrite each other: only the first has one.
    const std::unique_lock screen(screen_, std::try_to_lock);
    auto bar = screen ? std::make_unique<ProgressBar>(peer) : nullptr;
    TransferOptions options = options_;
    options.progress = [&bar](const Progress& progress) {
      return bar ? bar->update(progress) : pending_signal() == 0;
    };
    const auto report = receive_path(connection, args_.folder, options);
    bar.reset();
    if (report) print(*report, peer);
    return report.status();
  }

  void print(const TransferReport& report, const std::string& peer) {
    if (args_.wire.json) {
      Json json = {{"command", "recv"},
                   {"name", report.name},
                   {"peer", peer},
                   {"num_files", report.num_files},
                   {"raw_bytes", report.raw_bytes},
                   {"seconds", report.seconds},
                   {"kept", report.kept}};
      json.update(stats_json(report.stats));
      printer_.print_stdout(json_text(json, -1) + "\n");
    } else if (!args_.wire.quiet) {
      printer_.print_stdout(
          fmt::format("{}  {}  verified\n", printable(report.name),
                      transfer_text(report.raw_bytes, report.stats, report.seconds)));
    }
    if (!report.kept.empty())
      printer_.print_stderr(
          "snug: the old folder held files that the sender does not have; it is now " +
          printable(report.kept) + "\n");
    ++num_received_;  // with --once, nothing more is printed
  }

  const RecvArgs& args_;
  TransferOptions options_;
  std::mutex screen_;
  std::atomic<int> num_received_{0};
  Printer printer_;
};

int run_recv(const RecvArgs& args) {
  const auto wire_options = to_wire_options(args.wire);
  if (!wire_options) return print_error(wire_options.status());
  const StoreStatus s = ReceiveCommand(args, *wire_options).run();
  return s.ok() && pending_signal() == 0 ? 0 : print_error(s);
}

}  // namespace

void add_recv(CLI::App& app, int& exit_code) {
  auto* cmd = app.add_subcommand("recv", "Receive files and folders into a folder");
  auto args = std::make_shared<RecvArgs>();
  cmd->add_option("FOLDER", args->folder, "Folder to receive into; must exist")->required();
  cmd->add_option("--listen", args->listen, "ADDRESS:PORT to listen on; port 0 takes a free one")
      ->type_name("ADDRESS")
      ->capture_default_str();
  cmd->add_flag("--once", args->once, "Exit after the first complete transfer");
  cmd->add_flag("-f,--force", args->force, "Replace files and folders that exist");
  add_wire_options(*cmd, args->wire);
  cmd->footer(
      "A transfer is written to .NAME.snug-part until it is complete and verified; a\n"
      "sender that reconnects continues from there. Everything is encrypted (TLS 1.3).\n"
      "On one host only this user can send. Addresses that other hosts can reach need\n"
      "a token, the same on both sides.\n\n"
      "Examples:\n"
      "  snug recv models/\n"
      "  snug token secret                                      # copy it to the sender\n"
      "  snug recv models/ --listen 0.0.0.0:7000 --token-file secret\n");
  cmd->callback([args, &exit_code] { exit_code = run_recv(*args); });
}

}  // namespace snug::cli
