// Hosts that never answer, callers who change their minds, and sources and sinks that throw:
// everything ends, soon and with a reason.
#include <sys/socket.h>

#include <new>

#include "net/socket.h"
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
