// Hosts that never answer, callers who change their minds, and sources and sinks that throw:
// everything ends, soon and with a reason.
#include <sys/socket.h>

#include <array>
#include <new>

#include "net/socket.h"
#include "wire/memory_channel.h"
#include "wire/wire_pairs.h"

namespace snug::test {
namespace {

using namespace std::chrono_literals;

// A host that takes connections and never answers.
TEST(WireSilence, ConnectingStopsWhenTheCallerSaysSo) {
  const auto silent = net::Listener::open(net::Address{"127.0.0.1", 0});
  ASSERT_TRUE(silent.ok());
  const std::string address = "127.0.0.1:" + std::to_string(silent->port());
  wire::Options options;
  options.timeout = 1h;
  int num_asked = 0;
  const auto connection = wire::connect(address, options, [&] { return ++num_asked < 3; });
  EXPECT_EQ(connection.status().code, Code::kIo);
  EXPECT_EQ(num_asked, 3);
}

// One that does not even do that: its queue is full, and the system drops who calls.
TEST(WireSilence, ConnectingToAHostThatDropsPacketsStopsToo) {
  const auto full = net::Listener::open(net::Address{"127.0.0.1", 0});
  ASSERT_TRUE(full.ok());
  ASSERT_EQ(::listen(full->socket().fd(), 0), 0);
  const net::Address address{"127.0.0.1", full->port()};
  std::vector<net::Socket> queue;
  for (auto s = net::connect(address, net::after(300ms)); s;
       s = net::connect(address, net::after(300ms)))
    queue.push_back(std::move(*s));
  int num_asked = 0;
  const auto socket = net::connect(address, net::after(1h), [&] { return ++num_asked < 3; });
  EXPECT_EQ(socket.status().code, Code::kIo);
  EXPECT_GE(num_asked, 3);
}

// Pings come often enough for a side that waits for less than the other one.
TEST(WireSilence, AShortTimeoutOnOneSideIsNoSilence) {
  wire::Options brief;
  brief.timeout = 2s;
  const std::array pairs{make_unequal_pair({}, brief), make_unequal_pair(brief, {})};
  std::this_thread::sleep_for(brief.timeout + 1s);
  for (const Pair& pair : pairs) {
    EXPECT_TRUE(pair.a.status().ok()) << to_string(pair.a.status());
    EXPECT_TRUE(pair.b.status().ok()) << to_string(pair.b.status());
  }
}

// A receiver that takes everything, never confirms it, and reports progress all the time.
Code send_to_reporter(std::uint64_t bytes_per_report) {
  wire::Options options;
  options.num_lanes = 1;
  options.timeout = 600ms;
  BarePeer peer = make_bare_peer(options);
  const Bytes data(200'000);
  const std::span<const std::byte> from[] = {data};
  const auto sent = peer.connection.send(1, DType::kBytes, from);
  EXPECT_TRUE(peer.tell(wire::ControlType::kAccept, 1, {}, net::after(20s)).ok());
  wire::ReceiveProgress sums;
  for (int i = 0; i < 400 && !sent.done(); ++i) {
    sums.raw_bytes[0] += bytes_per_report;
    const auto payload = wire::bytes_of(sums);
    if (!peer.tell(wire::ControlType::kProgress, 0, payload, net::after(20s)).ok()) break;
    std::this_thread::sleep_for(50ms);
  }
  const Status s = sent.wait_for(1ms);
  EXPECT_NE(s.what, std::string("the message is still on its way"));
  peer.connection.close();
  return s.code;
}

TEST(WireSilence, ReportsWithoutProgressAreNoSignOfLife) {
  EXPECT_EQ(send_to_reporter(0), Code::kTimeout);
}

// The message was one chunk, so one report is all that an honest receiver has to make.
TEST(WireSilence, ReportsOfAByteAtATimeAreNoSignOfLife) {
  EXPECT_EQ(send_to_reporter(1), Code::kTimeout);
}

struct ThrowingSource : wire::Source {
  std::vector<wire::Extent> extents() const override { return {{DType::kBytes, 1 << 20}}; }
  std::span<const std::byte> view(std::uint64_t, std::size_t) override { return {}; }
  Status read(std::uint64_t, std::span<std::byte>) override { throw std::bad_alloc(); }
};

struct ThrowingSink : wire::Sink {
  Status begin(std::span<const wire::Extent>, std::uint64_t) override {
    if (at_begin) throw std::bad_alloc();
    return {};
  }
  std::span<std::byte> view(std::uint64_t, std::size_t) override { return {}; }
  Status write(std::uint64_t, std::span<const std::byte>) override { throw std::bad_alloc(); }
  bool at_begin = false;
};

TEST(WireExceptions, ASourceThatThrowsEndsItsTransfer) {
  Pair pair = make_pair();
  Bytes got(1 << 20);
  const std::span<std::byte> to[] = {got};
  const auto received = pair.b.recv(1, to);
  const auto sent = pair.a.send(1, std::make_shared<ThrowingSource>());
  EXPECT_EQ(sent.wait_for(20s).code, Code::kInternal);
  EXPECT_EQ(received.wait_for(20s).code, Code::kPeer);
}

TEST(WireExceptions, ASinkThatThrowsEndsItsTransfer) {
  for (const bool at_begin : {false, true}) {
    Pair pair = make_pair();
    const Bytes data = gaussian_bf16(4 << 20);
    const std::span<const std::byte> from[] = {data};
    auto sink = std::make_shared<ThrowingSink>();
    sink->at_begin = at_begin;
    const auto received = pair.b.recv(1, sink);
    const auto sent = pair.a.send(1, DType::kBF16, from);
    EXPECT_EQ(received.wait_for(20s).code, Code::kInternal);
    EXPECT_EQ(sent.wait_for(20s).code, Code::kPeer);
  }
}

}  // namespace
}  // namespace snug::test
