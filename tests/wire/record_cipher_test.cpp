#include "wire/record_cipher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

#include "wire/wire_pairs.h"

namespace snug::test {
namespace {

using wire::AesGcm;
using wire::kTagBytes;
using wire::RecordCipher;

Bytes from_hex(std::string_view digits) {
  Bytes bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2)
    bytes.push_back(std::byte(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16)));
  return bytes;
}

struct Record {
  Bytes bytes;
  std::array<std::byte, kTagBytes> tag{};
};

// One library seals, and the same or the other opens.
struct Libraries {
  const char* name;
  std::unique_ptr<AesGcm> (*seals)(AesGcm::Work);
  std::unique_ptr<AesGcm> (*opens)(AesGcm::Work);
};

class Cipher : public testing::TestWithParam<Libraries> {
 protected:
  void SetUp() override {
    if (!GetParam().seals(AesGcm::Work::kSeal) || !GetParam().opens(AesGcm::Work::kOpen))
      GTEST_SKIP() << "no libipsec-mb, or no VAES";
  }
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
    return RecordCipher(GetParam().seals(AesGcm::Work::kSeal), keys(), life);
  }
  RecordCipher opener(std::uint64_t life = wire::kKeyLifeBytes) {
    return RecordCipher(GetParam().opens(AesGcm::Work::kOpen), keys(), life);
  }

  std::map<std::uint64_t, int> num_made_;
};

TEST_P(Cipher, WhatWasSealedOpens) {
  auto seals = sealer(), opens = opener();
  for (const std::size_t n : {0, 1, 15, 16, 17, 64, 1000, 65536, 131072}) {
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
TEST_P(Cipher, WhatWasChangedDoesNotOpen) {
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

TEST_P(Cipher, OnlyTheNextRecordOpens) {
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
TEST_P(Cipher, KeysAreReplacedAtTheSameRecord) {
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

TEST_P(Cipher, NoKeyNoRecord) {
  RecordCipher cipher(
      GetParam().seals(AesGcm::Work::kSeal),
      [](std::uint64_t, RecordCipher::Key&) { return false; }, 1000);
  std::byte byte{}, out{};
  std::array<std::byte, kTagBytes> tag;
  EXPECT_FALSE(cipher.run(1, &byte, &out, tag));
}

// After a failure, no record is sealed under the old key with numbers that begin again.
TEST(RecordCipher, AKeyThatWasNotSetIsNotUsed) {
  struct Broken : AesGcm {
    bool set_key(const Key&) override { return false; }
    bool run(const Nonce&, std::span<const std::byte>, std::span<const std::byte>, std::byte*,
             Tag) override {
      return true;
    }
  };
  RecordCipher cipher(
      std::make_unique<Broken>(), [](std::uint64_t, RecordCipher::Key&) { return true; }, 1000);
  std::byte byte{}, out{};
  std::array<std::byte, kTagBytes> tag;
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(cipher.run(1, &byte, &out, tag));
}

// NIST SP 800-38D's test case 4 (as in the paper that proposed GCM): bytes known to the world.
TEST_P(Cipher, KnownAnswer) {
  const AesGcm::Key key = {0xfe, 0xff, 0xe9, 0x92, 0x86, 0x65, 0x73, 0x1c,
                           0x6d, 0x6a, 0x8f, 0x94, 0x67, 0x30, 0x83, 0x08};
  const AesGcm::Nonce nonce = {0xca, 0xfe, 0xba, 0xbe, 0xfa, 0xce,
                               0xdb, 0xad, 0xde, 0xca, 0xf8, 0x88};
  const Bytes plain = from_hex(
      "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
      "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39");
  const Bytes also = from_hex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
  Bytes sealed(plain.size()), tag(kTagBytes);
  const auto seals = GetParam().seals(AesGcm::Work::kSeal);
  ASSERT_TRUE(seals->set_key(key));
  ASSERT_TRUE(seals->run(nonce, also, plain, sealed.data(), AesGcm::Tag(tag)));
  EXPECT_EQ(sealed, from_hex("42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e"
                             "21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091"));
  EXPECT_EQ(tag, from_hex("5bc94fbc3221a5db94fae95ae7121a47"));
}

INSTANTIATE_TEST_SUITE_P(
    Libraries, Cipher,
    testing::Values(Libraries{"OpenSsl", wire::make_openssl_gcm, wire::make_openssl_gcm},
                    Libraries{"IpsecMb", wire::make_ipsec_mb_gcm, wire::make_ipsec_mb_gcm},
                    Libraries{"OpenSslToIpsecMb", wire::make_openssl_gcm, wire::make_ipsec_mb_gcm},
                    Libraries{"IpsecMbToOpenSsl", wire::make_ipsec_mb_gcm, wire::make_openssl_gcm}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace snug::test
