// The same messages through every transport but TCP, which the other tests use.
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "wire/channel.h"
#include "wire/wire_pairs.h"

namespace snug::test {
namespace {

using namespace std::chrono_literals;

std::string fresh_name(const char* test) {
  return std::string("shm:") + test + "-" + std::to_string(::getpid());
}

TEST(WireShm, RoundTrips) {
  Pair pair = make_pair({}, fresh_name("round-trips"));
  for (const std::size_t size : {0, 1, 1000, 5'000'000})
    expect_round_trip(pair, DType::kBF16, gaussian_bf16(size), size);
}

TEST(WireShm, NamesAndNobody) {
  const std::string name = fresh_name("names");
  EXPECT_EQ(wire::connect(name).status().code, Code::kPeer);
  auto listener = wire::Listener::open(name);
  ASSERT_TRUE(listener.ok());
  EXPECT_EQ(wire::Listener::open(name).status().code, Code::kUsage);
  EXPECT_EQ(listener->address(), name);
}

std::ptrdiff_t num_open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

socklen_t socket_address(const std::string& shm_name, sockaddr_un& address) {
  const std::string full = "snug-wire-" + std::to_string(::geteuid()) + "-" + shm_name.substr(4);
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, full.data(), full.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + full.size());
}

int connect_stranger(const std::string& shm_name) {
  sockaddr_un address;
  const socklen_t length = socket_address(shm_name, address);
  const int stranger = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::connect(stranger, reinterpret_cast<const sockaddr*>(&address), length), 0);
  return stranger;
}

// A name that is taken by this user and does not listen yet is nobody else's.
TEST(WireShm, ANameThatDoesNotListenIsNotAnotherUsers) {
  const std::string name = fresh_name("mute");
  const Status nobody = wire::connect(name).status();
  sockaddr_un address;
  const socklen_t length = socket_address(name, address);
  const int mute = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(::bind(mute, reinterpret_cast<const sockaddr*>(&address), length), 0);
  EXPECT_STREQ(wire::connect(name).status().what, nobody.what);
  ::close(mute);
}

// Somebody else has the name, accepts nobody, and its queue is full.
TEST(WireShm, AFullQueueEndsAtTheDeadline) {
  const std::string name = fresh_name("full");
  sockaddr_un address;
  const socklen_t length = socket_address(name, address);
  const int deaf = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(::bind(deaf, reinterpret_cast<const sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(deaf, 0), 0);
  const int first = connect_stranger(name);
  wire::Options options;
  options.timeout = 300ms;
  EXPECT_EQ(wire::connect(name, options).status().code, Code::kTimeout);
  ::close(first);
  ::close(deaf);
}

// They wait for ever, and whoever comes behind them does not.
TEST(WireShm, SilentStrangersKeepNobodyWaiting) {
  const std::string name = fresh_name("silent");
  auto listener = wire::Listener::open(name);
  ASSERT_TRUE(listener.ok());
  std::vector<int> strangers;
  for (int i = 0; i < 40; ++i) strangers.push_back(connect_stranger(name));
  wire::Options options;
  options.timeout = 8s;
  EXPECT_TRUE(wire::connect(name, options).ok());
  EXPECT_TRUE(listener->accept(8s).ok());
  for (const int stranger : strangers) ::close(stranger);
}

// One message can bring two descriptors where one was asked for; none may stay behind.
TEST(WireShm, StrangersLeaveNoDescriptorsBehind) {
  const std::string name = fresh_name("strangers");
  auto listener = wire::listen(name, wire::Door{nullptr, true});
  ASSERT_TRUE(listener.ok());
  const std::ptrdiff_t before = num_open_files();
  const int stranger = connect_stranger(name);
  const int gifts[2] = {0, 1};
  char byte = 'm';
  iovec piece{&byte, 1};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof gifts)] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  cmsghdr* control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof gifts);
  std::memcpy(CMSG_DATA(control), gifts, sizeof gifts);
  ASSERT_EQ(::sendmsg(stranger, &message, MSG_NOSIGNAL), 1);
  auto accepted = (*listener)->accept(net::after(5s));
  ASSERT_TRUE(accepted.ok());
  EXPECT_EQ((*accepted)->open(net::after(5s), {}).code, Code::kPeer);
  accepted->reset();
  ::close(stranger);
  EXPECT_EQ(num_open_files(), before);
}

TEST(WireShm, ClosingWakesTheOtherSide) {
  Pair pair = make_pair({}, fresh_name("closing"));
  Bytes got(1000);
  const std::span<std::byte> to[] = {got};
  const auto received = pair.a.recv(1, to);
  pair.b.close();
  EXPECT_EQ(received.wait_for(20s).code, Code::kPeer);
}

// A process that is killed cannot say goodbye.
TEST(WireShm, AKilledPeerIsNoticed) {
  const std::string name = fresh_name("killed");
  const pid_t child = ::fork();
  if (child == 0) {
    auto listener = wire::Listener::open(name);
    auto connection = listener->accept(20s);
    for (;;) ::pause();
  }
  Result<wire::Connection> connection = Status{Code::kPeer, ""};
  for (int i = 0; i < 200 && !connection; ++i) {
    connection = wire::connect(name);
    if (!connection) std::this_thread::sleep_for(50ms);
  }
  ASSERT_TRUE(connection.ok());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(connection->recv_note(20s).status().code, Code::kPeer);
}

// Many small pieces against a ring that is much smaller than the message.
TEST(WireShm, TheRingGoesRound) {
  const std::string name = "ring-" + std::to_string(::getpid());
  const wire::Door door{nullptr, true};
  auto listener = wire::listen_shm(name, door);
  auto dialled = wire::dial_shm(name, door, net::after(10s));
  auto accepted = (*listener)->accept(net::after(5s));
  ASSERT_TRUE(dialled.ok() && accepted.ok());
  ASSERT_TRUE((*dialled)->open(net::after(5s), {}).ok());
  ASSERT_TRUE((*accepted)->open(net::after(5s), {}).ok());
  const Bytes data = random_bytes(11'000'003);
  std::thread sending([&] {
    for (std::size_t at = 0, n = 1; at < data.size(); at += n, n = (n * 7 + 3) % 300'000) {
      n = std::min(std::max<std::size_t>(n, 1), data.size() - at);
      ASSERT_TRUE((*dialled)->send(std::span(data).subspan(at, n), {}, net::after(20s)).ok());
    }
  });
  Bytes got(data.size());
  EXPECT_TRUE((*accepted)->recv(got, net::after(20s)).ok());
  sending.join();
  EXPECT_TRUE(got == data);
  EXPECT_EQ((*accepted)->wait_readable(net::after(30ms)).code, Code::kTimeout);
}

// A channel that encrypts changes the bytes that it is given only where it may.
TEST(WireChannels, OnlyWhatMayBeSpoiledIs) {
  for (const bool encrypts : {false, true}) {
    wire::Options options;
    if (encrypts) options.token = "a token of many bytes";
    options.insecure = !encrypts;
    const std::string any_port = "127.0.0.1:0";
    auto listener = wire::listen(any_port, *wire::door_of(wire::Side::kListens, any_port, options));
    auto dialled =
        wire::dial((*listener)->address(), *wire::door_of(wire::Side::kDials, any_port, options),
                   net::after(10s));
    auto accepted = (*listener)->accept(net::after(10s));
    ASSERT_TRUE(dialled.ok() && accepted.ok());
    std::jthread opening([&] { EXPECT_TRUE((*accepted)->open(net::after(10s), {}).ok()); });
    ASSERT_TRUE((*dialled)->open(net::after(10s), {}).ok());
    opening.join();

    const Bytes head = random_bytes(72), body = random_bytes(300'001);  // three records
    Bytes kept = body, spoiled = body, got(2 * (head.size() + body.size()));
    std::jthread sending([&] {
      EXPECT_TRUE((*dialled)->send(head, kept, net::after(10s)).ok());
      EXPECT_TRUE((*dialled)->send_and_spoil(head, spoiled, net::after(10s)).ok());
    });
    ASSERT_TRUE((*accepted)->recv(got, net::after(10s)).ok());
    sending.join();
    Bytes expected;
    for (int i = 0; i < 2; ++i)
      for (const Bytes* part : {&head, &body})
        expected.insert(expected.end(), part->begin(), part->end());
    EXPECT_TRUE(got == expected);
    EXPECT_TRUE(kept == body);
    EXPECT_EQ(spoiled != body, encrypts);
  }
}

// Only what no other host can reach is served without a token.
TEST(WireAddresses, WhatIsLocal) {
  for (const wire::Side side : {wire::Side::kDials, wire::Side::kListens}) {
    for (const char* local :
         {"127.0.0.1:0", "127.9.9.9:1", ":0", "[::1]:0", "[0:0::1]:0", "localhost:0"}) {
      const auto door = wire::door_of(side, local, {});
      EXPECT_TRUE(door.ok() && door->tls) << local;
    }
    EXPECT_TRUE(wire::door_of(side, "shm:name", {})->same_user);
    for (const char* open : {"0.0.0.0:0", "[::]:0", "10.0.0.1:0", "127.example.com:0",
                             "127.0.0.1.example.com:0", "[::ffff:10.0.0.1]:0", "::1:7000"})
      EXPECT_EQ(wire::door_of(side, open, {}).status().code, Code::kUsage) << open;
  }
}

}  // namespace
}  // namespace snug::test
