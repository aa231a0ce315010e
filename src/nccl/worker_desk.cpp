#include "nccl/worker_desk.h"

#include <sys/prctl.h>

#include <algorithm>
#include <bit>
#include <thread>

#include "nccl/log.h"

namespace snug::nccl {
namespace {

template <class T>
T load(const T& word) {
  return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
}
template <class T>
void store(T& word, T value) {
  __atomic_store_n(&word, value, __ATOMIC_RELEASE);
}

constexpr std::chrono::microseconds kPollTime{8};
constexpr std::size_t kBlockBytes = 16 << 10;

std::uint64_t address(const std::byte* data) { return reinterpret_cast<std::uint64_t>(data); }

}  // namespace

int worker_log2_block(std::size_t tensor_bytes, DType dtype) noexcept {
  const std::size_t width = elem_bytes(dtype);
  if (width == 0 || width > 4 || tensor_bytes == 0 || tensor_bytes % width != 0 ||
      tensor_bytes > kMaxOrderBlocks * kBlockBytes)
    return 0;
  return static_cast<int>(std::bit_width(kBlockBytes / width)) - 1;
}

WorkerDesk& WorkerDesk::instance() {
  static auto* const desk = new WorkerDesk;  // threads use it while the process ends
  return *desk;
}

void WorkerDesk::open(WorkerBoard* board, std::span<std::byte> buffers, std::size_t buffer_bytes) {
  const std::lock_guard lock(mutex_);
  for (; buffers.size() >= buffer_bytes; buffers = buffers.subspan(buffer_bytes))
    buffers_.push_back(buffers.first(buffer_bytes));
  store(board->num_sends, num_sends_.load());
  board_.store(board, std::memory_order_release);
}

void WorkerDesk::explain_cpu_codec() noexcept {
  if (is_profiler_loaded_.load(std::memory_order_relaxed) ||
      is_explained_.load(std::memory_order_relaxed) || is_explained_.exchange(true))
    return;
  info(
      "chunks are compressed on the CPU: NCCL did not take Snug's profiler table, because it is "
      "older than 2.28 or NCCL_PROFILER_PLUGIN names another");
}

bool WorkerDesk::is_manned() const noexcept {
  const WorkerBoard* const board = board_.load(std::memory_order_acquire);
  // Equal also before the first crew.
  return board != nullptr && !is_stopped_.load(std::memory_order_relaxed) &&
         load(board->closed) >> 32 != load(board->opened);
}

std::optional<WorkerDesk::Posted> WorkerDesk::post(const Job& job) noexcept {
  WorkerBoard* const board = board_.load(std::memory_order_acquire);
  const int log2_block = worker_log2_block(job.tensor.size(), job.dtype);
  const bool is_aligned = (address(job.tensor.data()) | address(job.frame.data())) % 16 == 0;
  if (!is_manned() || log2_block == 0 || !is_aligned) return {};

  const std::size_t block_bytes = elem_bytes(job.dtype) << log2_block;
  const Order order{address(job.tensor.data()),
                    address(job.frame.data()),
                    static_cast<std::uint32_t>(job.tensor.size()),
                    static_cast<std::uint32_t>(job.frame.size()),
                    static_cast<std::uint32_t>((job.tensor.size() + block_bytes - 1) / block_bytes),
                    job.kind,
                    static_cast<std::uint8_t>(job.dtype),
                    static_cast<std::uint8_t>(job.codec),
                    static_cast<std::uint8_t>(log2_block)};
  const std::lock_guard lock(mutex_);
  // With the lock held, so that at most one order is posted to a crew that has just left, and the
  // next crew finds every stamp that it has to skip.
  const std::uint32_t crew = load(board->opened);
  if (load(board->closed) >> 32 == crew) return {};
  const std::uint32_t number = next_number_, box = number % kOrderBoxes;
  if (is_used_[box]) return {};
  is_used_[box] = true;
  ++next_number_;
  board->orders[box] = order;
  store(board->stamps[box], std::uint64_t{crew} << 32 | number);
  return Posted{number, crew};
}

WorkerDesk::Answer WorkerDesk::answer_of(const WorkerBoard& board, const Posted& posted) {
  // Read before the result: a crew that is over has written all of its results.
  const std::uint64_t closed = load(board.closed);
  const std::uint32_t opened = load(board.opened);
  if (load(board.results[posted.number % kOrderBoxes].number) == posted.number)
    return Answer::kDone;
  if (opened != posted.crew) return Answer::kNotTaken;
  const bool is_left_behind =
      closed >> 32 == posted.crew &&
      static_cast<std::int32_t>(posted.number - static_cast<std::uint32_t>(closed)) >= 0;
  return is_left_behind ? Answer::kNotTaken : Answer::kPending;
}

WorkerDesk::Answer WorkerDesk::poll(const Posted& posted, OrderResult& result) noexcept {
  const WorkerBoard& board = *board_.load(std::memory_order_acquire);
  const Answer answer = answer_of(board, posted);
  if (answer == Answer::kPending) return answer;
  const std::uint32_t box = posted.number % kOrderBoxes;
  if (answer == Answer::kDone) result = board.results[box];
  const std::lock_guard lock(mutex_);
  is_used_[box] = false;
  return answer;
}

WorkerDesk::Answer WorkerDesk::wait(const Posted& posted, OrderResult& result,
                                    std::chrono::milliseconds patience) {
  thread_local const int precise = ::prctl(PR_SET_TIMERSLACK, 1000);
  (void)precise;
  const auto end = std::chrono::steady_clock::now() + patience;
  for (;;) {
    const Answer answer = poll(posted, result);
    if (answer != Answer::kPending) return answer;
    if (std::chrono::steady_clock::now() > end) {
      stop();
      return answer;
    }
    std::this_thread::sleep_for(kPollTime);
  }
}

std::span<std::byte> WorkerDesk::take_buffer() noexcept {
  const std::lock_guard lock(mutex_);
  if (buffers_.empty()) return {};
  const std::span<std::byte> buffer = buffers_.back();
  buffers_.pop_back();
  return buffer;
}

void WorkerDesk::give_buffer(std::span<std::byte> buffer) noexcept {
  if (buffer.empty()) return;
  const std::lock_guard lock(mutex_);
  buffers_.push_back(buffer);  // within capacity: it came from there
}

Region* WorkerDesk::add_region(void* data, std::size_t size) {
  const std::lock_guard lock(region_mutex_);
  Region& region = regions_.emplace_back(data, size);
  unchecked_.push_back(&region);
  return &region;
}

void WorkerDesk::remove_region(Region* region) {
  const std::lock_guard lock(region_mutex_);
  std::erase(unchecked_, region);
  regions_.remove_if([&](const Region& other) { return &other == region; });
}

void WorkerDesk::check_regions(const std::function<bool(void* data, std::size_t size)>& can_reach) {
  const std::lock_guard lock(region_mutex_);
  for (Region* region : unchecked_)
    region->is_reachable.store(can_reach(region->data, region->size), std::memory_order_relaxed);
  unchecked_.clear();
}

void WorkerDesk::count_send(int change) noexcept {
  const std::uint32_t count =
      num_sends_.fetch_add(static_cast<std::uint32_t>(change)) + static_cast<std::uint32_t>(change);
  // Two threads may store in the wrong order. A crew then stays a little longer, or leaves early.
  if (WorkerBoard* board = board_.load(std::memory_order_acquire)) store(board->num_sends, count);
}

std::optional<WorkerDesk::Totals> WorkerDesk::totals() const noexcept {
  const WorkerBoard* board = board_.load(std::memory_order_acquire);
  if (board == nullptr) return {};
  return Totals{load(board->closed) >> 32, load(board->orders_taken), load(board->idle_exits),
                static_cast<double>(load(board->worker_ns)) / 1e6};
}

}  // namespace snug::nccl
