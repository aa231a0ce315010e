// snug/tensor.h - element types, codecs, and what the header of a frame says.
#pragma once
#include <cstddef>
#include <cstdint>

namespace snug {

// Numbers are part of the format and never change. Types that differ only in signedness share
// one entry: compression sees bytes, not arithmetic.
enum class DType : std::uint8_t {
  kBytes = 0,  // opaque bytes, also U8 and block scales (E8M0)
  kBF16 = 1,
  kF16 = 2,
  kF32 = 3,
  kF64 = 4,
  kF8E4M3 = 5,
  kF8E5M2 = 6,
  kF4 = 7,  // two values per byte; an "element" is that byte
  kI8 = 8,
  kI16 = 9,
  kI32 = 10,
  kI64 = 11,
  kBool = 12,
};

// One row for each DType, in the order of the numbers. A new type starts with a row here; the
// static_asserts of src/frame/dtype.cpp and of other tables then ask for the rest.
struct DTypeInfo {
  DType dtype;
  const char* name;
  std::size_t elem_bytes;
  int exponent_bits = 0;  // floats with a sign bit above the exponent; else 0
  int mantissa_bits = 0;
};
inline constexpr DTypeInfo kDTypes[] = {
    {DType::kBytes, "bytes", 1},
    {DType::kBF16, "bf16", 2, 8, 7},
    {DType::kF16, "f16", 2, 5, 10},
    {DType::kF32, "f32", 4, 8, 23},
    {DType::kF64, "f64", 8, 11, 52},
    {DType::kF8E4M3, "f8_e4m3", 1, 4, 3},
    {DType::kF8E5M2, "f8_e5m2", 1, 5, 2},
    {DType::kF4, "f4", 1},
    {DType::kI8, "i8", 1},
    {DType::kI16, "i16", 2},
    {DType::kI32, "i32", 4},
    {DType::kI64, "i64", 8},
    {DType::kBool, "bool", 1},
};
inline constexpr int kNumDTypes = static_cast<int>(sizeof kDTypes / sizeof kDTypes[0]);

// The row of a type; that of kBytes for a number that is no DType.
constexpr const DTypeInfo& dtype_info(DType dtype) noexcept {
  return kDTypes[static_cast<int>(dtype) < kNumDTypes ? static_cast<int>(dtype) : 0];
}

enum class Codec : std::uint8_t {
  kRaw = 0,
  kConstant = 1,
  kFixed = 2,    // 12 bits per BF16 value, one permute to decode
  kEntropy = 3,  // about 10.6 bits per BF16 value
};
inline constexpr int kNumCodecs = 4;

// The functions below do not use kDTypes: GPU code calls them too, and cannot.

// Bytes of one element; 0 for a number that is no DType.
constexpr std::size_t elem_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::kBytes:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF4:
    case DType::kI8:
    case DType::kBool: return 1;
    case DType::kBF16:
    case DType::kF16:
    case DType::kI16: return 2;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF64:
    case DType::kI64: return 8;
  }
  return 0;
}

// Types of one value an element whose top bit is a sign.
constexpr bool has_sign_bit(DType dtype) noexcept {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32 ||
         dtype == DType::kF64 || dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2;
}
// Types whose top byte, the sign taken out, holds exponent bits only: few different values.
constexpr bool has_exponent_plane(DType dtype) noexcept {
  return dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kF64;
}
// Types that Codec::kFixed compresses; others it leaves raw.
constexpr bool has_fixed_codec(DType dtype) noexcept {
  return dtype == DType::kBF16 || dtype == DType::kF32;
}

const char* dtype_name(DType dtype) noexcept;  // "bf16", "f8_e4m3", ...
const char* codec_name(Codec codec) noexcept;  // "raw", "entropy", ...

struct FrameInfo {
  DType dtype = DType::kBytes;
  std::uint64_t raw_bytes = 0;    // size after decoding
  std::uint64_t frame_bytes = 0;  // size of the whole frame
  std::uint64_t num_elems = 0;    // whole elements in raw_bytes
  std::uint64_t num_blocks = 0;
  std::uint32_t block_elems = 0;  // elements in every block but the last
};

}  // namespace snug
