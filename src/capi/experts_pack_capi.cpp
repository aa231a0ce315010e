// The C ABI of the part of snug/experts.h that needs no GPU: sizes and packing.
#include "capi/experts_convert.h"

namespace gemm = snug::gemm;
using snug::capi::call;
using snug::capi::cpp;
using snug::capi::deref;
using snug::capi::in;
using snug::capi::out;
using snug::capi::shape_or_none;

size_t snug_experts_slot_bytes(const snug_experts_shape* shape) {
  return gemm::slot_bytes(shape_or_none(shape));
}

size_t snug_experts_bank_bytes(const snug_experts_shape* shape) {
  return gemm::bank_bytes(shape_or_none(shape));
}

int snug_experts_pack_host(const void* w, const snug_experts_shape* shape, void* bank,
                           size_t bank_bytes, snug_status* status) {
  return call(status, [&] {
    return gemm::pack_bank_host(&deref(static_cast<const std::uint16_t*>(w)), cpp(shape),
                                out(bank, bank_bytes));
  });
}

int snug_experts_unpack_host(const void* bank, size_t bank_bytes, const snug_experts_shape* shape,
                             uint64_t expert, void* w, size_t w_bytes, snug_status* status) {
  return call(status, [&] {
    return gemm::unpack_expert_host(
        in(bank, bank_bytes), cpp(shape), expert,
        snug::capi::span_of(&deref(static_cast<std::uint16_t*>(w)), w_bytes / 2));
  });
}

int snug_experts_inspect_host(const void* bank, size_t bank_bytes, const snug_experts_shape* shape,
                              snug_status* status) {
  return call(status, [&] { return gemm::inspect_bank(in(bank, bank_bytes), cpp(shape)); });
}
