// gpu_codec_bench [--json FILE] [--data DIR] [--quick] [--only TEXT]: encode and decode rates
// of tensors in GPU memory, against a device-to-device copy of the same run.
//
// Each row is the median of at least 30 calls, each call a CUDA graph replay,
// over buffers that together are larger than the L2 cache.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gpu/codec_inputs.h"
#include "snug/codec.h"
#include "snug/cuda.h"

namespace {

using snug::Codec;
using snug::DType;
namespace gpu = snug::cuda;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "gpu_codec_bench: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

void check(const snug::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "gpu_codec_bench: %s\n", to_string(status).c_str());
  std::exit(1);
}

using snug::bench::Bytes;
using snug::bench::kTile;

// Sets `differs` where two buffers do; bytes are a multiple of 16.
__global__ void compare_kernel(const uint4* a, const uint4* b, std::size_t num_vecs,
                               unsigned* differs) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < num_vecs;
       i += std::size_t{gridDim.x} * blockDim.x)
    if (((a[i].x ^ b[i].x) | (a[i].y ^ b[i].y) | (a[i].z ^ b[i].z) | (a[i].w ^ b[i].w)) != 0)
      *differs = 1;
}

bool same_on_device(const std::uint8_t* a, const std::uint8_t* b, std::size_t n) {
  unsigned *differs, found = 0;
  check(cudaMalloc(&differs, 4), "allocate");
  check(cudaMemset(differs, 0, 4), "compare");
  compare_kernel<<<1024, 256>>>(reinterpret_cast<const uint4*>(a),
                                reinterpret_cast<const uint4*>(b), n / 16, differs);
  check(cudaMemcpy(&found, differs, 4, cudaMemcpyDeviceToHost), "compare");
  cudaFree(differs);
  return found == 0;
}

struct Slot {
  std::uint8_t *src, *frame, *dst, *workspace;
  gpu::DeviceResult* result;
  cudaGraphExec_t encode, decode;
};

cudaGraphExec_t capture(cudaStream_t stream, const std::function<snug::Status()>& call) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  const snug::Status status = call();
  check(cudaStreamEndCapture(stream, &graph), "end of capture");
  check(status);
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  check(cudaGraphDestroy(graph), "destroy");
  return exec;
}

// Median microseconds of `reps` calls.
double median_us(cudaStream_t stream, int reps, const std::function<void(int)>& call) {
  std::vector<cudaEvent_t> events(2 * static_cast<std::size_t>(reps));
  for (auto& e : events) check(cudaEventCreate(&e), "event");
  for (int i = 0; i < 5; ++i) call(i);
  for (int i = 0; i < reps; ++i) {
    check(cudaEventRecord(events[2 * i], stream), "record");
    call(i);
    check(cudaEventRecord(events[2 * i + 1], stream), "record");
  }
  check(cudaStreamSynchronize(stream), "run");
  std::vector<float> ms(reps);
  for (int i = 0; i < reps; ++i)
    check(cudaEventElapsedTime(&ms[i], events[2 * i], events[2 * i + 1]), "elapsed");
  for (auto& e : events) cudaEventDestroy(e);
  std::sort(ms.begin(), ms.end());
  return 1e3 * ms[ms.size() / 2];
}

gpu::DeviceResult fetch(const gpu::DeviceResult* device) {
  gpu::DeviceResult r;
  check(cudaMemcpy(&r, device, sizeof r, cudaMemcpyDeviceToHost), "result");
  return r;
}

struct Row {
  std::string input, mode;
  DType dtype;
  Codec codec;
  std::size_t mib;
  int log2_block, sms;
  double ratio, encode_us, decode_us;
  bool same;
};

struct Case {
  std::string input;
  const char* file = "";  // of inputs that come from one
  DType dtype = DType::kBF16;
  Codec codec = Codec::kEntropy;
  std::size_t mib = 256;
  int max_sms = 0;
  std::size_t page_bytes = 0;  // 0: one piece
  int log2_block = 0;
};

Row run(const Case& c, const Bytes& tile, int num_sms, cudaStream_t stream) {
  const std::size_t n = c.mib << 20;
  gpu::EncodeOptions eo;
  eo.dtype = c.dtype;
  eo.codec = c.codec;
  eo.log2_block = c.log2_block != 0 ? c.log2_block : gpu::default_log2_block(n, c.dtype, c.codec);
  eo.max_sms = c.max_sms;
  gpu::DecodeOptions dopt;
  dopt.dtype = c.dtype;
  dopt.codec = c.codec;
  dopt.log2_block = eo.log2_block;
  dopt.max_sms = c.max_sms;
  const std::size_t bound = snug::encode_bound(n, {c.dtype, c.codec, eo.log2_block, 1});
  const std::size_t num_pages = c.page_bytes == 0 ? 0 : n / c.page_bytes;
  const std::size_t ws_bytes =
      std::max({gpu::encode_workspace_bytes(n, eo), gpu::decode_workspace_bytes(n, dopt),
                gpu::paged_workspace_bytes(n, num_pages, c.dtype, eo.log2_block)});
  const std::size_t num_slots = std::clamp<std::size_t>((std::size_t{192} << 20) / n, 2, 48);
  std::vector<Slot> slots(num_slots);
  Row row{c.input,
          c.page_bytes ? "paged"
          : c.max_sms  ? "half"
                       : "",
          c.dtype,
          c.codec,
          c.mib,
          eo.log2_block,
          c.max_sms ? c.max_sms : num_sms,
          0,
          0,
          0,
          true};
  std::vector<gpu::Segment*> pages(2 * num_slots, nullptr);
  for (std::size_t s = 0; s < num_slots; ++s) {
    Slot& slot = slots[s];
    check(cudaMalloc(&slot.src, n), "allocate");
    check(cudaMalloc(&slot.frame, bound), "allocate");
    check(cudaMalloc(&slot.dst, n), "allocate");
    check(cudaMalloc(&slot.workspace, ws_bytes), "allocate");
    check(cudaMalloc(&slot.result, sizeof(gpu::DeviceResult)), "allocate");
    if (s == 0)
      check(cudaMemcpy(slot.src, tile.data(), std::min(kTile, n), cudaMemcpyHostToDevice), "fill");
    for (std::size_t at = s == 0 ? kTile : 0; at < n; at += kTile)
      check(cudaMemcpy(slot.src + at, slots[0].src, std::min(kTile, n - at),
                       cudaMemcpyDeviceToDevice),
            "fill");
    check(cudaMemset(slot.dst, 0xA5, n), "fill");
    if (num_pages != 0) {
      // Pages in a shuffled order, as a cache in use has them.
      std::vector<gpu::Segment> order(num_pages);
      std::mt19937_64 random(s);
      for (int side = 0; side < 2; ++side) {
        for (std::size_t p = 0; p < num_pages; ++p)
          order[p] = {(side ? slot.dst : slot.src) + p * c.page_bytes, c.page_bytes};
        std::mt19937_64 same(s);
        std::shuffle(order.begin(), order.end(), same);
        check(cudaMalloc(&pages[2 * s + side], num_pages * sizeof(gpu::Segment)), "allocate");
        check(cudaMemcpy(pages[2 * s + side], order.data(), num_pages * sizeof(gpu::Segment),
                         cudaMemcpyHostToDevice),
              "pages");
      }
    }
    slot.encode = capture(stream, [&] {
      if (num_pages != 0)
        return gpu::encode_paged(pages[2 * s], num_pages, n, {slot.frame, bound},
                                 {slot.workspace, ws_bytes}, slot.result, eo, stream);
      return gpu::encode({slot.src, n}, {slot.frame, bound}, {slot.workspace, ws_bytes},
                         slot.result, eo, stream);
    });
    slot.decode = capture(stream, [&] {
      if (num_pages != 0)
        return gpu::decode_paged({slot.frame, bound}, pages[2 * s + 1], num_pages, n,
                                 {slot.workspace, ws_bytes}, slot.result, dopt, stream);
      return gpu::decode({slot.frame, bound}, {slot.dst, n}, {slot.workspace, ws_bytes},
                         slot.result, dopt, stream);
    });
    check(cudaGraphLaunch(slot.encode, stream), "encode");
    check(cudaStreamSynchronize(stream), "encode");
    const gpu::DeviceResult encoded = fetch(slot.result);
    check(gpu::to_status(encoded));
    row.ratio = static_cast<double>(encoded.num_bytes) / static_cast<double>(n);
    check(cudaGraphLaunch(slot.decode, stream), "decode");
    check(cudaStreamSynchronize(stream), "decode");
    check(gpu::to_status(fetch(slot.result)));
    row.same &= same_on_device(slot.src, slot.dst, n);
  }
  const int reps = c.mib >= 256 ? 30 : 60;
  row.encode_us = median_us(stream, reps, [&](int i) {
    check(cudaGraphLaunch(slots[i % num_slots].encode, stream), "encode");
  });
  row.decode_us = median_us(stream, reps, [&](int i) {
    check(cudaGraphLaunch(slots[i % num_slots].decode, stream), "decode");
  });
  for (Slot& slot : slots) {
    for (void* p : {static_cast<void*>(slot.src), static_cast<void*>(slot.frame),
                    static_cast<void*>(slot.dst), static_cast<void*>(slot.workspace),
                    static_cast<void*>(slot.result)})
      cudaFree(p);
    cudaGraphExecDestroy(slot.encode);
    cudaGraphExecDestroy(slot.decode);
  }
  for (gpu::Segment* p : pages) cudaFree(p);
  return row;
}

// Bytes read and written per second by a copy of 1 GiB.
double copy_rate(cudaStream_t stream) {
  const std::size_t n = std::size_t{1} << 30;
  void *a, *b;
  check(cudaMalloc(&a, n), "allocate");
  check(cudaMalloc(&b, n), "allocate");
  check(cudaMemset(a, 0x5A, n), "fill");
  const double us = median_us(stream, 30, [&](int) {
    check(cudaMemcpyAsync(b, a, n, cudaMemcpyDeviceToDevice, stream), "copy");
  });
  cudaFree(a);
  cudaFree(b);
  return 2.0 * static_cast<double>(n) / us * 1e6;
}

void print(const Row& r, double copy, std::FILE* json, bool first) {
  const double n = static_cast<double>(r.mib << 20);
  const double roofline_us = n * (1 + r.ratio) / copy * 1e6;
  std::printf(
      "| %s | %s | %s | %zu | %d | %d | %.4f | %.1f | %.0f | %.0f %% | %.1f | %.0f | %.0f %% "
      "|%s%s\n",
      r.input.c_str(), snug::dtype_name(r.dtype), snug::codec_name(r.codec), r.mib, r.log2_block,
      r.sms, r.ratio, r.encode_us, n / r.encode_us / 1e3, 100 * roofline_us / r.encode_us,
      r.decode_us, n / r.decode_us / 1e3, 100 * roofline_us / r.decode_us,
      r.mode.empty() ? "" : (" " + r.mode).c_str(), r.same ? "" : " WRONG DATA");
  std::fflush(stdout);
  if (json == nullptr) return;
  std::fprintf(
      json,
      "%s\n  {\"input\": \"%s\", \"mode\": \"%s\", \"dtype\": \"%s\", \"codec\": \"%s\", \"mib\": "
      "%zu, "
      "\"log2_block\": %d, \"sms\": %d, \"ratio\": %.5f, \"encode_us\": %.2f, \"decode_us\": %.2f, "
      "\"encode_gbps\": %.1f, \"decode_gbps\": %.1f, \"encode_roofline\": %.3f, "
      "\"decode_roofline\": %.3f}",
      first ? "" : ",", r.input.c_str(), r.mode.c_str(), snug::dtype_name(r.dtype),
      snug::codec_name(r.codec), r.mib, r.log2_block, r.sms, r.ratio, r.encode_us, r.decode_us,
      n / r.encode_us / 1e3, n / r.decode_us / 1e3, roofline_us / r.encode_us,
      roofline_us / r.decode_us);
}

}  // namespace

int main(int argc, char** argv) {
  std::string json_path, data, only;
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--json" && i + 1 < argc)
      json_path = argv[++i];
    else if (arg == "--data" && i + 1 < argc)
      data = argv[++i];
    else if (arg == "--only" && i + 1 < argc)
      only = argv[++i];
    else if (arg == "--quick")
      quick = true;
    else {
      std::fprintf(stderr,
                   "usage: gpu_codec_bench [--json FILE] [--data DIR] [--quick] [--only TEXT]\n");
      return 2;
    }
  }
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0), "no device");
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  const double copy = copy_rate(stream);
  std::printf(
      "%s, %d SMs, CUDA driver %d, runtime %d; copy of 1 GiB: %.0f GB/s read and written\n\n",
      device.name, device.multiProcessorCount, driver, runtime, copy / 1e9);
  std::printf(
      "| input | dtype | codec | MiB | log2_block | SMs | ratio | encode us | GB/s | of roofline | "
      "decode us | GB/s | of roofline |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");

  // Made when the first row wants them.
  std::map<std::string, Bytes> tiles;
  const auto tile_of = [&](const Case& c) -> const Bytes& {
    const bool is_gaussian = c.input == "gaussian";
    Bytes& tile = tiles[is_gaussian ? c.input + snug::dtype_name(c.dtype) : c.input];
    if (tile.empty())
      tile = is_gaussian                ? snug::bench::gaussian(c.dtype)
             : c.input == "random bits" ? snug::bench::random_bits()
             : c.input == "wide kv"     ? snug::bench::wide_kv()
                                        : snug::bench::file_data(data + "/" + c.file);
    return tile;
  };
  const auto exists = [&](const char* file) {
    return !data.empty() && std::ifstream(data + "/" + file).good();
  };
  const char* const weights = "model-00001-of-00002.safetensors";
  std::vector<Case> cases;
  const std::vector<std::size_t> sizes = quick ? std::vector<std::size_t>{1, 16, 256}
                                               : std::vector<std::size_t>{1, 4, 16, 64, 256, 1024};
  for (const Codec codec : {Codec::kEntropy, Codec::kFixed}) {
    for (const std::size_t mib : sizes) cases.push_back({"gaussian", "", DType::kBF16, codec, mib});
    for (const std::size_t mib :
         quick ? std::vector<std::size_t>{256} : std::vector<std::size_t>{16, 256, 1024}) {
      if (exists(weights)) cases.push_back({"weights", weights, DType::kBF16, codec, mib});
      for (const auto& [name, file] :
           {std::pair{"kv", "kv.safetensors"}, std::pair{"gradients", "grad.safetensors"}})
        if (exists(file)) cases.push_back({name, file, DType::kBF16, codec, mib});
      cases.push_back({"wide kv", "", DType::kBF16, codec, mib});
      cases.push_back({"random bits", "", DType::kBF16, codec, mib});
    }
    cases.push_back({"gaussian", "", DType::kBF16, codec, 256, device.multiProcessorCount / 2});
    cases.push_back({"gaussian", "", DType::kBF16, codec, 256, 0, 32768});
  }
  cases.push_back({"gaussian", "", DType::kF32, Codec::kEntropy, 256});
  cases.push_back({"gaussian", "", DType::kF32, Codec::kFixed, 256});
  cases.push_back({"gaussian", "", DType::kF16, Codec::kEntropy, 256});
  cases.push_back({"gaussian", "", DType::kF8E4M3, Codec::kEntropy, 256});
  // What the block size costs and buys.
  for (const Codec codec : {Codec::kEntropy, Codec::kFixed})
    for (const std::size_t mib : {std::size_t{16}, std::size_t{256}})
      for (int log2_block = 12; log2_block <= 15; ++log2_block)
        cases.push_back({"gaussian", "", DType::kBF16, codec, mib, 0, 0, log2_block});

  std::FILE* json = json_path.empty() ? nullptr : std::fopen(json_path.c_str(), "w");
  if (json != nullptr)
    std::fprintf(json,
                 "{\"device\": \"%s\", \"sms\": %d, \"driver\": %d, \"runtime\": %d, "
                 "\"copy_gbps\": %.1f, \"rows\": [",
                 device.name, device.multiProcessorCount, driver, runtime, copy / 1e9);
  bool first = true;
  for (const Case& c : cases) {
    const std::string name = c.input + " " + snug::dtype_name(c.dtype) + " " +
                             snug::codec_name(c.codec) + " " + std::to_string(c.mib);
    if (name.find(only) == std::string::npos) continue;
    print(run(c, tile_of(c), device.multiProcessorCount, stream), copy, json, first);
    if (json != nullptr) std::fflush(json);
    first = false;
  }
  if (json != nullptr) {
    std::fprintf(json, "\n]}\n");
    std::fclose(json);
  }
  return 0;
}
