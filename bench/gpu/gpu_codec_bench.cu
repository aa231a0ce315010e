// gpu_codec_bench [--json FILE] [--data DIR] [--quick] [--only TEXT]: encode and decode rates
// of tensors in GPU memory, against a device-to-device copy of the same run.
//
// Each row is the median of at least 30 calls, each call a CUDA graph replay,
// over buffers that together are larger than the L2 cache.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

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

using Bytes = std::vector<std::uint8_t>;

std::uint16_t to_bf16(float f) {
  std::uint32_t u;
  std::memcpy(&u, &f, 4);
  return static_cast<std::uint16_t>((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

// 16 MiB of one kind of data; buffers are filled with copies of it.
constexpr std::size_t kTile = std::size_t{16} << 20;

Bytes gaussian(DType dtype) {
  Bytes tile(kTile);
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  for (std::size_t i = 0; i + 4 <= kTile;) {
    const float f = normal(random);
    if (dtype == DType::kF32) {
      std::memcpy(&tile[i], &f, 4);
      i += 4;
    } else if (dtype == DType::kF16) {
      // Round to nearest by scaling: normal numbers of this range need no more.
      std::uint32_t u;
      const float scaled = f * 0x1p-112f;
      std::memcpy(&u, &scaled, 4);
      const auto h = static_cast<std::uint16_t>(((u & 0x7FFFFFFF) + 0x0FFF + (u >> 13 & 1)) >> 13 |
                                                u >> 31 << 15);
      std::memcpy(&tile[i], &h, 2);
      i += 2;
    } else if (dtype == DType::kF8E4M3) {
      std::uint32_t u;
      const float scaled = f * 50.0f * 0x1p-120f;
      std::memcpy(&u, &scaled, 4);
      tile[i++] = static_cast<std::uint8_t>(((u & 0x7FFFFFFF) + 0x7FFFF + (u >> 20 & 1)) >> 20 |
                                            u >> 31 << 7);
    } else {
      const std::uint16_t b = to_bf16(f);
      std::memcpy(&tile[i], &b, 2);
      i += 2;
    }
  }
  return tile;
}

Bytes random_bits() {
  Bytes tile(kTile);
  std::mt19937_64 random(2);
  for (std::size_t i = 0; i < kTile; i += 8) {
    const std::uint64_t v = random();
    std::memcpy(&tile[i], &v, 8);
  }
  return tile;
}

// Channels with lognormal scales: the wide exponents of large models' keys.
Bytes wide_kv() {
  Bytes tile(kTile);
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> scale(1024);
  for (float& s : scale) s = std::exp2(1.6f * normal(random));
  for (std::size_t i = 0; i < kTile / 2; ++i) {
    const std::uint16_t b = to_bf16(scale[i % 1024] * normal(random));
    std::memcpy(&tile[2 * i], &b, 2);
  }
  return tile;
}

// The tensors of a safetensors file, repeated to 16 MiB; empty if there is none.
Bytes file_data(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> all((std::istreambuf_iterator<char>(file)), {});
  std::uint64_t header = 0;
  if (all.size() < 16) return {};
  std::memcpy(&header, all.data(), 8);
  if (header > all.size() - 16) return {};
  Bytes tile(kTile);
  const std::size_t start = 8 + header, length = (all.size() - start) & ~std::size_t{1};
  for (std::size_t i = 0; i < kTile; ++i)
    tile[i] = static_cast<std::uint8_t>(all[start + i % length]);
  return tile;
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
  const Bytes* tile;
  DType dtype = DType::kBF16;
  Codec codec = Codec::kEntropy;
  std::size_t mib = 256;
  int max_sms = 0;
  std::size_t page_bytes = 0;  // 0: one piece
  int log2_block = 0;
};

Row run(const Case& c, int num_sms, cudaStream_t stream) {
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
    for (std::size_t at = 0; at < n; at += kTile)
      check(cudaMemcpy(slot.src + at, c.tile->data(), std::min(kTile, n - at),
                       cudaMemcpyHostToDevice),
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
    if (s == 0) {
      Bytes back(n);
      check(cudaMemcpy(back.data(), slot.dst, n, cudaMemcpyDeviceToHost), "compare");
      for (std::size_t at = 0; at < n; at += kTile)
        row.same &= std::memcmp(back.data() + at, c.tile->data(), std::min(kTile, n - at)) == 0;
    }
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

  const Bytes gauss = gaussian(DType::kBF16), gauss16 = gaussian(DType::kF16),
              gauss32 = gaussian(DType::kF32), gauss8 = gaussian(DType::kF8E4M3),
              noise = random_bits(), wide = wide_kv();
  Bytes weights, kv, grad;
  if (!data.empty()) {
    weights = file_data(data + "/model-00001-of-00002.safetensors");
    if (weights.empty()) weights = file_data(data + "/model/model-00001-of-00002.safetensors");
    kv = file_data(data + "/kv.safetensors");
    grad = file_data(data + "/grad.safetensors");
  }
  std::vector<Case> cases;
  const std::vector<std::size_t> sizes = quick ? std::vector<std::size_t>{1, 16, 256}
                                               : std::vector<std::size_t>{1, 4, 16, 64, 256, 1024};
  for (const Codec codec : {Codec::kEntropy, Codec::kFixed}) {
    for (const std::size_t mib : sizes)
      cases.push_back({"gaussian", &gauss, DType::kBF16, codec, mib});
    for (const std::size_t mib :
         quick ? std::vector<std::size_t>{256} : std::vector<std::size_t>{16, 256, 1024}) {
      if (!weights.empty()) cases.push_back({"weights", &weights, DType::kBF16, codec, mib});
      if (!kv.empty()) cases.push_back({"kv", &kv, DType::kBF16, codec, mib});
      if (!grad.empty()) cases.push_back({"gradients", &grad, DType::kBF16, codec, mib});
      cases.push_back({"wide kv", &wide, DType::kBF16, codec, mib});
      cases.push_back({"random bits", &noise, DType::kBF16, codec, mib});
    }
    cases.push_back({"gaussian", &gauss, DType::kBF16, codec, 256, device.multiProcessorCount / 2});
    cases.push_back({"gaussian", &gauss, DType::kBF16, codec, 256, 0, 32768});
    // What the block size costs and buys.
    for (const std::size_t mib : {std::size_t{16}, std::size_t{256}})
      for (int log2_block = 12; log2_block <= 15; ++log2_block)
        cases.push_back({"gaussian", &gauss, DType::kBF16, codec, mib, 0, 0, log2_block});
  }
  cases.push_back({"gaussian", &gauss32, DType::kF32, Codec::kEntropy, 256});
  cases.push_back({"gaussian", &gauss32, DType::kF32, Codec::kFixed, 256});
  cases.push_back({"gaussian", &gauss16, DType::kF16, Codec::kEntropy, 256});
  cases.push_back({"gaussian", &gauss8, DType::kF8E4M3, Codec::kEntropy, 256});

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
    print(run(c, device.multiProcessorCount, stream), copy, json, first);
    if (json != nullptr) std::fflush(json);
    first = false;
  }
  if (json != nullptr) {
    std::fprintf(json, "\n]}\n");
    std::fclose(json);
  }
  return 0;
}
