// The entropy coder of every kernel table against the scalar one: valid streams
// byte for byte, hostile ones for safety and the same verdict.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "codec/entropy/model.h"
#include "codec/kernels.h"
#include "codec/rans_streams.h"
#include "support/sanitizer.h"

namespace snug::test {
namespace {

using codec::Bf16Block;
using codec::Kernels;
using codec::kScalarKernels;
using codec::entropy::EncodeStream;
using codec::entropy::Stream;

class RansTable : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& table() const { return *GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(All, RansTable,
                         testing::ValuesIn(codec::all_kernels().begin(),
                                           codec::all_kernels().end()),
                         [](const auto& info) { return std::string(info.param->name); });

std::span<const std::byte> bytes_of(const std::vector<std::uint8_t>& v) {
  return std::as_bytes(std::span(v));
}

// Two random streams, half of the time of equal length.
struct Pair {
  Encoded a, b;

  Pair(std::size_t round, Prng& prng) {
    const std::size_t length =
        kStreamLengths[prng.below(round < 50 ? std::size(kStreamLengths) : 8)];
    a = random_stream(prng.one_in(2), length, prng.one_in(4), prng);
    b = random_stream(prng.one_in(2), prng.one_in(2) ? length : kStreamLengths[prng.below(8)],
                      prng.one_in(4), prng);
  }
};

TEST_P(RansTable, EncodesTheSameWords) {
  Prng prng(1);
  for (std::size_t round = 0; round < repetitions(300); ++round) {
    const Pair pair(round, prng);
    for (const int num_streams : {1, 2}) {
      const Encoding encoding_a(pair.a), encoding_b(pair.b);
      EncodeStream streams[2] = {encoding_a.stream, encoding_b.stream};
      // What to fetch is only a hint: any address goes.
      table().rans_encode(streams, num_streams, {pair.a.symbols.data(), prng.below(9)});
      for (int i = 0; i < num_streams; ++i) {
        const Encoded& expected = i == 0 ? pair.a : pair.b;
        ASSERT_EQ(2 * streams[i].num_words, expected.words.size());
        const auto* words =
            reinterpret_cast<const std::uint8_t*>(streams[i].words_end - streams[i].num_words);
        ASSERT_TRUE(std::equal(expected.words.begin(), expected.words.end(), words));
        ASSERT_EQ(std::memcmp(streams[i].states, expected.states, sizeof expected.states), 0);
      }
    }
  }
}

TEST_P(RansTable, DecodesOneAndTwoStreams) {
  Prng prng(3);
  for (std::size_t round = 0; round < repetitions(300); ++round) {
    const Pair pair(round, prng);
    const auto& [a, b] = pair;
    const GuardedBuffer words_a(bytes_of(a.words)), words_b(bytes_of(b.words));
    for (const int num_streams : {1, 2}) {
      GuardedBuffer out_a(a.symbols.size()), out_b(b.symbols.size());
      const Stream streams[2] = {a.stream(words_a.data(), out_a.data()),
                                 b.stream(words_b.data(), out_b.data())};
      ASSERT_EQ(table().rans_decode(streams, num_streams), num_streams == 1 ? 1u : 3u);
      ASSERT_EQ(std::memcmp(out_a.data(), a.symbols.data(), a.symbols.size()), 0);
      if (num_streams == 2) {
        ASSERT_EQ(std::memcmp(out_b.data(), b.symbols.data(), b.symbols.size()), 0);
      }
      EXPECT_TRUE(out_a.front_intact() && out_b.front_intact());
    }
  }
}

TEST_P(RansTable, HostileStreamsAreSafeAndJudgedAlike) {
  Prng prng(4);
  for (std::size_t round = 0; round < repetitions(3000); ++round) {
    Encoded e[2];
    for (Encoded& one : e) {
      one = random_stream(prng.one_in(2), kStreamLengths[prng.below(7)], prng.one_in(2), prng);
      if (!prng.one_in(4)) damage(one, prng);
      if (prng.one_in(3)) damage(one, prng);
    }
    const int num_streams = prng.one_in(2) ? 1 : 2;
    const GuardedBuffer words_a(bytes_of(e[0].words)), words_b(bytes_of(e[1].words));
    GuardedBuffer out_a(e[0].symbols.size()), out_b(e[1].symbols.size());
    GuardedBuffer ref_a(e[0].symbols.size()), ref_b(e[1].symbols.size());
    const Stream streams[2] = {e[0].stream(words_a.data(), out_a.data()),
                               e[1].stream(words_b.data(), out_b.data())};
    const Stream reference[2] = {e[0].stream(words_a.data(), ref_a.data()),
                                 e[1].stream(words_b.data(), ref_b.data())};
    const unsigned intact = kScalarKernels.rans_decode(reference, num_streams);
    ASSERT_EQ(table().rans_decode(streams, num_streams), intact) << "round " << round;
    if (intact & 1) {
      ASSERT_EQ(std::memcmp(out_a.data(), ref_a.data(), ref_a.size()), 0);
    }
    if (intact & 2) {
      ASSERT_EQ(std::memcmp(out_b.data(), ref_b.data(), ref_b.size()), 0);
    }
    EXPECT_TRUE(out_a.front_intact() && out_b.front_intact());
  }
}

// What decode_bf16_pair works on, and what it must give.
struct Bf16Case {
  Encoded encoded;
  std::uint8_t palette[16] = {};
  std::uint8_t escape;
  std::vector<std::uint8_t> low, escapes, expected;
  std::size_t num_elems;

  Bf16Case(std::size_t n, Prng& prng) : num_elems(n) {
    encoded = random_stream(false, ((n + 1) / 2 + 127) / 128 * 128, prng.one_in(3), prng);
    escape = static_cast<std::uint8_t>(1 + prng.below(15));
    for (int i = 0; i < escape; ++i) palette[i] = prng.byte();
    low.resize(n);
    for (auto& byte : low) byte = prng.byte();
    for (std::size_t i = 0; i < n; ++i)
      if ((encoded.symbols[i / 2] >> (i % 2 * 4) & 15) == escape) escapes.push_back(prng.byte());
    finish();
  }
  // The scalar result of merging what the symbols say.
  void finish() {
    std::vector<std::uint8_t> high(num_elems);
    expected.resize(2 * num_elems);
    kScalarKernels.unmap_palette(encoded.symbols.data(), num_elems, palette, escape, escapes.data(),
                                 escapes.size(), high.data());
    kScalarKernels.merge2(low.data(), high.data(), num_elems, true, expected.data());
  }
  // Whether scalar kernels find the block intact.
  bool intact() const {
    std::vector<std::uint8_t> symbols(encoded.symbols.size()), high(num_elems);
    const Stream stream = encoded.stream(encoded.words.data(), symbols.data());
    return kScalarKernels.rans_decode(&stream, 1) == 1 &&
           kScalarKernels.unmap_palette(symbols.data(), num_elems, palette, escape, escapes.data(),
                                        escapes.size(), high.data()) == escapes.size();
  }
};

// The same in memory that ends where the next byte faults.
struct Bf16Memory {
  explicit Bf16Memory(const Bf16Case& c)
      : words(bytes_of(c.encoded.words)),
        low(bytes_of(c.low)),
        escapes(bytes_of(c.escapes)),
        symbols(c.encoded.symbols.size()),
        dst(2 * c.num_elems) {
    block = {c.encoded.stream(words.data(), symbols.data()),
             low.data(),
             c.palette,
             c.escape,
             escapes.data(),
             c.escapes.size(),
             dst.data(),
             c.num_elems};
  }
  GuardedBuffer words, low, escapes, symbols, dst;
  Bf16Block block;
};

TEST_P(RansTable, DecodesPairsOfBf16Blocks) {
  if (table().decode_bf16_pair == nullptr) GTEST_SKIP() << "this table has none";
  Prng prng(5);
  for (std::size_t round = 0; round < repetitions(1500); ++round) {
    const std::size_t n = 1 + prng.below(round < 20 ? 131072 : 9000);
    Bf16Case a(n, prng), b(prng.one_in(2) ? n : 1 + prng.below(9000), prng);
    const bool hostile = prng.one_in(2);
    for (Bf16Case* c : {&a, &b}) {
      if (!hostile || prng.one_in(3)) continue;
      if (prng.one_in(3)) {
        c->escapes.resize(prng.below(c->escapes.size() + 2));
      } else {
        damage(c->encoded, prng);
      }
    }
    const unsigned intact = unsigned{a.intact()} | unsigned{b.intact()} << 1;
    Bf16Memory memory_a(a), memory_b(b);
    const Bf16Block blocks[2] = {memory_a.block, memory_b.block};
    ASSERT_EQ(table().decode_bf16_pair(blocks, {}), intact) << "round " << round;
    if (!hostile) {
      ASSERT_EQ(intact, 3u);
      ASSERT_EQ(std::memcmp(memory_a.dst.data(), a.expected.data(), a.expected.size()), 0);
      ASSERT_EQ(std::memcmp(memory_b.dst.data(), b.expected.data(), b.expected.size()), 0);
    }
    EXPECT_TRUE(memory_a.dst.front_intact() && memory_b.dst.front_intact());
  }
}

TEST(EntropyModel, CostsAreRoundedUp) {
  for (unsigned freq = 1; freq <= 256; ++freq) {
    const double ideal = 256 * std::log2(256.0 / freq);
    EXPECT_GE(codec::entropy::kCost[freq], ideal - 1e-9) << freq;
    EXPECT_LT(codec::entropy::kCost[freq], ideal + 1.001) << freq;
  }
}

}  // namespace
}  // namespace snug::test
