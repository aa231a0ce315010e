#include "snug/gpu_load.h"

#include <atomic>
#include <mutex>
#include <new>
#include <vector>

#include "gpu/relaxed_capture.h"
#include "store/cuda/load_lane.h"
#include "store/workers.h"

namespace snug::cuda {
namespace {

constexpr int kDefaultThreads = 12;  // more are no faster
constexpr std::size_t kMinPieceBytes = std::size_t{64} << 10,
                      kMaxPieceBytes = std::size_t{256} << 20;

// Makes a device the current one of this thread, and at the end the one that it was.
class DeviceScope {
 public:
  explicit DeviceScope(int device) : error_(cudaGetDevice(&before_)) {
    if (error_ == cudaSuccess) error_ = cudaSetDevice(device);
  }
  DeviceScope(const DeviceScope&) = delete;
  ~DeviceScope() {
    if (error_ == cudaSuccess) (void)cudaSetDevice(before_);
  }
  cudaError_t error() const { return error_; }

 private:
  int before_ = 0;
  cudaError_t error_;
};

}  // namespace

struct Loader::Impl {
  int device = 0;
  int num_threads = 0;
  std::size_t piece_bytes = 0;
  std::mutex mutex = {};
  std::vector<std::unique_ptr<LoadLane>> lanes = {};
  EventOwner ready = {};

  StoreStatus load(const store::TensorFile& file, std::span<const store::LoadTarget> targets,
                   Stream stream);
  StoreStatus work(const store::TensorFile& file, store::LoadQueue& queue, LoadLane& lane,
                   const store::Workers& workers) const;
};

StoreStatus Loader::Impl::load(const store::TensorFile& file,
                               std::span<const store::LoadTarget> targets, Stream stream) {
  const std::lock_guard lock(mutex);
  const DeviceScope scope(device);
  if (scope.error() != cudaSuccess) return {from_cuda(scope.error())};
  const RelaxedCapture relaxed;
  if (Status s = from_cuda({ready.ensure(), ready.record(stream)}); !s.ok()) return {s};
  store::LoadQueue queue(file, targets, piece_bytes);
  const int num_lanes = codec::thread_count(num_threads, queue.num_pieces());
  while (lanes.size() < static_cast<std::size_t>(num_lanes))
    lanes.push_back(std::make_unique<LoadLane>());
  store::Workers workers;
  std::atomic<std::size_t> next_lane{0};
  return workers.run(num_lanes, [&] {
    LoadLane& lane = *lanes[next_lane.fetch_add(1)];
    if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess)
      return StoreStatus{from_cuda(error)};
    const RelaxedCapture relaxed_here;
    return work(file, queue, lane, workers);
  });
}

StoreStatus Loader::Impl::work(const store::TensorFile& file, store::LoadQueue& queue,
                               LoadLane& lane, const store::Workers& workers) const {
  StoreStatus status = store::guarded([&] {
    store::LoadPiece piece;
    StoreStatus s;
    for (int turn = 0; s.ok() && !workers.failed() && queue.next(piece, s); turn ^= 1)
      s = lane.slots[turn].start(file, piece, piece_bytes, ready.get());
    return s;
  });
  // Nothing may write to the tensors any more when the call returns, also if memory ran out.
  for (LoadSlot& slot : lane.slots) {
    StoreStatus last = store::guarded([&] { return slot.finish(file); });
    if (status.ok()) status = std::move(last);
  }
  return status;
}

Loader::Loader(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Loader::Loader() noexcept = default;
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;
Loader::~Loader() = default;

Result<Loader> Loader::open(const LoadOptions& options) noexcept try {
  if (options.piece_bytes < kMinPieceBytes || options.piece_bytes > kMaxPieceBytes)
    return usage("pieces have 64 KiB to 256 MiB", options.piece_bytes);
  auto impl = std::make_unique<Impl>();
  if (const cudaError_t error = cudaGetDevice(&impl->device); error != cudaSuccess)
    return from_cuda(error);
  impl->num_threads = store::store_threads(options.num_threads);
  if (options.num_threads <= 0) impl->num_threads = std::min(impl->num_threads, kDefaultThreads);
  impl->piece_bytes = options.piece_bytes;
  return Loader(std::move(impl));
} catch (const std::bad_alloc&) {
  return Status{Code::kInternal, "out of memory"};
}

StoreStatus Loader::load(const Reader& reader, std::span<const TensorTarget> targets,
                         Stream stream) noexcept {
  return store::guarded([&]() -> StoreStatus {
    const store::TensorFile& file = store::file_of(reader);
    auto whole = store::whole_tensors(file, targets);
    if (!whole) return whole.status();
    return impl_->load(file, *whole, stream);
  });
}

}  // namespace snug::cuda
