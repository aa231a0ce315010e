#include "nccl/worker_pool.h"

#include <thread>

namespace snug::nccl {

void WorkerPool::submit(Job& job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(&job);
    if (jobs_.size() > idle_threads_ && num_threads_ < max_threads_) {
      ++num_threads_;
      std::thread(&WorkerPool::run, this).detach();
    }
  }
  work_.notify_one();
}

void WorkerPool::run() {
  ChunkCodec codec;
  for (;;) {
    Job* job;
    {
      std::unique_lock lock(mutex_);
      ++idle_threads_;
      work_.wait(lock, [&] { return !jobs_.empty(); });
      --idle_threads_;
      job = jobs_.front();
      jobs_.pop_front();
    }
    job->run(codec);
  }
}

}  // namespace snug::nccl
