// nccl/worker_pool.h - threads that compress and restore for stacked connections.
#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>

#include "nccl/chunk_codec.h"

namespace snug::nccl {

class Job {
 public:
  virtual ~Job() = default;
  virtual void run(ChunkCodec& codec) = 0;
};

// Jobs must not block. Threads start with the first jobs and stay until the process
// ends, so a pool is never destroyed. If no thread can start, the caller does the work.
class WorkerPool {
 public:
  explicit WorkerPool(int num_threads) : max_threads_(num_threads) {}
  void submit(Job& job) noexcept;

 private:
  bool enqueue(Job& job) noexcept;
  void run();

  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<Job*> jobs_;
  int max_threads_;
  int num_threads_ = 0;
  std::size_t idle_threads_ = 0;
};

}  // namespace snug::nccl
