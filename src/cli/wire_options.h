// cli/wire_options.h - what send, recv and sync share: addresses, the token, output.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

#include "cli/json_text.h"
#include "snug/transfer.h"

namespace snug::cli {

struct WireArgs {
  std::string mode = "auto", token_file, chunk = "1MiB";
  int num_lanes = 0;
  double timeout_seconds = 30;
  bool insecure = false, json = false, quiet = false;
};

void add_wire_options(CLI::App& cmd, WireArgs& args);

// kUsage or kIo with a message if a value makes no sense. Warns of a token that others can read, or
// that is not used.
StoreResult<wire::Options> to_wire_options(const WireArgs& args);

Json stats_json(const wire::Stats& stats);
// "536 MB, 358 MB on the wire (66.8 %)  0:04  187 MB/s"
std::string transfer_text(std::uint64_t raw_bytes, const wire::Stats& stats, double seconds);

}  // namespace snug::cli
