#include "codec/cuda/select_kernel.h"

namespace snug::cuda {
namespace {

enum class Types : std::uint8_t { kBF16, kExponentPlane, kAnyType };  // has_exponent_plane()
enum class Codecs : std::uint8_t { kEntropy, kNotEntropy, kAnyCodec };
enum class Calls : std::uint8_t { kOneTensor, kAnyCall };  // one tensor, contiguous or paged
constexpr std::uint32_t kAnyBlock = ~0u;

struct Row {
  Operation operation;
  Types types;
  Codecs codecs;
  Calls calls;
  std::uint32_t max_block_bytes;
  Kernel kernel;
};

EncodeSlots slots_fixed(DType, Codec, int) { return {1, 0}; }

using enum Operation;
using enum Types;
using enum Codecs;
using enum Calls;
// The first row that matches.
constexpr Row kRows[] = {
    {kEncode, kAnyType, kNotEntropy, kAnyCall, kMaxRingBlock, launch_encode_fixed, slots_fixed},
    {kEncode, kBF16, kEntropy, kAnyCall, kAnyBlock, launch_encode_entropy_bf16, slots_bf16},
    {kEncode, kAnyType, kAnyCodec, kAnyCall, kAnyBlock, launch_encode_entropy_any, slots_any},
    {kDecode, kBF16, kNotEntropy, kOneTensor, kAnyBlock, launch_decode_fixed_bf16},
    {kDecode, kAnyType, kNotEntropy, kAnyCall, kAnyBlock, launch_decode_fixed_any},
    {kDecode, kExponentPlane, kEntropy, kAnyCall, kAnyBlock, launch_decode_entropy_exponent},
    {kDecode, kAnyType, kAnyCodec, kAnyCall, kAnyBlock, launch_decode_entropy_bytes},
};

bool matches(Types types, DType dtype) {
  return types == kAnyType || (types == kBF16 ? dtype == DType::kBF16 : has_exponent_plane(dtype));
}

bool matches(Codecs codecs, Codec codec) {
  return codecs == kAnyCodec || (codecs == kEntropy) == (codec == Codec::kEntropy);
}

}  // namespace

const Kernel& select_kernel(Operation operation, DType dtype, Codec codec, bool is_batch,
                            int log2_block) noexcept {
  const std::size_t block_bytes = elem_bytes(dtype) << log2_block;
  const Row* row = kRows;
  while (row->operation != operation || !matches(row->types, dtype) ||
         !matches(row->codecs, codec) || (is_batch && row->calls == kOneTensor) ||
         block_bytes > row->max_block_bytes)
    ++row;
  return row->kernel;
}

}  // namespace snug::cuda
