// gpu/forged_kinds.h - blocks for each way in which the GPU decodes them.
#pragma once
#include "gpu/forged_blocks.h"
#include "support/prng.h"

namespace snug::test {

// Bytes as planes have them, from all but constant to many of which are rare.
enum class Values { kFew, kSteep, kHalfRare, kNibbles };

inline Plane make_plane(std::size_t n, Values values, Prng& prng) {
  Plane plane(n);
  for (auto& v : plane) switch (values) {
      case Values::kFew: v = prng.one_in(60) ? prng.byte() : 120; break;
      case Values::kSteep:
        v = prng.one_in(100) ? prng.byte()
                             : static_cast<std::uint8_t>(120 - __builtin_ctzll(prng.next() | 256));
        break;
      case Values::kHalfRare: v = prng.one_in(2) ? prng.byte() : 120; break;
      case Values::kNibbles:
        v = static_cast<std::uint8_t>(prng.below(6) * 16);
        v = static_cast<std::uint8_t>(v | (prng.one_in(4) ? prng.below(16) : v / 16 * 5 % 16));
    }
  return plane;
}

// A way to decode and blocks that take it.
struct Kind {
  const char* name;
  DType dtype;
  unsigned plane_modes;
  Values low, top;
  CodedAs how;
};
inline constexpr Kind kKinds[] = {
    {"BF16 palette", DType::kBF16, 3 << 2, Values::kSteep, Values::kSteep, {}},
    {"BF16 of one exponent", DType::kBF16, 3 << 2, Values::kSteep, Values::kFew, {1}},
    {"BF16 with many escapes", DType::kBF16, 3 << 2, Values::kSteep, Values::kHalfRare, {1}},
    {"F32 palette", DType::kF32, 3 << 6, Values::kSteep, Values::kSteep, {}},
    {"F32 with many escapes", DType::kF32, 3 << 6, Values::kSteep, Values::kHalfRare, {2}},
    {"BF16 pair", DType::kBF16, 3 << 2 | 2, Values::kFew, Values::kSteep, {}},
    {"BF16 pair with many tables", DType::kBF16, 3 << 2 | 2, Values::kNibbles, Values::kFew, {}},
    {"BF16 pair with many escapes", DType::kBF16, 3 << 2 | 2, Values::kFew, Values::kHalfRare, {1}},
    {"F16 bytes", DType::kF16, 2 << 2, Values::kSteep, Values::kSteep, {}},
    {"F16 bytes with all tables", DType::kF16, 2 << 2, Values::kSteep, Values::kNibbles, {1, true}},
    {"I16 bytes", DType::kI16, 2 << 2, Values::kSteep, Values::kFew, {}},
    {"E4M3 bytes", DType::kF8E4M3, 2, Values::kFew, Values::kNibbles, {}},
    {"bytes with all tables", DType::kBytes, 2, Values::kFew, Values::kSteep, {1, true}},
    {"bytes by a palette", DType::kBytes, 3, Values::kFew, Values::kSteep, {}},
    {"BF16 planes the other way round", DType::kBF16, 2 << 2 | 3, Values::kFew, Values::kFew, {}},
    {"F64 planes", DType::kF64, 0xE7D9, Values::kFew, Values::kFew, {}},
    {"F32 planes", DType::kF32, 0x7B, Values::kFew, Values::kFew, {}},
};

inline ForgedBlock make_block(const Kind& kind, std::size_t n, std::uint64_t seed) {
  Prng prng(seed);
  std::vector<Plane> planes;
  for (std::size_t p = 0; p + 1 < elem_bytes(kind.dtype); ++p)
    planes.push_back(make_plane(n, kind.low, prng));
  planes.push_back(make_plane(n, kind.top, prng));
  return forge_block(planes, kind.plane_modes, kind.how);
}

// 25 blocks of all kinds that a type has, raw and constant ones among them.
inline std::vector<ForgedBlock> make_mixed_blocks(DType dtype, Prng& prng) {
  std::vector<ForgedBlock> blocks;
  while (blocks.size() < 25) {
    const Kind& kind = kKinds[prng.below(std::size(kKinds))];
    if (kind.dtype == dtype) blocks.push_back(make_block(kind, 4096, prng.next()));
  }
  for (std::size_t i = 0; i < blocks.size(); i += 1 + prng.below(4)) {
    ForgedBlock& block = blocks[i];
    block.codec = prng.one_in(2) ? Codec::kRaw : Codec::kConstant;
    block.plane_modes = 0;
    block.payload.resize(block.codec == Codec::kRaw ? 4096 * elem_bytes(dtype) : 16);
    for (auto& v : block.payload) v = prng.byte();
  }
  return blocks;
}

}  // namespace snug::test
