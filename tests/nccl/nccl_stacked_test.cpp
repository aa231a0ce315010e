// Snug on top of another plugin: compressed, expanded, in order, and nothing else disturbed.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "nccl/net_ranks.h"
#include "nccl/stacked_message.h"
#include "nccl/stats.h"
#include "support/inputs.h"
#include "support/sanitizer.h"

namespace snug::test {
namespace {

constexpr std::size_t kSizes[] = {0,     1,      70,      4096,      65536,
                                  65537, 131072, 300'001, 1'048'576, 2'000'003};

Bytes message(std::size_t i) {
  constexpr struct {
    const char* name;
    DType dtype;
  } kKinds[] = {{"gaussian", DType::kBF16},
                {"random_bits", DType::kF32},
                {"gaussian", DType::kF32},
                {"constant", DType::kBF16}};
  const std::size_t size = kSizes[i % std::size(kSizes)];
  const auto& kind = kKinds[i % std::size(kKinds)];
  Bytes bytes = make_input(input_named(kind.name), kind.dtype, size / elem_bytes(kind.dtype) + 16);
  bytes.resize(size);
  // Data that looks like Snug's own header must survive, too.
  if (i % 5 == 4 && size >= 8) std::memcpy(bytes.data(), &nccl::kStackMagic, 8);
  return bytes;
}

const Environment kStacked = {{"SNUG_NCCL_INNER", SNUG_NCCL_FAKE_INNER}};

Environment with(Environment environment, const char* name, const char* value) {
  environment.emplace_back(name, value);
  return environment;
}

class Stacked : public ::testing::TestWithParam<const char*> {};

TEST_P(Stacked, ArrivesBitForBit) {
  const std::size_t count = kSanitized ? 40 : 120;
  EXPECT_TRUE(all_succeeded(
      run_ranks(2, with(kStacked, "SNUG_NCCL_CODEC", GetParam()), [&](int me, Shared& shared) {
        Rank rank(me, shared);
        void* comm = me == 0 ? rank.connect_to(1) : rank.accept_from(0);
        constexpr std::size_t kWindow = 8;
        std::vector<Bytes> buffers(count);
        std::vector<void*> requests(count);
        for (std::size_t i = 0; i < count + kWindow; ++i) {
          if (i >= kWindow) {
            const int size = rank.wait(requests[i - kWindow])[0];
            const Bytes expected = message(i - kWindow);
            SNUG_RANK_CHECK(size == static_cast<int>(expected.size()));
            buffers[i - kWindow].resize(expected.size());
            SNUG_RANK_CHECK(buffers[i - kWindow] == expected);
          }
          if (i >= count) continue;
          buffers[i] = message(i);
          if (me == 1) buffers[i].assign(buffers[i].size() + i % 3 * 100'000, std::byte{0});
          requests[i] = me == 0 ? rank.isend(comm, buffers[i]) : rank.irecv(comm, buffers[i]);
        }
        me == 0 ? rank.close_send(comm) : rank.close_recv(comm);
      })));
}
INSTANTIATE_TEST_SUITE_P(Codecs, Stacked, ::testing::Values("auto", "entropy", "fixed", "off"),
                         [](const auto& info) { return info.param; });

TEST(NcclStacked, GroupedReceives) {
  EXPECT_TRUE(all_succeeded(run_ranks(2, kStacked, [](int me, Shared& shared) {
    Rank rank(me, shared);
    void* comm = me == 0 ? rank.connect_to(1) : rank.accept_from(0);
    for (std::size_t round = 0; round < 10; ++round) {
      std::vector<Bytes> bytes(NCCL_NET_MAX_RECVS);
      std::vector<int> tags(bytes.size());
      for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = message(round * 8 + i), tags[i] = static_cast<int>(i);
      if (me == 0) {
        std::vector<void*> requests;
        for (std::size_t i = bytes.size(); i > 0; --i)
          requests.push_back(rank.isend(comm, bytes[i - 1], tags[i - 1]));
        for (void* request : requests) rank.wait(request);
        continue;
      }
      std::vector<Bytes> received;
      for (const Bytes& expected : bytes) received.emplace_back(expected.size() + 3);
      const std::vector<std::span<std::byte>> places(received.begin(), received.end());
      const std::vector<int> sizes = rank.wait(rank.irecv(comm, places, tags));
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        SNUG_RANK_CHECK(sizes[i] == static_cast<int>(bytes[i].size()));
        received[i].resize(bytes[i].size());
        SNUG_RANK_CHECK(received[i] == bytes[i]);
      }
    }
    me == 0 ? rank.close_send(comm) : rank.close_recv(comm);
  })));
}

// A peer that stacks nothing gets plain data, and its plain data is understood.
TEST(NcclStacked, PeerWithoutSnug) {
  for (const int plain_rank : {0, 1})
    EXPECT_TRUE(all_succeeded(run_ranks(2, {}, [&](int me, Shared& shared) {
      if (me != plain_rank) ::setenv("SNUG_NCCL_INNER", SNUG_NCCL_FAKE_INNER, 1);
      ::setenv("SNUG_NCCL_CODEC", "entropy", 1);
      std::string plugin = me == plain_rank ? SNUG_NCCL_FAKE_INNER : SNUG_NCCL_PLUGIN;
      Rank rank(me, shared, 12, plugin);
      const Bytes sent = message(8);
      Bytes received(sent.size());
      if (me == 0) {
        void* comm = rank.connect_to(1);
        rank.wait(rank.isend(comm, sent));
        rank.close_send(comm);
      } else {
        void* comm = rank.accept_from(0);
        rank.wait(rank.irecv(comm, received));
        SNUG_RANK_CHECK(received == sent);
        rank.close_recv(comm);
      }
    })));
}

// What rank 1's handle says about versions, made up: the offset counts from its end.
void pretend_version(Shared& shared, std::size_t offset_from_end) {
  ++shared.mail[1][0][0].handle[NCCL_NET_HANDLE_MAXSIZE - offset_from_end];
  shared.notes[0] = 1;
}

TEST(NcclStacked, AnotherFrameVersionTalksRaw) {
  EXPECT_TRUE(all_succeeded(
      run_ranks(2, with(kStacked, "SNUG_NCCL_CODEC", "entropy"), [](int me, Shared& shared) {
        Rank rank(me, shared);
        Bytes sent[] = {message(8), message(14)};  // weights; and what looks like a header
        std::memcpy(sent[1].data(), &nccl::kStackMagic, 8);
        void* listening = me == 1 ? rank.listen_for(0) : nullptr;
        if (me == 1) pretend_version(shared, 1);
        while (shared.notes[0] == 0) std::this_thread::yield();
        void* comm = me == 0 ? rank.connect_to(1) : rank.accept(listening);
        for (const Bytes& bytes : sent) {
          Bytes received(bytes.size());
          rank.wait(me == 0 ? rank.isend(comm, bytes) : rank.irecv(comm, received));
          SNUG_RANK_CHECK(me == 0 || received == bytes);
        }
        me == 0 ? rank.close_send(comm) : rank.close_recv(comm);
      })));
}

TEST(NcclStacked, AnotherStackVersionIsRefused) {
  EXPECT_TRUE(all_succeeded(run_ranks(2, kStacked, [](int me, Shared& shared) {
    Rank rank(me, shared);
    if (me == 1) {
      void* listening = rank.listen_for(0);
      pretend_version(shared, 2);
      while (shared.notes[1] == 0) std::this_thread::yield();
      SNUG_RANK_CHECK(rank.net().close_listen(listening) == ncclSuccess);
      return;
    }
    while (shared.notes[0] == 0) std::this_thread::yield();
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    std::memcpy(handle, shared.mail[1][0][0].handle, sizeof handle);
    void* comm = nullptr;
    SNUG_RANK_CHECK(rank.net().connect(0, handle, &comm) == ncclInvalidUsage);
    SNUG_RANK_CHECK(comm == nullptr);
    shared.notes[1] = 1;
  })));
}

TEST(NcclStacked, HostMemoryOnly) {
  EXPECT_TRUE(all_succeeded(run_ranks(1, kStacked, [](int me, Shared& shared) {
    Rank rank(me, shared);
    ncclNetProperties_v12_t properties{};
    SNUG_RANK_CHECK(rank.net().properties(0, &properties) == ncclSuccess);
    SNUG_RANK_CHECK(properties.ptrSupport == NCCL_PTR_HOST);
    SNUG_RANK_CHECK(properties.speed == 100'000 && properties.maxRecvs == NCCL_NET_MAX_RECVS);
  })));
}

void ignore_log(ncclDebugLogLevel, unsigned long, const char*, int, const char*, ...) {}

TEST(NcclStacked, NothingToStackOn) {
  for (const char* inner : {"there-is-none", SNUG_NCCL_PLUGIN /* itself */})
    EXPECT_TRUE(all_succeeded(run_ranks(1, {{"SNUG_NCCL_INNER", inner}}, [](int, Shared&) {
      const auto plugin = nccl::load_inner_plugin(SNUG_NCCL_PLUGIN);
      SNUG_RANK_CHECK(plugin->init(ignore_log) == ncclSystemError);
    })));
}

}  // namespace
}  // namespace snug::test
