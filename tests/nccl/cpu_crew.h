// Threads that play the codec workers on the GPU, with the same queue.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "nccl/worker_queue.h"

namespace snug::test {

struct CpuTeam {
  static constexpr std::uint32_t kSize = 1;

  static std::uint32_t lane() { return 0; }
  static std::uint32_t first(std::uint32_t v) { return v; }
  static std::uint32_t last(std::uint32_t v) { return v; }
  static std::uint32_t count(bool v) { return v ? 1 : 0; }
  static std::uint32_t leading(bool v) { return v ? 1 : 0; }
  static std::uint32_t sum_before(std::uint32_t) { return 0; }

  template <class T>
  static T peek_host(const T* p) {
    return __atomic_load_n(p, __ATOMIC_RELAXED);
  }
  template <class T>
  static void acquire_host(const T* p) {
    (void)__atomic_load_n(p, __ATOMIC_ACQUIRE);
  }
  template <class T>
  static T peek(const T* p) {
    return __atomic_load_n(p, __ATOMIC_RELAXED);
  }
  template <class T>
  static T load_host(const T* p) {
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
  }
  template <class T>
  static void store_host(T* p, T v) {
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
  }
  static nccl::Order load_order(const nccl::Order* p) { return *p; }
  template <class T>
  static T load(const T* p) {
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
  }
  template <class T>
  static void store(T* p, T v) {
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
  }
  template <class T>
  static void store_after_fence(T* p, T v) {
    store(p, v);
  }
  static std::uint32_t add(std::uint32_t* p, std::uint32_t v) {
    return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
  }
  static std::uint32_t exchange(std::uint32_t* p, std::uint32_t v) {
    return __atomic_exchange_n(p, v, __ATOMIC_ACQ_REL);
  }
  static void fence() {}  // every store that matters is a release
  static void pause() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }
  static std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                      std::chrono::nanoseconds(1));
  }
};

// A GPU with its workers' memory. `work` does a whole order and returns its code and size; it is
// called by the worker that finishes the order's last block.
class CpuGpu {
 public:
  struct Done {
    std::uint32_t code, num_bytes;
  };
  using Work = std::function<Done(const nccl::Order&)>;

  // On a loaded machine threads may not run for long: `idle_time` must not end a crew by chance.
  explicit CpuGpu(Work work, std::chrono::milliseconds idle_time = std::chrono::minutes(10))
      : work_(std::move(work)) {
    nccl::clear_floor(floor_);
    board_.idle_ns = static_cast<std::uint64_t>(idle_time / std::chrono::nanoseconds(1));
  }
  ~CpuGpu() { join(); }

  nccl::WorkerBoard& board() { return board_; }

  // A launch. Those with the same index must not overlap.
  void launch(std::uint32_t index, int num_workers, bool may_linger = true) {
    for (int i = 0; i <= num_workers; ++i)
      threads_.emplace_back([=, this] {
        run(floor_.launches[index], static_cast<std::uint32_t>(num_workers), may_linger);
      });
  }
  // Kernels that crews were launched for, and began to serve.
  std::uint32_t num_started() const { return CpuTeam::load(&floor_.started); }
  void mark() { nccl::mark_end<CpuTeam>(floor_); }
  // Until all crews have left.
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  void run(nccl::CrewLaunch& launch, std::uint32_t num_workers, bool may_linger) {
    if (nccl::arrive<CpuTeam>(launch)) {
      nccl::Dispatcher<CpuTeam> dispatcher(board_, floor_, launch, num_workers, 1);
      if (dispatcher.open(may_linger))
        dispatcher.serve([&](const nccl::Order&, std::uint32_t box) { done_[box].store(0); });
      return;
    }
    if (nccl::is_opened<CpuTeam>(launch)) {
      for (;;) {
        const nccl::Ticket ticket = nccl::next_ticket<CpuTeam>(floor_);
        if (ticket.is_end()) break;
        const nccl::Order& order = floor_.orders[ticket.box];
        if (done_[ticket.box].fetch_add(1) + 1 < order.num_blocks) continue;
        const Done done = work_(order);
        nccl::report<CpuTeam>(board_, floor_, ticket.box, done.code, done.num_bytes);
      }
    }
    nccl::leave<CpuTeam>(floor_, launch, num_workers);
  }

  const Work work_;
  nccl::WorkerBoard board_{};
  nccl::WorkerFloor floor_{};
  std::atomic<std::uint32_t> done_[nccl::kOrderBoxes] = {};
  std::vector<std::thread> threads_;
};

}  // namespace snug::test
