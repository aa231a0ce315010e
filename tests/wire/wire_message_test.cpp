// Messages between two ends: every mode, size and shape arrives bit for bit.
#include <algorithm>
#include <atomic>

#include "snug/codec.h"
#include "wire/wire_pairs.h"

namespace snug::test {
namespace {

using namespace std::chrono_literals;
using wire::Mode;

TEST(WireTransfer, EveryModeAndSize) {
  for (const Mode mode : {Mode::kRaw, Mode::kFixed, Mode::kEntropy, Mode::kAuto}) {
    wire::Options options;
    options.mode = mode;
    options.chunk_bytes = 64 << 10;
    Pair pair = make_pair(options);
    for (const std::size_t size : {0, 1, 2, 65535, 65536, 65537, 131072, 1000001})
      expect_round_trip(pair, DType::kBF16, gaussian_bf16(size), size);
  }
}

TEST(WireTransfer, EveryDtypeAndRandomBits) {
  Pair pair = make_pair();
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    expect_round_trip(pair, static_cast<DType>(dtype), gaussian_bf16(300'001));
    expect_round_trip(pair, static_cast<DType>(dtype), random_bytes(300'003));
  }
}

TEST(WireTransfer, FewerBytesTravelThanWereSent) {
  wire::Options options;
  options.mode = Mode::kEntropy;
  Pair pair = make_pair(options);
  expect_round_trip(pair, DType::kBF16, gaussian_bf16(4 << 20));
  const wire::Stats sent = pair.a.stats(), received = pair.b.stats();
  EXPECT_EQ(sent.raw_bytes, 4u << 20);
  EXPECT_LT(sent.wire_bytes, sent.raw_bytes * 70 / 100);
  EXPECT_EQ(sent.num_chunks[static_cast<int>(Mode::kEntropy)], 4u);
  EXPECT_EQ(received.wire_bytes, sent.wire_bytes);
}

TEST(WireTransfer, RandomBitsGoRawAfterFewAttempts) {
  wire::Options options;
  options.mode = Mode::kEntropy;
  options.chunk_bytes = 64 << 10;
  Pair pair = make_pair(options);
  const Bytes data = random_bytes(16 << 20);
  expect_round_trip(pair, DType::kBF16, data);
  const wire::Stats stats = pair.a.stats();
  EXPECT_EQ(stats.num_chunks[static_cast<int>(Mode::kRaw)], 256u);
  EXPECT_EQ(stats.wire_bytes, data.size() + 256 * 64);
}

TEST(WireTransfer, TextUsesZstd) {
  wire::Options options;
  options.mode = Mode::kEntropy;
  Pair pair = make_pair(options);
  Bytes text(1 << 20);
  for (std::size_t i = 0; i < text.size(); ++i)
    text[i] = static_cast<std::byte>("{\"vocab\": [1, 2]} "[i % 18]);
  expect_round_trip(pair, DType::kBytes, text);
  EXPECT_LT(pair.a.stats().wire_bytes, text.size() / 50);
}

// Cuts `bytes` at random places, some pieces being empty.
template <class Byte>
std::vector<std::span<Byte>> cut(std::span<Byte> bytes, std::uint64_t seed) {
  Prng prng(seed);
  std::vector<std::span<Byte>> pieces;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t n = std::min(prng.below(100'000), bytes.size() - at);
    pieces.push_back(bytes.subspan(at, n));
    at += n;
  }
  return pieces;
}

TEST(WireTransfer, GathersAndScatters) {
  wire::Options options;
  options.mode = Mode::kEntropy;
  options.chunk_bytes = 128 << 10;
  Pair pair = make_pair(options);
  const Bytes data = gaussian_bf16(3'000'000);
  Bytes got(data.size());
  const auto from = cut(std::span<const std::byte>(data), 1);
  const auto to = cut(std::span<std::byte>(got), 2);
  const auto sent = pair.a.send(1, DType::kBF16, from);
  ASSERT_TRUE(pair.b.recv(1, to).wait_for(60s).ok());
  ASSERT_TRUE(sent.wait_for(60s).ok());
  EXPECT_TRUE(got == data);
}

TEST(WireTransfer, ManyMessagesBothWaysInAnyOrder) {
  wire::Options options;
  options.chunk_bytes = 64 << 10;
  Pair pair = make_pair(options);
  constexpr std::uint64_t kNum = 40;
  std::vector<Bytes> data, to_a(kNum), to_b(kNum);
  std::vector<wire::Transfer> transfers;
  for (std::uint64_t i = 0; i < kNum; ++i) data.push_back(gaussian_bf16(i * 7001, i + 1));
  const auto send = [&](wire::Connection& c, std::uint64_t i) {
    const std::span<const std::byte> from[] = {data[i]};
    transfers.push_back(c.send(i / 2, DType::kBF16, from));  // two of every tag
  };
  const auto recv = [&](wire::Connection& c, std::vector<Bytes>& into, std::uint64_t i) {
    into[i].resize(data[i].size());
    const std::span<std::byte> to[] = {into[i]};
    transfers.push_back(c.recv(i / 2, to));
  };
  for (std::uint64_t i = 0; i < kNum; ++i) send(pair.a, i);
  for (std::uint64_t i = 0; i < kNum; i += 2) {  // tags from the last to the first
    recv(pair.b, to_b, kNum - 2 - i);
    recv(pair.b, to_b, kNum - 1 - i);
  }
  for (std::uint64_t i = 0; i < kNum; ++i) recv(pair.a, to_a, i);
  for (std::uint64_t i = 0; i < kNum; ++i) send(pair.b, i);
  for (const auto& transfer : transfers) {
    const Status s = transfer.wait_for(60s);
    ASSERT_TRUE(s.ok()) << to_string(s);
  }
  EXPECT_TRUE(to_a == data);
  EXPECT_TRUE(to_b == data);
}

TEST(WireTransfer, NothingMovesBeforeTheReceiverAsks) {
  Pair pair = make_pair();
  const Bytes data = gaussian_bf16(1 << 20);
  Bytes got(data.size());
  const std::span<const std::byte> from[] = {data};
  const std::span<std::byte> to[] = {got};
  const auto sent = pair.a.send(1, DType::kBF16, from);
  EXPECT_EQ(sent.wait_for(100ms).code, Code::kTimeout);
  EXPECT_EQ(pair.a.stats().wire_bytes, 0u);
  ASSERT_TRUE(pair.b.recv(1, to).wait_for(60s).ok());
  ASSERT_TRUE(sent.wait_for(60s).ok());
  EXPECT_TRUE(got == data);
}

TEST(WireTransfer, AnotherSizeIsAnErrorForBoth) {
  Pair pair = make_pair();
  const Bytes data = gaussian_bf16(1000);
  Bytes got(1002);
  const std::span<const std::byte> from[] = {data};
  const std::span<std::byte> to[] = {got};
  const auto sent = pair.a.send(1, DType::kBF16, from);
  EXPECT_EQ(pair.b.recv(1, to).wait_for(60s).code, Code::kDstTooSmall);
  EXPECT_EQ(sent.wait_for(60s).code, Code::kPeer);
}

// Memory as a GPU has it: frames are made and taken by the buffers themselves.
class SelfCodingSource : public wire::Source {
 public:
  explicit SelfCodingSource(const Bytes& data) : data_(data) {}
  std::vector<wire::Extent> extents() const override { return {{DType::kBF16, data_.size()}}; }
  std::span<const std::byte> view(std::uint64_t, std::size_t) override { return {}; }
  Status read(std::uint64_t offset, std::span<std::byte> dst) override {
    ++num_reads;
    std::copy_n(data_.begin() + static_cast<std::ptrdiff_t>(offset), dst.size(), dst.begin());
    return {};
  }
  bool encodes() const override { return true; }
  Result<std::size_t> encode(std::uint64_t offset, std::size_t num_bytes, Codec codec,
                             std::span<std::byte> dst) override {
    return snug::encode(std::span(data_).subspan(offset, num_bytes), dst, {.codec = codec});
  }
  std::atomic<int> num_reads{0};

 private:
  const Bytes& data_;
};

class SelfCodingSink : public wire::Sink {
 public:
  explicit SelfCodingSink(Bytes& data) : data_(data) {}
  Status begin(std::span<const wire::Extent>, std::uint64_t) override { return {}; }
  std::span<std::byte> view(std::uint64_t, std::size_t) override { return {}; }
  Status write(std::uint64_t offset, std::span<const std::byte> src) override {
    std::copy(src.begin(), src.end(), data_.begin() + static_cast<std::ptrdiff_t>(offset));
    return {};
  }
  bool decodes() const override { return true; }
  Status decode(std::uint64_t offset, std::size_t num_bytes,
                std::span<const std::byte> frame) override {
    ++num_decodes;
    return snug::decode(frame, std::span(data_).subspan(offset, num_bytes)).status();
  }
  std::atomic<int> num_decodes{0};

 private:
  Bytes& data_;
};

TEST(WireTransfer, BuffersMayCodeThemselves) {
  wire::Options options;
  options.mode = Mode::kEntropy;
  options.chunk_bytes = 64 << 10;
  for (const bool random : {false, true}) {
    Pair pair = make_pair(options);
    const Bytes data = random ? random_bytes(1'000'000) : gaussian_bf16(1'000'000);
    Bytes got(data.size());
    auto source = std::make_shared<SelfCodingSource>(data);
    auto sink = std::make_shared<SelfCodingSink>(got);
    const auto sent = pair.a.send(1, source);
    const Status s = pair.b.recv(1, sink).wait_for(60s);
    ASSERT_TRUE(s.ok()) << to_string(s);
    ASSERT_TRUE(sent.wait_for(60s).ok());
    EXPECT_TRUE(got == data);
    EXPECT_EQ(source->num_reads, random ? 16 : 0);
    EXPECT_EQ(sink->num_decodes, random ? 0 : 16);
    // Either end may be an ordinary one.
    expect_round_trip(pair, DType::kBF16, data, 2);
    Bytes plain(data.size());
    const std::span<std::byte> to[] = {plain};
    const auto again = pair.a.send(3, source);
    ASSERT_TRUE(pair.b.recv(3, to).wait_for(60s).ok());
    EXPECT_TRUE(plain == data);
  }
}

TEST(WireTransfer, Notes) {
  Pair pair = make_pair();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(pair.a.send_note("note " + std::to_string(i)).ok());
  ASSERT_TRUE(pair.b.send_note("").ok());
  for (int i = 0; i < 10; ++i) EXPECT_EQ(*pair.b.recv_note(60s), "note " + std::to_string(i));
  EXPECT_EQ(*pair.a.recv_note(60s), "");
  EXPECT_EQ(pair.a.recv_note(10ms).status().code, Code::kTimeout);
  EXPECT_EQ(pair.a.send_note(std::string(2 << 20, 'x')).code, Code::kUsage);
}

TEST(WireTransfer, ClosingEndsEverythingAtBothEnds) {
  Pair pair = make_pair();
  const Bytes data = gaussian_bf16(1000);
  Bytes got(1000);
  const std::span<const std::byte> from[] = {data};
  const std::span<std::byte> to[] = {got};
  const auto never_asked_for = pair.a.send(1, DType::kBF16, from);
  const auto never_sent = pair.b.recv(2, to);
  ASSERT_TRUE(pair.b.send_note("last words").ok());
  pair.b.close();
  EXPECT_EQ(never_sent.wait_for(60s).code, Code::kPeer);
  EXPECT_EQ(never_asked_for.wait_for(60s).code, Code::kPeer);
  EXPECT_EQ(*pair.a.recv_note(60s), "last words");
  EXPECT_EQ(pair.a.recv_note(60s).status().code, Code::kPeer);
  EXPECT_EQ(pair.a.send(3, DType::kBF16, from).wait_for(60s).code, Code::kPeer);
}

}  // namespace
}  // namespace snug::test
