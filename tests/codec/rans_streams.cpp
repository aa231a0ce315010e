#include "codec/rans_streams.h"

#include <cstring>
#include <span>

#include "codec/entropy/model.h"

namespace snug::test {

using codec::entropy::kLanes;
using codec::entropy::Model;
using codec::entropy::Table;

namespace {

unsigned draw(const Table& table, Prng& prng) {
  auto slot = static_cast<unsigned>(prng.below(codec::entropy::kFreqTotal));
  for (unsigned s = 0;; ++s) {
    if (slot < table.freq[s]) return s;
    slot -= table.freq[s];
  }
}

unsigned draw_flat(const Table& table, Prng& prng) {
  for (;;)
    if (const auto s = static_cast<unsigned>(prng.below(16)); table.freq[s] != 0) return s;
}

}  // namespace

Encoding::Encoding(const Encoded& e)
    : symbols(std::as_bytes(std::span(e.symbols))), room(e.symbols.size() + codec::kSlackBytes) {
  stream = {symbols.data(), symbols.size(), &e.model, room.data() + room.size(), 0, {}};
}

void Encoding::store(Encoded& e) const {
  e.words.resize(2 * stream.num_words);
  if (!e.words.empty())
    std::memcpy(e.words.data(), stream.words_end - stream.num_words, e.words.size());
  std::memcpy(e.states, stream.states, sizeof e.states);
}

Table random_table(int live, Prng& prng) {
  std::uint32_t counts[16] = {};
  for (int placed = 0; placed < live;) {
    auto& count = counts[prng.below(16)];
    if (count != 0) continue;
    count = 1 + static_cast<std::uint32_t>(prng.one_in(3) ? prng.below(100000) : prng.below(20));
    ++placed;
  }
  Table table;
  codec::entropy::normalize(counts, 16, table);
  return table;
}

std::vector<std::uint8_t> draw_symbols(const Model& model, std::size_t num_bytes, bool flat,
                                       Prng& prng) {
  const auto pick = [&](const Table& table) {
    return flat ? draw_flat(table, prng) : draw(table, prng);
  };
  std::vector<std::uint8_t> symbols(num_bytes);
  for (auto& symbol : symbols) {
    const unsigned first = pick(model.first);
    symbol = static_cast<std::uint8_t>(first | pick(model.table_for_second(first)) << 4);
  }
  return symbols;
}

void encode_scalar(Encoded& e) {
  Encoding encoding(e);
  codec::kScalarKernels.rans_encode(&encoding.stream, 1, {});
  encoding.store(e);
}

Encoded random_stream(bool conditional, std::size_t num_bytes, bool flat, Prng& prng) {
  const auto any_table = [&] { return random_table(1 + static_cast<int>(prng.below(16)), prng); };
  Encoded e;
  e.model.conditional = conditional;
  e.model.first = any_table();
  for (auto& second : e.model.second) second = any_table();
  e.symbols = draw_symbols(e.model, num_bytes, flat, prng);
  encode_scalar(e);
  return e;
}

void damage(Encoded& e, Prng& prng) {
  switch (prng.below(7)) {
    case 0:
      if (!e.words.empty())
        e.words[prng.below(e.words.size())] ^= static_cast<std::uint8_t>(1 << prng.below(8));
      break;
    case 1: e.states[prng.below(kLanes)] ^= 1u << prng.below(32); break;
    case 2: e.words.resize(prng.below(e.words.size() / 2 + 1) * 2); break;
    case 3: e.words.resize(e.words.size() + 2 * (1 + prng.below(40)), 0x55); break;
    case 4:
      for (auto& state : e.states) state = static_cast<std::uint32_t>(prng.next());
      break;
    case 5:
      for (auto& state : e.states) state = prng.one_in(2) ? 0 : 0xFFFFFFFF;
      break;
    case 6:
      for (auto& byte : e.words) byte = prng.byte();
      break;
  }
}

}  // namespace snug::test
