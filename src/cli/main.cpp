// snug - the command line tool.
#include <fmt/format.h>

#include <sstream>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "snug/codec.h"
#include "snug/snug.h"
#include "snug/store.h"

namespace {

constexpr char kFooter[] =
    "Examples:\n"
    "  snug compress model.safetensors            # writes model.snug.safetensors\n"
    "  snug decompress model.snug.safetensors     # restores the original\n"
    "  snug inspect model.snug.safetensors --html report.html\n"
    "  snug cat model.snug.safetensors model.embed_tokens.weight --rows 0:16 > rows\n\n"
    "Exit codes:\n"
    "   0  done                          6  a buffer was too small\n"
    "   2  wrong arguments               7  the system refused a read or write\n"
    "   3  not a safetensors/Snug file   8  output exists (see --force)\n"
    "   4  written by a newer Snug       9  no such file, shard or tensor\n"
    "   5  damaged input                10  out of memory, or a defect: please report that\n"
    "  11  no usable GPU                12  the other side took too long\n"
    "  13  peer refused or left         14  patch was made for another version\n"
    " 130  interrupted\n\n"
    "SNUG_FORCE=scalar|sse4|avx2|avx512|neon chooses the instruction set.\n";

std::string version_text() {
  return fmt::format("snug {} ({})", SNUG_VERSION_STRING, snug::simd_target());
}

// The first line is the error; what CLI11 appends is advice for --help.
int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  std::string message = error.what();
  message = message.substr(0, message.find('\n'));
  std::string command = "snug";
  for (const CLI::App* given : app.get_subcommands()) command += " " + given->get_name();
  return snug::cli::print_error(snug::Code::kUsage,
                                fmt::format("{} (see {} --help)", message, command));
}

// Help and version are what was asked for: results, on stdout.
int print_help(const CLI::App& app, const CLI::ParseError& asked) {
  std::ostringstream text;
  app.exit(asked, text, text);
  return snug::cli::print_stdout(text.str());
}

void add_commands(CLI::App& app, int& exit_code) {
  using namespace snug::cli;
  for (const auto add :
       {add_compress, add_decompress, add_verify, add_inspect, add_cat, add_bench, add_sample,
        add_diff, add_patch, add_send, add_recv, add_sync, add_token, add_mount})
    add(app, exit_code);
  // An empty argument is an unset variable of a script; as a path it would mean something else to
  // each command. Tensors may be called anything.
  const CLI::Validator not_empty(
      [](const std::string& text) { return text.empty() ? "is empty" : std::string(); }, "");
  for (CLI::App* command : app.get_subcommands({}))
    for (CLI::Option* option : command->get_options())
      if (option->get_items_expected_max() > 0 && option->get_name() != "TENSOR")
        option->check(not_empty);
}

int run(int argc, char** argv) {
  CLI::App app{"Lossless compression of LLM tensors", "snug"};
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  app.footer(kFooter);
  app.get_formatter()->column_width(28);
  app.get_formatter()->label("TEXT", "");
  app.get_formatter()->label("REQUIRED", "");
  int exit_code = 0;
  add_commands(app, exit_code);
  const auto named = [&](const CLI::App* command) { return command->get_name() == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(named).empty())
    return snug::cli::print_error(snug::Code::kUsage,
                                  fmt::format("no command {} (see snug --help)", argv[1]));
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    return print_help(app, e);
  } catch (const CLI::CallForAllHelp& e) {
    return print_help(app, e);
  } catch (const CLI::CallForVersion& e) {
    return print_help(app, e);
  } catch (const CLI::ParseError& e) {
    return usage_error(app, e);
  }
  return exit_code;
}

}  // namespace

void snug::cli::add_threads(CLI::App& cmd, int& num_threads) {
  cmd.add_option("-t,--threads", num_threads, "Number of threads; 0: one per CPU")
      ->check(CLI::Range(0, 64).description(""))
      ->type_name("N")
      ->capture_default_str();
}

void snug::cli::add_output_flags(CLI::App& cmd, bool& json, bool& quiet) {
  cmd.add_flag("--json", json, "Print the result as JSON");
  cmd.add_flag("-q,--quiet", quiet, "Print nothing but errors");
}

int main(int argc, char** argv) {
  snug::cli::open_standard_streams();
  snug::cli::catch_signals();
  const snug::StopScope scope([] { return snug::cli::pending_signal() == 0; });
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    return snug::cli::print_out_of_memory();
  } catch (const std::exception& e) {
    return snug::cli::print_error(snug::Code::kInternal, e.what());
  }
}
