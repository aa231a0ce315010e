// The C ABI of snug/delta.h.
#include "capi/convert.h"
#include "snug/delta.h"
#include "snug/snug.h"

using snug::capi::call;
using snug::capi::in;
using snug::capi::out;

namespace {

snug::delta::Options to_cpp(const snug_delta_options* options) noexcept {
  if (options == nullptr) return {};
  return {snug::capi::to_enum<snug::DType>(options->dtype), options->log2_block,
          options->allow_frame != 0, options->num_threads};
}

}  // namespace

uint64_t snug_tensor_hash(const void* tensor, size_t num_bytes, int num_threads) {
  return snug::delta::tensor_hash({static_cast<const std::byte*>(tensor), tensor ? num_bytes : 0},
                                  num_threads);
}

size_t snug_delta_bound_bytes(size_t raw_bytes, const snug_delta_options* options) {
  return snug::delta::encode_bound(raw_bytes, to_cpp(options));
}

int snug_delta_encode(const void* base, const void* next, size_t raw_bytes, void* dst,
                      size_t dst_bytes, const snug_delta_options* options, size_t* delta_bytes,
                      snug_status* status) {
  return call(status, delta_bytes, [&] {
    const auto to = out(dst, dst_bytes);
    return base == nullptr
               ? snug::delta::encode_full(in(next, raw_bytes), to, to_cpp(options))
               : snug::delta::encode(in(base, raw_bytes), in(next, raw_bytes), to, to_cpp(options));
  });
}

int snug_delta_inspect(const void* delta, size_t delta_bytes, snug_delta_info* info,
                       snug_status* status) {
  return call(
      status, info, [&] { return snug::delta::inspect(in(delta, delta_bytes)); },
      [](const snug::delta::Info& found) -> snug_delta_info {
        return {static_cast<int32_t>(found.dtype),
                found.needs_base,
                found.raw_bytes,
                found.delta_bytes,
                found.num_changed,
                found.base_hash,
                found.target_hash,
                found.num_blocks,
                found.block_elems,
                0};
      });
}

int snug_delta_apply(const void* delta, size_t delta_bytes, const void* base, size_t base_bytes,
                     void* dst, size_t dst_bytes, int num_threads, size_t* raw_bytes,
                     snug_status* status) {
  return call(status, raw_bytes, [&] {
    return snug::delta::apply(in(delta, delta_bytes), in(base, base_bytes), out(dst, dst_bytes),
                              num_threads);
  });
}

int snug_delta_apply_in_place(const void* delta, size_t delta_bytes, void* tensor,
                              size_t tensor_bytes, int num_threads, snug_status* status) {
  return call(status, [&] {
    return snug::delta::apply_in_place(in(delta, delta_bytes), out(tensor, tensor_bytes),
                                       num_threads);
  });
}

int snug_delta_invert(const void* delta, size_t delta_bytes, const void* base, size_t base_bytes,
                      void* dst, size_t dst_bytes, int num_threads, size_t* inverse_bytes,
                      snug_status* status) {
  return call(status, inverse_bytes, [&] {
    return snug::delta::invert(in(delta, delta_bytes), in(base, base_bytes), out(dst, dst_bytes),
                               num_threads);
  });
}
