// Connections over loopback: every byte in order, and every wait ends.
#include "net/socket.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

namespace snug::net {
namespace {

using namespace std::chrono_literals;

struct Pair {
  Socket near, far;
};

Pair connected_pair() {
  Result<Listener> listener = Listener::open(Address{"127.0.0.1", 0});
  EXPECT_TRUE(listener.ok());
  Result<Socket> near = connect(Address{"127.0.0.1", listener->port()}, after(10s));
  EXPECT_TRUE(near.ok());
  Result<Socket> far = listener->accept(after(10s));
  EXPECT_TRUE(far.ok());
  return {std::move(*near), std::move(*far)};
}

std::vector<std::byte> pattern(std::size_t num_bytes) {
  std::vector<std::byte> bytes(num_bytes);
  for (std::size_t i = 0; i < num_bytes; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

// As where many peers start at the same moment, each with several connections. The kernel makes who
// finds no room wait for a second.
TEST(Socket, HundredsWaitToBeAccepted) {
  int room = 0;
  std::ifstream("/proc/sys/net/core/somaxconn") >> room;
  if (room < 400) GTEST_SKIP() << "the system allows " << room;
  Result<Listener> listener = Listener::open(Address{"127.0.0.1", 0});
  ASSERT_TRUE(listener.ok());
  std::vector<Socket> waiting;
  for (int i = 0; i < 300; ++i) {
    Result<Socket> socket = connect(Address{"127.0.0.1", listener->port()}, after(500ms));
    ASSERT_TRUE(socket.ok()) << i << ": " << socket.status().what;
    waiting.push_back(std::move(*socket));
  }
}

TEST(Socket, MovesMoreThanBuffersHoldInPieces) {
  Pair pair = connected_pair();
  const std::vector<std::byte> sent = pattern(9 << 20);
  std::vector<std::byte> received(sent.size());
  std::thread sender([&] {
    auto* base = const_cast<std::byte*>(sent.data());
    iovec pieces[] = {{base, 0},
                      {base, 1},
                      {base + 1, 5 << 20},
                      {base, 0},
                      {base + 1 + (5 << 20), sent.size() - 1 - (5 << 20)}};
    EXPECT_TRUE(pair.near.send_all(pieces, after(30s)).ok());
  });
  iovec pieces[] = {{received.data(), 1 << 20},
                    {received.data() + (1 << 20), received.size() - (1 << 20)}};
  EXPECT_TRUE(pair.far.recv_all(pieces, after(30s)).ok());
  sender.join();
  EXPECT_EQ(std::memcmp(sent.data(), received.data(), sent.size()), 0);
}

TEST(Socket, SilentPeerEndsInTimeout) {
  Pair pair = connected_pair();
  std::byte byte{};
  EXPECT_EQ(pair.near.recv_all(std::span(&byte, 1), after(20ms)).code, Code::kTimeout);
  EXPECT_EQ(pair.near.wait_readable(after(1ms)).code, Code::kTimeout);
}

TEST(Socket, PeerThatNeverReadsEndsInTimeout) {
  Pair pair = connected_pair();
  const std::vector<std::byte> much = pattern(64 << 20);
  EXPECT_EQ(pair.near.send_all(much, after(200ms)).code, Code::kTimeout);
}

TEST(Socket, PeerThatLeavesIsNoticed) {
  Pair pair = connected_pair();
  pair.far = Socket();
  std::byte byte{};
  EXPECT_EQ(pair.near.recv_all(std::span(&byte, 1), after(10s)).code, Code::kPeer);
  Result<std::size_t> rest = pair.near.recv_some(std::span(&byte, 1), after(10s));
  ASSERT_TRUE(rest.ok());
  EXPECT_EQ(*rest, 0u);
}

TEST(Socket, ShutDownWakesAWaitingThread) {
  Pair pair = connected_pair();
  Code code = Code::kOk;
  std::thread reader([&] {
    std::byte byte{};
    code = pair.near.recv_all(std::span(&byte, 1), after(60s)).code;
  });
  std::this_thread::sleep_for(20ms);
  pair.near.shut_down();
  reader.join();
  EXPECT_EQ(code, Code::kPeer);
}

TEST(Socket, NobodyListens) {
  std::uint16_t port = 0;
  {
    Result<Listener> listener = Listener::open(Address{"127.0.0.1", 0});
    ASSERT_TRUE(listener.ok());
    port = listener->port();
  }
  EXPECT_EQ(connect(Address{"127.0.0.1", port}, after(10s)).status().code, Code::kPeer);
}

TEST(Socket, PortInUseIsSaid) {
  Result<Listener> first = Listener::open(Address{"127.0.0.1", 0});
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(Listener::open(Address{"127.0.0.1", first->port()}).status().code, Code::kUsage);
}

TEST(Address, Parses) {
  EXPECT_EQ(parse_address("example:80")->host, "example");
  EXPECT_EQ(parse_address("[::1]:65535")->host, "::1");
  EXPECT_EQ(parse_address("[::1]:65535")->port, 65535);
  EXPECT_EQ(parse_address(":7000")->host, "127.0.0.1");
  EXPECT_EQ(to_string(*parse_address("[::1]:7000")), "[::1]:7000");
  for (const char* bad :
       {"", "host", "host:", "host:x", "host:65536", "host:-1", "::1:80", "host:8 "}) {
    EXPECT_EQ(parse_address(bad).status().code, Code::kUsage) << bad;
  }
}

}  // namespace
}  // namespace snug::net
