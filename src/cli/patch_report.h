// cli/patch_report.h - what diff and patch share.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

#include "snug/store.h"

namespace snug::cli {

struct PatchArgs {
  std::string first, second, out;
  int num_threads = 0;
  bool force = false, json = false, quiet = false;
};

void add_patch_options(CLI::App& cmd, PatchArgs& args, const char* output_name);

// Runs `work` with options made of `args`, with a progress bar, and prints how it went.
using PatchWork = StoreResult<PatchReport> (*)(const std::string&, const std::string&,
                                               const std::string&, const StoreOptions&) noexcept;
int run_patch_work(const PatchArgs& args, const char* command, PatchWork work);

}  // namespace snug::cli
