// Messages of every size and kind arrive bit for bit, whatever the order.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <deque>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "nccl/net_ranks.h"
#include "support/inputs.h"
#include "support/sanitizer.h"

namespace snug::test {
namespace {

// Of itself, a connection starts raw and compresses once it knows the link.
const Environment kEntropy = {{"SNUG_NCCL_CODEC", "entropy"}};

constexpr std::size_t kSizes[] = {0,     1,     3,      100,    4096,    65535,     65536,
                                  65537, 70000, 131072, 131079, 300'001, 1'048'576, 2'000'003};

// Message `i` of a test: both ends can make it.
Bytes message(std::size_t i, std::size_t size) {
  constexpr struct {
    const char* name;
    DType dtype;
  } kKinds[] = {{"gaussian", DType::kBF16},    {"gaussian", DType::kF16},
                {"random_bits", DType::kBF16}, {"gaussian", DType::kF32},
                {"gaussian", DType::kF8E4M3},  {"f32_holding_bf16", DType::kF32},
                {"constant", DType::kBF16},    {"half_and_half", DType::kBF16}};
  const auto& kind = kKinds[i % std::size(kKinds)];
  Bytes bytes = make_input(input_named(kind.name), kind.dtype, size / elem_bytes(kind.dtype) + 16);
  bytes.resize(size, std::byte{0x5a});
  return bytes;
}

std::size_t size_of(std::size_t i) { return kSizes[i % std::size(kSizes)]; }

void send_all(Rank& rank, void* comm, std::size_t count) {
  std::deque<std::pair<Bytes, void*>> window;
  for (std::size_t i = 0; i < count; ++i) {
    if (window.size() == 8) {
      rank.wait(window.front().second);
      window.pop_front();
    }
    window.emplace_back(message(i, size_of(i)), nullptr);
    window.back().second = rank.isend(comm, window.back().first, 7);
  }
  for (auto& [bytes, request] : window)
    SNUG_RANK_CHECK(rank.wait(request)[0] == static_cast<int>(bytes.size()));
}

void receive_all(Rank& rank, void* comm, std::size_t count) {
  std::deque<std::pair<Bytes, void*>> window;
  std::size_t posted = 0;
  for (std::size_t i = 0; i < count; ++i) {
    for (; posted < count && window.size() < 8; ++posted) {
      window.emplace_back(Bytes(size_of(posted) + posted % 3 * 1000),
                          nullptr);  // often larger than needed
      window.back().second = rank.irecv(comm, window.back().first, 7);
    }
    auto& [bytes, request] = window.front();
    const int size = rank.wait(request)[0];
    SNUG_RANK_CHECK(size == static_cast<int>(size_of(i)));
    bytes.resize(static_cast<std::size_t>(size));
    SNUG_RANK_CHECK(bytes == message(i, size_of(i)));
    window.pop_front();
  }
}

struct Case {
  const char* name;
  int abi_version;
  Environment environment;
};

class Traffic : public ::testing::TestWithParam<Case> {};

TEST_P(Traffic, ArrivesBitForBit) {
  const std::size_t count = kSanitized ? 42 : 112;
  EXPECT_TRUE(all_succeeded(run_ranks(2, GetParam().environment, [&](int me, Shared& shared) {
    Rank rank(me, shared, GetParam().abi_version);
    if (me == 0) {
      void* comm = rank.connect_to(1);
      send_all(rank, comm, count);
      rank.close_send(comm);
    } else {
      void* comm = rank.accept_from(0);
      receive_all(rank, comm, count);
      rank.close_recv(comm);
    }
  })));
}

INSTANTIATE_TEST_SUITE_P(
    EveryTable, Traffic,
    ::testing::Values(
        Case{"v8", 8, kEntropy}, Case{"v9", 9, kEntropy}, Case{"v10", 10, kEntropy},
        Case{"v11", 11, kEntropy}, Case{"v12", 12, kEntropy}, Case{"auto_mode", 12, {}},
        Case{"off", 12, {{"SNUG_NCCL_CODEC", "off"}}},
        Case{"fixed", 12, {{"SNUG_NCCL_CODEC", "fixed"}}},
        Case{"one_socket", 12, {{"SNUG_NCCL_SOCKETS", "1"}, {"SNUG_NCCL_CODEC", "entropy"}}},
        Case{"small_chunks",
             12,
             {{"SNUG_NCCL_CHUNK_BYTES", "16384"},
              {"SNUG_NCCL_MIN_BYTES", "1024"},
              {"SNUG_NCCL_CODEC", "entropy"}}},
        Case{"paced", 12, {{"SNUG_NCCL_PACE_GBPS", "20"}}}),
    [](const auto& info) { return info.param.name; });

// Groups of receives, sends in another order, tests in a third.
TEST(NcclTraffic, GroupedReceives) {
  constexpr int kGroups = 24;
  EXPECT_TRUE(all_succeeded(run_ranks(2, kEntropy, [&](int me, Shared& shared) {
    Rank rank(me, shared);
    Prng prng(99);  // the same numbers on both ranks
    void* comm = me == 0 ? rank.connect_to(1) : rank.accept_from(0);
    for (int group = 0; group < kGroups; ++group) {
      const std::size_t n = 1 + prng.below(NCCL_NET_MAX_RECVS);
      std::vector<int> tags(n), order(n);
      std::vector<Bytes> bytes(n);
      std::iota(order.begin(), order.end(), 0);
      for (std::size_t i = 0; i < n; ++i) {
        tags[i] = static_cast<int>(prng.below(4));  // tags repeat inside a group
        bytes[i] = message(prng.below(100), size_of(prng.below(100)));
      }
      for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[prng.below(i)]);
      if (me == 0) {
        // Messages of one tag keep their order; between tags anything goes.
        std::vector<std::size_t> next_of_tag(4, 0);
        std::vector<void*> requests;
        for (const int i : order) {
          const int tag = tags[static_cast<std::size_t>(i)];
          std::size_t& at = next_of_tag[static_cast<std::size_t>(tag)];
          while (tags[at] != tag) ++at;
          requests.push_back(rank.isend(comm, bytes[at++], tag));
        }
        for (std::size_t i = requests.size(); i > 0; --i) rank.wait(requests[i - 1]);
      } else {
        std::vector<Bytes> received(n);
        std::vector<std::span<std::byte>> places(n);
        for (std::size_t i = 0; i < n; ++i) {
          received[i].resize(bytes[i].size() + 5);
          places[i] = received[i];
        }
        const std::vector<int> sizes = rank.wait(rank.irecv(comm, places, tags));
        for (std::size_t i = 0; i < n; ++i) {
          SNUG_RANK_CHECK(sizes[i] == static_cast<int>(bytes[i].size()));
          received[i].resize(bytes[i].size());
          SNUG_RANK_CHECK(received[i] == bytes[i]);
        }
      }
    }
    me == 0 ? rank.close_send(comm) : rank.close_recv(comm);
  })));
}

// Four ranks, everybody to everybody, all requests open at once and tested in random order.
TEST(NcclTraffic, AllToAll) {
  constexpr int kRanks = 4, kRounds = 4;
  EXPECT_TRUE(all_succeeded(run_ranks(kRanks, kEntropy, [&](int me, Shared& shared) {
    Rank rank(me, shared);
    void *listening[kRanks], *to[kRanks], *from[kRanks];
    for (int peer = 0; peer < kRanks; ++peer) listening[peer] = rank.listen_for(peer);
    for (int peer = 0; peer < kRanks; ++peer) to[peer] = rank.connect_to(peer);  // itself, too
    for (int peer = 0; peer < kRanks; ++peer) from[peer] = rank.accept(listening[peer]);
    Prng prng(static_cast<std::uint64_t>(me) + 1);
    const auto index = [](int source, int target, int round) {
      return static_cast<std::size_t>(source * 16 + target * 4 + round);
    };
    std::vector<Bytes> buffers;
    std::vector<void*> open;
    std::vector<std::pair<std::size_t, std::size_t>> expected;  // buffer, message
    for (int round = 0; round < kRounds; ++round)
      for (int peer = 0; peer < kRanks; ++peer) {
        const std::size_t in = index(peer, me, round), out = index(me, peer, round);
        buffers.push_back(Bytes(size_of(in)));
        open.push_back(rank.irecv(from[peer], buffers.back()));
        expected.emplace_back(buffers.size() - 1, in);
        buffers.push_back(message(out, size_of(out)));
        open.push_back(rank.isend(to[peer], buffers.back()));
      }
    while (!open.empty()) {
      const std::size_t i = prng.below(open.size());
      int done = 0, sizes[NCCL_NET_MAX_RECVS];
      SNUG_RANK_CHECK(rank.net().test(open[i], &done, sizes) == ncclSuccess);
      if (done != 0) open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
    }
    for (const auto& [buffer, number] : expected)
      SNUG_RANK_CHECK(buffers[buffer] == message(number, size_of(number)));
    for (int peer = 0; peer < kRanks; ++peer) {
      rank.close_send(to[peer]);
      rank.close_recv(from[peer]);
    }
  })));
}

// NCCL posts at most 32; one more is refused politely and accepted later.
TEST(NcclTraffic, FullQueue) {
  EXPECT_TRUE(all_succeeded(run_ranks(2, {}, [&](int me, Shared& shared) {
    Rank rank(me, shared);
    if (me == 1) {
      void* comm = rank.accept_from(0);
      std::vector<Bytes> buffers(NCCL_NET_MAX_REQUESTS, Bytes(1000));
      std::vector<void*> requests;
      for (Bytes& buffer : buffers) requests.push_back(rank.irecv(comm, buffer));
      void *request = nullptr, *data = buffers[0].data(), *mhandle = nullptr;
      std::size_t size = 1000;
      int tag = 0;
      SNUG_RANK_CHECK(rank.net().irecv(comm, 1, &data, &size, &tag, &mhandle, &request) ==
                          ncclSuccess &&
                      request == nullptr);
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        rank.wait(requests[i]);
        SNUG_RANK_CHECK(buffers[i] == message(i, 1000));
      }
      rank.close_recv(comm);
    } else {
      void* comm = rank.connect_to(1);
      for (std::size_t i = 0; i < NCCL_NET_MAX_REQUESTS; ++i) {
        const Bytes bytes = message(i, 1000);
        rank.wait(rank.isend(comm, bytes));
      }
      rank.close_send(comm);
    }
  })));
}

// 200 communicators come and go; files and threads go with them.
TEST(NcclTraffic, CommunicatorsGiveEverythingBack) {
  constexpr int kBatches = kSanitized ? 4 : 20, kAtOnce = 10;
  EXPECT_TRUE(all_succeeded(run_ranks(1, kEntropy, [&](int me, Shared& shared) {
    Rank rank(me, shared);
    const Bytes sent = message(0, 300'001);
    int files = 0, threads = 0;
    for (int batch = 0; batch < kBatches; ++batch) {
      void *to[kAtOnce], *from[kAtOnce];
      for (int i = 0; i < kAtOnce; ++i) {
        shared.mail[0][0][i].full.store(false);
        void* listening = rank.listen_for(0, i);
        to[i] = rank.connect_to(0, i);
        from[i] = rank.accept(listening);
      }
      for (int i = 0; i < kAtOnce; ++i) {
        Bytes received(sent.size());
        void* request = rank.irecv(from[i], received);
        rank.wait(rank.isend(to[i], sent));
        rank.wait(request);
        SNUG_RANK_CHECK(received == sent);
      }
      for (int i = 0; i < kAtOnce; ++i) {
        rank.close_send(to[i]);
        rank.close_recv(from[i]);
      }
      if (batch == 0) files = count_open_files(), threads = count_threads();
    }
    // Threads that accepted may need a moment to end.
    for (int i = 0; i < 10'000 && (count_open_files() > files || count_threads() > threads); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    SNUG_RANK_CHECK(count_open_files() <= files);
    SNUG_RANK_CHECK(count_threads() <= threads);
  })));
}

// What SNUG_NCCL_STATS promises: the report on a signal and at exit, per type.
TEST(NcclTraffic, Statistics) {
  const std::string path = ::testing::TempDir() + "snug_nccl_stats." + std::to_string(::getpid());
  Environment environment = kEntropy;
  environment.emplace_back("SNUG_NCCL_STATS", "json:" + path + ".%p");
  environment.emplace_back("SNUG_NCCL_STATS_SIGNAL", "USR1");
  EXPECT_TRUE(all_succeeded(run_ranks(1, environment, [&](int me, Shared& shared) {
    Rank rank(me, shared);
    void* listening = rank.listen_for(0);
    void* to = rank.connect_to(0);
    void* from = rank.accept(listening);
    const Bytes sent = message(0, 1 << 20);
    Bytes received(sent.size());
    void* receive = rank.irecv(from, received);
    rank.wait(rank.isend(to, sent));
    rank.wait(receive);
    const std::string file = path + "." + std::to_string(::getpid());
    ::raise(SIGUSR1);
    while (!std::filesystem::exists(file)) std::this_thread::yield();
    rank.close_send(to);
    rank.close_recv(from);
    std::filesystem::remove(file);
    std::filesystem::create_symlink(file,
                                    path);  // tells the parent where the report at exit will be
  })));
  const auto report = nlohmann::json::parse(std::ifstream(path));
  std::filesystem::remove(std::filesystem::read_symlink(path));
  std::filesystem::remove(path);
  ASSERT_EQ(report["peers"].size(), 2u);  // sent and received
  for (const auto& row : report["peers"]) {
    EXPECT_EQ(row["type"], "bf16");
    EXPECT_EQ(row["data_bytes"], 1 << 20);
    EXPECT_LT(row["wire_bytes"], (1 << 20) * 7 / 10);
    EXPECT_EQ(row["entropy_chunks"], 4);
  }
}

}  // namespace
}  // namespace snug::test
