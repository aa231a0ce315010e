#include "nccl/worker_pool.h"

#include <exception>
#include <thread>

namespace snug::nccl {

void WorkerPool::submit(Job& job) noexcept {
  if (enqueue(job)) return work_.notify_one();
  ChunkCodec codec;
  job.run(codec);
}

// False: there is no thread to run it.
bool WorkerPool::enqueue(Job& job) noexcept try {
  const std::lock_guard lock(mutex_);
  if (jobs_.size() >= idle_threads_ && num_threads_ < max_threads_) {
    try {
      std::thread(&WorkerPool::run, this).detach();
      ++num_threads_;
    } catch (const std::exception&) {
      if (num_threads_ == 0) return false;
    }
  }
  jobs_.push_back(&job);
  return true;
} catch (const std::exception&) {
  return false;
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
