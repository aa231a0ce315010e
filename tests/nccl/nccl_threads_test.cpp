// Systems that start no more threads: an error that NCCL can report, or slower work, but
// no job that waits for ever and no exception in NCCL's face.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>

#include <atomic>
#include <fstream>
#include <system_error>
#include <thread>

#include "nccl/net_ranks.h"
#include "nccl/worker_pool.h"
#include "support/inputs.h"
#include "support/sanitizer.h"

namespace snug::test {
namespace {

Bytes gaussian(std::size_t size) {
  return make_input(input_named("gaussian"), DType::kBF16, size / 2);
}

// No address space for another stack; the stacks that the system keeps are too small.
void forbid_threads() {
  pthread_attr_t attributes;
  pthread_getattr_default_np(&attributes);
  pthread_attr_setstacksize(&attributes, std::size_t{1} << 30);
  pthread_setattr_default_np(&attributes);
  std::size_t num_pages = 0;
  std::ifstream("/proc/self/statm") >> num_pages;
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = num_pages * 4096 + (std::size_t{256} << 20);
  ::setrlimit(RLIMIT_AS, &limit);
  try {
    std::thread([] {}).join();
    SNUG_RANK_CHECK(!"threads still start");
  } catch (const std::system_error&) {
  }
}

TEST(NcclThreads, ASenderWithoutThreadsSaysSo) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need their address space";
  EXPECT_TRUE(all_succeeded(run_ranks(2, {}, [](int me, Shared& shared) {
    Rank rank(me, shared);
    Bytes bytes = gaussian(4 << 20), small(100);
    if (me == 1) {
      void* comm = rank.accept_from(0);
      rank.wait(rank.irecv(comm, small));
      SNUG_RANK_CHECK(rank.wait_for_end(rank.irecv(comm, bytes)) == ncclRemoteError);
      rank.close_recv(comm);
      return;
    }
    void* comm = rank.connect_to(1);
    rank.wait(rank.isend(comm, small));
    forbid_threads();
    void *mhandle = nullptr, *request = nullptr;
    for (int i = 0; i < 2; ++i) {
      SNUG_RANK_CHECK(rank.net().isend(comm, bytes.data(), bytes.size(), 0, mhandle, &request) ==
                      ncclSystemError);
      SNUG_RANK_CHECK(request == nullptr);
    }
    rank.close_send(comm);
  })));
}

TEST(NcclThreads, AReceiverWithoutThreadsSaysSo) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need their address space";
  EXPECT_TRUE(all_succeeded(run_ranks(2, {}, [](int me, Shared& shared) {
    Rank rank(me, shared);
    Bytes bytes = gaussian(64 << 20);  // more than the system buffers
    if (me == 0) {
      void* comm = rank.connect_to(1);
      SNUG_RANK_CHECK(rank.wait_for_end(rank.isend(comm, bytes)) == ncclRemoteError);
      rank.close_send(comm);
      return;
    }
    void* comm = rank.accept_from(0);
    forbid_threads();
    SNUG_RANK_CHECK(rank.wait_for_end(rank.irecv(comm, bytes)) == ncclSystemError);
    rank.close_recv(comm);
  })));
}

struct CountingJob : nccl::Job {
  void run(nccl::ChunkCodec&) override { ++num_runs; }
  std::atomic<int> num_runs{0};
};

// The pool of stacked connections works without threads, on NCCL's own, and with them
// as soon as there are some.
TEST(NcclThreads, APoolWithoutThreadsWorks) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need their address space";
  EXPECT_TRUE(all_succeeded(run_ranks(1, {}, [](int, Shared&) {
    rlimit before{};
    ::getrlimit(RLIMIT_AS, &before);
    forbid_threads();
    auto* pool = new nccl::WorkerPool(2);  // never destroyed: its threads wait in it
    static CountingJob job;
    pool->submit(job);
    SNUG_RANK_CHECK(job.num_runs == 1 && count_threads() == 1);
    ::setrlimit(RLIMIT_AS, &before);
    pool->submit(job);
    while (job.num_runs < 2) std::this_thread::yield();
    SNUG_RANK_CHECK(count_threads() == 2);
  })));
}

}  // namespace
}  // namespace snug::test
