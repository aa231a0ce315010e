// The C ABI of snug/codec.h, and of what every C header shares: statuses, names, struct sizes.
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "capi/convert.h"
#include "snug/codec.h"
#include "snug/snug.h"
#include "snug/snug_experts.h"
#include "snug/snug_load.h"

using snug::Code;
using snug::Codec;
using snug::DType;
using snug::capi::call;
using snug::capi::in;
using snug::capi::out;
using snug::capi::to_enum;

namespace {

static_assert(SNUG_NO_DEVICE == static_cast<int>(Code::kNoDevice));
static_assert(SNUG_TIMEOUT == static_cast<int>(Code::kTimeout));
static_assert(SNUG_PEER == static_cast<int>(Code::kPeer));
static_assert(SNUG_WRONG_BASE == static_cast<int>(Code::kWrongBase));
static_assert(SNUG_BOOL == static_cast<int>(DType::kBool) && SNUG_BOOL + 1 == snug::kNumDTypes);
static_assert(SNUG_ENTROPY == static_cast<int>(Codec::kEntropy) &&
              SNUG_NUM_CODECS == snug::kNumCodecs);
static_assert(SNUG_NOWHERE == snug::kNowhere);

snug::EncodeOptions to_cpp(const snug_encode_options* options) noexcept {
  if (options == nullptr) return {};
  return {to_enum<DType>(options->dtype), to_enum<Codec>(options->codec), options->log2_block,
          options->num_threads};
}

}  // namespace

size_t snug_encode_bound_bytes(size_t raw_bytes, const snug_encode_options* options) {
  return snug::encode_bound(raw_bytes, to_cpp(options));
}

size_t snug_workspace_bytes(void) { return snug::workspace_bytes(); }

int snug_encode(const void* raw, size_t raw_bytes, void* dst, size_t dst_bytes,
                const snug_encode_options* options, size_t* frame_bytes, snug_status* status) {
  return call(status, frame_bytes, [&] {
    return snug::encode(in(raw, raw_bytes), out(dst, dst_bytes), to_cpp(options));
  });
}

int snug_encode_in(const void* raw, size_t raw_bytes, void* dst, size_t dst_bytes,
                   const snug_encode_options* options, void* workspace, size_t workspace_bytes,
                   size_t* frame_bytes, snug_status* status) {
  return call(status, frame_bytes, [&] {
    return snug::encode(in(raw, raw_bytes), out(dst, dst_bytes), to_cpp(options),
                        out(workspace, workspace_bytes));
  });
}

int snug_inspect(const void* frame, size_t frame_bytes, snug_frame_info* info,
                 snug_status* status) {
  return call(
      status, info, [&] { return snug::inspect(in(frame, frame_bytes)); },
      [](const snug::FrameInfo& found) -> snug_frame_info {
        return {static_cast<int32_t>(found.dtype),
                found.block_elems,
                found.raw_bytes,
                found.frame_bytes,
                found.num_elems,
                found.num_blocks};
      });
}

int snug_decode(const void* frame, size_t frame_bytes, void* dst, size_t dst_bytes, int num_threads,
                size_t* raw_bytes, snug_status* status) {
  return call(status, raw_bytes, [&] {
    return snug::decode(in(frame, frame_bytes), out(dst, dst_bytes), num_threads);
  });
}

int snug_decode_in(const void* frame, size_t frame_bytes, void* dst, size_t dst_bytes,
                   void* workspace, size_t workspace_bytes, size_t* raw_bytes,
                   snug_status* status) {
  return call(status, raw_bytes, [&] {
    return snug::decode(in(frame, frame_bytes), out(dst, dst_bytes),
                        out(workspace, workspace_bytes));
  });
}

int snug_decode_range(const void* frame, size_t frame_bytes, uint64_t first, uint64_t count,
                      void* dst, size_t dst_bytes, size_t* written, snug_status* status) {
  return call(status, written, [&] {
    return snug::decode_range(in(frame, frame_bytes), first, count, out(dst, dst_bytes));
  });
}

int snug_verify(const void* frame, size_t frame_bytes, snug_status* status) {
  return call(status, [&] { return snug::verify(in(frame, frame_bytes)); });
}

int snug_frame_stats_of(const void* frame, size_t frame_bytes, snug_frame_stats* stats,
                        snug_status* status) {
  return call(
      status, stats, [&] { return snug::frame_stats(in(frame, frame_bytes)); },
      [](const snug::FrameStats& found) {
        snug_frame_stats to;
        static_assert(sizeof to == sizeof found);
        std::memcpy(&to, &found, sizeof to);
        return to;
      });
}

size_t snug_status_text(const snug_status* status, char* buffer, size_t buffer_bytes) {
  std::string text;
  call(nullptr, [&] {
    const snug_status& from = snug::capi::deref(status);
    const char* what = from.what != nullptr ? from.what : "";
    text = from.line[0] != '\0'
               ? from.line
               : to_string(snug::Status{static_cast<Code>(from.code), what, from.block, from.byte,
                                        from.found, from.expected});
    return snug::Status{};
  });
  return snug::capi::write_text(text, buffer, buffer_bytes);
}

const char* snug_code_name(int code) { return snug::code_name(static_cast<Code>(code)); }
const char* snug_dtype_name(int dtype) { return snug::dtype_name(to_enum<DType>(dtype)); }
const char* snug_codec_name(int codec) { return snug::codec_name(to_enum<Codec>(codec)); }
size_t snug_elem_bytes(int dtype) { return snug::elem_bytes(to_enum<DType>(dtype)); }

const char* snug_simd_target(void) { return snug::simd_target(); }

const char* snug_simd_target_at(size_t idx) {
  const auto targets = snug::simd_targets();
  return idx < targets.size() ? targets[idx] : nullptr;
}

const char* snug_version(void) { return SNUG_VERSION_STRING; }

size_t snug_struct_bytes(const char* name) {
#define SNUG_SIZE_OF(type) \
  { #type, sizeof(type) }
  static constexpr std::pair<std::string_view, size_t> kSizes[] = {
      SNUG_SIZE_OF(snug_status),        SNUG_SIZE_OF(snug_encode_options),
      SNUG_SIZE_OF(snug_frame_info),    SNUG_SIZE_OF(snug_frame_stats),
      SNUG_SIZE_OF(snug_delta_options), SNUG_SIZE_OF(snug_delta_info),
      SNUG_SIZE_OF(snug_reader_info),   SNUG_SIZE_OF(snug_tensor_info),
      SNUG_SIZE_OF(snug_metadata_info), SNUG_SIZE_OF(snug_load_target),
      SNUG_SIZE_OF(snug_wire_options),  SNUG_SIZE_OF(snug_wire_stats),
      SNUG_SIZE_OF(snug_segment),       SNUG_SIZE_OF(snug_cuda_result),
      SNUG_SIZE_OF(snug_cuda_options),  SNUG_SIZE_OF(snug_cuda_item),
      SNUG_SIZE_OF(snug_gemm_matrix),   SNUG_SIZE_OF(snug_cuda_delta_options),
      SNUG_SIZE_OF(snug_gemm_plan),     SNUG_SIZE_OF(snug_gemm_choice),
      SNUG_SIZE_OF(snug_experts_shape), SNUG_SIZE_OF(snug_experts_args),
      SNUG_SIZE_OF(snug_experts_plan),  SNUG_SIZE_OF(snug_grouped_args)};
#undef SNUG_SIZE_OF
  if (name == nullptr) return 0;
  for (const auto& [known, num_bytes] : kSizes)
    if (known == name) return num_bytes;
  return 0;
}
