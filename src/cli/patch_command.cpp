// snug patch: applies a patch to a checkpoint.
#include "cli/commands.h"
#include "cli/patch_report.h"

namespace snug::cli {

void add_patch(CLI::App& app, int& exit_code) {
  auto* cmd = app.add_subcommand("patch", "Apply a patch to a checkpoint");
  auto args = std::make_shared<PatchArgs>();
  cmd->add_option("BASE", args->first, "The version the patch was made for")->required();
  cmd->add_option("PATCH", args->second, "A patch written by snug diff")->required();
  add_patch_options(*cmd, *args, "NEW");
  cmd->footer(
      "The output equals the file or folder given to snug diff, byte for byte. It is\n"
      "verified before it gets its name. Another BASE is refused with exit code 14.\n\n"
      "Example:\n  snug patch step100.safetensors step101.patch -o step101.safetensors\n");
  cmd->callback([args, &exit_code] { exit_code = run_patch_work(*args, "patch", patch_path); });
}

}  // namespace snug::cli
