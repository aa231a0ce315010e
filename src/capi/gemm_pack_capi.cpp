// The C ABI of what needs no GPU: packing on the CPU and the tuning table.
#include "capi/gemm_capi.h"

using snug::capi::kNull;
using snug::capi::report;
using snug::capi::write_text;

extern "C" {

size_t snug_gemm_packed_bound(uint64_t n, uint64_t k, int kind) {
  return snug::gemm::packed_bound(n, k, static_cast<snug::gemm::Kind>(kind));
}

int snug_gemm_pack_host(const void* w, uint64_t ld, uint64_t n, uint64_t k, int kind, void* dst,
                        size_t dst_bytes, size_t* used_bytes, snug_status* status) {
  if (w == nullptr || (dst == nullptr && dst_bytes != 0)) return report(kNull, status);
  const auto used = snug::gemm::pack_host(static_cast<const std::uint16_t*>(w), ld, n, k,
                                          static_cast<snug::gemm::Kind>(kind),
                                          {static_cast<std::byte*>(dst), dst_bytes});
  if (used.ok() && used_bytes != nullptr) *used_bytes = *used;
  return report(used.status(), status);
}

int snug_gemm_unpack_host(const void* packed, size_t packed_bytes, void* w, uint64_t ld,
                          snug_status* status) {
  if (w == nullptr || (packed == nullptr && packed_bytes != 0)) return report(kNull, status);
  return report(snug::gemm::unpack_host({static_cast<const std::byte*>(packed), packed_bytes},
                                        static_cast<std::uint16_t*>(w), ld),
                status);
}

int snug_gemm_inspect(const void* host_header, size_t header_bytes, uint64_t num_bytes,
                      snug_gemm_matrix* matrix, snug_status* status) {
  if (matrix == nullptr || (host_header == nullptr && header_bytes != 0))
    return report(kNull, status);
  const auto found =
      snug::gemm::inspect({static_cast<const std::byte*>(host_header), header_bytes}, num_bytes);
  if (found.ok()) *matrix = snug::gemm::capi_matrix(*found);
  return report(found.status(), status);
}

size_t snug_gemm_tuning_text(char* buffer, size_t buffer_bytes) {
  return write_text(snug::gemm::tuning_text(), buffer, buffer_bytes);
}

int snug_gemm_load_tuning(const char* text, snug_status* status) {
  if (text == nullptr) return report({snug::Code::kUsage, "no text"}, status);
  return report(snug::gemm::load_tuning(text), status);
}

}  // extern "C"
