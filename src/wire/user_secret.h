// wire/user_secret.h - the token that all processes of one user on one host share without being
// told: a file that only this user can read, made at first use.
#pragma once
#include <string>

#include "snug/status.h"

namespace snug::wire {

// From $XDG_CONFIG_HOME/snug/secret or ~/.config/snug/secret. Errors: kIo if it cannot be read or
// made, kUsage if other users could have read or written it.
Result<std::string> user_secret();

}  // namespace snug::wire
