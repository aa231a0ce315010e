// snug patch: the new checkpoint out of the old one and what changed.
#include "cli/commands.h"
#include "cli/patch_report.h"

namespace snug::cli {

void add_patch(CLI::App& app, int& exit_code) {
  auto* cmd = app.add_subcommand("patch", "Make the new checkpoint from the old one and a patch");
  auto args = std::make_shared<PatchArgs>();
  cmd->add_option("BASE", args->first, "The version the patch was made for")->required();
  cmd->add_option("PATCH", args->second, "What snug diff wrote")->required();
  add_patch_options(*cmd, *args, "NEW");
  cmd->footer(
      "The output is the file or folder given to snug diff, byte for byte, and is checked\n"
      "before it gets its name. Another BASE is refused with exit code 14.\n\n"
      "Example:\n  snug patch step100.safetensors step101.patch -o step101.safetensors\n");
  cmd->callback([args, &exit_code] { exit_code = run_patch_work(*args, "patch", patch_path); });
}

}  // namespace snug::cli
