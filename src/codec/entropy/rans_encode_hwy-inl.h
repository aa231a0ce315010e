// Vector rANS encoding: everything a pair of symbols needs is one 16-byte entry;
// division by a frequency is a multiplication by its reciprocal.
#if defined(SNUG_CODEC_ENTROPY_RANS_ENCODE_HWY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SNUG_CODEC_ENTROPY_RANS_ENCODE_HWY_INL_H_
#undef SNUG_CODEC_ENTROPY_RANS_ENCODE_HWY_INL_H_
#else
#define SNUG_CODEC_ENTROPY_RANS_ENCODE_HWY_INL_H_
#endif

#include <bit>

#include "codec/entropy/lane_shuffles.h"
#include "codec/entropy/rans_hwy-inl.h"
#include "codec/entropy/reciprocal.h"

HWY_BEFORE_NAMESPACE();
namespace snug::codec {
namespace HWY_NAMESPACE {

alignas(64) inline constexpr entropy::ShuffleTable kCompress = entropy::make_compress_table();

// One entry a pair of symbols. Encoding a symbol of frequency f at `start` turns
// x into (x / f) * 256 + x % f + start = x + (x / f) * (256 - f) + start.
struct PairEntry {
  std::uint32_t second_reciprocal;
  std::uint32_t first_reciprocal;
  std::uint32_t steps;   // bytes: second's 256 - f, its start, the same of the first
  std::uint32_t limits;  // f1 * f2 - 1 | second's Reciprocal::shift << 16 | first's << 24
};

struct PairTable {
  alignas(64) PairEntry entries[256];

  explicit PairTable(const entropy::Model& model) {
    std::uint16_t first_start[16], second_start[16];
    model.first.starts(first_start);
    for (unsigned first = 0; first < 16; ++first) {
      const unsigned f1 = model.first.freq[first];
      if (f1 == 0) continue;
      const entropy::Table& table = model.table_for_second(first);
      table.starts(second_start);
      for (unsigned second = 0; second < 16; ++second) {
        const unsigned f2 = table.freq[second];
        if (f2 == 0) continue;
        const entropy::Reciprocal r1 = entropy::kReciprocals[f1], r2 = entropy::kReciprocals[f2];
        entries[second << 4 | first] = {
            r2.multiplier, r1.multiplier,
            (256 - f2) | unsigned{second_start[second]} << 8 | (256 - f1) << 16 |
                unsigned{first_start[first]} << 24,
            (f1 * f2 - 1) | unsigned{r2.shift} << 16 | unsigned{r1.shift} << 24};
      }
    }
  }
};

// The fields of the entries of kVecLanes lanes.
struct PairVectors {
  V32 second_reciprocal, first_reciprocal, steps, limits;
};

// Entries of lanes i and, where vectors are twice as long as entries, i + 4.
HWY_INLINE V32 load_entries(const PairTable& table, const std::uint8_t* symbols) {
  const hn::Full128<std::uint32_t> d128;
  const auto at = [&](std::size_t lane) HWY_ATTR {
    return hn::Load(d128, &table.entries[symbols[lane * entropy::kSteps]].second_reciprocal);
  };
#if HWY_MAX_BYTES == 16
  return at(0);
#else
  return hn::Combine(D32(), at(4), at(0));
#endif
}

// `symbols`: the vector's first lane at the step to encode. A 4x4 transpose.
HWY_INLINE PairVectors load_pairs(const PairTable& table, const std::uint8_t* symbols) {
  const D32 d32;
  const D64 d64;
  const V32 a = load_entries(table, symbols), b = load_entries(table, symbols + 4);
  const V32 c = load_entries(table, symbols + 8), d = load_entries(table, symbols + 12);
  const V64 ab_lower = hn::BitCast(d64, hn::InterleaveLower(d32, a, b));
  const V64 ab_upper = hn::BitCast(d64, hn::InterleaveUpper(d32, a, b));
  const V64 cd_lower = hn::BitCast(d64, hn::InterleaveLower(d32, c, d));
  const V64 cd_upper = hn::BitCast(d64, hn::InterleaveUpper(d32, c, d));
  return {hn::BitCast(d32, hn::InterleaveLower(d64, ab_lower, cd_lower)),
          hn::BitCast(d32, hn::InterleaveUpper(d64, ab_lower, cd_lower)),
          hn::BitCast(d32, hn::InterleaveLower(d64, ab_upper, cd_upper)),
          hn::BitCast(d32, hn::InterleaveUpper(d64, ab_upper, cd_upper))};
}

HWY_INLINE V32 multiply_high(V32 a, V32 b) {
  const D32 d32;
  const D64 d64;
  const V64 even = hn::MulEven(a, b);
  const V64 odd = hn::MulEven(hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d64, a))),
                              hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d64, b))));
  return hn::OddEven(hn::BitCast(d32, odd), hn::BitCast(d32, hn::ShiftRight<32>(even)));
}

// One symbol: `packed_shift` and `step` start with its fields and hold others above.
HWY_INLINE V32 encode_symbol(V32 x, V32 reciprocal, V32 packed_shift, V32 step) {
  const D32 d32;
  const V32 shift = hn::And(packed_shift, hn::Set(d32, entropy::Reciprocal::kShiftMask));
  const V32 increment =
      hn::And(hn::ShiftRight<entropy::Reciprocal::kIncrementBit>(packed_shift), hn::Set(d32, 1));
  const V32 quotient = hn::Shr(multiply_high(hn::Add(x, increment), reciprocal), shift);
  const V32 low_byte = hn::Set(d32, 0xFF);
  const V32 complement = hn::And(step, low_byte);
  const V32 start = hn::And(hn::ShiftRight<8>(step), low_byte);
  return hn::Add(hn::Mul(quotient, complement), hn::Add(x, start));
}

HWY_INLINE V32 encode_pair(V32 x, const PairVectors& pair) {
  x = encode_symbol(x, pair.second_reciprocal, hn::ShiftRight<16>(pair.limits), pair.steps);
  return encode_symbol(x, pair.first_reciprocal, hn::ShiftRight<24>(pair.limits),
                       hn::ShiftRight<16>(pair.steps));
}

// One step of one octet. Writes 8 words that end at `word`, of which the last
// ones count, and returns the new end.
HWY_INLINE std::uint16_t* encode_octet(const PairTable& table, const std::uint8_t* symbols,
                                       std::uint16_t* word, V32* x) {
  const D32 d32;
  const hn::RebindToSigned<D32> di32;
  const hn::Full128<std::uint8_t> d128;
  const hn::Full128<std::uint16_t> d16x8;
  const V16x8 words = octet_words(x);
  hn::Mask<D32> full[kVecsPerOctet];
  for (std::size_t v = 0; v < kVecsPerOctet; ++v) {
    const PairVectors pair = load_pairs(table, symbols + v * kVecBytes);
    const V32 upper = hn::ShiftRight<16>(x[v]);
    const V32 limit = hn::And(pair.limits, hn::Set(d32, 0xFFFF));
    full[v] = hn::RebindMask(d32, hn::Gt(hn::BitCast(di32, upper), hn::BitCast(di32, limit)));
    x[v] = encode_pair(hn::IfThenElse(full[v], upper, x[v]), pair);
  }
  const std::size_t bits = octet_bits(full);
  const auto out =
      hn::TableLookupBytesOr0(hn::BitCast(d128, words), hn::Load(d128, kCompress[bits].bytes));
  hn::StoreU(hn::BitCast(d16x8, out), d16x8, word - 8);
  return word - std::popcount(bits);
}

void rans_encode_one(entropy::EncodeStream& stream, Prefetcher& prefetcher) {
  const PairTable table(*stream.model);
  States states;
  for (auto& x : states.x) x = hn::Set(D32(), entropy::kStateLow);
  std::uint16_t* word = stream.words_end;
  for (const std::uint8_t* group = stream.symbols + stream.num_bytes; group != stream.symbols;) {
    group -= entropy::kGroupBytes;
    prefetcher.for_group();
    for (int step = entropy::kSteps; step-- > 0;) {
      HWY_UNROLL(4)
      for (std::size_t octet = kOctets; octet-- > 0;)
        word = encode_octet(table, group + 8 * entropy::kSteps * octet + step, word,
                            states.x + octet * kVecsPerOctet);
    }
  }
  states.store(stream.states);
  stream.num_words = static_cast<std::size_t>(stream.words_end - word);
}

// One after the other: the four vectors of one stream keep the core busy.
void rans_encode(entropy::EncodeStream* streams, int num_streams, entropy::Prefetch prefetch) {
  Prefetcher prefetcher(prefetch, num_streams);
  for (int i = 0; i < num_streams; ++i) rans_encode_one(streams[i], prefetcher);
}

}  // namespace HWY_NAMESPACE
}  // namespace snug::codec
HWY_AFTER_NAMESPACE();

#endif  // target toggle
