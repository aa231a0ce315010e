// Who is let in, and what somebody on the path can read or change: with TLS, as by default.
#include <fcntl.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>

#include "wire/channel.h"
#include "wire/faulty_proxy.h"
#include "wire/protocol.h"
#include "wire/record_cipher.h"
#include "wire/wire_pairs.h"

namespace snug::test {
namespace {

using namespace std::chrono_literals;

wire::Options with_token(const std::string& token = "a token of many bytes") {
  wire::Options options;
  options.token = token;
  options.timeout = 5s;
  options.num_lanes = 2;
  options.chunk_bytes = 64 << 10;
  return options;
}

bool contains(const Bytes& bytes, std::string_view text) {
  const auto wanted = std::as_bytes(std::span(text));
  return std::search(bytes.begin(), bytes.end(), wanted.begin(), wanted.end()) != bytes.end();
}

TEST(WireDoor, AnotherTokenIsRefusedByBoth) {
  const wire::Options mine = with_token(), theirs = with_token("another token of bytes");
  auto listener = wire::Listener::open("127.0.0.1:0", mine);
  const Status s = wire::connect(listener->address(), theirs).status();
  EXPECT_EQ(s.code, Code::kPeer);
  EXPECT_NE(std::string(s.what).find("another token"), std::string::npos) << s.what;
  EXPECT_EQ(wire::connect(listener->address(), with_token("")).status().code, Code::kPeer);
  EXPECT_TRUE(wire::connect(listener->address(), mine).ok());
  EXPECT_TRUE(listener->accept(10s).ok());
  EXPECT_EQ(listener->accept(10ms).status().code, Code::kTimeout);
  for (int i = 0; listener->refused().count < 2 && i < 1000; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(listener->refused().count, 2u);
  EXPECT_EQ(listener->refused().wrong_token, 2u);
  EXPECT_TRUE(listener->refused().peer.starts_with("127.0.0.1:")) << listener->refused().peer;
}

// Several lanes are opened at a time; each finds its place.
TEST(WireDoor, ManyLanesOfManyDiallers) {
  wire::Options options = with_token();
  options.num_lanes = 7;
  options.timeout = 20s;
  auto listener = wire::Listener::open("127.0.0.1:0", options);
  std::vector<std::jthread> diallers;
  std::atomic<int> num_connected{0};
  for (int i = 0; i < 6; ++i)
    diallers.emplace_back([&] {
      const auto connection = wire::connect(listener->address(), options);
      num_connected += connection.ok() ? 1 : 0;
    });
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(listener->accept(20s).ok());
  diallers.clear();
  EXPECT_EQ(num_connected, 6);
}

// A flooded listener sends even those away who may come in.
TEST(WireDoor, WhoIsSentAwayTriesAgain) {
  for (const bool insecure : {false, true})
    for (const int connection : {0, 2}) {
      wire::Options options = with_token();
      if (insecure) options.token.clear();
      options.insecure = insecure;
      auto listener = wire::Listener::open("127.0.0.1:0", options);
      FaultyProxy proxy(listener->address(), {.kind = Fault::kCut, .connection = connection});
      const auto outcome = send_through(proxy, *listener, options, gaussian_bf16(1000));
      EXPECT_TRUE(outcome.struck);
      EXPECT_TRUE(outcome.same) << insecure << ' ' << connection << ": " << outcome.connected.what;
    }
}

// The caller is asked on its own thread only, and a silent lane does not hold it.
TEST(WireDoor, ConnectStopsWhenItsCallerWantsTo) {
  auto listener = wire::Listener::open("127.0.0.1:0", with_token());
  Fault silent_lane;
  silent_lane.kind = Fault::kStall;
  silent_lane.connection = 1;
  silent_lane.towards_server = true;
  FaultyProxy proxy(listener->address(), silent_lane);
  const auto me = std::this_thread::get_id();
  const auto start = std::chrono::steady_clock::now();
  const auto keep_going = [&] {
    EXPECT_EQ(std::this_thread::get_id(), me);
    return std::chrono::steady_clock::now() - start < 300ms;
  };
  EXPECT_EQ(wire::connect(proxy.address(), with_token(), keep_going).status().code, Code::kIo);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 3s);
}

TEST(WireDoor, AddressesThatOthersReachNeedAToken) {
  wire::Options options;
  EXPECT_EQ(wire::Listener::open("0.0.0.0:0", options).status().code, Code::kUsage);
  EXPECT_EQ(wire::connect("192.0.2.1:7000", options).status().code, Code::kUsage);
  options.token = "fifteen bytes..";
  for (const char* address : {"0.0.0.0:0", "127.0.0.1:0"})
    EXPECT_EQ(wire::Listener::open(address, options).status().code, Code::kUsage);
  EXPECT_EQ(wire::connect("127.0.0.1:1", options).status().code, Code::kUsage);
  options.token = "16 bytes or more";
  EXPECT_TRUE(wire::Listener::open("0.0.0.0:0", options).ok());
  options.insecure = true;
  EXPECT_EQ(wire::Listener::open("0.0.0.0:0", options).status().code, Code::kUsage);
  options.token.clear();
  EXPECT_TRUE(wire::Listener::open("0.0.0.0:0", options).ok());
}

// Each side says which of the two encrypts.
TEST(WireDoor, InsecureOnOneSideOnly) {
  wire::Options insecure;
  insecure.insecure = true;
  auto secured = wire::Listener::open("127.0.0.1:0", with_token());
  const Status plain_client = wire::connect(secured->address(), insecure).status();
  EXPECT_EQ(plain_client.code, Code::kPeer);
  EXPECT_NE(std::string(plain_client.what).find("--insecure"), std::string::npos)
      << plain_client.what;
  auto open = wire::Listener::open("127.0.0.1:0", insecure);
  const Status tls_client = wire::connect(open->address(), with_token()).status();
  EXPECT_EQ(tls_client.code, Code::kPeer);
}

TEST(WireDoor, NothingCanBeReadOnThePath) {
  constexpr std::string_view kMarker = "weights that nobody may see";
  Bytes data(1 << 20);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = std::byte(kMarker[i % kMarker.size()]);
  wire::Options options = with_token();
  options.mode = wire::Mode::kRaw;
  auto listener = wire::Listener::open("127.0.0.1:0", options);
  FaultyProxy proxy(listener->address(), {});
  const Outcome outcome = send_through(proxy, *listener, options, data);
  EXPECT_TRUE(outcome.same && outcome.sent.ok()) << to_string(outcome.sent);
  std::size_t num_bytes = 0;
  for (const auto& seen : proxy.seen()) {
    num_bytes += seen.bytes.size();
    EXPECT_FALSE(contains(seen.bytes, kMarker.substr(0, 12)));
    EXPECT_FALSE(contains(seen.bytes, "SNUGWIRE"));
    EXPECT_FALSE(contains(seen.bytes, std::string_view("SNWC\2\0\0\0", 8)));  // an offer
    EXPECT_FALSE(contains(seen.bytes, options.token));
  }
  EXPECT_GE(num_bytes, data.size());
}

// Whatever somebody on the path does, what arrives is right, or there is an error at both ends.
TEST(WireDoor, AlteredBytesAreNeverAccepted) {
  Prng prng(11);
  const Bytes data = gaussian_bf16(300'000);
  const wire::Options options = with_token();
  auto listener = wire::Listener::open("127.0.0.1:0", options);
  int num_struck = 0;
  for (int i = 0; i < 60; ++i) {
    constexpr Fault::Kind kKinds[] = {Fault::kFlipBit, Fault::kDrop, Fault::kRepeat,
                                      Fault::kReorder, Fault::kCut};
    const bool towards_server = !prng.one_in(3);
    const Fault fault{kKinds[i % 5], static_cast<int>(prng.below(3)),
                      prng.below(towards_server ? 100'000 : 900), towards_server};
    FaultyProxy proxy(listener->address(), fault);
    wire::Options quick = options;
    quick.timeout = 1s;
    const Outcome outcome = send_through(proxy, *listener, quick, data);
    EXPECT_TRUE(outcome.same || !outcome.received.ok()) << i;
    EXPECT_TRUE(!outcome.sent.ok() || outcome.received.ok()) << i;
    if (fault.kind == Fault::kFlipBit && proxy.has_struck() && towards_server) {
      EXPECT_FALSE(outcome.received.ok()) << i;
    }
    num_struck += proxy.has_struck() ? 1 : 0;
  }
  EXPECT_GT(num_struck, 20);
}

// A peer that was let in, and opens many channels of sessions that it never completes.
TEST(WireDoor, AGreetingIsShort) {
  const wire::Options options = with_token();
  auto listener = wire::Listener::open("127.0.0.1:0", options);
  const auto door = wire::door_of(wire::Side::kDials, listener->address(), options);
  const auto answers = [&](std::size_t num_bytes) {
    const auto deadline = net::after(20s);
    auto channel = wire::dial(listener->address(), *door, deadline);
    if (!channel || !(*channel)->open(deadline, {}).ok()) return false;
    Bytes hello(num_bytes);
    const unsigned char start[] = {'S', 'N', 'U', 'G', 'W', 'I', 'R', 'E', wire::kProtocolVersion,
                                   0,   0,   0,   0,   0,   2,   0};
    std::memcpy(hello.data(), start, sizeof start);
    Bytes welcome(16);
    return (*channel)->send(hello, {}, deadline).ok() && (*channel)->recv(welcome, deadline).ok();
  };
  EXPECT_TRUE(answers(32));
  EXPECT_FALSE(answers(wire::kMaxRecordBytes));
}

// What somebody recorded of a session opens no door later.
TEST(WireDoor, AReplayIsRefused) {
  const wire::Options options = with_token();
  auto listener = wire::Listener::open("127.0.0.1:0", options);
  const net::Address address = *net::parse_address(listener->address());
  std::vector<FaultyProxy::Seen> recorded;
  {
    FaultyProxy proxy(listener->address(), {});
    EXPECT_TRUE(send_through(proxy, *listener, options, gaussian_bf16(100'000)).same);
    recorded = proxy.seen();
  }
  const auto refused_before = listener->refused().count;
  std::vector<net::Socket> sockets;
  for (const auto& seen : recorded) {
    if (!seen.towards_server) continue;
    auto socket = net::connect(address, net::after(5s));
    ASSERT_TRUE(socket.ok());
    (void)socket->send_all(seen.bytes, net::after(5s));
    sockets.push_back(std::move(*socket));
  }
  EXPECT_EQ(sockets.size(), 3u);
  EXPECT_EQ(listener->accept(300ms).status().code, Code::kTimeout);
  for (int i = 0; listener->refused().count < refused_before + 3 && i < 1000; ++i)
    std::this_thread::sleep_for(10ms);
  EXPECT_EQ(listener->refused().count, refused_before + 3);
}

// The dialler proves itself first: a stranger gets an alert of seven bytes, whatever it tries.
TEST(WireDoor, AWrongTokenGivesNothingToGuessOn) {
  auto listener = wire::Listener::open("127.0.0.1:0", with_token());
  std::set<std::string> answers;
  for (const char* guess : {"a token of many bytez", "completely different", "a token of many"}) {
    FaultyProxy proxy(listener->address(), {});
    wire::Options options = with_token(std::string(guess) + "......");
    EXPECT_FALSE(wire::connect(proxy.address(), options).ok());
    for (const auto& seen : proxy.seen())
      if (!seen.towards_server)
        answers.emplace(reinterpret_cast<const char*>(seen.bytes.data()), seen.bytes.size());
  }
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers.begin()->size(), 7u);
}

// A server that has a certificate instead of the token.
TEST(WireDoor, ACertificateIsNoToken) {
  SSL_CTX* ctx = SSL_CTX_new(TLS_server_method());
  EVP_PKEY* key = EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256");
  X509* certificate = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  ASSERT_GT(X509_sign(certificate, key, EVP_sha256()), 0);
  ASSERT_EQ(SSL_CTX_use_certificate(ctx, certificate), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey(ctx, key), 1);
  auto listener = net::Listener::open(net::Address{"127.0.0.1", 0});
  std::thread serving([&] {
    auto client = listener->accept(net::after(5s));
    if (!client) return;
    ::fcntl(client->fd(), F_SETFL, 0);  // blocking
    SSL* ssl = SSL_new(ctx);
    SSL_set_fd(ssl, client->fd());
    EXPECT_NE(SSL_accept(ssl), 1);
    SSL_free(ssl);
  });
  const std::string address = net::to_string(net::Address{"127.0.0.1", listener->port()});
  EXPECT_EQ(wire::connect(address, with_token()).status().code, Code::kPeer);
  serving.join();
  X509_free(certificate);
  EVP_PKEY_free(key);
  SSL_CTX_free(ctx);
}

// Strangers come all the time and say nothing; a peer far away still gets through.
TEST(WireDoor, ManySilentStrangersSendNobodyAway) {
  const wire::Options options = with_token();
  auto listener = wire::Listener::open("127.0.0.1:0", options);
  const net::Address address = *net::parse_address(listener->address());
  std::atomic<bool> stop{false};
  std::thread strangers([&] {
    std::vector<net::Socket> open(200);
    for (std::size_t i = 0; !stop; ++i) {
      if (auto socket = net::connect(address, net::after(1s)))
        open[i % open.size()] = std::move(*socket);
      std::this_thread::sleep_for(1ms);
    }
  });
  std::this_thread::sleep_for(200ms);
  Fault far;
  far.delay = 60ms;
  FaultyProxy proxy(listener->address(), far);
  wire::Options patient = options;
  patient.timeout = 20s;
  // Where the machine is busy, it may be sent away before its first word has come.
  bool got_through = false;
  for (int i = 0; i < 10 && !got_through; ++i)
    got_through = send_through(proxy, *listener, patient, gaussian_bf16(1000)).same;
  EXPECT_TRUE(got_through);
  stop = true;
  strangers.join();
}

}  // namespace
}  // namespace snug::test
