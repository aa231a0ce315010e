// The C ABI of deltas: a thin skin over snug/delta.h.
#include "capi/convert.h"
#include "snug/delta.h"
#include "snug/snug.h"

namespace {

using snug::Code;
using snug::DType;
using snug::Result;
using snug::Status;
using snug::capi::finish;
using snug::capi::in;
using snug::capi::is_null;
using snug::capi::kNullBuffer;
using snug::capi::out;
using snug::capi::report;

// A number that is no dtype must not become one by wrapping around.
snug::delta::Options to_cpp(const snug_delta_options* options) noexcept {
  if (options == nullptr) return {};
  const int dtype = options->dtype >= 0 && options->dtype <= 255 ? options->dtype : 255;
  return {static_cast<DType>(dtype), options->log2_block, options->allow_frame != 0,
          options->num_threads};
}

}  // namespace

uint64_t snug_tensor_hash(const void* tensor, size_t num_bytes, int num_threads) {
  return snug::delta::tensor_hash(in(tensor, tensor == nullptr ? 0 : num_bytes), num_threads);
}

size_t snug_delta_bound(size_t raw_bytes, const snug_delta_options* options) {
  return snug::delta::encode_bound(raw_bytes, to_cpp(options));
}

int snug_delta_encode(const void* base, const void* next, size_t raw_bytes, void* dst,
                      size_t dst_bytes, const snug_delta_options* options, size_t* delta_bytes,
                      snug_status* status) {
  if (is_null(next, raw_bytes) || is_null(dst, dst_bytes)) return report(kNullBuffer, status);
  const auto to = out(dst, dst_bytes);
  return finish(base == nullptr ? snug::delta::encode_full(in(next, raw_bytes), to, to_cpp(options))
                                : snug::delta::encode(in(base, raw_bytes), in(next, raw_bytes), to,
                                                      to_cpp(options)),
                delta_bytes, status);
}

int snug_delta_inspect(const void* delta, size_t delta_bytes, snug_delta_info* info,
                       snug_status* status) {
  if (is_null(delta, delta_bytes)) return report(kNullBuffer, status);
  const auto result = snug::delta::inspect(in(delta, delta_bytes));
  if (result && info != nullptr)
    *info = {static_cast<int32_t>(result->dtype),
             result->needs_base,
             result->raw_bytes,
             result->delta_bytes,
             result->num_changed,
             result->base_hash,
             result->target_hash,
             result->num_blocks,
             result->block_elems,
             0};
  return report(result.status(), status);
}

int snug_delta_apply(const void* delta, size_t delta_bytes, const void* base, size_t base_bytes,
                     void* dst, size_t dst_bytes, int num_threads, size_t* raw_bytes,
                     snug_status* status) {
  if (is_null(delta, delta_bytes) || is_null(base, base_bytes) || is_null(dst, dst_bytes))
    return report(kNullBuffer, status);
  return finish(snug::delta::apply(in(delta, delta_bytes), in(base, base_bytes),
                                   out(dst, dst_bytes), num_threads),
                raw_bytes, status);
}

int snug_delta_apply_in_place(const void* delta, size_t delta_bytes, void* tensor,
                              size_t tensor_bytes, int num_threads, snug_status* status) {
  if (is_null(delta, delta_bytes) || is_null(tensor, tensor_bytes))
    return report(kNullBuffer, status);
  return report(
      snug::delta::apply_in_place(in(delta, delta_bytes), out(tensor, tensor_bytes), num_threads),
      status);
}

int snug_delta_invert(const void* delta, size_t delta_bytes, const void* base, size_t base_bytes,
                      void* dst, size_t dst_bytes, int num_threads, size_t* inverse_bytes,
                      snug_status* status) {
  if (is_null(delta, delta_bytes) || is_null(base, base_bytes) || is_null(dst, dst_bytes))
    return report(kNullBuffer, status);
  return finish(snug::delta::invert(in(delta, delta_bytes), in(base, base_bytes),
                                    out(dst, dst_bytes), num_threads),
                inverse_bytes, status);
}
