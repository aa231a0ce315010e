// Messages through a link whose GPU is played by a CPU.
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "gpu_link/link_ends.h"

namespace snug::test {
namespace {

using namespace std::chrono_literals;
using wire::Mode;

constexpr std::size_t kKiB = 1024;

void expect_arrives(LinkEnds& ends, Bytes data, std::uint64_t tag = 1) {
  Bytes got(data.size(), std::byte{0xCD});
  const auto received = ends.recv(tag, got);
  const auto sent = ends.send(tag, data);
  expect_ok(received);
  expect_ok(sent);
  EXPECT_TRUE(got == data) << data.size() << " bytes";
  EXPECT_EQ(received.done_bytes(), data.size());
}

TEST(LinkTransfer, EverySize) {
  LinkEnds ends;
  for (const std::size_t n :
       {std::size_t{0}, std::size_t{1}, 64 * kKiB - 1, 64 * kKiB, 64 * kKiB + 1, 512 * kKiB,
        512 * kKiB + 2, 1024 * kKiB - 6, 5000 * kKiB + 10, 9216 * kKiB})
    expect_arrives(ends, gaussian_bf16(n));
}

TEST(LinkTransfer, SlowLinksGetFrames) {
  for (const Mode mode : {Mode::kAuto, Mode::kEntropy, Mode::kFixed}) {
    LinkEnds ends(mode, 100e6);
    const Bytes data = gaussian_bf16(9000 * kKiB + 2);
    expect_arrives(ends, data);
    const wire::Stats stats = ends.sender->stats();
    EXPECT_GT(stats.num_chunks[1] + stats.num_chunks[2], 0u);
    EXPECT_EQ(stats.num_chunks[mode == Mode::kFixed ? 2 : 1],
              mode == Mode::kAuto ? stats.num_chunks[1] : 0u);
    EXPECT_EQ(stats.raw_bytes, data.size());
    EXPECT_LT(stats.wire_bytes, data.size());
    EXPECT_GT(stats.goodput[0], 0);
    const wire::Stats there = ends.receiver->stats();
    for (int i = 0; i < wire::kNumModes; ++i) EXPECT_EQ(there.num_chunks[i], stats.num_chunks[i]);
    EXPECT_EQ(there.wire_bytes, stats.wire_bytes);
  }
}

TEST(LinkTransfer, RandomBitsTravelRaw) {
  LinkEnds ends(Mode::kAuto, 200e6);
  Bytes data = random_bytes(12 << 20);
  expect_arrives(ends, data);
  EXPECT_EQ(ends.sender->stats().num_chunks[1] + ends.sender->stats().num_chunks[2], 0u);
}

TEST(LinkTransfer, RawModeNeverEncodes) {
  LinkEnds ends(Mode::kRaw, 300e6);
  expect_arrives(ends, gaussian_bf16(6 << 20));
  EXPECT_EQ(ends.sender->stats().encode_seconds, 0);
}

TEST(LinkTransfer, ManyAtOnceAndTagsInAnyOrder) {
  LinkEnds ends;
  constexpr std::size_t kCount = 150;  // more than the queues hold
  std::vector<Bytes> data, got;
  for (std::size_t i = 0; i < kCount; ++i) {
    data.push_back(random_bytes(1 + i * 3001, i));
    got.emplace_back(data.back().size());
  }
  std::vector<wire::Transfer> transfers;
  for (std::size_t i = 0; i < kCount; ++i) transfers.push_back(ends.send(i, data[i]));
  for (std::size_t i = kCount; i-- > 0;) transfers.push_back(ends.recv(i, got[i]));
  for (const auto& transfer : transfers) expect_ok(transfer);
  EXPECT_TRUE(got == data);
}

TEST(LinkTransfer, TheSameTagMeetsInOrder) {
  LinkEnds ends;
  Bytes a = random_bytes(100'000, 1), b = random_bytes(100'000, 2), x(100'000), y(100'000);
  const auto first = ends.send(5, a), second = ends.send(5, b);
  const auto to_x = ends.recv(5, x), to_y = ends.recv(5, y);
  for (const auto& transfer : {first, second, to_x, to_y}) expect_ok(transfer);
  EXPECT_TRUE(x == a && y == b);
}

TEST(LinkTransfer, AnotherSizeOrTypeIsRefused) {
  {
    LinkEnds ends;
    Bytes data(1000), got(999);
    const auto sent = ends.send(1, data), received = ends.recv(1, got);
    EXPECT_EQ(received.wait_for(60s).code, Code::kDstTooSmall);
    EXPECT_EQ(sent.wait_for(60s).code, Code::kPeer);
  }
  LinkEnds ends;
  Bytes data(1000), got(1000);
  const auto sent = ends.send(1, data), received = ends.recv(1, got, DType::kF32);
  EXPECT_EQ(received.wait_for(60s).code, Code::kUsage);
  EXPECT_EQ(sent.wait_for(60s).code, Code::kPeer);
}

TEST(LinkTransfer, OneMismatchEndsAllReceives) {
  for (int round = 0; round < 20; ++round) {
    LinkEnds ends;
    Bytes data(1000), shorter(999), other(10), another(20);
    const auto sent = ends.send(1, data);
    ASSERT_TRUE(comes_true([&] { return ends.at_a->outgoing().offers.written.load() == 1; }));
    const auto wrong = ends.recv(1, shorter), second = ends.recv(2, other),
               third = ends.recv(1, another);
    EXPECT_EQ(wrong.wait_for(60s).code, Code::kDstTooSmall);
    EXPECT_EQ(second.wait_for(60s).code, Code::kDstTooSmall);
    EXPECT_EQ(third.wait_for(60s).code, Code::kDstTooSmall);
    EXPECT_EQ(sent.wait_for(60s).code, Code::kPeer);
  }
}

TEST(LinkTransfer, TooManyMessagesAtOnce) {
  LinkEnds ends;
  Bytes byte(1);
  for (std::size_t i = 0; i < wire::kMaxOpenMessages; ++i) ASSERT_FALSE(ends.send(i, byte).done());
  EXPECT_EQ(ends.send(5000, byte).wait_for(60s).code, Code::kUsage);
  Bytes got(1);
  expect_ok(ends.recv(7, got));  // one less is open
  ASSERT_TRUE(comes_true([&] {
    const auto more = ends.send(5000, byte);
    return !more.done();
  }));
}

TEST(LinkTransfer, ClosingEndsEverything) {
  LinkEnds ends;
  Bytes data(1000), got(1000);
  const auto never = ends.recv(7, got);
  const auto lonely = ends.send(8, data);
  ends.sender.reset();
  EXPECT_EQ(lonely.wait_for(60s).code, Code::kPeer);
  EXPECT_EQ(never.wait_for(60s).code, Code::kPeer);
  EXPECT_EQ(ends.recv(9, got).wait_for(60s).code, Code::kPeer);
}

TEST(LinkTransfer, AStuckPeerIsNoticed) {
  LinkEnds ends(Mode::kAuto, 1e3, 300ms);  // a link so slow that nothing arrives
  Bytes data = gaussian_bf16(1 << 20), got(1 << 20);
  const auto received = ends.recv(1, got);
  const auto sent = ends.send(1, data);
  EXPECT_EQ(received.wait_for(60s).code, Code::kTimeout);
  EXPECT_EQ(sent.wait_for(60s).code, Code::kTimeout);
}

// A process of its own sends half of a message and is killed.
TEST(LinkTransfer, AKilledPeerIsNoticed) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer has no threads after a fork";
#endif
  auto listener = wire::Listener::open("127.0.0.1:0");
  ASSERT_TRUE(listener.ok());
  const std::string address = listener->address();
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto connection = wire::connect(address);
    if (!connection) ::_exit(1);
    auto met = gpu_link::LinkMeeting::meet(*connection, {}, 30s);
    if (!met) ::_exit(2);
    gpu_link::LinkDirection& out = met->outgoing();
    std::uint64_t written = 0;
    out.offers.put(written, {1, 5, 1 << 20, static_cast<std::uint64_t>(DType::kBF16)});
    out.receiver_bell.ring();
    for (;;) ::pause();
  }
  auto connection = listener->accept(60s);
  ASSERT_TRUE(connection.ok());
  auto met = gpu_link::LinkMeeting::meet(*connection, {}, 30s);
  ASSERT_TRUE(met.ok()) << to_string(met.status());
  EXPECT_FALSE(met->is_same_process());
  Bytes staging(kTestStaging), got(1 << 20);
  gpu_link::LinkOptions options;
  options.check_peer = [&] { return met->check_peer(); };
  gpu_link::LinkReceiver receiver(met->incoming(),
                                  std::make_unique<CpuReceiveEngine>(staging.data()), kTestStaging,
                                  kTestChunk, options);
  const auto received =
      receiver.recv(5, std::make_shared<CpuTensor>(DType::kBF16, got.data(), got.size()));
  EXPECT_TRUE(comes_true([&] { return met->incoming().answers.written.load() != 0; }));
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(received.wait_for(60s).code, Code::kPeer);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

// A thread in a network of its own cannot reach the socket of the other end, nor be reached.
TEST(LinkMeeting, EndsThatCannotMeetBothKnowAtOnce) {
  Pair pair = make_pair();
  std::atomic<bool> is_apart{true};
  Status there;
  const auto start = std::chrono::steady_clock::now();
  std::thread other([&] {
    if (::unshare(CLONE_NEWNET) != 0) is_apart = false;
    there = gpu_link::LinkMeeting::meet(pair.a, {}, 60s).status();
  });
  const Status here = gpu_link::LinkMeeting::meet(pair.b, {}, 60s).status();
  other.join();
  if (!is_apart) GTEST_SKIP() << "no right to make a network";
  EXPECT_EQ(here.code, Code::kPeer);
  EXPECT_EQ(there.code, Code::kPeer);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 50s);
  EXPECT_TRUE(pair.a.status().ok() && pair.b.status().ok());
}

TEST(LinkMeeting, BothMustBeReady) {
  for (const bool ready : {true, false}) {
    LinkEnds ends;
    Status there;
    std::thread other([&] { there = ends.at_a->agree(ready, 60s); });
    const Status here = ends.at_b->agree(true, 60s);
    other.join();
    EXPECT_EQ(here.ok(), ready);
    EXPECT_TRUE(there.ok());
  }
}

TEST(LinkMeeting, NobodyAtTheOtherEnd) {
  Pair pair = make_pair();
  const auto met = gpu_link::LinkMeeting::meet(pair.a, {}, 200ms);
  EXPECT_EQ(met.status().code, Code::kTimeout);
}

}  // namespace
}  // namespace snug::test
