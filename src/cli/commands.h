// cli/commands.h - one function per command: it adds its options to `app` and,
// when its command was given, leaves its exit code in `exit_code`.
#pragma once
#include <CLI/CLI.hpp>

namespace snug::cli {

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

}  // namespace snug::cli
