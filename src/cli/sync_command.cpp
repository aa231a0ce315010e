// snug sync: a trainer publishes versions, followers fetch the newest.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "cli/json_text.h"
#include "cli/printer.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "cli/wire_options.h"

namespace snug::cli {
namespace {

struct SyncArgs {
  std::string serve, follow, folder, listen = "127.0.0.1:7000";
  int num_kept = 2;
  bool once = false;
  WireArgs wire;
};

void print_event(const SyncEvent& event, const WireArgs& args, Printer& printer) {
  if (args.json) {
    const Json json = {{"command", "sync"},
                       {"version", event.version},
                       {"peer", event.peer},
                       {"update", event.is_patch ? "patch" : "full"},
                       {"raw_bytes", event.raw_bytes},
                       {"wire_bytes", event.wire_bytes},
                       {"seconds", event.seconds}};
    printer.print_stdout(json_text(json, -1) + "\n");
  } else if (!args.quiet) {
    const double share = ratio(event.wire_bytes, event.raw_bytes, 0);
    printer.print_stdout(fmt::format("{}  {}  {} {} of {} ({})  {:.2f} s\n", event.peer,
                                     printable(event.version), event.is_patch ? "patch" : "full",
                                     format_bytes(event.wire_bytes), format_bytes(event.raw_bytes),
                                     format_percent(share), event.seconds));
  }
}

StoreStatus serve(const SyncArgs& args, const SyncOptions& options, Printer& printer) {
  std::error_code error;
  if (!std::filesystem::is_directory(args.serve, error))  // nobody is told to connect in vain
    return {{Code::kNotFound, "no such folder"}, args.serve, {}, {}};
  auto listener = wire::Listener::open(args.listen, options.wire);
  if (!listener) return {listener.status(), args.listen, {}, {}};
  if (!args.wire.quiet) printer.print_stderr("listening on " + listener->address() + "\n");
  return serve_versions(*listener, args.serve, options);
}

StoreStatus serve_or_follow(const SyncArgs& args, SyncOptions options) {
  Printer printer;
  options.on_event = [&](const SyncEvent& event) { print_event(event, args.wire, printer); };
  options.on_error = [&](const StoreStatus& status) {
    if (!args.wire.quiet && pending_signal() == 0) printer.print_stderr(error_line(status));
  };
  return args.serve.empty() ? follow_versions(args.follow, args.folder, options)
                            : serve(args, options, printer);
}

// Options that would have no effect are errors.
const char* misuse(const SyncArgs& args, const CLI::App& cmd) {
  if (args.serve.empty() == args.follow.empty())
    return "sync needs either --serve FOLDER or --follow ADDRESS FOLDER";
  if (!args.follow.empty() && args.folder.empty())
    return "--follow ADDRESS needs the FOLDER to keep up to date";
  if (!args.follow.empty() && cmd.count("--listen") > 0) return "--listen needs --serve";
  if (args.serve.empty()) return nullptr;
  if (!args.folder.empty()) return "--serve takes one FOLDER";
  if (cmd.count("--once") > 0) return "--once needs --follow";
  return cmd.count("--keep") > 0 ? "--keep needs --follow" : nullptr;
}

int run_sync(const SyncArgs& args) {
  auto wire_options = to_wire_options(args.wire);
  if (!wire_options) return print_error(wire_options.status());
  SyncOptions options;
  options.wire = std::move(*wire_options);
  options.num_kept = args.num_kept;
  options.once = args.once;
  options.keep_going = [] { return pending_signal() == 0; };
  const StoreStatus s = serve_or_follow(args, std::move(options));
  return s.ok() && pending_signal() == 0 ? 0 : print_error(s);
}

}  // namespace

void add_sync(CLI::App& app, int& exit_code) {
  auto* cmd = app.add_subcommand("sync", "Publish checkpoint versions, or follow a publisher");
  auto args = std::make_shared<SyncArgs>();
  cmd->add_option("--serve", args->serve, "Publish every file or folder that appears in FOLDER")
      ->type_name("FOLDER");
  cmd->add_option("--listen", args->listen, "With --serve: ADDRESS:PORT; port 0 takes a free one")
      ->type_name("ADDRESS")
      ->capture_default_str();
  cmd->add_option("--follow", args->follow, "HOST:PORT of the server to follow")
      ->type_name("ADDRESS");
  cmd->add_option("FOLDER", args->folder, "With --follow: folder for the versions; must exist");
  cmd->add_option("--keep", args->num_kept, "With --follow: number of fetched versions to keep")
      ->check(CLI::Range(1, 1000).description(""))
      ->type_name("N")
      ->capture_default_str();
  cmd->add_flag("--once", args->once, "With --follow: exit when the newest version is fetched");
  add_wire_options(*cmd, args->wire);
  cmd->footer(
      "Publish a version by renaming it into FOLDER when it is complete. Names that\n"
      "start with a dot are ignored; `current` and names that contain .tmp- or .kept-\n"
      "are never published. The version that appeared last is the newest. Versions that\n"
      "appeared while no server was running are ordered by name (step-10 after step-9).\n\n"
      "A follower gets a patch if the server still has its version, a full copy\n"
      "otherwise. It also gets a full copy if Snug has compressed its version, or if\n"
      "the patch is larger than half of the new one. FOLDER/current links to the newest\n"
      "version. The follower replaces or deletes only what it fetched and what has not\n"
      "changed since.\n\n"
      "Examples:\n"
      "  snug sync --serve checkpoints/ --listen 0.0.0.0:7000 --token-file secret\n"
      "  snug sync --follow trainer:7000 weights/ --token-file secret\n");
  cmd->callback([args, cmd, &exit_code] {
    const char* wrong = misuse(*args, *cmd);
    exit_code = wrong != nullptr ? print_error(Code::kUsage, wrong) : run_sync(*args);
  });
}

}  // namespace snug::cli
