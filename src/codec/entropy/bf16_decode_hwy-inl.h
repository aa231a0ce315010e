// Two BF16 blocks from words to elements in one loop.
#if defined(SNUG_CODEC_ENTROPY_BF16_DECODE_HWY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SNUG_CODEC_ENTROPY_BF16_DECODE_HWY_INL_H_
#undef SNUG_CODEC_ENTROPY_BF16_DECODE_HWY_INL_H_
#else
#define SNUG_CODEC_ENTROPY_BF16_DECODE_HWY_INL_H_
#endif

#include <algorithm>

#include "codec/entropy/rans_decode_hwy-inl.h"
#include "codec/palette_hwy-inl.h"

HWY_BEFORE_NAMESPACE();
namespace snug::codec {
namespace HWY_NAMESPACE {

// Restores the elements of a BF16 block group by group: a few writes at a time
// leave for memory while the next symbols are decoded. Eight groups at a time
// cost a quarter of the speed (AVX2, Zen 4).
struct Bf16Writer {
  const Bf16Block& block;
  bool past_caches = is_vector_aligned(block.dst);
  std::size_t num_written = 0;
  std::size_t escapes_used = 0;

  void write_group() {
    std::uint8_t high[2 * kGroupBytes];
    const std::size_t n = std::min(sizeof high, block.num_elems - num_written);
    const std::size_t used = std::min(escapes_used, block.num_escapes);
    escapes_used +=
        unmap_palette(block.stream.symbols + num_written / 2, n, block.palette, block.escape,
                      block.escapes + used, block.num_escapes - used, high);
    const std::uint8_t* low = block.low + num_written;
    std::uint8_t* dst = block.dst + 2 * num_written;
    past_caches ? merge2_as<true, true>(low, high, n, dst)
                : merge2_as<true, false>(low, high, n, dst);
    num_written += n;
  }
};

unsigned decode_bf16_pair(const Bf16Block (&blocks)[2], entropy::Prefetch hint) {
  Decoder<PaletteTables> a(blocks[0].stream), b(blocks[1].stream);
  Bf16Writer writer_a{blocks[0]}, writer_b{blocks[1]};
  Prefetcher prefetcher(hint, 1);
  while (decode_group<2, PaletteTables>({&a, &b})) {
    prefetcher.for_group();
    writer_a.write_group();
    writer_b.write_group();
  }
  while (decode_group<1, PaletteTables>({&a})) writer_a.write_group();
  while (decode_group<1, PaletteTables>({&b})) writer_b.write_group();
  const bool a_intact = a.intact() && writer_a.escapes_used == blocks[0].num_escapes;
  const bool b_intact = b.intact() && writer_b.escapes_used == blocks[1].num_escapes;
  return unsigned{a_intact} | unsigned{b_intact} << 1;
}

}  // namespace HWY_NAMESPACE
}  // namespace snug::codec
HWY_AFTER_NAMESPACE();

#endif  // target toggle
