// snug recv: take what snug send sends.
#include <fmt/format.h>

#include <atomic>
#include <filesystem>
#include <list>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "cli/wire_options.h"
#include "transfer/refusals.h"

namespace snug::cli {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxSenders = 64;

struct RecvArgs {
  std::string folder, listen = "127.0.0.1:7000";
  bool once = false, force = false;
  WireArgs wire;
};

// One sender at work, on a thread of its own.
struct Job {
  std::thread thread;
  std::atomic<bool> done{false};
};

class ReceiveCommand {
 public:
  ReceiveCommand(const RecvArgs& args, const wire::Options& wire) : args_(args) {
    options_.wire = wire;
    options_.force = args.force;
  }

  int run() {
    std::error_code error;
    if (!std::filesystem::is_directory(args_.folder, error))
      return print_error({{Code::kNotFound, "no such folder"}, args_.folder, {}, {}});
    auto listener = wire::Listener::open(args_.listen, options_.wire);
    if (!listener) return print_error({listener.status(), args_.listen, {}, {}});
    // On stderr, so that scripts can read the results from stdout alone.
    if (!args_.wire.quiet) fmt::print(stderr, "listening on {}\n", listener->address());
    while (pending_signal() == 0 && !finished()) {
      auto connection = listener->accept(100ms);
      if (connection && jobs_.size() < kMaxSenders) start(std::move(*connection));
      std::erase_if(jobs_, [](Job& job) { return job.done && (job.thread.join(), true); });
      if (const auto s = refusals_.news(*listener, options_.wire)) print_error(*s);
    }
    for (Job& job : jobs_) job.thread.join();
    if (pending_signal() != 0) return print_error({{Code::kIo, "stopped"}, {}, {}, {}});
    return 0;
  }

 private:
  bool finished() {
    const std::lock_guard lock(mutex_);
    return args_.once && num_received_ > 0;
  }

  void start(wire::Connection connection) {
    Job& job = jobs_.emplace_back();
    try {
      job.thread = std::thread([this, &job, connection = std::move(connection)]() mutable {
        receive(connection);
        job.done = true;
      });
    } catch (const std::system_error&) {
      jobs_.pop_back();  // this sender comes back; the others are not to suffer
      print_error({{Code::kIo, "cannot start a thread for a sender"}, {}, {}, {}});
    }
  }

  void receive(wire::Connection& connection) {
    // Bars of several senders would overwrite each other: the first one shows.
    const std::unique_lock screen(screen_, std::try_to_lock);
    const std::string peer = connection.peer_name();  // unknown once it is closed
    auto bar = screen ? std::make_unique<ProgressBar>(peer) : nullptr;
    TransferOptions options = options_;
    options.progress = [&bar](const Progress& progress) {
      return bar ? bar->update(progress) : pending_signal() == 0;
    };
    const auto report = receive_path(connection, args_.folder, options);
    bar.reset();
    const std::lock_guard lock(mutex_);
    if (!report) {
      StoreStatus s = report.status();
      s.detail = s.detail.empty() ? peer : peer + ": " + s.detail;
      if (pending_signal() == 0) print_error(s);
      return;
    }
    ++num_received_;
    if (args_.wire.json) {
      Json json = {{"command", "recv"},
                   {"name", report->name},
                   {"peer", peer},
                   {"num_files", report->num_files},
                   {"raw_bytes", report->raw_bytes},
                   {"seconds", report->seconds}};
      json.update(to_json(report->stats));
      print_stdout(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    } else if (!args_.wire.quiet) {
      print_stdout(fmt::format("{}  {}  verified\n", printable(report->name),
                               transfer_text(report->raw_bytes, report->stats, report->seconds)));
    }
  }

  const RecvArgs& args_;
  TransferOptions options_;
  std::list<Job> jobs_;
  transfer::Refusals refusals_;
  std::mutex mutex_, screen_;
  int num_received_ = 0;
};

int run_recv(const RecvArgs& args) {
  const auto wire_options = to_wire_options(args.wire);
  if (!wire_options) return print_error(wire_options.status());
  return ReceiveCommand(args, *wire_options).run();
}

}  // namespace

void add_recv(CLI::App& app, int& exit_code) {
  auto* cmd = app.add_subcommand("recv", "Receive files and folders into a folder");
  auto args = std::make_shared<RecvArgs>();
  cmd->add_option("FOLDER", args->folder, "Where they go; must be there")->required();
  cmd->add_option("--listen", args->listen, "ADDRESS:PORT; port 0 takes a free one")
      ->type_name("ADDRESS")
      ->capture_default_str();
  cmd->add_flag("--once", args->once, "End after the first complete transfer");
  cmd->add_flag("-f,--force", args->force, "Replace what is there");
  add_wire_options(*cmd, args->wire);
  cmd->footer(
      "What arrives lies under .NAME.snug-part until it is complete and verified; a\n"
      "sender that comes back goes on from there. Addresses that other hosts can reach\n"
      "need a token. The data itself is not encrypted: use an SSH tunnel across\n"
      "networks that you do not trust.\n\n"
      "Examples:\n"
      "  snug recv models/\n"
      "  SNUG_TOKEN=$(cat secret) snug recv models/ --listen 0.0.0.0:7000\n");
  cmd->callback([args, &exit_code] { exit_code = run_recv(*args); });
}

}  // namespace snug::cli
