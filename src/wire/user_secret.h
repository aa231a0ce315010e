// wire/user_secret.h - where tokens come from: the caller, the environment, or, on one host, a file
// that all processes of one user share without being told. Only this user can read it, and it is
// made at first use.
#pragma once
#include <string>

#include "snug/status.h"

namespace snug::wire {

// kUsage if it is too short or too long.
Status check_token(const std::string& token) noexcept;

// Whether it has the form of make_token (snug/wire.h), which promises 256 bits that nobody chose.
bool is_random_token(const std::string& token) noexcept;

// `given`, or the variable SNUG_TOKEN if that is empty. Empty if there is neither.
Result<std::string> given_token(const std::string& given);

// From $XDG_CONFIG_HOME/snug/secret or ~/.config/snug/secret. Errors: kIo if it cannot be read or
// made, kUsage if other users could have read or written it.
Result<std::string> user_secret();

}  // namespace snug::wire
