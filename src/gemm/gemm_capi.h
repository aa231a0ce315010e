// gemm/gemm_capi.h - conversions between snug/gemm.h and its C ABI.
#pragma once
#include <cstring>
#include <string>

#include "snug/gemm.h"
#include "snug/snug_gemm.h"

namespace snug::gemm {

inline constexpr Status kNull{Code::kUsage, "an argument is NULL"};

inline int capi_status(const Status& status, snug_status* out) {
  if (out != nullptr)
    *out = {static_cast<std::int32_t>(status.code),
            0,
            status.what,
            status.block,
            status.byte,
            status.found,
            status.expected};
  return static_cast<int>(status.code);
}

inline snug_gemm_matrix capi_matrix(const Matrix& m) {
  return {m.data, m.num_bytes, m.n, m.k, m.num_patches, static_cast<std::int32_t>(m.kind), 0};
}

inline Matrix cpp_matrix(const snug_gemm_matrix& m) {
  return {m.data, m.num_bytes, m.n, m.k, static_cast<Kind>(m.kind), m.num_patches};
}

// Like snprintf: writes what fits, returns the length of the whole.
inline std::size_t capi_text(const std::string& text, char* buffer, std::size_t buffer_bytes) {
  if (buffer != nullptr && buffer_bytes != 0) {
    const std::size_t length = text.size() < buffer_bytes - 1 ? text.size() : buffer_bytes - 1;
    std::memcpy(buffer, text.data(), length);
    buffer[length] = '\0';
  }
  return text.size();
}

}  // namespace snug::gemm
