// nccl/worker_desk.h - where the plugin's threads hand chunks to codec workers on the GPU.
//
// Workers are optional at every moment. post() says no where none are at work, and an order that a
// crew left behind comes back: its poster then uses the CPU, or sends raw.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nccl/worker_queue.h"
#include "snug/tensor.h"

namespace snug::nccl {

// Memory that NCCL registered. Workers may use it once the thread that launches them has asked
// CUDA whether the GPU can reach it.
struct Region {
  void* data;
  std::size_t size;
  std::atomic<bool> is_reachable{false};
};

class WorkerDesk {
 public:
  // What a worker is told to do; num_blocks and log2_block follow from it.
  struct Job {
    OrderKind kind;
    DType dtype;
    Codec codec;
    std::span<std::byte> tensor, frame;
  };
  struct Posted {
    std::uint32_t number, crew;
  };
  enum class Answer { kPending, kDone, kNotTaken };

  // One in the process.
  static WorkerDesk& instance();

  // `board` is zeroed memory that workers see. `buffers` is, too, and is cut into frames of
  // buffer_bytes. Both stay until the process ends.
  void open(WorkerBoard* board, std::span<std::byte> buffers, std::size_t buffer_bytes);
  bool is_open() const noexcept { return board_.load(std::memory_order_acquire) != nullptr; }
  // NCCL knows the profiler table, without which there are no workers.
  void set_profiler_loaded() noexcept { is_profiler_loaded_.store(true); }
  // A chunk is compressed on the CPU: says once why, where nobody else has.
  void explain_cpu_codec() noexcept;
  // No more orders: workers cannot be used any longer.
  void stop() noexcept { is_stopped_.store(true); }

  // A crew is at work.
  bool is_manned() const noexcept;
  // Nothing where no crew is at work, all boxes are full or the job is not for workers.
  std::optional<Posted> post(const Job& job) noexcept;
  // An answer other than kPending ends the order.
  Answer poll(const Posted& posted, OrderResult& result) noexcept;
  // Polls until there is an answer. kPending: none for `patience`; the workers are gone, nobody
  // posts to them any more, and what the order named must not be used again.
  Answer wait(const Posted& posted, OrderResult& result, std::chrono::milliseconds patience);

  // A frame that workers can reach; empty if there is none left.
  std::span<std::byte> take_buffer() noexcept;
  void give_buffer(std::span<std::byte> buffer) noexcept;

  Region* add_region(void* data, std::size_t size);
  void remove_region(Region* region);
  // Asks about regions that are new since the last call.
  void check_regions(const std::function<bool(void* data, std::size_t size)>& can_reach);

  // A crew stays while messages are being sent.
  void count_send(int change) noexcept;

  // Nothing if workers were never set up.
  struct Totals {
    std::uint64_t crews, orders, idle_exits;
    double block_ms;
  };
  std::optional<Totals> totals() const noexcept;

 private:
  static Answer answer_of(const WorkerBoard& board, const Posted& posted);

  std::atomic<WorkerBoard*> board_{nullptr};
  std::atomic<bool> is_stopped_{false}, is_profiler_loaded_{false}, is_explained_{false};
  std::atomic<std::uint32_t> num_sends_{0};

  std::mutex mutex_;  // guards what follows
  std::uint32_t next_number_ = 1;
  std::array<bool, kOrderBoxes> is_used_{};
  std::vector<std::span<std::byte>> buffers_;

  std::mutex region_mutex_;
  std::list<Region> regions_;
  std::vector<Region*> unchecked_;
};

// The block size that spreads a chunk over many workers: 16 KiB, 2^12 elements at least. 0: the
// chunk is not for workers.
int worker_log2_block(std::size_t tensor_bytes, DType dtype) noexcept;

}  // namespace snug::nccl
