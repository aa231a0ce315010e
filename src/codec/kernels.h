// codec/kernels.h - the loops that touch every value, one table per instruction
// set. Kernels neither allocate nor parse: callers validate first. All tables
// give the same bytes for the same input.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/entropy/rans.h"
#include "codec/target_list.h"

namespace snug::codec {

// Kernels read and write exactly what their arguments say, except where one
// says "slack": there it may write this many bytes beyond.
inline constexpr std::size_t kSlackBytes = 64;

// A BF16 block with raw low plane and entropy-coded exponents.
struct Bf16Block {
  entropy::Stream stream;  // its symbols are scratch here
  const std::uint8_t* low;
  const std::uint8_t* palette;  // 16 bytes
  std::uint8_t escape;
  const std::uint8_t* escapes;
  std::size_t num_escapes;
  std::uint8_t* dst;
  std::size_t num_elems;
};

struct Kernels {
  const char* name;

  // Sum of checksum terms (frame/checksum.h) of num_bytes, a multiple of 16.
  std::uint64_t (*checksum_terms)(const std::uint8_t* bytes, std::size_t num_bytes);

  // copy_out, merge2 and decode_bf16_pair may use non-temporal stores; call this before another
  // thread may look at the result.
  void (*finish_writes)();

  // Copies num_bytes, a multiple of 16, to memory that will not be read soon, and may prefetch
  // `next` meanwhile. Returns their checksum_terms.
  std::uint64_t (*copy_out)(const std::uint8_t* src, std::size_t num_bytes, std::uint8_t* dst,
                            std::span<const std::uint8_t> next);

  // 16-bit elements to byte planes and back; `rotate` moves the sign bit below the mantissa first.
  void (*split2)(const std::uint8_t* src, std::size_t n, bool rotate, std::uint8_t* lo,
                 std::uint8_t* hi);
  void (*merge2)(const std::uint8_t* lo, const std::uint8_t* hi, std::size_t n, bool rotate,
                 std::uint8_t* dst);

  // Bytes to 4-bit indices, low nibble first, through `lut`; bytes that map to `escape` are
  // appended to `escapes` (slack). An odd last nibble is 0. Returns the number of escapes.
  std::size_t (*map_palette)(const std::uint8_t* plane, std::size_t n, const std::uint8_t lut[256],
                             std::uint8_t escape, std::uint8_t* nibbles, std::uint8_t* escapes);
  // The inverse. Never reads more than num_escapes and returns how many the
  // nibbles asked for: the block is corrupt if the two differ.
  std::size_t (*unmap_palette)(const std::uint8_t* nibbles, std::size_t n,
                               const std::uint8_t palette[16], std::uint8_t escape,
                               const std::uint8_t* escapes, std::size_t num_escapes,
                               std::uint8_t* plane);

  // Codes one or two independent streams (entropy/rans.h) at once: one alone
  // leaves half of a wide core idle.
  void (*rans_encode)(entropy::EncodeStream* streams, int num_streams, entropy::Prefetch prefetch);
  // Returns a bit mask of the streams that are intact.
  unsigned (*rans_decode)(const entropy::Stream* streams, int num_streams);

  // The nibble plane of the `fixed` codec (docs/format.md): groups of 8 high bytes to 4 bytes, n
  // rounded up to whole groups (values past n are coded as 0). Values outside the palette get index
  // 7 and are appended to `escapes` as position | byte << 24, at most max_escapes of them. Returns
  // how many there are in all.
  std::size_t (*fixed_pack)(const std::uint8_t* high, std::size_t n, const std::uint8_t lut[128],
                            std::uint8_t* nibbles, std::uint8_t* escapes, std::size_t max_escapes);
  // The inverse, escapes left as palette[7].
  void (*fixed_unpack)(const std::uint8_t* nibbles, std::size_t n, const std::uint8_t palette[8],
                       std::uint8_t* high);

  // rans_decode, unmap_palette and merge2 of two BF16 blocks in one loop: moving
  // bytes fills the gaps that the arithmetic leaves. Null where it does not pay.
  // Returns a bit mask of the blocks that are intact, escapes included.
  unsigned (*decode_bf16_pair)(const Bf16Block (&blocks)[2], entropy::Prefetch prefetch);
};

extern const Kernels kScalarKernels;
const Kernels* avx512_kernels() noexcept;  // nullptr where the CPU lacks it
void append_hwy_kernels(TargetList<const Kernels*>& tables) noexcept;  // best first

// The best table this CPU runs, or the one named in SNUG_FORCE. Chosen once.
const Kernels& kernels() noexcept;

// All tables this CPU runs, best first; scalar is last.
std::span<const Kernels* const> all_kernels() noexcept;

}  // namespace snug::codec
