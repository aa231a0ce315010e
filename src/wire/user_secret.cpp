#include "wire/user_secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

#include "os/descriptor.h"
#include "snug/wire.h"

namespace snug::wire {
namespace {

namespace fs = std::filesystem;
using os::Descriptor;

constexpr std::size_t kRandomBytes = 32;  // of a token, written as twice as many hex digits
constexpr std::string_view kRandomPrefix = "snug-", kHexDigits = "0123456789abcdef";
constexpr Status kCannotMake{Code::kIo,
                             "cannot make snug/secret in $XDG_CONFIG_HOME or ~/.config; give a "
                             "token, or set HOME to a folder of yours"};
constexpr Status kCannotRead{Code::kIo, "cannot read snug/secret in $XDG_CONFIG_HOME or ~/.config"};
constexpr Status kExposed{Code::kUsage,
                          "others can read or write snug/secret in $XDG_CONFIG_HOME or ~/.config; "
                          "delete it, and a new one is made"};
constexpr Status kNoSecret{Code::kUsage,
                           "snug/secret in $XDG_CONFIG_HOME or ~/.config is damaged; delete it, "
                           "and a new one is made"};

fs::path config_folder() {
  const char* config = std::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && config[0] == '/') return config;
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return fs::path(home) / ".config";
  passwd entry{}, *found = nullptr;
  std::vector<char> text(16 << 10);
  if (::getpwuid_r(::geteuid(), &entry, text.data(), text.size(), &found) == 0 && found != nullptr)
    return fs::path(entry.pw_dir) / ".config";
  return {};
}

// Nothing if there is no such file.
std::optional<Result<std::string>> read_secret(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0 && errno == ENOENT) return std::nullopt;
  struct stat info;
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return kCannotRead;
  if (info.st_uid != ::geteuid() || (info.st_mode & 077) != 0) return kExposed;
  std::string text(kRandomPrefix.size() + 2 * kRandomBytes, '\0');
  const ssize_t n = ::read(file.get(), text.data(), text.size());
  if (n < 0) return kCannotRead;
  text.resize(static_cast<std::size_t>(n));
  if (is_random_token(text)) return text;
  // Those of earlier versions have no prefix. A newline behind them is not theirs.
  if (text.find_first_not_of(kHexDigits) < 2 * kRandomBytes || text.size() < 2 * kRandomBytes)
    return kNoSecret;
  return text.substr(0, 2 * kRandomBytes);
}

// Complete under a name of its own before it gets the name that others read: of two processes that
// come first at the same time, both then use the file of one.
Status make_secret(const fs::path& path) {
  const auto token = make_token();
  if (!token) return token.status();
  const std::string& text = *token;
  const std::string draft = path.string() + "." + std::to_string(::getpid());
  ::unlink(draft.c_str());  // of a dead process with this number
  const Descriptor file(
      ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.get() < 0) return kCannotMake;
  const bool written =
      ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      ::fsync(file.get()) == 0;
  const bool linked = written && (::link(draft.c_str(), path.c_str()) == 0 || errno == EEXIST);
  ::unlink(draft.c_str());
  return linked ? Status{} : kCannotMake;
}

}  // namespace

Status check_token(const std::string& token) noexcept {
  if (token.size() >= kMinTokenBytes && token.size() <= kMaxTokenBytes) return {};
  return {Code::kUsage, "a token has 16 to 4095 bytes; snug token makes one"};
}

Result<std::string> make_token() noexcept try {
  unsigned char bytes[kRandomBytes];
  if (RAND_bytes(bytes, sizeof bytes) != 1)
    return Status{Code::kIo, "no random bits from the kernel"};
  std::string token(kRandomPrefix);
  for (const unsigned char byte : bytes) {
    token += kHexDigits[byte >> 4];
    token += kHexDigits[byte & 15];
  }
  OPENSSL_cleanse(bytes, sizeof bytes);
  return token;
} catch (const std::bad_alloc&) {
  return Status{Code::kInternal, "out of memory"};
}

bool is_random_token(const std::string& token) noexcept {
  return token.size() == kRandomPrefix.size() + 2 * kRandomBytes &&
         token.starts_with(kRandomPrefix) &&
         token.find_first_not_of(kHexDigits, kRandomPrefix.size()) == std::string::npos;
}

Result<std::string> given_token(const std::string& given) {
  const char* const variable = given.empty() ? std::getenv("SNUG_TOKEN") : nullptr;
  const std::string token = variable != nullptr ? variable : given;
  if (token.empty()) return token;
  if (Status s = check_token(token); !s.ok()) return s;
  return token;
}

Result<std::string> user_secret() {
  const fs::path config = config_folder();
  if (config.empty()) return kCannotMake;
  const fs::path folder = config / "snug", path = folder / "secret";
  if (auto secret = read_secret(path)) return *secret;
  std::error_code error;
  fs::create_directories(config, error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return kCannotMake;
  if (Status s = make_secret(path); !s.ok()) return s;
  const auto secret = read_secret(path);
  return secret ? *secret : Result<std::string>(kCannotMake);
}

}  // namespace snug::wire
