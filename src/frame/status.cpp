#include "snug/status.h"

namespace snug {

const char* code_name(Code code) noexcept {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kUsage: return "usage";
    case Code::kBadMagic: return "bad magic";
    case Code::kUnsupportedVersion: return "unsupported version";
    case Code::kCorrupt: return "corrupt";
    case Code::kDstTooSmall: return "destination too small";
    case Code::kIo: return "io";
    case Code::kExists: return "exists";
    case Code::kNotFound: return "not found";
    case Code::kInternal: return "internal";
    case Code::kNoDevice: return "no device";
    case Code::kTimeout: return "timeout";
    case Code::kPeer: return "peer";
    case Code::kWrongBase: return "wrong base";
  }
  return "unknown";
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
