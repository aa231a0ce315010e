// cli/json_text.h - what --json prints.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace snug::cli {

using Json = nlohmann::ordered_json;  // members stay in the order in which they are written here

// `indent` -1: all in one line. Names of files may be no UTF-8: such bytes are replaced.
inline std::string json_text(const Json& value, int indent = 2) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace snug::cli
