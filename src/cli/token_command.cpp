// snug token: a new token for the two sides of the wire.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "snug/wire.h"

namespace snug::cli {
namespace {

// Readable by this user alone from its first moment, and never in the place of another.
int write_token(const std::string& file, const std::string& line) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 && errno == EEXIST)
    return print_error(Code::kExists, printable(file) + " exists; delete it for a new token");
  const ssize_t n = fd < 0 ? -1 : ::write(fd, line.data(), line.size());
  int error = n == static_cast<ssize_t>(line.size()) ? 0 : n < 0 ? errno : ENOSPC;
  if (fd >= 0 && ::close(fd) != 0 && error == 0) error = errno;
  if (error == 0) return 0;
  if (fd >= 0) ::unlink(file.c_str());
  return print_error(Code::kIo, "cannot write " + printable(file) + ": " + std::strerror(error));
}

int run_token(const std::string& file) {
  const auto token = wire::make_token();
  if (!token) return print_error(token.status().code, token.status().what);
  return file.empty() ? print_stdout(*token + "\n") : write_token(file, *token + "\n");
}

}  // namespace

void add_token(CLI::App& app, int& exit_code) {
  auto* cmd = app.add_subcommand("token", "Make a token for send, recv and sync between hosts");
  auto file = std::make_shared<std::string>();
  cmd->add_option("FILE", *file, "New file, readable only by you; default: print the token");
  cmd->footer(
      "Both sides need the same token. Any text of 16 to 4095 bytes will do, but tokens\n"
      "that this command did not make cost some 10 ms at the start of a transfer, to\n"
      "make guessing slow.\n\n"
      "Example:\n"
      "  snug token secret      # copy it to the other host, for --token-file\n");
  cmd->callback([file, &exit_code] { exit_code = run_token(*file); });
}

}  // namespace snug::cli
