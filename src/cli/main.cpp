// snug - the command line tool.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "snug/codec.h"
#include "snug/snug.h"

namespace {

constexpr char kFooter[] =
    "Examples:\n"
    "  snug compress model.safetensors            # writes model.snug.safetensors\n"
    "  snug decompress model.snug.safetensors     # restores the original\n"
    "  snug inspect model.snug.safetensors --html report.html\n"
    "  snug cat model.snug.safetensors lm_head.weight --rows 0:16 > rows.bin\n\n"
    "Exit codes:\n"
    "   0  done                          6  a buffer was too small\n"
    "   2  wrong arguments               7  the system refused a read or write\n"
    "   3  not a safetensors/Snug file   8  output exists (see --force)\n"
    "   4  written by a newer Snug       9  no such file, shard or tensor\n"
    "   5  damaged input                10  a defect in Snug: please report it\n"
    "  11  no usable GPU                12  the other side took too long\n"
    "  13  peer refused or left         14  patch was made for another version\n"
    " 130  interrupted\n\n"
    "SNUG_FORCE=scalar|avx2|avx512|neon chooses the instruction set.\n";

std::string version_text() {
  return fmt::format("snug {} ({})", SNUG_VERSION_STRING, snug::simd_target());
}

// The first line is the error; what CLI11 appends is advice for --help.
int usage_error(const CLI::ParseError& error) {
  std::string message = error.what();
  message = message.substr(0, message.find('\n'));
  return snug::cli::print_error(snug::Code::kUsage, message + " (see snug --help)");
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
  snug::cli::catch_signals();
  CLI::App app{"Lossless compression of LLM tensors", "snug"};
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  app.footer(kFooter);
  app.get_formatter()->column_width(28);
  app.get_formatter()->label("TEXT", "");
  app.get_formatter()->label("REQUIRED", "");
  int exit_code = 0;
  snug::cli::add_compress(app, exit_code);
  snug::cli::add_decompress(app, exit_code);
  snug::cli::add_verify(app, exit_code);
  snug::cli::add_inspect(app, exit_code);
  snug::cli::add_cat(app, exit_code);
  snug::cli::add_bench(app, exit_code);
  snug::cli::add_sample(app, exit_code);
  snug::cli::add_diff(app, exit_code);
  snug::cli::add_patch(app, exit_code);
  snug::cli::add_send(app, exit_code);
  snug::cli::add_recv(app, exit_code);
  snug::cli::add_sync(app, exit_code);
  const auto named = [&](const CLI::App* command) { return command->get_name() == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(named).empty())
    return snug::cli::print_error(snug::Code::kUsage,
                                  fmt::format("no command {} (see snug --help)", argv[1]));
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForAllHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForVersion& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    return usage_error(e);
  } catch (const std::bad_alloc&) {
    return snug::cli::print_error(snug::Code::kInternal, "out of memory");
  } catch (const std::exception& e) {
    return snug::cli::print_error(snug::Code::kInternal, e.what());
  }
  return exit_code;
}
