// Names of element types and codecs; checks that all that is said of a type agrees.
#include "snug/tensor.h"

namespace snug {
namespace {

template <class Check>
constexpr bool holds_for_all(Check check) {
  for (const DTypeInfo& info : kDTypes)
    if (!check(info)) return false;
  return true;
}

static_assert(holds_for_all([](auto& t) { return &t == kDTypes + static_cast<int>(t.dtype); }));
static_assert(holds_for_all([](auto& t) { return elem_bytes(t.dtype) == t.elem_bytes; }));
static_assert(holds_for_all([](auto& t) {
  return has_sign_bit(t.dtype) == (t.exponent_bits > 0);
}));
static_assert(holds_for_all([](auto& t) {
  return has_exponent_plane(t.dtype) == (t.exponent_bits >= 8);
}));
// The fixed codec takes the upper 7 bits of an exponent of 8 for the top byte of an element.
static_assert(holds_for_all([](auto& t) {
  return has_fixed_codec(t.dtype) == (t.exponent_bits == 8);
}));

}  // namespace

const char* dtype_name(DType dtype) noexcept {
  const auto i = static_cast<int>(dtype);
  return i < kNumDTypes ? kDTypes[i].name : "unknown";
}

const char* codec_name(Codec codec) noexcept {
  static constexpr const char* kNames[kNumCodecs] = {"raw", "constant", "fixed", "entropy"};
  const auto i = static_cast<int>(codec);
  return i < kNumCodecs ? kNames[i] : "unknown";
}

}  // namespace snug
