// snug cat: bytes of one tensor to stdout.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <vector>

#include "cli/commands.h"
#include "cli/terminal.h"

namespace snug::cli {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{8} << 20;

struct CatArgs {
  std::string file, tensor, rows;
  int num_threads = 0;
  bool force = false;
};

// Parses "A:B", where A and B may be missing.
bool parse_rows(const std::string& text, std::uint64_t num_rows, std::uint64_t& first,
                std::uint64_t& last) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return false;
  const auto number = [](const std::string& digits, std::uint64_t& value) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return digits.empty() || (error == std::errc() && end == digits.data() + digits.size());
  };
  first = 0;
  last = num_rows;
  return number(text.substr(0, colon), first) && number(text.substr(colon + 1), last);
}

int run_cat(const CatArgs& args) {
  end_on_signals();  // stdout may be a pipe that nobody empties, and no file is written
  const auto reader = Reader::open(args.file);
  if (!reader) return print_error(reader.status());
  const auto tensor = reader->find(args.tensor);
  if (!tensor)
    return print_error(
        {{Code::kNotFound, "no such tensor; snug inspect lists them"}, args.file, args.tensor, {}});
  std::uint64_t first = 0, count = tensor->raw_bytes;
  if (!args.rows.empty()) {
    std::uint64_t first_row, last_row;
    if (!parse_rows(args.rows, tensor->num_rows(), first_row, last_row))
      return print_error(Code::kUsage, "--rows wants A:B, e.g. 0:16, not " + args.rows);
    const auto range = reader->row_bytes(*tensor, first_row, last_row);
    if (!range) return print_error(range.status());
    std::tie(first, count) = *range;
  }
  if (is_terminal(STDOUT_FILENO) && !args.force)
    return print_error(Code::kUsage,
                       "not writing binary data to a terminal; redirect it, or use --force");
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(count, kPieceBytes)));
  for (std::uint64_t done = 0; done < count; done += piece.size()) {
    piece.resize(static_cast<std::size_t>(std::min(count - done, kPieceBytes)));
    if (StoreStatus s = reader->read_bytes(*tensor, first + done, piece, args.num_threads); !s.ok())
      return print_error(s);
    if (!write_stdout(piece.data(), piece.size())) return stdout_error();
  }
  return 0;
}

}  // namespace

void add_cat(CLI::App& app, int& exit_code) {
  auto* cmd = app.add_subcommand("cat", "Write the raw bytes of one tensor to stdout");
  auto args = std::make_shared<CatArgs>();
  cmd->add_option("FILE", args->file, "A plain or compressed safetensors file")->required();
  cmd->add_option("TENSOR", args->tensor, "Name of the tensor")->required();
  cmd->add_option("--rows", args->rows, "Rows A to B - 1 of the first dimension")->type_name("A:B");
  add_threads(*cmd, args->num_threads);
  cmd->add_flag("-f,--force", args->force, "Write even to a terminal");
  cmd->footer(
      "Only the blocks that hold the rows are read and decoded.\n\n"
      "Example:\n  snug cat model.snug.safetensors model.norm.weight > norm.bin\n");
  cmd->callback([args, &exit_code] { exit_code = run_cat(*args); });
}

}  // namespace snug::cli
