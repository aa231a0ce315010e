// capi/convert.h - what every C ABI file does between C's arguments and C++'s.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "snug/snug.h"
#include "snug/status.h"

namespace snug::capi {

inline constexpr Status kNull{Code::kUsage, "an argument is NULL"};
inline constexpr Status kNullBuffer{Code::kUsage, "a buffer is NULL but its size is not 0"};

inline std::span<const std::byte> in(const void* data, std::size_t num_bytes) noexcept {
  return {static_cast<const std::byte*>(data), num_bytes};
}
inline std::span<std::byte> out(void* data, std::size_t num_bytes) noexcept {
  return {static_cast<std::byte*>(data), num_bytes};
}
inline bool is_null(const void* data, std::size_t num_bytes) noexcept {
  return data == nullptr && num_bytes != 0;
}

inline int report(const Status& from, snug_status* to) noexcept {
  if (to != nullptr)
    *to = {static_cast<int32_t>(from.code),
           0,
           from.what,
           from.block,
           from.byte,
           from.found,
           from.expected};
  return static_cast<int>(from.code);
}

// Stores the value on success; reports either way.
inline int finish(const Result<std::size_t>& result, std::size_t* value,
                  snug_status* status) noexcept {
  if (result && value != nullptr) *value = *result;
  return report(result.status(), status);
}

// Like snprintf: writes what fits, returns the length of the whole.
inline std::size_t write_text(const std::string& text, char* buffer,
                              std::size_t buffer_bytes) noexcept {
  if (buffer != nullptr && buffer_bytes != 0) {
    const std::size_t length = std::min(text.size(), buffer_bytes - 1);
    std::memcpy(buffer, text.data(), length);
    buffer[length] = '\0';
  }
  return text.size();
}

}  // namespace snug::capi
