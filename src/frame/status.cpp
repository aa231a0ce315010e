#include "snug/status.h"

#include <iterator>

namespace snug {

const char* code_name(Code code) noexcept {
  static constexpr const char* kNames[] = {"ok",
                                           "unknown",
                                           "usage",
                                           "bad magic",
                                           "unsupported version",
                                           "corrupt",
                                           "destination too small",
                                           "io",
                                           "exists",
                                           "not found",
                                           "internal",
                                           "no device",
                                           "timeout",
                                           "peer",
                                           "wrong base"};
  static_assert(std::size(kNames) == static_cast<int>(Code::kWrongBase) + 1);
  const auto i = static_cast<std::size_t>(code);
  return i < std::size(kNames) ? kNames[i] : "unknown";
}

std::string to_string(const Status& status) {
  std::string text = code_name(status.code);
  if (status.ok()) return text;
  const char* sep = ": ";
  if (status.block != kNowhere) {
    text += sep + ("block " + std::to_string(status.block));
    sep = ", ";
  }
  if (status.byte != kNowhere) text += sep + ("byte " + std::to_string(status.byte));
  text += ": ";
  text += status.what;
  if (status.found != kNowhere) text += ", found " + std::to_string(status.found);
  if (status.expected != kNowhere) text += ", expected " + std::to_string(status.expected);
  return text;
}

}  // namespace snug
