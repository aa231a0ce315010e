// Connections that are not from a peer: port scanners, other programs, silent ones.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "frame/frame.h"
#include "nccl/net_ranks.h"
#include "nccl/tcp_protocol.h"
#include "net/socket.h"
#include "support/inputs.h"

namespace snug::test {
namespace {

using namespace std::chrono_literals;

// A rank that listens for itself, so that one process is both peers.
struct Listening {
  Rank rank;
  void* comm;
  nccl::Handle handle;

  explicit Listening(Shared& shared) : rank(0, shared), comm(rank.listen_for(0)) {
    std::memcpy(&handle, shared.mail[0][0][0].handle, sizeof handle);
  }

  net::Socket connect() const {
    sockaddr_storage address{};
    std::memcpy(&address, &handle.address, sizeof handle.address);
    auto socket = net::connect(address, net::after(10s));
    SNUG_RANK_CHECK(socket.ok());
    return std::move(*socket);
  }
  std::vector<net::Socket> connect_silent(std::size_t count) const {
    std::vector<net::Socket> sockets;
    while (sockets.size() < count) sockets.push_back(connect());
    return sockets;
  }
  nccl::Hello hello(std::uint32_t socket_idx) const {
    return {nccl::kHandleMagic, nccl::kProtocolVersion, frame::kVersion, handle.nonce,
            socket_idx,         handle.num_sockets,     "fake"};
  }

  // The peer gets through, and a message arrives.
  void check_peer() {
    void* to = rank.connect_to(0);
    void* from = rank.accept(comm);
    const Bytes sent(200'000, std::byte{7});
    Bytes received(sent.size());
    void* receive = rank.irecv(from, received);
    rank.wait(rank.isend(to, sent));
    rank.wait(receive);
    SNUG_RANK_CHECK(received == sent);
    rank.close_send(to);
    rank.close_recv(from);
  }
};

void send(const net::Socket& socket, std::span<const std::byte> bytes) {
  SNUG_RANK_CHECK(socket.send_all(bytes, net::after(10s)).ok());
}

TEST(NcclStrangers, GarbageIsDropped) {
  EXPECT_TRUE(all_succeeded(run_ranks(1, {}, [](int, Shared& shared) {
    Listening listening(shared);
    send(listening.connect(), Bytes(200, std::byte{1}));  // and closes
    const net::Socket open = listening.connect();
    send(open, Bytes(200, std::byte{1}));
    listening.check_peer();
  })));
}

// A silent connection may keep its place for 10 seconds, but not the peer's: with a timeout of 8
// seconds, one that had to wait for a stranger would fail.
TEST(NcclStrangers, SilentOnesDelayNobody) {
  EXPECT_TRUE(all_succeeded(run_ranks(1, {{"SNUG_NCCL_TIMEOUT", "8"}}, [](int, Shared& shared) {
    Listening listening(shared);
    const std::vector<net::Socket> strangers = listening.connect_silent(20);
    for (int i = 0; i < 10; ++i)  // half a greeting
      send(strangers[static_cast<std::size_t>(i)], Bytes(40));
    listening.check_peer();
  })));
}

// More strangers than there are places: the oldest ones lose theirs, the peer gets one.
TEST(NcclStrangers, ManySilentOnesTakeABoundedNumberOfPlaces) {
  EXPECT_TRUE(all_succeeded(run_ranks(1, {{"SNUG_NCCL_TIMEOUT", "8"}}, [](int, Shared& shared) {
    Listening listening(shared);
    const std::vector<net::Socket> strangers = listening.connect_silent(300);
    std::byte byte{};
    const auto received = strangers[0].recv_some(std::span(&byte, 1), net::after(8s));
    SNUG_RANK_CHECK(received.ok() ? *received == 0 : received.status().code == Code::kPeer);
    listening.check_peer();
  })));
}

// A greeting may arrive in pieces, and those of several sockets mixed up.
TEST(NcclStrangers, GreetingInPieces) {
  EXPECT_TRUE(all_succeeded(run_ranks(1, {}, [](int, Shared& shared) {
    Listening listening(shared);
    const std::uint32_t num_sockets = listening.handle.num_sockets + 1;
    const std::vector<net::Socket> sockets = listening.connect_silent(num_sockets);
    for (const std::size_t from : {0, 1, 50, 95}) {
      for (std::uint32_t i = num_sockets; i-- > 0;) {
        const nccl::Hello hello = listening.hello(i);
        const std::size_t to = from == 0 ? 1 : from == 1 ? 50 : from == 50 ? 95 : sizeof hello;
        send(sockets[i], std::as_bytes(std::span(&hello, 1)).subspan(from, to - from));
      }
    }
    void* comm = listening.rank.accept(listening.comm);
    for (const net::Socket& socket : sockets) {
      nccl::Reply reply{};
      SNUG_RANK_CHECK(
          socket.recv_all(std::as_writable_bytes(std::span(&reply, 1)), net::after(10s)).ok());
      SNUG_RANK_CHECK(reply.magic == nccl::kHandleMagic);
    }
    listening.rank.close_recv(comm);
  })));
}

}  // namespace
}  // namespace snug::test
