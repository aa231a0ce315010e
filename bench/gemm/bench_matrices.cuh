// gemm/bench_matrices.cuh - device memory, weights and the truth for the benchmark of linear
// layers.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "snug/status.h"

namespace snug::bench {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "gpu_gemm_bench: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

inline void check(const snug::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "gpu_gemm_bench: %s\n", to_string(status).c_str());
  std::exit(1);
}

class Buffer {
 public:
  explicit Buffer(std::size_t num_bytes = 0) : size_(num_bytes) {
    if (num_bytes != 0) check(cudaMalloc(&data_, num_bytes), "allocate");
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  Buffer(const Buffer&) = delete;
  std::uint16_t* bf16() const { return static_cast<std::uint16_t*>(data_); }
  void* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

__device__ std::uint32_t mix(std::uint64_t v) {
  v = (v ^ v >> 31) * 0x7FB5D329728EA185ull;
  v = (v ^ v >> 27) * 0x81DADEF4BC2DD44Dull;
  return static_cast<std::uint32_t>(v >> 33 ^ v);
}

__global__ void fill_gaussian(std::uint16_t* out, std::uint64_t count, float sigma,
                              std::uint64_t seed) {
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    const float u = (mix(2 * i + seed) + 1.0f) * 0x1p-32f, v = mix(2 * i + 1 + seed) * 0x1p-32f;
    const float f = sigma * sqrtf(-2.0f * logf(fminf(u, 1.0f))) * cospif(2.0f * v);
    out[i] = __bfloat16_as_ushort(__float2bfloat16_rn(f));
  }
}

// Rows of real matrices, repeated to the right and downwards.
__global__ void fill_repeated(std::uint16_t* out, std::uint64_t n, std::uint64_t k,
                              const std::uint16_t* from, std::uint64_t rows, std::uint64_t cols,
                              std::uint64_t shift) {
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < n * k;
       i += std::uint64_t{gridDim.x} * blockDim.x)
    out[i] = from[(i / k + shift) % rows * cols + i % k % cols];
}

// One warp: y[m][row] in double precision, for every `step`-th row.
__global__ void reference(const std::uint16_t* w, const std::uint16_t* x, std::uint64_t k,
                          std::uint32_t m, std::uint32_t step, double* out) {
  const std::uint64_t row = std::uint64_t{blockIdx.x} * step;
  for (std::uint32_t t = 0; t < m; ++t) {
    double sum = 0;
    for (std::uint64_t i = threadIdx.x; i < k; i += 32)
      sum += static_cast<double>(__bfloat162float(__ushort_as_bfloat16(w[row * k + i]))) *
             __bfloat162float(__ushort_as_bfloat16(x[t * k + i]));
    for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
    if (threadIdx.x == 0) out[std::uint64_t{blockIdx.x} * m + t] = sum;
  }
}

// The projection matrices of a safetensors file, one below the other: those whose number
// of columns has the most weights; empty if there are none.
struct RealRows {
  std::vector<std::uint16_t> values;
  std::uint64_t cols = 0;
};

inline RealRows file_data(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), {});
  std::uint64_t header_bytes = 0;
  if (all.size() < 16) return {};
  std::memcpy(&header_bytes, all.data(), 8);
  if (header_bytes > all.size() - 16) return {};
  const std::string header = all.substr(8, header_bytes);
  std::map<std::uint64_t, RealRows> by_cols;
  for (std::size_t at = header.find("_proj.weight"); at != std::string::npos;
       at = header.find("_proj.weight", at + 1)) {
    unsigned long rows, cols, begin, end;
    const std::size_t shape = header.find("\"shape\"", at),
                      offsets = header.find("\"data_offsets\"", at);
    if (shape == std::string::npos || offsets == std::string::npos ||
        std::sscanf(header.c_str() + shape, "\"shape\":[%lu,%lu]", &rows, &cols) != 2 ||
        std::sscanf(header.c_str() + offsets, "\"data_offsets\":[%lu,%lu]", &begin, &end) != 2 ||
        end > all.size() - 8 - header_bytes || end - begin != rows * cols * 2)
      continue;
    RealRows& out = by_cols[cols];
    out.cols = cols;
    const std::size_t before = out.values.size();
    out.values.resize(before + rows * cols);
    std::memcpy(out.values.data() + before, all.data() + 8 + header_bytes + begin, end - begin);
  }
  RealRows best;
  for (auto& [cols, rows] : by_cols)
    if (rows.values.size() > best.values.size()) best = std::move(rows);
  return best;
}

inline double relative_error(const std::vector<std::uint16_t>& y, const std::vector<double>& ref,
                             std::uint64_t n, int m, std::uint32_t step) {
  double error = 0, norm = 0;
  for (std::uint64_t row = 0; row < (n + step - 1) / step; ++row)
    for (int t = 0; t < m; ++t) {
      const std::uint32_t bits = std::uint32_t{y[t * n + row * step]} << 16;
      float value;
      std::memcpy(&value, &bits, 4);
      const double want = ref[row * m + t];
      error += (value - want) * (value - want);
      norm += want * want;
    }
  return std::sqrt(error / norm);
}

inline std::vector<std::uint16_t> fetch(const Buffer& y, std::size_t count) {
  std::vector<std::uint16_t> out(count);
  check(cudaMemcpy(out.data(), y.data(), count * 2, cudaMemcpyDeviceToHost), "fetch");
  return out;
}

}  // namespace snug::bench
