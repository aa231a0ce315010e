// cli/commands.h - one function per command. It adds its options to `app` and stores its
// exit code in `exit_code` when the command runs.
#pragma once
#include <CLI/CLI.hpp>

namespace snug::cli {

// Options that several commands have.
void add_threads(CLI::App& cmd, int& num_threads);
void add_output_flags(CLI::App& cmd, bool& json, bool& quiet);

void add_compress(CLI::App& app, int& exit_code);
void add_decompress(CLI::App& app, int& exit_code);
void add_verify(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_cat(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_sample(CLI::App& app, int& exit_code);
void add_diff(CLI::App& app, int& exit_code);
void add_patch(CLI::App& app, int& exit_code);
void add_send(CLI::App& app, int& exit_code);
void add_recv(CLI::App& app, int& exit_code);
void add_sync(CLI::App& app, int& exit_code);
void add_token(CLI::App& app, int& exit_code);
void add_mount(CLI::App& app, int& exit_code);

}  // namespace snug::cli
