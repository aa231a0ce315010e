#include "wire/record_cipher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "wire/wire_pairs.h"

namespace snug::test {
namespace {

using wire::kTagBytes;
using wire::RecordCipher;

struct Record {
  Bytes bytes;
  std::array<std::byte, kTagBytes> tag{};
};

class Cipher : public testing::Test {
 protected:
  RecordCipher::MakeKey keys() {
    return [this](std::uint64_t epoch, RecordCipher::Key& key) {
      ++num_made_[epoch];
      std::memset(&key, static_cast<int>(epoch + 1), sizeof key);
      return true;
    };
  }
  static Record seal(RecordCipher& cipher, const Bytes& plain) {
    Record record{plain, {}};
    EXPECT_TRUE(cipher.run(static_cast<std::uint32_t>(plain.size()), plain.data(),
                           record.bytes.data(), record.tag));
    return record;
  }
  static bool open(RecordCipher& cipher, Record record, Bytes* plain = nullptr) {
    const bool ok = cipher.run(static_cast<std::uint32_t>(record.bytes.size()), record.bytes.data(),
                               record.bytes.data(), record.tag);
    if (plain != nullptr) *plain = record.bytes;
    return ok;
  }
  RecordCipher sealer(std::uint64_t life = wire::kKeyLifeBytes) {
    return RecordCipher(RecordCipher::Work::kSeal, keys(), life);
  }
  RecordCipher opener(std::uint64_t life = wire::kKeyLifeBytes) {
    return RecordCipher(RecordCipher::Work::kOpen, keys(), life);
  }

  std::map<std::uint64_t, int> num_made_;
};

TEST_F(Cipher, WhatWasSealedOpens) {
  auto seals = sealer(), opens = opener();
  for (const std::size_t n : {1, 15, 16, 17, 64, 1000, 65536, 131072}) {
    const Bytes plain = random_bytes(n, n);
    const Record record = seal(seals, plain);
    if (n > 15) {
      EXPECT_NE(record.bytes, plain);
    }
    Bytes back;
    ASSERT_TRUE(open(opens, record, &back)) << n;
    EXPECT_EQ(back, plain) << n;
  }
}

// Every bit of bytes and tag counts, and so does the length.
TEST_F(Cipher, WhatWasChangedDoesNotOpen) {
  const Bytes plain = random_bytes(40);
  auto first = sealer();
  const Record good = seal(first, plain);
  for (std::size_t bit = 0; bit < 8 * (plain.size() + kTagBytes); ++bit) {
    Record bad = good;
    (bit / 8 < plain.size() ? bad.bytes[bit / 8] : bad.tag[bit / 8 - plain.size()]) ^=
        std::byte(1 << bit % 8);
    auto opens = opener();
    EXPECT_FALSE(open(opens, bad)) << bit;
  }
  Record shorter = good;
  shorter.bytes.pop_back();
  auto opens = opener();
  EXPECT_FALSE(open(opens, shorter));
}

TEST_F(Cipher, OnlyTheNextRecordOpens) {
  auto seals = sealer();
  const Record records[] = {seal(seals, random_bytes(50, 1)), seal(seals, random_bytes(50, 2)),
                            seal(seals, random_bytes(50, 3))};
  {
    auto opens = opener();
    EXPECT_FALSE(open(opens, records[1]));  // the first is missing
  }
  {
    auto opens = opener();
    EXPECT_TRUE(open(opens, records[0]));
    EXPECT_FALSE(open(opens, records[0]));  // again
  }
  {
    auto opens = opener();
    EXPECT_TRUE(open(opens, records[0]));
    EXPECT_FALSE(open(opens, records[2]));  // out of order
  }
}

// Equal bytes never look equal, under one key or after its end.
TEST_F(Cipher, KeysAreReplacedAtTheSameRecord) {
  auto seals = sealer(1000), opens = opener(1000);
  const Bytes plain = random_bytes(300);
  std::vector<Bytes> seen;
  for (int i = 0; i < 40; ++i) {
    const Record record = seal(seals, plain);
    EXPECT_EQ(std::ranges::count(seen, record.bytes), 0);
    seen.push_back(record.bytes);
    Bytes back;
    ASSERT_TRUE(open(opens, record, &back)) << i;
    EXPECT_EQ(back, plain);
  }
  EXPECT_EQ(num_made_.size(), 10u);  // four records a key
  for (const auto& [epoch, times] : num_made_) EXPECT_EQ(times, 2) << epoch;
}

TEST_F(Cipher, NoKeyNoRecord) {
  RecordCipher cipher(
      RecordCipher::Work::kSeal, [](std::uint64_t, RecordCipher::Key&) { return false; }, 1000);
  std::byte byte{}, out{};
  std::array<std::byte, kTagBytes> tag;
  EXPECT_FALSE(cipher.run(1, &byte, &out, tag));
}

}  // namespace
}  // namespace snug::test
