// store/workers.h - threads that share one job: they pass in order, and one error stops them all.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <utility>

#include "codec/parallel.h"
#include "snug/store.h"

namespace snug::store {

// Runs `job` and turns what must not be thrown into a status.
template <class Job>
auto guarded(Job job) noexcept -> decltype(job()) {
  try {
    return job();
  } catch (const std::bad_alloc&) {
    return StoreStatus{{Code::kInternal, "out of memory"}};
  } catch (const std::exception&) {
    return StoreStatus{{Code::kInternal, "unexpected error of the standard library"}};
  }
}

// The same for jobs whose report has the seconds they took.
template <class Job>
auto timed(Job job) noexcept -> decltype(job()) {
  const auto start = std::chrono::steady_clock::now();
  auto report = guarded(job);
  if (report)
    report->seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

class Workers {
 public:
  // `start` is where `turn` begins to count.
  explicit Workers(std::uint64_t start = 0) noexcept : turn(start) {}

  // Runs `work`, which returns a StoreStatus, on several threads. Returns the error of the earliest
  // ticket.
  template <class Work>
  StoreStatus run(int num_threads, Work work) {
    codec::parallel(num_threads, [&] {
      if (StoreStatus s = guarded(work); !s.ok()) fail(0, std::move(s));
    });
    return error_.status();
  }
  void fail(std::uint64_t ticket, StoreStatus status) noexcept {
    error_.keep(ticket, std::move(status));
    turn.fail();
  }
  bool failed() const noexcept { return turn.failed(); }

  codec::Turnstile turn;

 private:
  codec::FirstError<StoreStatus> error_;
};

int store_threads(int asked) noexcept;

// A buffer that grows and whose bytes are not touched before they are used.
class Buffer {
 public:
  std::span<std::byte> span(std::size_t num_bytes) {
    if (num_bytes > size_ || bytes_ == nullptr) {
      bytes_ = std::make_unique_for_overwrite<std::byte[]>(num_bytes);
      size_ = num_bytes;
    }
    return {bytes_.get(), num_bytes};
  }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_ = 0;
};

}  // namespace snug::store
