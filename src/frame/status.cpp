#include "snug/status.h"

#include "snug/tensor.h"

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

const char* dtype_name(DType dtype) noexcept {
  static constexpr const char* kNames[kNumDTypes] = {"bytes",   "bf16",    "f16", "f32", "f64",
                                                     "f8_e4m3", "f8_e5m2", "f4",  "i8",  "i16",
                                                     "i32",     "i64",     "bool"};
  const auto i = static_cast<int>(dtype);
  return i < kNumDTypes ? kNames[i] : "unknown";
}

const char* codec_name(Codec codec) noexcept {
  static constexpr const char* kNames[kNumCodecs] = {"raw", "constant", "fixed", "entropy"};
  const auto i = static_cast<int>(codec);
  return i < kNumCodecs ? kNames[i] : "unknown";
}

}  // namespace snug
