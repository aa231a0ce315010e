// store/config_mark.h - how config.json says that the tensors of a folder are compressed.
//
// transformers, vLLM and SGLang choose the code that reads a folder by "quantization_config" in
// its config.json. Compression adds one, the mark; a restored folder lacks it again.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "store/file_io.h"

namespace snug::store {

inline constexpr char kConfigName[] = "config.json";

enum class ConfigState {
  kOther,      // no JSON object, or too long to be a configuration
  kPlain,      // can be marked
  kQuantized,  // has a quantization_config of its own, which a mark would hide
  kMarked,
};

// What becomes of a config.json, if it is plain when compressed, or marked when restored: the bytes
// [begin, end) are replaced by `text`.
struct ConfigMark {
  ConfigState state = ConfigState::kOther;
  std::uint64_t begin = 0, end = 0;  // marked: the mark
  std::string text;                  // plain: the mark to insert at `begin`
  bool is_edited = false;            // marked: the rest is not what was compressed
};

ConfigMark find_mark(std::string_view config);
StoreResult<ConfigMark> find_mark(const File& config);

}  // namespace snug::store
