// The container: every field and every rule about it, up to the largest sizes.
#include "frame/frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "frame/checksum.h"
#include "support/inputs.h"
#include "support/prng.h"

namespace snug::frame {
namespace {

using test::Bytes;

std::uint8_t* u8(Bytes& bytes) { return reinterpret_cast<std::uint8_t*>(bytes.data()); }

// A header with its index: blocks of 16 bytes each, as constants have.
struct Head {
  Header header;
  Bytes bytes;

  explicit Head(std::uint64_t raw_bytes, DType dtype = DType::kBF16, int log2_block = 12) {
    header = *make_header({}, raw_bytes, dtype, log2_block);
    std::uint64_t end = header.payload_start();
    bytes.resize(end);
    for (std::uint64_t i = 0; i < header.num_blocks(); ++i, end += 16)
      put_entry(i, {end, Codec::kConstant, 0, 16, 7});
    header.frame_bytes = end;
    seal();
  }
  void put_entry(std::uint64_t i, const Entry& entry) {
    write_entry(entry, u8(bytes) + kHeaderBytes + i * kEntryBytes);
  }
  Entry entry(std::uint64_t i) { return read_entry(u8(bytes) + kHeaderBytes + i * kEntryBytes); }
  void seal() {
    write_header(header, u8(bytes));
    header.checksum = head_checksum(bytes);
    write_header(header, u8(bytes));
  }
  Status check() const { return check_index(header, bytes); }
};

TEST(Header, SurvivesWritingAndReading) {
  for (const DType dtype : test::all_dtypes())
    for (int log2_block = 13; log2_block <= 17; ++log2_block)
      for (const std::uint64_t raw_bytes :
           {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4097}, (std::uint64_t{1} << 32) + 3,
            kMaxRawBytes - 1, kMaxRawBytes}) {
        Bytes tail(raw_bytes % elem_bytes(dtype), std::byte{0x77});
        auto made = make_header(tail, raw_bytes, dtype, log2_block);
        ASSERT_TRUE(made.ok());
        made->frame_bytes = made->payload_start() + 16 * made->num_blocks();
        made->checksum = 0x12345678;
        Bytes bytes(kHeaderBytes, std::byte{0xEE});
        write_header(*made, u8(bytes));
        const auto read = read_header(bytes);
        ASSERT_TRUE(read.ok()) << to_string(read.status());
        EXPECT_EQ(read->dtype, dtype);
        EXPECT_EQ(read->log2_block, log2_block);
        EXPECT_EQ(read->raw_bytes(), raw_bytes);
        EXPECT_EQ(read->frame_bytes, made->frame_bytes);
        EXPECT_EQ(read->checksum, made->checksum);
        EXPECT_EQ(std::memcmp(read->tail, made->tail, 8), 0);
      }
}

TEST(Header, LimitsOfMaking) {
  EXPECT_EQ(make_header({}, kMaxRawBytes + 1, DType::kBytes, 0).status().code, Code::kUsage);
  EXPECT_EQ(make_header({}, 1, static_cast<DType>(kNumDTypes), 0).status().code, Code::kUsage);
  EXPECT_EQ(make_header({}, 1, DType::kBF16, 11).status().code, Code::kUsage);
  EXPECT_EQ(make_header({}, 1, DType::kBF16, 18).status().code, Code::kUsage);
  // 4096 one-byte elements would cost 0.4 % of index.
  EXPECT_EQ(make_header({}, 1, DType::kI8, 12)->log2_block, 13);
  for (const DType dtype : test::all_dtypes()) {
    const int log2_block = make_header({}, 1, dtype, 0)->log2_block;
    EXPECT_LE(elem_bytes(dtype) << log2_block, 256u << 10);
    EXPECT_GE(elem_bytes(dtype) << log2_block, 128u << 10);
  }
}

TEST(Header, BlocksCoverTheTensor) {
  for (const std::uint64_t n :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4096}, std::uint64_t{4097},
        std::uint64_t{1} << 33, (std::uint64_t{1} << 33) + 1}) {
    const Header header = *make_header({}, 2 * n, DType::kBF16, 12);
    EXPECT_EQ(header.num_blocks(), (n + 4095) / 4096);
    if (n == 0) continue;
    const std::uint64_t last = header.num_blocks() - 1;
    EXPECT_EQ(last * 4096 + header.elems_in_block(last), n);
    EXPECT_EQ(header.elems_in_block(0), n < 4096 ? n : 4096);
  }
}

struct BadByte {
  std::size_t at;
  int value;
  Code code;
};

TEST(Header, RulesOfReading) {
  const Head good(3 * 8192 + 1);
  ASSERT_TRUE(read_header(good.bytes).ok());
  std::vector<BadByte> cases = {
      {0, 'X', Code::kBadMagic},         {3, 'g', Code::kBadMagic},
      {4, 0, Code::kUnsupportedVersion}, {4, 2, Code::kUnsupportedVersion},
      {5, 13, Code::kCorrupt},           {5, 255, Code::kCorrupt},  // dtype
      {6, 11, Code::kCorrupt},           {6, 18, Code::kCorrupt},
      {6, 255, Code::kCorrupt},          {7, 2, Code::kCorrupt},
      {7, 255, Code::kCorrupt},                                       // tail as long as an element
      {13, 0x04, Code::kCorrupt},        {15, 0xFF, Code::kCorrupt},  // more than 8 TiB
      {16, 1, Code::kCorrupt},           {16, 0, Code::kCorrupt},  // unaligned; before the payloads
      {25, 1, Code::kCorrupt},           {31, 1, Code::kCorrupt},  // unused tail bytes
  };
  for (std::size_t at = 36; at < kHeaderBytes; ++at) cases.push_back({at, 1, Code::kCorrupt});
  for (const BadByte& c : cases) {
    Bytes bytes = good.bytes;
    bytes[c.at] = static_cast<std::byte>(c.value);
    const auto read = read_header(bytes);
    EXPECT_EQ(read.status().code, c.code) << "byte " << c.at << " = " << c.value;
    if (read.status().code == Code::kCorrupt) {
      EXPECT_NE(read.status().byte, kNowhere);
    }
  }
  for (std::size_t size = 0; size < kHeaderBytes; ++size)
    EXPECT_EQ(read_header(std::span(good.bytes).first(size)).status().code, Code::kCorrupt);
}

// A header may claim any size; nothing is read or allocated because of it.
TEST(Header, HugeClaimsAreOnlyClaims) {
  Head head(64);
  head.header.num_elems = kMaxRawBytes / 2;
  head.header.frame_bytes = head.header.payload_start() + 16;
  write_header(head.header, u8(head.bytes));
  const auto read = read_header(head.bytes);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(check_index(*read, head.bytes).code, Code::kCorrupt);
  head.header.num_elems += 1;
  write_header(head.header, u8(head.bytes));
  EXPECT_EQ(read_header(head.bytes).status().code, Code::kCorrupt);
}

TEST(Entry, SurvivesWritingAndReading) {
  test::Prng prng(1);
  for (int round = 0; round < 1000; ++round) {
    Entry entry;
    entry.offset = (prng.next() >> 24) * kAlign;  // up to 16 TiB
    entry.codec = static_cast<Codec>(prng.byte());
    entry.plane_modes = static_cast<std::uint16_t>(prng.next());
    entry.num_bytes = static_cast<std::uint32_t>(prng.next());
    entry.checksum = static_cast<std::uint32_t>(prng.next());
    std::uint8_t bytes[kEntryBytes];
    write_entry(entry, bytes);
    const Entry read = read_entry(bytes);
    EXPECT_EQ(read.offset, entry.offset);
    EXPECT_EQ(read.codec, entry.codec);
    EXPECT_EQ(read.plane_modes, entry.plane_modes);
    EXPECT_EQ(read.num_bytes, entry.num_bytes);
    EXPECT_EQ(read.checksum, entry.checksum);
    for (int p = 0; p < 8; ++p)
      EXPECT_EQ(static_cast<int>(read.mode(p)), entry.plane_modes >> (2 * p) & 3);
  }
}

TEST(Index, GoodOnesPass) {
  for (const std::uint64_t raw_bytes : {0, 1, 2, 8192, 8193, 8194, 100000})
    EXPECT_TRUE(Head(raw_bytes).check().ok()) << raw_bytes;
}

template <class Change>
Status check_changed(std::uint64_t block, Change change) {
  Head head(5 * 8192);
  Entry entry = head.entry(block);
  change(entry, head);
  head.put_entry(block, entry);
  head.seal();
  return head.check();
}

TEST(Index, GapsOverlapsAndOddSizesAreFound) {
  const auto expect_corrupt = [](const Status& status, std::uint64_t block) {
    EXPECT_EQ(status.code, Code::kCorrupt) << status.what;
    EXPECT_EQ(status.block, block) << status.what;
  };
  expect_corrupt(check_changed(2, [](Entry& e, Head&) { e.offset += 16; }), 2);
  expect_corrupt(check_changed(2, [](Entry& e, Head&) { e.offset -= 16; }), 2);
  expect_corrupt(check_changed(0, [](Entry& e, Head&) { e.offset = 0; }), 0);
  expect_corrupt(check_changed(4, [](Entry& e, Head&) { e.offset = std::uint64_t{1} << 43; }), 4);
  expect_corrupt(check_changed(1, [](Entry& e, Head&) { e.num_bytes = 0; }), 1);
  expect_corrupt(check_changed(1, [](Entry& e, Head&) { e.num_bytes = 15; }), 1);
  expect_corrupt(check_changed(1, [](Entry& e, Head&) { e.num_bytes = 8192 + 16; }), 1);
  expect_corrupt(check_changed(1, [](Entry& e, Head&) { e.num_bytes = 0xFFFFFFF0; }), 1);
  expect_corrupt(
      check_changed(3, [](Entry& e, Head&) { e.codec = static_cast<Codec>(kNumCodecs); }), 3);
  expect_corrupt(check_changed(3, [](Entry& e, Head&) { e.codec = static_cast<Codec>(255); }), 3);
  expect_corrupt(check_changed(4, [](Entry& e, Head&) { e.num_bytes = 32; }), kNowhere);
  expect_corrupt(check_changed(4, [](Entry&, Head& h) { h.header.frame_bytes += 16; }), kNowhere);
}

TEST(Index, EveryByteCountsForTheChecksum) {
  Head head(5 * 8192);
  for (std::size_t at = 0; at < head.bytes.size(); ++at) {
    if (at >= 32 && at < 36) continue;  // the checksum itself
    head.bytes[at] ^= std::byte{0x10};
    EXPECT_NE(head_checksum(head.bytes), head.header.checksum) << at;
    head.bytes[at] ^= std::byte{0x10};
  }
  EXPECT_EQ(head_checksum(head.bytes), head.header.checksum);
}

TEST(Index, WrongLengthIsFound) {
  const Head head(5 * 8192);
  for (std::size_t size = 0; size < head.bytes.size(); size += 4)
    EXPECT_EQ(check_index(head.header, std::span(head.bytes).first(size)).code, Code::kCorrupt);
}

// The order of the terms must not matter: GPUs add them as they come.
TEST(Checksum, TermsAddUpInAnyOrder) {
  test::Prng prng(2);
  std::vector<std::uint8_t> bytes(4096);
  for (auto& byte : bytes) byte = prng.byte();
  const std::uint64_t whole = checksum_terms(bytes.data(), bytes.size(), 0);
  std::uint64_t parts = 0;
  for (std::size_t part = 8; part-- > 0;)
    parts += checksum_terms(bytes.data() + 512 * part, 512, 128 * part);
  EXPECT_EQ(parts, whole);
  // Known values: these numbers are part of the format.
  EXPECT_EQ(checksum_multiplier(0), 0x85EBCA77u);
  EXPECT_EQ(checksum_multiplier(1), (0x85EBCA77u + 0x9E3779B1u) | 1u);
  EXPECT_EQ(checksum_finish(0, 0), 0u);
}

TEST(Checksum, SwappedAndMovedWordsAreFound) {
  std::vector<std::uint8_t> bytes(64);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 37);
  const auto sum = [&] {
    return checksum_finish(checksum_terms(bytes.data(), bytes.size(), 0), bytes.size());
  };
  const std::uint32_t before = sum();
  for (std::size_t a = 0; a < 64; a += 4)
    for (std::size_t b = a + 4; b < 64; b += 4) {
      const auto swap = [&] {
        for (std::size_t i = 0; i < 4; ++i) std::swap(bytes[a + i], bytes[b + i]);
      };
      swap();
      EXPECT_NE(sum(), before);
      swap();
    }
}

}  // namespace
}  // namespace snug::frame
