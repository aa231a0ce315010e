// snug diff: the patch from one checkpoint to another.
#include "cli/commands.h"
#include "cli/patch_report.h"

namespace snug::cli {

void add_diff(CLI::App& app, int& exit_code) {
  auto* cmd = app.add_subcommand("diff", "Write a patch from one checkpoint to another");
  auto args = std::make_shared<PatchArgs>();
  cmd->add_option("BASE", args->first, "The old version: a file or a folder")->required();
  cmd->add_option("NEW", args->second, "The new version")->required();
  add_patch_options(*cmd, *args, "PATCH");
  cmd->footer(
      "Tensors are matched by name, in any shard. BASE may be compressed by Snug. Every\n"
      "piece of the patch is applied and compared before it is written.\n\n"
      "Examples:\n"
      "  snug diff step100.safetensors step101.safetensors -o step101.patch\n"
      "  snug diff Llama-3-8B/ Llama-3-8B-tuned/ -o tuned.patch\n");
  cmd->callback([args, &exit_code] { exit_code = run_patch_work(*args, "diff", diff_path); });
}

}  // namespace snug::cli
