// The C ABI: a thin skin over snug/codec.h.
#include <cstring>
#include <new>
#include <span>
#include <string>

#include "capi/convert.h"
#include "snug/codec.h"
#include "snug/snug.h"

namespace {

using snug::Code;
using snug::Codec;
using snug::DType;
using snug::EncodeOptions;
using snug::Result;
using snug::Status;
using snug::capi::finish;
using snug::capi::in;
using snug::capi::is_null;
using snug::capi::kNullBuffer;
using snug::capi::out;
using snug::capi::report;

static_assert(SNUG_NO_DEVICE == static_cast<int>(Code::kNoDevice));
static_assert(SNUG_TIMEOUT == static_cast<int>(Code::kTimeout));
static_assert(SNUG_PEER == static_cast<int>(Code::kPeer));
static_assert(SNUG_WRONG_BASE == static_cast<int>(Code::kWrongBase));
static_assert(SNUG_BOOL == static_cast<int>(DType::kBool) && SNUG_BOOL + 1 == snug::kNumDTypes);
static_assert(SNUG_ENTROPY == static_cast<int>(Codec::kEntropy) &&
              SNUG_NUM_CODECS == snug::kNumCodecs);
static_assert(SNUG_NOWHERE == snug::kNowhere);

// A number that is no enumerator of a byte-sized enum must not become one by wrapping around.
template <class Enum>
Enum to_enum(int number) noexcept {
  return static_cast<Enum>(number >= 0 && number <= 255 ? number : 255);
}

EncodeOptions to_cpp(const snug_encode_options* options) noexcept {
  if (options == nullptr) return {};
  return {to_enum<DType>(options->dtype), to_enum<Codec>(options->codec), options->log2_block,
          options->num_threads};
}

}  // namespace

size_t snug_encode_bound(size_t raw_bytes, const snug_encode_options* options) {
  return snug::encode_bound(raw_bytes, to_cpp(options));
}

size_t snug_workspace_bytes(void) { return snug::workspace_bytes(); }

int snug_encode(const void* raw, size_t raw_bytes, void* dst, size_t dst_bytes,
                const snug_encode_options* options, size_t* frame_bytes, snug_status* status) {
  if (is_null(raw, raw_bytes) || is_null(dst, dst_bytes)) return report(kNullBuffer, status);
  return finish(snug::encode(in(raw, raw_bytes), out(dst, dst_bytes), to_cpp(options)), frame_bytes,
                status);
}

int snug_encode_in(const void* raw, size_t raw_bytes, void* dst, size_t dst_bytes,
                   const snug_encode_options* options, void* workspace, size_t workspace_bytes,
                   size_t* frame_bytes, snug_status* status) {
  if (is_null(raw, raw_bytes) || is_null(dst, dst_bytes) || is_null(workspace, workspace_bytes))
    return report(kNullBuffer, status);
  return finish(snug::encode(in(raw, raw_bytes), out(dst, dst_bytes), to_cpp(options),
                             out(workspace, workspace_bytes)),
                frame_bytes, status);
}

int snug_inspect(const void* frame, size_t frame_bytes, snug_frame_info* info,
                 snug_status* status) {
  if (is_null(frame, frame_bytes)) return report(kNullBuffer, status);
  const auto result = snug::inspect(in(frame, frame_bytes));
  if (result && info != nullptr)
    *info = {static_cast<int32_t>(result->dtype),
             result->block_elems,
             result->raw_bytes,
             result->frame_bytes,
             result->num_elems,
             result->num_blocks};
  return report(result.status(), status);
}

int snug_decode(const void* frame, size_t frame_bytes, void* dst, size_t dst_bytes, int num_threads,
                size_t* raw_bytes, snug_status* status) {
  if (is_null(frame, frame_bytes) || is_null(dst, dst_bytes)) return report(kNullBuffer, status);
  return finish(snug::decode(in(frame, frame_bytes), out(dst, dst_bytes), num_threads), raw_bytes,
                status);
}

int snug_decode_in(const void* frame, size_t frame_bytes, void* dst, size_t dst_bytes,
                   void* workspace, size_t workspace_bytes, size_t* raw_bytes,
                   snug_status* status) {
  if (is_null(frame, frame_bytes) || is_null(dst, dst_bytes) || is_null(workspace, workspace_bytes))
    return report(kNullBuffer, status);
  return finish(
      snug::decode(in(frame, frame_bytes), out(dst, dst_bytes), out(workspace, workspace_bytes)),
      raw_bytes, status);
}

int snug_decode_range(const void* frame, size_t frame_bytes, uint64_t first, uint64_t count,
                      void* dst, size_t dst_bytes, size_t* written, snug_status* status) {
  if (is_null(frame, frame_bytes) || is_null(dst, dst_bytes)) return report(kNullBuffer, status);
  return finish(snug::decode_range(in(frame, frame_bytes), first, count, out(dst, dst_bytes)),
                written, status);
}

int snug_verify(const void* frame, size_t frame_bytes, snug_status* status) {
  if (is_null(frame, frame_bytes)) return report(kNullBuffer, status);
  return report(snug::verify(in(frame, frame_bytes)), status);
}

int snug_frame_stats_of(const void* frame, size_t frame_bytes, snug_frame_stats* stats,
                        snug_status* status) {
  if (is_null(frame, frame_bytes)) return report(kNullBuffer, status);
  const auto result = snug::frame_stats(in(frame, frame_bytes));
  if (result && stats != nullptr) {
    static_assert(sizeof *stats == sizeof *result);
    std::memcpy(stats->num_blocks, result->num_blocks, sizeof stats->num_blocks);
    std::memcpy(stats->num_bytes, result->num_bytes, sizeof stats->num_bytes);
  }
  return report(result.status(), status);
}

size_t snug_status_text(const snug_status* status, char* buffer, size_t buffer_bytes) {
  Status cpp;
  if (status != nullptr)
    cpp = {static_cast<Code>(status->code),
           status->what != nullptr ? status->what : "",
           status->block,
           status->byte,
           status->found,
           status->expected};
  try {
    return snug::capi::write_text(snug::to_string(cpp), buffer, buffer_bytes);
  } catch (const std::bad_alloc&) {
    if (buffer != nullptr && buffer_bytes != 0) buffer[0] = '\0';
    return 0;
  }
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
