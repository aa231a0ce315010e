// Vector rANS decoding: which symbol a slot belongs to is found by comparing it
// with the starts of all symbols, up to 32 lanes packed into one byte vector. A gather of one
// symbol of a pair from a table would take 40 % longer (Zen 4), and NEON has no gathers.
#if defined(SNUG_CODEC_ENTROPY_RANS_DECODE_HWY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SNUG_CODEC_ENTROPY_RANS_DECODE_HWY_INL_H_
#undef SNUG_CODEC_ENTROPY_RANS_DECODE_HWY_INL_H_
#else
#define SNUG_CODEC_ENTROPY_RANS_DECODE_HWY_INL_H_
#endif

#include <bit>
#include <cstring>

#include "codec/entropy/lane_shuffles.h"
#include "codec/entropy/rans_hwy-inl.h"

HWY_BEFORE_NAMESPACE();
namespace snug::codec {
namespace HWY_NAMESPACE {

using entropy::kFreqBits;
using entropy::kFreqTotal;
using entropy::kGroupBytes;
using entropy::kSteps;

using DI8 = hn::ScalableTag<std::int8_t>;
using VI8 = hn::Vec<DI8>;

// A quad is four vectors of 32-bit lanes. One byte of each lane makes one byte
// vector: byte 4j + k is from lane j of vector k, so that no byte leaves its lane.
constexpr std::size_t kQuad = 4;
constexpr std::size_t kQuads = kVecs / kQuad;

HWY_INLINE V8 pack_low_bytes(const V32* quad) {
  const D8 d8;
  const D16 d16;
  const V8 a = hn::OddEven(hn::BitCast(d8, hn::ShiftLeft<8>(quad[1])), hn::BitCast(d8, quad[0]));
  const V32 b = hn::BitCast(
      D32(), hn::OddEven(hn::BitCast(d8, hn::ShiftLeft<8>(quad[3])), hn::BitCast(d8, quad[2])));
  return hn::BitCast(d8, hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(b)), hn::BitCast(d16, a)));
}

template <int kVec>
HWY_INLINE V32 unpack_bytes(V8 bytes) {
  const D32 d32;
  if constexpr (kVec == 0) return hn::And(hn::BitCast(d32, bytes), hn::Set(d32, 0xFF));
  if constexpr (kVec == 3) return hn::ShiftRight<24>(hn::BitCast(d32, bytes));
  constexpr std::uint32_t kLane = 0x80808000u + kVec;  // 0x80: zero
  alignas(16) static constexpr std::uint32_t kShuffle[4] = {kLane, kLane + 4, kLane + 8,
                                                            kLane + 12};
  return hn::TableLookupBytesOr0(hn::BitCast(d32, bytes), hn::LoadDup128(d32, kShuffle));
}

// Stores one quad's symbols of four steps: lane l's bytes go to dst + 4l.
HWY_INLINE void store_steps(const V8* s, std::uint8_t* dst) {
  const D8 d8;
  const D16 d16;
  const D32 d32;
  V16 even[2], odd[2];  // bytes 0 and 2, 1 and 3 of the lanes, for steps 0, 1 and 2, 3
  for (std::size_t i = 0; i < 2; ++i) {
    const V8 a = s[2 * i], b = s[2 * i + 1];
    even[i] =
        hn::BitCast(d16, hn::OddEven(hn::BitCast(d8, hn::ShiftLeft<8>(hn::BitCast(d16, b))), a));
    odd[i] =
        hn::BitCast(d16, hn::OddEven(b, hn::BitCast(d8, hn::ShiftRight<8>(hn::BitCast(d16, a)))));
  }
  const auto lower = [&](V16 a, V16 b) HWY_ATTR {
    return hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(hn::BitCast(d32, b))), a);
  };
  const auto upper = [&](V16 a, V16 b) HWY_ATTR {
    return hn::OddEven(b, hn::BitCast(d16, hn::ShiftRight<16>(hn::BitCast(d32, a))));
  };
  hn::StoreU(hn::BitCast(d8, lower(even[0], even[1])), d8, dst);
  hn::StoreU(hn::BitCast(d8, lower(odd[0], odd[1])), d8, dst + kVecBytes);
  hn::StoreU(hn::BitCast(d8, upper(even[0], even[1])), d8, dst + 2 * kVecBytes);
  hn::StoreU(hn::BitCast(d8, upper(odd[0], odd[1])), d8, dst + 3 * kVecBytes);
}

// A frequency table for search. Symbols without a frequency are left out, so that
// starts rise strictly: entry 0 starts at 0, those behind the last one at 256.
struct SearchTable {
  std::int8_t quarter_bounds[3];               // of entries 4, 8 and 12
  alignas(16) std::int8_t bounds[3][16] = {};  // [k][q]: of entry 4q + k + 1
  alignas(16) std::uint8_t symbols[16] = {};
  alignas(16) std::uint8_t complements[16] = {};  // 256 - frequency
  alignas(16) std::uint8_t starts[16] = {};

  explicit SearchTable(const entropy::Table& table) {
    unsigned start[16];
    unsigned sum = 0, count = 0;
    for (unsigned s = 0; s < 16; ++s) {
      if (table.freq[s] == 0) continue;
      symbols[count] = static_cast<std::uint8_t>(s);
      complements[count] = static_cast<std::uint8_t>(kFreqTotal - table.freq[s]);
      starts[count] = static_cast<std::uint8_t>(sum);
      start[count++] = sum;
      sum += table.freq[s];
    }
    for (; count < 16; ++count) start[count] = kFreqTotal;
    // "slot >= start" becomes a signed "slot - 128 > start - 129".
    const auto bound = [&](unsigned entry) {
      return static_cast<std::int8_t>(static_cast<int>(start[entry]) - 129);
    };
    for (unsigned q = 0; q < 4; ++q) {
      if (q > 0) quarter_bounds[q - 1] = bound(4 * q);
      for (unsigned k = 0; k < 3; ++k) bounds[k][q] = bound(4 * q + k + 1);
    }
  }

  // The entry each slot belongs to. Two levels of three comparisons: a binary
  // search would save three of 16 operations, but each would wait for the last.
  HWY_INLINE V8 find(V8 slots) const {
    const DI8 di8;
    const VI8 slot = hn::BitCast(di8, hn::Xor(slots, hn::Set(D8(), 0x80)));
    const auto reached = [&](VI8 bound) HWY_ATTR {  // -1 where true
      return hn::VecFromMask(di8, hn::Gt(slot, bound));
    };
    const auto quarter_reached = [&](int k)
                                     HWY_ATTR { return reached(hn::Set(di8, quarter_bounds[k])); };
    const VI8 quarter =
        hn::Sub(hn::Neg(quarter_reached(0)), hn::Add(quarter_reached(1), quarter_reached(2)));
    const auto entry_reached = [&](int k) HWY_ATTR {
      return reached(hn::TableLookupBytes(hn::LoadDup128(di8, bounds[k]), quarter));
    };
    const VI8 first = hn::BitCast(di8, hn::ShiftLeft<2>(hn::BitCast(D16(), quarter)));
    return hn::BitCast(D8(), hn::Sub(hn::Sub(first, entry_reached(0)),
                                     hn::Add(entry_reached(1), entry_reached(2))));
  }
};

// The next state after a symbol of frequency f at `start` was found in the low byte of x:
// f * (x / 256) + x % 256 - start.
HWY_INLINE V32 advance(V32 x, V32 complement, V32 start) {
  return hn::Sub(hn::Sub(x, start), hn::Mul(hn::ShiftRight<kFreqBits>(x), complement));
}

// Decodes one symbol of each lane of a quad, advances the states and returns the symbols.
HWY_INLINE V8 decode_symbol(const SearchTable& table, V32* x) {
  const D8 d8;
  const V8 entries = table.find(pack_low_bytes(x));
  const V8 complements = hn::TableLookupBytes(hn::LoadDup128(d8, table.complements), entries);
  const V8 starts = hn::TableLookupBytes(hn::LoadDup128(d8, table.starts), entries);
  x[0] = advance(x[0], unpack_bytes<0>(complements), unpack_bytes<0>(starts));
  x[1] = advance(x[1], unpack_bytes<1>(complements), unpack_bytes<1>(starts));
  x[2] = advance(x[2], unpack_bytes<2>(complements), unpack_bytes<2>(starts));
  x[3] = advance(x[3], unpack_bytes<3>(complements), unpack_bytes<3>(starts));
  return hn::TableLookupBytes(hn::LoadDup128(d8, table.symbols), entries);
}

// Palette streams: one table for both symbols.
struct PaletteTables {
  SearchTable first;

  explicit PaletteTables(const entropy::Model& model) : first(model.first) {}

  HWY_INLINE V8 decode_second(V8 /*first_symbols*/, V32* x) const {
    return decode_symbol(first, x);
  }
};

// Byte streams: second tables differ from lane to lane, so these are gathered.
struct ByteTables {
  SearchTable first;
  // [first symbol][slot]: symbol | (256 - freq) << 8 | start << 16
  alignas(64) std::uint32_t second[16 * kFreqTotal + kVecLanes];

  explicit ByteTables(const entropy::Model& model) : first(model.first) {
    for (unsigned s = 0; s < 16; ++s)
      if (model.first.freq[s] != 0) fill(model.second[s], second + s * kFreqTotal);
  }
  // Whole vectors at a time: the next symbol overwrites what they write beyond their slots.
  static void fill(const entropy::Table& from, std::uint32_t* slots) {
    const D32 d32;
    unsigned start = 0;
    for (unsigned s = 0; s < 16; ++s) {
      const unsigned freq = from.freq[s];
      const V32 slot = hn::Set(d32, s | (kFreqTotal - freq) << 8 | start << 16);
      for (unsigned rank = 0; rank < freq; rank += kVecLanes)
        hn::StoreU(slot, d32, slots + start + rank);
      start += freq;
    }
  }

  template <int kVec>
  HWY_INLINE V32 gather_second(V8 first_symbols, V32& x) const {
    const D32 d32;
    const V32 low_byte = hn::Set(d32, 0xFF);
    const V32 idx =
        hn::Or(hn::ShiftLeft<8>(unpack_bytes<kVec>(first_symbols)), hn::And(x, low_byte));
    const V32 slot = hn::GatherIndex(d32, second, hn::BitCast(hn::RebindToSigned<D32>(), idx));
    x = advance(x, hn::And(hn::ShiftRight<8>(slot), low_byte), hn::ShiftRight<16>(slot));
    return slot;
  }
  HWY_INLINE V8 decode_second(V8 first_symbols, V32* x) const {
    const V32 slots[kQuad] = {
        gather_second<0>(first_symbols, x[0]), gather_second<1>(first_symbols, x[1]),
        gather_second<2>(first_symbols, x[2]), gather_second<3>(first_symbols, x[3])};
    return pack_low_bytes(slots);
  }
};

alignas(64) inline constexpr entropy::ShuffleTable kExpand = entropy::make_expand_table();

// Where decoding of a stream stands; small enough to live in registers.
struct Cursor {
  States states;
  const std::uint8_t* words;

  HWY_INLINE Cursor() {}

  // Lanes below kStateLow take one word each, in lane order. Reads up to 16
  // bytes an octet, however many it uses.
  HWY_INLINE void renormalize() {
    const D32 d32;
    const hn::Full128<std::uint8_t> d128;
    for (std::size_t octet = 0; octet < kOctets; ++octet) {
      V32* x = states.x + octet * kVecsPerOctet;
      hn::Mask<D32> low[kVecsPerOctet];
      for (std::size_t v = 0; v < kVecsPerOctet; ++v) {
        low[v] = hn::Eq(hn::Min(x[v], hn::Set(d32, entropy::kStateLow - 1)), x[v]);
        x[v] = hn::IfThenElse(low[v], hn::ShiftLeft<16>(x[v]), x[v]);
      }
      const std::size_t bits = octet_bits(low);
      const V16x8 next = hn::BitCast(
          hn::Full128<std::uint16_t>(),
          hn::TableLookupBytesOr0(hn::LoadU(d128, words), hn::Load(d128, kExpand[bits].bytes)));
      x[0] = hn::Or(x[0], widen_words<0>(next));
      if constexpr (kVecsPerOctet == 2) x[1] = hn::Or(x[1], widen_words<1>(next));
      words += 2 * static_cast<unsigned>(std::popcount(bits));
    }
  }
};

template <class Tables>
struct Decoder {
  const Tables tables;
  Cursor cursor;
  std::ptrdiff_t words_left;  // below 0: the stream asked for more than there are
  std::uint8_t* symbols;
  std::size_t groups_left;
  bool in_tail = false;
  // The last words, with room for one group to read beyond them.
  std::uint8_t tail[2 * 2 * kGroupBytes] = {};

  explicit Decoder(const entropy::Stream& stream)
      : tables(*stream.model),
        words_left(static_cast<std::ptrdiff_t>(stream.num_words)),
        symbols(stream.symbols),
        groups_left(stream.num_bytes / kGroupBytes) {
    cursor.states.load(stream.states);
    cursor.words = stream.words;
  }

  // Whether there is a group to decode; if so, one word for each of its symbol bytes may be read.
  bool prepare_group() {
    if (groups_left == 0 || words_left < 0) return false;
    if (words_left < static_cast<std::ptrdiff_t>(kGroupBytes) && !in_tail) {
      std::memcpy(tail, cursor.words, 2 * static_cast<std::size_t>(words_left));
      cursor.words = tail;
      in_tail = true;
    }
    return true;
  }

  HWY_INLINE void finish_group(const Cursor& after, const V8 (&pairs)[kQuads][kSteps]) {
    words_left -= (after.words - cursor.words) / 2;
    cursor = after;
    for (std::size_t q = 0; q < kQuads; ++q) store_steps(pairs[q], symbols + q * kQuad * kVecBytes);
    symbols += kGroupBytes;
    --groups_left;
  }

  bool intact() const {
    std::uint32_t x[entropy::kLanes];
    cursor.states.store(x);
    bool back = true;
    for (const auto state : x) back &= state == entropy::kStateLow;
    return back && groups_left == 0 && words_left == 0;
  }
};

// Decodes one group of kNum streams; false if one of them has none to decode.
// The streams take turns symbol by symbol: while one waits the other computes.
template <std::size_t kNum, class Tables>
HWY_INLINE bool decode_group(Decoder<Tables>* const (&decoders)[kNum]) {
  for (auto* decoder : decoders)
    if (!decoder->prepare_group()) return false;
  Cursor cursors[kNum];
  for (std::size_t i = 0; i < kNum; ++i) cursors[i] = decoders[i]->cursor;
  V8 pairs[kNum][kQuads][kSteps];
  HWY_UNROLL(4)
  for (int step = 0; step < kSteps; ++step) {
    V8 first[kNum][kQuads];
    for (std::size_t i = 0; i < kNum; ++i)
      for (std::size_t q = 0; q < kQuads; ++q)
        first[i][q] = decode_symbol(decoders[i]->tables.first, cursors[i].states.x + q * kQuad);
    for (std::size_t i = 0; i < kNum; ++i)
      for (std::size_t q = 0; q < kQuads; ++q) {
        const V8 second =
            decoders[i]->tables.decode_second(first[i][q], cursors[i].states.x + q * kQuad);
        pairs[i][q][step] =
            hn::Or(first[i][q], hn::BitCast(D8(), hn::ShiftLeft<4>(hn::BitCast(D16(), second))));
      }
    for (Cursor& cursor : cursors) cursor.renormalize();
  }
  for (std::size_t i = 0; i < kNum; ++i) decoders[i]->finish_group(cursors[i], pairs[i]);
  return true;
}

template <class Tables>
unsigned decode_one(const entropy::Stream& stream) {
  Decoder<Tables> decoder(stream);
  while (decode_group<1, Tables>({&decoder})) {
  }
  return unsigned{decoder.intact()};
}

template <class Tables>
unsigned decode_two(const entropy::Stream* streams) {
  Decoder<Tables> a(streams[0]), b(streams[1]);
  while (decode_group<2, Tables>({&a, &b})) {
  }
  // The rest of the longer stream, or of the intact one if the other is not.
  while (decode_group<1, Tables>({&a})) {
  }
  while (decode_group<1, Tables>({&b})) {
  }
  return unsigned{a.intact()} | unsigned{b.intact()} << 1;
}

unsigned rans_decode(const entropy::Stream* streams, int num_streams) {
  const bool conditional = streams[0].model->conditional;
  if (num_streams == 1)
    return conditional ? decode_one<ByteTables>(streams[0]) : decode_one<PaletteTables>(streams[0]);
  if (conditional != streams[1].model->conditional)
    return rans_decode(streams, 1) | rans_decode(streams + 1, 1) << 1;
  return conditional ? decode_two<ByteTables>(streams) : decode_two<PaletteTables>(streams);
}

}  // namespace HWY_NAMESPACE
}  // namespace snug::codec
HWY_AFTER_NAMESPACE();

#endif  // target toggle
