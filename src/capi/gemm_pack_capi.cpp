// The C ABI of the part of snug/gemm.h that needs no GPU: packing, and the tuning table.
#include "capi/gpu_convert.h"

namespace gemm = snug::gemm;
using snug::capi::call;
using snug::capi::deref;
using snug::capi::in;
using snug::capi::out;
using snug::capi::to_c;

size_t snug_gemm_packed_bound_bytes(uint64_t n, uint64_t k, int kind) {
  return gemm::packed_bound(n, k, static_cast<gemm::Kind>(kind));
}

int snug_gemm_pack_host(const void* w, uint64_t ld, uint64_t n, uint64_t k, int kind, void* dst,
                        size_t dst_bytes, size_t* used_bytes, snug_status* status) {
  return call(status, used_bytes, [&] {
    return gemm::pack_host(&deref(static_cast<const std::uint16_t*>(w)), ld, n, k,
                           static_cast<gemm::Kind>(kind), out(dst, dst_bytes));
  });
}

int snug_gemm_unpack_host(const void* packed, size_t packed_bytes, void* w, size_t w_bytes,
                          uint64_t ld, snug_status* status) {
  return call(status, [&] {
    return gemm::unpack_host(
        in(packed, packed_bytes),
        snug::capi::span_of(&deref(static_cast<std::uint16_t*>(w)), w_bytes / 2), ld);
  });
}

int snug_gemm_inspect(const void* host_header, size_t header_bytes, uint64_t num_bytes,
                      snug_gemm_matrix* matrix, snug_status* status) {
  return call(status, [&] {
    return to_c(gemm::inspect(in(host_header, header_bytes), num_bytes), deref(matrix));
  });
}

size_t snug_gemm_num_strips(uint64_t n) { return gemm::num_strips(n); }

int snug_gemm_strip_sums_host(const void* packed, size_t packed_bytes, uint64_t* sums,
                              size_t num_sums, snug_status* status) {
  return call(status, [&] {
    return gemm::strip_sums_host(in(packed, packed_bytes), snug::capi::span_of(sums, num_sums));
  });
}

int snug_gemm_verify_host(const void* packed, size_t packed_bytes, const uint64_t* sums,
                          size_t num_sums, snug_status* status) {
  return call(status, [&] {
    return gemm::verify_host(in(packed, packed_bytes), snug::capi::span_of(sums, num_sums));
  });
}

size_t snug_gemm_tuning_text(char* buffer, size_t buffer_bytes) {
  return snug::capi::write_text(gemm::tuning_text(), buffer, buffer_bytes);
}

int snug_gemm_load_tuning(const char* text, snug_status* status) {
  return call(status, [&] { return gemm::load_tuning(&deref(text)); });
}
