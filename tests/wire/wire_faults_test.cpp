// Links that damage, cut and stall, and peers that are not who they should be:
// an error in bounded time, and never a wrong byte.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "wire/channel.h"
#include "wire/faulty_proxy.h"
#include "wire/handshake.h"
#include "wire/memory_channel.h"
#include "wire/protocol.h"
#include "wire/wire_pairs.h"

namespace snug::test {
namespace {

using namespace std::chrono_literals;

// Without TLS, which would hide the faults from the layers above it: what finds them here are the
// protocol's own checks. wire_door_test.cpp has the same with TLS.
wire::Options quick_options() {
  wire::Options options;
  options.insecure = true;
  options.timeout = 1500ms;
  options.num_lanes = 2;
  options.chunk_bytes = 64 << 10;
  return options;
}

// One message of 4 MiB through a proxy with one fault.
Outcome send_through(const Fault& fault, const Bytes& data) {
  const wire::Options options = quick_options();
  auto listener = wire::Listener::open("127.0.0.1:0", options);
  FaultyProxy proxy(listener->address(), fault);
  return test::send_through(proxy, *listener, options, data);
}

TEST(WireFaults, DamageOnALaneIsFound) {
  const Bytes data = gaussian_bf16(4 << 20);
  for (const std::uint64_t at : {200, 300, 70'000, 1'000'000}) {
    const Outcome outcome = send_through({Fault::kFlipBit, 1, at}, data);
    EXPECT_TRUE(outcome.connected.ok());
    if (!outcome.struck) continue;  // the other lane took most of it
    EXPECT_EQ(outcome.received.code, Code::kCorrupt) << to_string(outcome.received);
    EXPECT_EQ(outcome.sent.code, Code::kCorrupt) << to_string(outcome.sent);
  }
}

TEST(WireFaults, DamageAnywhereNeverPasses) {
  Prng prng(5);
  const Bytes data = gaussian_bf16(300'000);
  for (int i = 0; i < 40; ++i) {
    const Fault fault{Fault::kFlipBit, static_cast<int>(prng.below(3)), 32 + prng.below(2000),
                      prng.one_in(2)};
    const Outcome outcome = send_through(fault, data);
    if (!outcome.connected.ok()) continue;
    EXPECT_NE(outcome.sent.code, Code::kTimeout) << to_string(outcome.sent);
    EXPECT_TRUE(outcome.same || !outcome.received.ok());
    EXPECT_TRUE(outcome.received.ok() || !outcome.sent.ok());
  }
}

TEST(WireFaults, CutConnections) {
  const Bytes data = gaussian_bf16(8 << 20);
  for (const int connection : {0, 1, 2}) {
    const Outcome outcome = send_through({Fault::kCut, connection, 70}, data);
    EXPECT_TRUE(outcome.connected.ok());
    if (!outcome.struck) continue;  // the other lane took all of it
    EXPECT_EQ(outcome.sent.code, Code::kPeer) << to_string(outcome.sent);
    EXPECT_EQ(outcome.received.code, Code::kPeer) << to_string(outcome.received);
  }
}

// Half-open connections: nobody hears that the other side is gone.
TEST(WireFaults, StallsEndWithTimeouts) {
  const Bytes data = gaussian_bf16(8 << 20);
  for (const int connection : {0, 1})
    for (const bool towards_server : {true, false}) {
      if (connection == 1 && !towards_server) continue;  // nothing passes there
      const Outcome outcome = send_through({Fault::kStall, connection, 70, towards_server}, data);
      EXPECT_FALSE(outcome.sent.ok() && outcome.struck);
      EXPECT_TRUE(outcome.same || !outcome.received.ok());
    }
}

// One greeted channel of a session.
wire::ChannelPtr dial_channel(const std::string& address, const wire::ChannelId& id) {
  auto channel = wire::dial(address, wire::Door{}, net::after(5s));
  EXPECT_TRUE(channel.ok() && wire::greet(**channel, id, net::after(5s)).ok());
  return std::move(*channel);
}

TEST(WireFaults, StrangersDoNotDisturb) {
  const wire::Options options = quick_options();
  auto listener = wire::Listener::open("127.0.0.1:0", options);
  const net::Address address = *net::parse_address(listener->address());
  // One says nothing, one talks nonsense, one a version from the future.
  auto silent = net::connect(address, net::after(5s));
  auto noisy = net::connect(address, net::after(5s));
  const Bytes noise = random_bytes(10'000);
  (void)noisy->send_all(noise, net::after(5s));
  auto future = net::connect(address, net::after(5s));
  Bytes hello(32);
  std::memcpy(hello.data(), "SNUGWIRE\x09\0\0\0\0\0\x01\0", 16);
  ASSERT_TRUE(future->send_all(hello, net::after(5s)).ok());
  Bytes answer(16);
  ASSERT_TRUE(future->recv_all(answer, net::after(5s)).ok());
  EXPECT_EQ(std::memcmp(answer.data(), "SNUGWIRE\x03\0\0\0", 12), 0);
  std::byte more;
  EXPECT_EQ(*future->recv_some({&more, 1}, net::after(5s)), 0u);

  Pair pair;
  std::thread dialling([&] { pair.a = *wire::connect(listener->address(), options); });
  pair.b = *listener->accept(10s);
  dialling.join();
  expect_round_trip(pair, DType::kBF16, gaussian_bf16(100'000));
}

TEST(WireFaults, AServerOfAnotherVersionIsNamed) {
  auto listener = net::Listener::open(net::Address{"127.0.0.1", 0});
  std::thread serving([&] {
    auto client = listener->accept(net::after(5s));
    Bytes hello(32), answer(16);
    ASSERT_TRUE(client->recv_all(hello, net::after(5s)).ok());
    std::memcpy(answer.data(), "SNUGWIRE\x09\0\0\0", 12);
    ASSERT_TRUE(client->send_all(answer, net::after(5s)).ok());
    Bytes rest(1);
    (void)client->recv_some(rest, net::after(5s));
  });
  const std::string address = net::to_string(net::Address{"127.0.0.1", listener->port()});
  const Status s = wire::connect(address, quick_options()).status();
  serving.join();
  EXPECT_EQ(s.code, Code::kUnsupportedVersion);
  EXPECT_EQ(s.found, 9u);
}

TEST(WireFaults, NobodyListens) {
  auto listener = net::Listener::open(net::Address{"127.0.0.1", 0});
  const std::string address = net::to_string(net::Address{"127.0.0.1", listener->port()});
  listener = net::Listener();
  EXPECT_EQ(wire::connect(address, quick_options()).status().code, Code::kPeer);
  EXPECT_EQ(wire::connect("nonsense", quick_options()).status().code, Code::kUsage);
}

// Lanes of two sessions arrive mixed, the control channels last.
TEST(WireFaults, ConnectsInAnyOrder) {
  const wire::Options options = quick_options();
  auto listener = wire::Listener::open("127.0.0.1:0", options);
  const wire::SessionId sessions[2] = {wire::random_session(), wire::random_session()};
  std::vector<wire::ChannelPtr> kept;
  for (const std::uint16_t idx : std::initializer_list<std::uint16_t>{2, 1, 0})
    for (const auto& session : sessions)
      kept.push_back(dial_channel(listener->address(), {session, idx, 2}));
  EXPECT_TRUE(listener->accept(5s).ok());
  EXPECT_TRUE(listener->accept(5s).ok());
}

// As many notes as the header promises wait; one more ends the connection, and says why.
TEST(WireFaults, NotesThatNobodyReads) {
  for (const int num_notes : {64, 65}) {
    auto listener = wire::Listener::open("127.0.0.1:0", quick_options());
    auto near = wire::connect(listener->address(), quick_options());
    auto far = listener->accept(10s);
    ASSERT_TRUE(near.ok() && far.ok());
    for (int i = 0; i < num_notes; ++i) (void)near->send_note(std::to_string(i));
    // Notes and offers travel in order: an answer to this one says that all have come.
    const Bytes data(1);
    Bytes got(1);
    const std::span<const std::byte> from[] = {data};
    const std::span<std::byte> to[] = {got};
    const auto received = far->recv(1, to);
    const auto sent = near->send(1, DType::kBytes, from);
    const Status s = received.wait_for(10s);
    (void)sent.wait_for(10s);
    EXPECT_EQ(s.ok(), num_notes == 64);
    EXPECT_EQ(to_string(s).find("notes") != std::string::npos, !s.ok()) << to_string(s);
    for (int i = 0; i < 64; ++i) EXPECT_EQ(*far->recv_note(10s), std::to_string(i));
  }
}

// A peer that knows the token but sends what no peer should.
TEST(WireFaults, NonsenseOnTheControlChannel) {
  for (const std::uint64_t payload_bytes : {std::uint64_t{1} << 40, std::uint64_t{8}}) {
    const wire::Options options = quick_options();
    auto listener = wire::Listener::open("127.0.0.1:0", options);
    const wire::SessionId session = wire::random_session();
    std::vector<wire::ChannelPtr> channels;
    for (const std::uint16_t idx : std::initializer_list<std::uint16_t>{0, 1})
      channels.push_back(dial_channel(listener->address(), {session, idx, 1}));
    auto connection = listener->accept(5s);
    ASSERT_TRUE(connection.ok());
    wire::ControlHeader header;
    header.type = wire::ControlType::kOffer;
    header.message = 1;
    header.payload_bytes = payload_bytes;
    const Bytes payload(8);
    header.payload_hash = wire::hash_bytes(payload);
    wire::seal(header);
    ASSERT_TRUE(channels[0]->send(wire::bytes_of(header), payload, net::after(5s)).ok());
    EXPECT_EQ(connection->recv_note(10s).status().code, Code::kPeer);
  }
}

// Chunks nobody asked for, twice, too long, or out of range.
TEST(WireFaults, NonsenseOnALane) {
  for (int kind = 0; kind < 5; ++kind) {
    const wire::Options options = quick_options();
    auto listener = wire::Listener::open("127.0.0.1:0", options);
    const wire::SessionId session = wire::random_session();
    std::vector<wire::ChannelPtr> channels;
    for (const std::uint16_t idx : std::initializer_list<std::uint16_t>{0, 1})
      channels.push_back(dial_channel(listener->address(), {session, idx, 1}));
    auto connection = listener->accept(5s);
    ASSERT_TRUE(connection.ok());
    Bytes got(200'000);
    const std::span<std::byte> to[] = {got};
    const auto received = connection->recv(1, to);
    const auto table = wire::ChunkTable::make({{DType::kBF16, got.size()}}, 64 << 10);
    const std::string offer = wire::offer_payload(1, *table);
    wire::ControlHeader control;
    control.type = wire::ControlType::kOffer;
    control.message = 1;
    control.payload_bytes = offer.size();
    control.payload_hash = wire::hash_bytes(std::as_bytes(std::span(offer)));
    wire::seal(control);
    ASSERT_TRUE(channels[0]
                    ->send(wire::bytes_of(control), std::as_bytes(std::span(offer)), net::after(5s))
                    .ok());
    ASSERT_TRUE(channels[0]->recv(wire::writable_bytes_of(control), net::after(5s)).ok());

    const Bytes chunk = random_bytes(64 << 10);
    wire::LaneHeader header;
    header.message = kind == 0 ? 2 : 1;
    header.chunk_idx = kind == 1 ? 4 : 0;
    header.raw_bytes = header.payload_bytes = chunk.size();
    if (kind == 2) header.raw_bytes = 5;
    if (kind == 3) header.kind = wire::PayloadKind::kKnown, header.payload_bytes = 0;
    header.raw_hash = wire::hash_bytes(chunk);
    wire::seal(header);
    const int times = kind == 4 ? 2 : 1;
    for (int i = 0; i < times; ++i)
      (void)channels[1]->send(wire::bytes_of(header), kind == 3 ? Bytes{} : chunk, net::after(5s));
    EXPECT_EQ(received.wait_for(10s).code, Code::kPeer) << "kind " << kind;
  }
}

// Only where the channel itself finds every altered byte.
TEST(WireFaults, ARawChunkWithoutAHashIsRefused) {
  for (const bool has_hash : {true, false}) {
    wire::Options options = quick_options();
    options.num_lanes = 1;
    options.chunk_bytes = 64 << 10;
    BarePeer peer = make_bare_peer(options);
    const Bytes chunk = random_bytes(1000);
    Bytes got(chunk.size());
    const std::span<std::byte> to[] = {got};
    const auto received = peer.connection.recv(1, to);
    const auto table = wire::ChunkTable::make({{DType::kBF16, got.size()}}, options.chunk_bytes);
    const std::string offer = wire::offer_payload(1, *table);
    const auto payload = std::as_bytes(std::span(offer));
    ASSERT_TRUE(peer.tell(wire::ControlType::kOffer, 1, payload, net::after(5s)).ok());
    wire::ControlHeader accept;
    ASSERT_TRUE(peer.control().recv(wire::writable_bytes_of(accept), net::after(5s)).ok());

    wire::LaneHeader header;
    header.message = 1;
    header.raw_bytes = header.payload_bytes = chunk.size();
    header.has_raw_hash = has_hash ? 1 : 0;
    if (has_hash) header.raw_hash = wire::hash_bytes(chunk);
    wire::seal(header);
    ASSERT_TRUE(peer.channels[1]->send(wire::bytes_of(header), chunk, net::after(5s)).ok());
    EXPECT_EQ(received.wait_for(10s).code, has_hash ? Code::kOk : Code::kCorrupt);
    for (const auto& channel : peer.channels) channel->shut_down();
  }
}

}  // namespace
}  // namespace snug::test
