#include "cli/wire_options.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "store/file_io.h"

namespace snug::cli {
namespace {

// Not refused as ssh refuses such keys: containers get their secrets in files that all may read.
void warn_if_exposed(const std::string& file) {
  struct stat info;
  if (::stat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & 07) != 0)
    print_stderr("snug: warning: other users can read or change the token in " + printable(file) +
                 "; chmod 600 helps\n");
}

StoreResult<std::string> read_token(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::string token(wire::kMaxTokenBytes + 2, '\0');  // shows one that is too long
  in.read(token.data(), static_cast<std::streamsize>(token.size()));
  token.resize(static_cast<std::size_t>(in.gcount()));
  if (!in.is_open() || in.bad()) return store::io_error("cannot read the token", file, errno);
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.empty()) return StoreStatus{{Code::kUsage, "the file has no token"}, file, {}, {}};
  warn_if_exposed(file);
  return token;
}

}  // namespace

void add_wire_options(CLI::App& cmd, WireArgs& args) {
  auto* token =
      cmd.add_option("--token-file", args.token_file,
                     "File with the token, the same on both sides; default: the variable\n"
                     "SNUG_TOKEN, and on one host the secret of this user")
          ->type_name("FILE");
  cmd.add_flag("--insecure", args.insecure, "No token and no encryption, for trusted networks")
      ->excludes(token);
  cmd.add_option("--mode", args.mode, "raw, fixed, entropy; auto: the fastest on this link")
      ->check(CLI::IsMember({"auto", "raw", "fixed", "entropy"}).description(""))
      ->type_name("NAME")
      ->capture_default_str();
  cmd.add_option("--lanes", args.num_lanes, "Parallel connections; 0 picks 2 or 4")
      ->check(CLI::Range(0, 16).description(""))
      ->type_name("N")
      ->capture_default_str();
  cmd.add_option("--chunk", args.chunk, "Bytes that are encoded and sent as one piece")
      ->type_name("SIZE")
      ->capture_default_str();
  cmd.add_option("--timeout", args.timeout_seconds,
                 "Give up when the peer is silent for this long;\nbelow 1 only if the peer has "
                 "such a one, too")
      ->check(CLI::Range(0.1, 86400.0).description(""))
      ->type_name("SECONDS")
      ->capture_default_str();
  add_output_flags(cmd, args.json, args.quiet);
}

StoreResult<wire::Options> to_wire_options(const WireArgs& args) {
  wire::Options options;
  for (const wire::Mode mode : {wire::Mode::kRaw, wire::Mode::kFixed, wire::Mode::kEntropy})
    if (args.mode == wire::mode_name(mode)) options.mode = mode;
  options.insecure = args.insecure;
  if (!args.token_file.empty()) {
    auto token = read_token(args.token_file);
    if (!token) return token.status();
    options.token = std::move(*token);
  }
  const char* const variable = std::getenv("SNUG_TOKEN");
  if (args.insecure && !args.quiet && variable != nullptr && variable[0] != '\0')
    print_stderr("snug: warning: --insecure: SNUG_TOKEN is not used, nothing is encrypted\n");
  options.num_lanes = args.num_lanes;
  options.chunk_bytes = parse_bytes(args.chunk);
  if (options.chunk_bytes == 0)
    return StoreStatus{{Code::kUsage, "--chunk wants a size like 1MiB"}, {}, {}, args.chunk};
  if (std::isnan(args.timeout_seconds))  // which is in any range
    return StoreStatus{{Code::kUsage, "--timeout wants a number of seconds"}, {}, {}, "nan"};
  options.timeout = std::chrono::milliseconds(static_cast<long>(args.timeout_seconds * 1000));
  return options;
}

Json stats_json(const wire::Stats& stats) {
  Json chunks, goodput;
  for (int i = 0; i < wire::kNumModes; ++i) {
    const char* name = wire::mode_name(static_cast<wire::Mode>(i));
    chunks[name] = stats.num_chunks[i];
    goodput[name] = stats.goodput[i];
  }
  return {{"wire_bytes", stats.wire_bytes},
          {"known_bytes", stats.known_bytes},
          {"num_chunks", chunks},
          {"goodput", goodput},
          {"encode_seconds", stats.encode_seconds},
          {"send_seconds", stats.send_wait_seconds}};
}

std::string transfer_text(std::uint64_t raw_bytes, const wire::Stats& stats, double seconds) {
  std::string text =
      fmt::format("{}, {} on the wire", format_bytes(raw_bytes), format_bytes(stats.wire_bytes));
  if (raw_bytes > 0)
    text += fmt::format(" ({})", format_percent(ratio(stats.wire_bytes, raw_bytes)));
  if (stats.known_bytes > 0) text += fmt::format(", {} known", format_bytes(stats.known_bytes));
  const std::string took =
      seconds < 60 ? fmt::format("{:.1f} s", seconds) : format_seconds(seconds);
  return text + fmt::format("  {}  {}", took, format_rate(raw_bytes, seconds));
}

}  // namespace snug::cli
