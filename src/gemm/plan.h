// gemm/plan.h - from a wish to a complete plan: which kernel, and how it is divided.
//
// Nothing here calls CUDA: plans for any GPU can be tested and timed without one.
#pragma once
#include <vector>

#include "gemm/few_rows_smem.h"

namespace snug::gemm {

// The properties of a GPU that plans depend on; num_sms is 0 where there is none.
struct Device {
  int num_sms = 0, major = 0, minor = 0;
  std::uint32_t max_smem = 0;  // bytes of shared memory that a thread block may use
  char name[64] = "";
  // Whether cuBLASLt can be loaded. Asked only where that matters: loading it takes long.
  bool (*has_blas)() noexcept = []() noexcept { return false; };
  double memory_gb_s = 4900;  // nominal bandwidth

  bool hopper() const { return major == 9 && minor == 0; }
};

struct Problem {
  std::uint64_t n, k, m;
  Kind kind = Kind::kFixed;

  bool operator==(const Problem&) const = default;
};

// How the few-rows kernel divides its work; split_k == 0: it does not fit.
struct FewRowsFit {
  std::uint32_t split_k = 0, warps = 0;
  std::uint32_t stages = 0;           // tiles in the ring of a warp
  std::uint32_t max_split_tiles = 0;  // tiles of a strip in the largest part of k
};

struct CompletePlan {
  Plan plan;
  FewRowsFit fit;  // of kFewRows
  float gain = 0;  // over cuBLAS: by the tuning table, or else expected; 0: unknown
  bool measured = false;
};

// The counters at the start of a workspace have a fixed size, so that one workspace can
// serve matrices of different shapes.
inline constexpr std::uint64_t kCounterBytes = 512 << 10;
inline constexpr std::uint32_t kMaxFewRows = 16;

inline constexpr std::uint32_t kTeam = 2;  // thread blocks of the batch kernel that share x

// Tiles of the batch kernel: every number of rows of x and of strips of W there is. Few strips
// keep more SMs busy; many read x less often. With more than kMaxNarrowRows of x there is one.
inline constexpr int kTileMs[] = {16,  32,  48,  64,  80,  96,  112, 128,
                                  144, 160, 176, 192, 208, 224, 240, 256};
inline constexpr int kTileStrips[] = {4, 8, 12}, kWideStrips = 8, kMaxNarrowRows = 128;

FewRowsFit fit_few_rows(const Device& device, const Problem& problem, const Plan& plan) noexcept;
bool batch_fits(const Plan& plan, std::uint64_t k) noexcept;

// Fills in what the wish leaves open. kAuto: by the tuning table, or else by the cost model.
CompletePlan complete_plan(const Device& device, const Problem& problem, const Plan& wish) noexcept;

// complete_plan() of kAuto for the hot path: each thread keeps its latest answers until the
// tuning table changes, so that a known problem takes nanoseconds and no lock. `device` must
// stay unchanged at its address.
const CompletePlan& auto_plan(const Device& device, const Problem& problem) noexcept;

// Every plan worth measuring.
std::vector<Plan> candidates(const Device& device, const Problem& problem);

}  // namespace snug::gemm
