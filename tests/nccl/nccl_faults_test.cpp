// Peers that die, stall, lie or do not fit: an error in good time, never a hang.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "frame/frame.h"
#include "nccl/net_ranks.h"
#include "nccl/tcp_protocol.h"
#include "net/socket.h"
#include "snug/codec.h"
#include "support/inputs.h"

namespace snug::test {
namespace {

using namespace std::chrono_literals;
using nccl::ChunkHeader;
using nccl::ChunkKind;

Bytes gaussian(std::size_t size) {
  Bytes bytes = make_input(input_named("gaussian"), DType::kBF16, size / 2);
  bytes.resize(size);
  return bytes;
}

const Environment kShortTimeout = {{"SNUG_NCCL_TIMEOUT", "1"}};

// Rank 0 is killed while both directions are busy; rank 1 must notice.
TEST(NcclFaults, KilledPeer) {
  const auto statuses = run_ranks(2, {}, [](int me, Shared& shared) {
    Rank rank(me, shared);
    void* listening = rank.listen_for(1 - me);
    void* to = rank.connect_to(1 - me);
    void* from = rank.accept(listening);
    const Bytes sent =
        make_input(input_named("random_bits"), DType::kBF16, 32 << 20);  // more than buffers hold
    Bytes received(sent.size());
    void* receive = rank.irecv(from, received);
    if (me == 0) {
      rank.isend(to, std::span(sent).first(1 << 20));
      while (shared.notes[0] == 0) std::this_thread::yield();
      ::kill(::getpid(), SIGKILL);
    }
    void* send = rank.isend(to, sent);
    rank.wait(receive);  // 1 MiB arrives whole
    void* next = rank.irecv(from, received);
    shared.notes[0] = 1;
    SNUG_RANK_CHECK(rank.wait_for_end(next) == ncclRemoteError);
    SNUG_RANK_CHECK(rank.wait_for_end(send) == ncclRemoteError);
    rank.close_send(to);
    rank.close_recv(from);
  });
  EXPECT_EQ(statuses[0], -SIGKILL);
  EXPECT_EQ(statuses[1], 0);
}

// Rank 0 stops for good in the middle of a message that it receives, and of one that it sends.
TEST(NcclFaults, StalledPeer) {
  const auto statuses = run_ranks(2, kShortTimeout, [](int me, Shared& shared) {
    Rank rank(me, shared);
    void* listening = rank.listen_for(1 - me);
    void* to = rank.connect_to(1 - me);
    void* from = rank.accept(listening);
    const Bytes sent = make_input(input_named("random_bits"), DType::kBF16, 32 << 20);
    Bytes received(sent.size());
    if (me == 0) {
      rank.isend(to, sent);
      std::this_thread::sleep_for(500ms);  // the message has begun
      shared.notes[0] = ::getpid();
      for (;;) ::pause();  // posts no receive, sends no further than the system does
    }
    void* send = rank.isend(to, sent);
    SNUG_RANK_CHECK(rank.wait_for_end(send) == ncclRemoteError);
    while (shared.notes[0] == 0) std::this_thread::yield();
    ::kill(shared.notes[0], SIGSTOP);
    void* receive = rank.irecv(from, received);
    SNUG_RANK_CHECK(rank.wait_for_end(receive) == ncclRemoteError);
    rank.close_send(to);
    rank.close_recv(from);
    ::kill(shared.notes[0], SIGKILL);
  });
  EXPECT_EQ(statuses[1], 0);
}

// A closed connection ends receives, but only after everything sent has arrived.
TEST(NcclFaults, ClosedPeer) {
  EXPECT_TRUE(all_succeeded(run_ranks(2, {}, [](int me, Shared& shared) {
    Rank rank(me, shared);
    const Bytes sent = gaussian(3'000'000);
    if (me == 0) {
      void* comm = rank.connect_to(1);
      rank.wait(rank.isend(comm, sent));
      rank.close_send(comm);
    } else {
      void* comm = rank.accept_from(0);
      Bytes received(sent.size()), more(10);
      void* first = rank.irecv(comm, received);
      void* second = rank.irecv(comm, more);
      rank.wait(first);
      SNUG_RANK_CHECK(received == sent);
      SNUG_RANK_CHECK(rank.wait_for_end(second) == ncclRemoteError);
      rank.close_recv(comm);
    }
  })));
}

TEST(NcclFaults, MessageLargerThanReceive) {
  for (const std::size_t size : {1000, 500'000})
    EXPECT_TRUE(all_succeeded(run_ranks(2, {}, [&](int me, Shared& shared) {
      Rank rank(me, shared);
      Bytes bytes = gaussian(size);
      if (me == 0) {
        void* comm = rank.connect_to(1);
        rank.wait_for_end(rank.isend(comm, bytes));
        while (shared.notes[0] == 0) std::this_thread::yield();
        rank.close_send(comm);
      } else {
        void* comm = rank.accept_from(0);
        void* receive = rank.irecv(comm, std::span(bytes).first(size - 1));
        SNUG_RANK_CHECK(rank.wait_for_end(receive) == ncclInvalidUsage);
        rank.close_recv(comm);
        shared.notes[0] = 1;
      }
    })));
}

// ---- peers that are not the plugin ---------------------------------------------

// A sender made by hand: says Hello as told, then sends what a test likes.
struct FakeSender {
  std::vector<net::Socket> sockets;  // the last one is the control socket

  FakeSender(const nccl::Handle& handle, std::uint32_t protocol, std::uint32_t frame_version) {
    sockaddr_storage address{};
    std::memcpy(&address, &handle.address, sizeof handle.address);
    for (std::uint32_t i = 0; i <= handle.num_sockets; ++i) {
      auto socket = net::connect(address, net::after(10s));
      SNUG_RANK_CHECK(socket.ok());
      nccl::Hello hello{nccl::kHandleMagic, protocol, frame_version, handle.nonce, i,
                        handle.num_sockets, "fake"};
      SNUG_RANK_CHECK(socket->send_all(std::as_bytes(std::span(&hello, 1)), net::after(10s)).ok());
      sockets.push_back(std::move(*socket));
      nccl::Reply reply{};
      (void)sockets.back().recv_all(std::as_writable_bytes(std::span(&reply, 1)), net::after(10s));
      if (protocol != nccl::kProtocolVersion) return;
    }
  }
  void send(std::size_t socket, std::span<const std::byte> bytes) {
    (void)sockets[socket].send_all(bytes, net::after(10s));
  }
  void send(std::size_t socket, const ChunkHeader& header) {
    send(socket, std::as_bytes(std::span(&header, 1)));
  }
  std::size_t control() const { return sockets.size() - 1; }
};

nccl::Handle handle_of(Shared& shared) {
  nccl::Handle handle;
  std::memcpy(&handle, shared.mail[0][1][0].handle, sizeof handle);
  return handle;
}

ChunkHeader chunk(ChunkKind kind, std::uint32_t number, std::uint64_t message, std::uint64_t offset,
                  std::uint32_t data, std::uint32_t payload) {
  return {nccl::kChunkMagic, kind,   DType::kBytes, Codec::kRaw, 0, 0, number,
          message,           offset, data,          payload};
}
const ChunkHeader kOpenFirst = chunk(ChunkKind::kOpen, 0, 0, 0, 0, 0);

// What `attack` sends must end the receive with this error, within the timeout.
void expect_rejected(const std::function<void(FakeSender&)>& attack,
                     ncclResult_t expected = ncclRemoteError) {
  EXPECT_TRUE(all_succeeded(run_ranks(1, kShortTimeout, [&](int, Shared& shared) {
    Rank rank(0, shared);
    void* listening = rank.listen_for(1);
    FakeSender sender(handle_of(shared), nccl::kProtocolVersion, frame::kVersion);
    void* comm = rank.accept(listening);
    Bytes buffer(1 << 20);
    void* receive = rank.irecv(comm, buffer);
    attack(sender);
    SNUG_RANK_CHECK(rank.wait_for_end(receive) == expected);
    rank.close_recv(comm);
  })));
}

TEST(NcclFaults, GarbageOnControlSocket) {
  expect_rejected([](FakeSender& sender) { sender.send(sender.control(), gaussian(4096)); });
  expect_rejected([](FakeSender& sender) {
    sender.send(sender.control(), chunk(ChunkKind::kOpen, 0, 77, 0, 0, 0));  // no such socket
  });
  expect_rejected([](FakeSender& sender) {
    sender.send(sender.control(),
                chunk(ChunkKind::kRaw, 0, 100, 50, 50, 50));  // pieces belong elsewhere
  });
  expect_rejected([](FakeSender& sender) {
    sender.send(sender.control(), chunk(ChunkKind::kRaw, 0, 100, 0, 100, 100));
    sender.send(sender.control(), Bytes(99));
    sender.sockets.clear();  // one byte short
  });
}

TEST(NcclFaults, GarbageOnDataSocket) {
  const auto attack = [](const ChunkHeader& header, const Bytes& payload) {
    expect_rejected([&](FakeSender& sender) {
      sender.send(sender.control(), kOpenFirst);
      sender.send(0, header);
      sender.send(0, payload);
    });
  };
  Prng prng(5);
  Bytes noise(4096);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(prng.byte());
  ChunkHeader garbage;
  std::memcpy(&garbage, noise.data(), sizeof garbage);
  attack(garbage, noise);
  attack(chunk(ChunkKind::kFrame, 0, 4096, 0, 4096, 4000), noise);  // not a frame
  ChunkHeader unknown = chunk(ChunkKind::kRaw, 0, 4096, 0, 4096, 4096);
  unknown.dtype = static_cast<DType>(kNumDTypes);  // would index the statistics
  attack(unknown, noise);
  unknown.dtype = DType::kBF16;
  unknown.codec = static_cast<Codec>(kNumCodecs);
  attack(unknown, noise);
  attack(chunk(ChunkKind::kRaw, 0, 4096, 4096, 4096, 4096), noise);  // beyond its message
  attack(chunk(ChunkKind::kRaw, 0, ~0ull, ~0ull - 100, 4096, 4096),
         noise);                                                  // sums that wrap around
  attack(chunk(ChunkKind::kRaw, 0, 4096, 0, 4096, 4095), noise);  // sizes that disagree
  attack(chunk(ChunkKind::kFrame, 0, 4096, 0, 16, 4096), noise);  // a payload for more data
  attack(chunk(ChunkKind::kRaw, 0, 4096, 0, 0, 0), noise);        // an empty piece
  attack(chunk(ChunkKind::kRaw, 9, 4096, 0, 4096, 4096), noise);  // nobody waits for this one
}

// The same piece twice would make a message look complete that is not.
TEST(NcclFaults, SamePieceTwice) {
  expect_rejected([](FakeSender& sender) {
    sender.send(sender.control(), kOpenFirst);
    for (int i = 0; i < 3; ++i) {
      sender.send(0, chunk(ChunkKind::kRaw, 0, 8192 + 100, 0, 4096, 4096));
      sender.send(0, Bytes(4096));
    }
  });
}

// A true frame whose bytes were changed on the way.
TEST(NcclFaults, DamagedFrame) {
  const Bytes data = gaussian(100'000);
  Bytes frame(encode_bound(data.size()));
  const auto size = encode(data, frame);
  ASSERT_TRUE(size.ok());
  frame.resize(*size);
  for (const std::size_t at :
       {std::size_t{3}, std::size_t{20}, frame.size() / 2, frame.size() - 1}) {
    Bytes damaged = frame;
    damaged[at] ^= std::byte{16};
    expect_rejected([&](FakeSender& sender) {
      sender.send(sender.control(), kOpenFirst);
      sender.send(
          0, chunk(ChunkKind::kFrame, 0, data.size(), 0, static_cast<std::uint32_t>(data.size()),
                   static_cast<std::uint32_t>(damaged.size())));
      sender.send(0, damaged);
    });
  }
}

// ---- versions ------------------------------------------------------------------

TEST(NcclFaults, OtherProtocolIsRefused) {
  EXPECT_TRUE(all_succeeded(run_ranks(1, {}, [](int, Shared& shared) {
    Rank rank(0, shared);
    void* listening = rank.listen_for(1);
    FakeSender sender(handle_of(shared), nccl::kProtocolVersion + 1, frame::kVersion);
    void* comm = nullptr;
    ncclResult_t result = ncclSuccess;
    while (result == ncclSuccess && comm == nullptr) result = rank.net().accept(listening, &comm);
    SNUG_RANK_CHECK(result == ncclInvalidUsage);
    SNUG_RANK_CHECK(rank.net().close_listen(listening) == ncclSuccess);
    // And from the other side, by what the handle says.
    nccl::Handle handle = handle_of(shared);
    char bytes[NCCL_NET_HANDLE_MAXSIZE] = {};
    handle.protocol += 1;
    std::memcpy(bytes, &handle, sizeof handle);
    SNUG_RANK_CHECK(rank.net().connect(0, bytes, &comm) == ncclInvalidUsage);
    std::memset(bytes, 0x42, sizeof bytes);  // the handle of another plugin
    SNUG_RANK_CHECK(rank.net().connect(0, bytes, &comm) == ncclInvalidUsage);
  })));
}

// A receiver that reads other frames is sent none.
TEST(NcclFaults, OtherFramesGoRaw) {
  EXPECT_TRUE(all_succeeded(run_ranks(1, {{"SNUG_NCCL_CODEC", "entropy"}}, [](int, Shared& shared) {
    Rank rank(0, shared);
    auto listener = net::Listener::open(net::Address{"127.0.0.1", 0});
    SNUG_RANK_CHECK(listener.ok());
    nccl::Handle handle{nccl::kHandleMagic, nccl::kProtocolVersion, 1, 42, 0, {}};
    auto& address = reinterpret_cast<sockaddr_in&>(handle.address);
    address = {AF_INET, htons(listener->port()), {htonl(INADDR_LOOPBACK)}, {}};
    char bytes[NCCL_NET_HANDLE_MAXSIZE] = {};
    std::memcpy(bytes, &handle, sizeof handle);
    void* comm = nullptr;
    SNUG_RANK_CHECK(rank.net().connect(0, bytes, &comm) == ncclSuccess);
    net::Socket sockets[2];
    for (int i = 0; i < 2; ++i) {
      auto socket = listener->accept(net::after(10s));
      SNUG_RANK_CHECK(socket.ok());
      nccl::Hello hello;
      SNUG_RANK_CHECK(
          socket->recv_all(std::as_writable_bytes(std::span(&hello, 1)), net::after(10s)).ok());
      nccl::Reply reply{nccl::kHandleMagic, nccl::kProtocolVersion, frame::kVersion + 1, "fake"};
      SNUG_RANK_CHECK(socket->send_all(std::as_bytes(std::span(&reply, 1)), net::after(10s)).ok());
      sockets[hello.socket_idx] = std::move(*socket);
    }
    while (comm == nullptr) SNUG_RANK_CHECK(rank.net().connect(0, bytes, &comm) == ncclSuccess);
    const Bytes sent = gaussian(200'000);
    void* request = rank.isend(comm, sent);
    ChunkHeader header;
    SNUG_RANK_CHECK(
        sockets[0].recv_all(std::as_writable_bytes(std::span(&header, 1)), net::after(10s)).ok());
    SNUG_RANK_CHECK(header.kind == ChunkKind::kRaw && header.data_bytes == sent.size());
    Bytes received(sent.size());
    SNUG_RANK_CHECK(sockets[0].recv_all(received, net::after(10s)).ok() && received == sent);
    rank.wait(request);
    rank.close_send(comm);
  })));
}

// Nobody accepts: connect fails instead of waiting for ever.
TEST(NcclFaults, ConnectToNobody) {
  EXPECT_TRUE(all_succeeded(run_ranks(1, kShortTimeout, [](int, Shared& shared) {
    Rank rank(0, shared);
    void* listening = rank.listen_for(1);
    SNUG_RANK_CHECK(rank.net().close_listen(listening) == ncclSuccess);
    void* comm = nullptr;
    ncclResult_t result = ncclSuccess;
    while (result == ncclSuccess && comm == nullptr)
      result = rank.net().connect(0, shared.mail[0][1][0].handle, &comm);
    SNUG_RANK_CHECK(result == ncclRemoteError);
  })));
}

}  // namespace
}  // namespace snug::test
