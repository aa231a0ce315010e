// ncclCommAbort: NCCL deregisters and frees memory before it closes connections, whatever is under
// way in it.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <thread>

#include "nccl/net_ranks.h"
#include "support/inputs.h"

namespace snug::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kSize = 64 << 20;

void give_up_in_the_middle(Rank& rank, bool sends, const Bytes& data) {
  void* comm = sends ? rank.connect_to(1) : rank.accept_from(0);
  void* memory = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  SNUG_RANK_CHECK(memory != MAP_FAILED);
  std::memcpy(memory, data.data(), kSize);
  void *mhandle = nullptr, *request = nullptr;
  SNUG_RANK_CHECK(rank.net().register_memory(comm, memory, kSize, NCCL_PTR_HOST, &mhandle) ==
                  ncclSuccess);
  std::size_t size = kSize;
  int tag = 0;
  while (request == nullptr)
    SNUG_RANK_CHECK((sends ? rank.net().isend(comm, memory, kSize, tag, mhandle, &request)
                           : rank.net().irecv(comm, 1, &memory, &size, &tag, &mhandle, &request)) ==
                    ncclSuccess);
  int done = 0, sizes[NCCL_NET_MAX_RECVS];
  for (int i = 0; i < 6 && done == 0; ++i) {  // the receiver's threads start in test()
    (void)rank.net().test(request, &done, sizes);
    std::this_thread::sleep_for(5ms);
  }
  SNUG_RANK_CHECK(rank.net().deregister_memory(comm, mhandle) == ncclSuccess);
  ::munmap(memory, kSize);
  std::this_thread::sleep_for(50ms);
  SNUG_RANK_CHECK((sends ? rank.net().close_send(comm) : rank.net().close_recv(comm)) ==
                  ncclSuccess);
}

void run(const Environment& environment) {
  const Bytes data = make_input(input_named("gaussian"), DType::kBF16, kSize / 2);
  EXPECT_TRUE(all_succeeded(run_ranks(2, environment, [&](int me, Shared& shared) {
    Rank rank(me, shared);
    give_up_in_the_middle(rank, me == 0, data);
  })));
}

TEST(NcclAbort, NoThreadUsesMemoryThatNcclFrees) { run({{"SNUG_NCCL_CODEC", "entropy"}}); }

TEST(NcclAbort, NorDoesAStackedPlugin) {
  run({{"SNUG_NCCL_CODEC", "entropy"}, {"SNUG_NCCL_INNER", SNUG_NCCL_FAKE_INNER}});
}

}  // namespace
}  // namespace snug::test
