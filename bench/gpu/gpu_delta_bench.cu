// gpu_delta_bench [--data FILE] [--once]: deltas of tensors in GPU memory, against a
// device-to-device copy, a pass that only reads both tensors, and the usual way to find what
// changed: compare, select positions (CUB), gather values; 6 bytes a change, no entropy coding, no
// hashes.
//
// FILE is a safetensors file with tensors named before.*, after1.* and after8.*. Each figure
// is the median of 25 graph replays over buffers that together exceed the L2 cache. --once: only
// 256 MiB with the default block, for profilers.
#include <cuda_runtime.h>
#include <thrust/iterator/counting_iterator.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cub/device/device_select.cuh>
#include <functional>
#include <string>
#include <vector>

#include "codec/delta_inputs.h"
#include "snug/cuda.h"
#include "snug/delta.h"

namespace {

namespace gpu = snug::cuda;

constexpr std::size_t kNumElems = std::size_t{1} << 22;  // made at once, then repeated

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "gpu_delta_bench: %s\n", cudaGetErrorString(error));
  std::exit(1);
}
void check(const snug::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "gpu_delta_bench: %s\n", to_string(status).c_str());
  std::exit(1);
}

std::byte* device_copy(const Bytes& tile, std::size_t num_bytes) {
  std::byte* p;
  check(cudaMalloc(&p, num_bytes));
  std::size_t done = std::min(tile.size(), num_bytes);
  check(cudaMemcpy(p, tile.data(), done, cudaMemcpyHostToDevice));
  for (std::size_t n; done < num_bytes; done += n) {  // doubles what is there
    n = std::min(done, num_bytes - done);
    check(cudaMemcpy(p + done, p, n, cudaMemcpyDeviceToDevice));
  }
  return p;
}

std::byte* device_memory(std::size_t num_bytes) {
  std::byte* p;
  check(cudaMalloc(&p, num_bytes));
  return p;
}

__global__ void read_both(const uint4* base, const uint4* next, std::size_t n, unsigned* out) {
  unsigned x = 0;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < n;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const uint4 a = base[i], b = next[i];
    x ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w;
  }
  if (x == 0x12345678) *out = x;
}

struct Differs {
  const std::uint16_t *base, *next;
  __device__ bool operator()(std::uint32_t i) const { return base[i] != next[i]; }
};

__global__ void gather(const std::uint16_t* next, const std::uint32_t* places,
                       const std::uint32_t* count, std::uint16_t* values) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < *count;
       i += gridDim.x * blockDim.x)
    values[i] = next[places[i]];
}

// One set of buffers; several are used in turn.
struct Slot {
  std::byte *base, *next, *tensor, *delta, *workspace, *places, *values, *select_space;
  gpu::DeviceResult* results;
  std::uint32_t* count;
};

double median_us(cudaStream_t stream, std::vector<cudaGraphExec_t>& graphs,
                 const std::function<void(int)>& before) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  std::vector<double> times;
  for (int i = 0; i < 30; ++i) {
    const int slot = i % static_cast<int>(graphs.size());
    before(slot);
    check(cudaEventRecord(begin, stream));
    check(cudaGraphLaunch(graphs[static_cast<std::size_t>(slot)], stream));
    check(cudaEventRecord(end, stream));
    check(cudaEventSynchronize(end));
    float ms;
    check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 5) times.push_back(1000 * ms);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2), times.end());
  for (const auto graph : graphs) cudaGraphExecDestroy(graph);
  return times[times.size() / 2];
}

class Bench {
 public:
  Bench(const Versions& versions, std::size_t num_bytes, int log2_block)
      : versions_(versions), num_bytes_(num_bytes) {
    options_.log2_block = log2_block;
    const snug::delta::Options same{snug::DType::kBF16, log2_block, false, 1};
    bound_ = snug::delta::encode_bound(num_bytes, same);
    check(cudaStreamCreate(&stream_));
    const std::size_t num_slots =
        std::max<std::size_t>(1, (std::size_t{300} << 20) / (2 * num_bytes));
    check(cub::DeviceSelect::If(nullptr, select_bytes_, thrust::counting_iterator<std::uint32_t>(0),
                                static_cast<std::uint32_t*>(nullptr),
                                static_cast<std::uint32_t*>(nullptr),
                                static_cast<int>(num_bytes / 2), Differs{}));
    for (std::size_t i = 0; i < num_slots; ++i) {
      Slot s;
      s.base = device_copy(versions.base, num_bytes);
      s.next = device_copy(versions.next, num_bytes);
      s.tensor = device_copy(versions.base, num_bytes);
      s.delta = device_memory(bound_);
      s.workspace = device_memory(gpu::delta_encode_workspace_bytes(num_bytes, options_));
      s.places = device_memory(2 * num_bytes);
      s.values = device_memory(num_bytes);
      s.select_space = device_memory(select_bytes_);
      s.results = reinterpret_cast<gpu::DeviceResult*>(device_memory(256));
      s.count = reinterpret_cast<std::uint32_t*>(device_memory(256));
      slots_.push_back(s);
    }
  }
  ~Bench() {
    for (const Slot& s : slots_)
      for (void* p : {static_cast<void*>(s.base), static_cast<void*>(s.next),
                      static_cast<void*>(s.tensor), static_cast<void*>(s.delta),
                      static_cast<void*>(s.workspace), static_cast<void*>(s.places),
                      static_cast<void*>(s.values), static_cast<void*>(s.select_space),
                      static_cast<void*>(s.results), static_cast<void*>(s.count)})
        cudaFree(p);
    cudaStreamDestroy(stream_);
  }

  void run() {
    const double copy = rate([&](const Slot& s) {
      check(cudaMemcpyAsync(s.tensor, s.base, num_bytes_, cudaMemcpyDeviceToDevice, stream_));
    });
    const double read = rate([&](const Slot& s) {
      read_both<<<132 * 8, 512, 0, stream_>>>(reinterpret_cast<uint4*>(s.base),
                                              reinterpret_cast<uint4*>(s.next), num_bytes_ / 16,
                                              s.count);
    });
    const double select = rate([&](const Slot& s) {
      const Differs differs{reinterpret_cast<std::uint16_t*>(s.base),
                            reinterpret_cast<std::uint16_t*>(s.next)};
      check(cub::DeviceSelect::If(s.select_space, select_bytes_,
                                  thrust::counting_iterator<std::uint32_t>(0),
                                  reinterpret_cast<std::uint32_t*>(s.places), s.count,
                                  static_cast<int>(num_bytes_ / 2), differs, stream_));
      gather<<<264, 256, 0, stream_>>>(differs.next, reinterpret_cast<std::uint32_t*>(s.places),
                                       s.count, reinterpret_cast<std::uint16_t*>(s.values));
    });
    std::uint32_t num_changed = 0;
    check(cudaMemcpy(&num_changed, slots_[0].count, 4, cudaMemcpyDeviceToHost));
    const double encode = rate([&](const Slot& s) {
      check(gpu::delta_encode({s.base, num_bytes_}, {s.next, num_bytes_}, {s.delta, bound_},
                              {s.workspace, std::size_t{1} << 40}, s.results, options_, stream_));
    });
    const double apply_to = rate([&](const Slot& s) {
      check(gpu::delta_apply_to({s.delta, bound_}, {s.base, num_bytes_}, {s.tensor, num_bytes_},
                                {s.workspace, 256}, s.results + 1, options_, stream_));
    });
    verify();
    const double apply = rate(
        [&](const Slot& s) {
          check(gpu::delta_apply({s.delta, bound_}, {s.tensor, num_bytes_}, {s.workspace, 256},
                                 s.results + 1, options_, stream_));
        },
        true);
    gpu::DeviceResult results[2];
    check(cudaMemcpy(results, slots_[0].results, sizeof results, cudaMemcpyDeviceToHost));
    check(gpu::to_status(results[0]));
    check(gpu::to_status(results[1]));
    verify();
    std::printf(
        "| %s | %zu | %d | %.2f %% | %.2f %% | %.2f %% | %.0f | %.0f | %.0f | %.0f | %.0f | %.0f "
        "|\n",
        versions_.name.c_str(), num_bytes_ >> 20, options_.log2_block,
        100. * num_changed / (static_cast<double>(num_bytes_) / 2),
        100. * static_cast<double>(results[0].num_bytes) / static_cast<double>(num_bytes_),
        100. * 6 * num_changed / static_cast<double>(num_bytes_), encode, apply_to, apply, select,
        copy, read);
    std::fflush(stdout);
  }

 private:
  // GB/s of new weights. `restore` puts the base back before each call.
  double rate(const std::function<void(const Slot&)>& work, bool restore = false) {
    std::vector<cudaGraphExec_t> graphs;
    for (const Slot& s : slots_) {
      cudaGraph_t graph;
      cudaGraphExec_t exec;
      check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
      work(s);
      check(cudaStreamEndCapture(stream_, &graph));
      check(cudaGraphInstantiate(&exec, graph, 0));
      check(cudaGraphDestroy(graph));
      graphs.push_back(exec);
    }
    const double us = median_us(stream_, graphs, [&](int slot) {
      const Slot& s = slots_[static_cast<std::size_t>(slot)];
      if (restore)
        check(cudaMemcpyAsync(s.tensor, s.base, num_bytes_, cudaMemcpyDeviceToDevice, stream_));
    });
    return static_cast<double>(num_bytes_) / us / 1000;
  }

  void verify() {
    const Slot& s = slots_[0];
    std::uint64_t hashes[2];
    auto* on_device = reinterpret_cast<std::uint64_t*>(s.count);
    check(gpu::tensor_hash({s.tensor, num_bytes_}, on_device, {s.workspace, 256}, stream_));
    check(gpu::tensor_hash({s.next, num_bytes_}, on_device + 1, {s.workspace, 256}, stream_));
    check(cudaStreamSynchronize(stream_));
    check(cudaMemcpy(hashes, on_device, sizeof hashes, cudaMemcpyDeviceToHost));
    if (hashes[0] == hashes[1]) return;
    std::fprintf(stderr, "gpu_delta_bench: the applied delta gives other bytes\n");
    std::exit(1);
  }

  const Versions& versions_;
  const std::size_t num_bytes_;
  std::size_t bound_ = 0, select_bytes_ = 0;
  gpu::DeltaOptions options_;
  cudaStream_t stream_ = nullptr;
  std::vector<Slot> slots_;
};

}  // namespace

int main(int argc, char** argv) {
  const char* data = nullptr;
  bool once = false;
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], "--once") == 0)
      once = true;
    else if (std::strcmp(argv[i], "--data") == 0 && i + 1 < argc)
      data = argv[++i];
    else
      return std::fprintf(stderr, "usage: gpu_delta_bench [--data FILE] [--once]\n"), 2;
  std::vector<Versions> all;
  if (data != nullptr) {
    const auto reader = snug::Reader::open(data);
    if (!reader)
      return std::fprintf(stderr, "gpu_delta_bench: %s\n", to_string(reader.status()).c_str()), 1;
    all.push_back(load_versions(*reader, "after1"));
    all.push_back(load_versions(*reader, "after8"));
  }
  all.push_back(gaussian_versions(1e-6, kNumElems));
  all.push_back(gaussian_versions(3e-6, kNumElems));
  std::printf(
      "GB/s of new weights\n\n| data | MiB | log2 block | changed | delta | positions + values | "
      "encode | apply | apply in place | CUB select | copy | read both "
      "|\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const Versions& versions : all) Bench(versions, std::size_t{256} << 20, 13).run();
  if (once) return 0;
  for (const std::size_t mib : {1024, 64, 16})
    for (const Versions& versions : all) Bench(versions, mib << 20, 13).run();
  for (const Versions& versions : all)
    for (const int log2_block : {12, 14}) Bench(versions, std::size_t{256} << 20, log2_block).run();
  return 0;
}
