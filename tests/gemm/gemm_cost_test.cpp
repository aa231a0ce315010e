// The cost model against what was measured: the cells of the published grids.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "gemm/plan_cost.h"

namespace snug::test {
namespace {

using gemm::CompletePlan;
using gemm::Device;
using gemm::Kernel;
using gemm::Plan;
using gemm::Problem;

const Device kH200{132, 9, 0, 232448, "NVIDIA H200"};

struct Cell {
  Problem problem;
  Plan plan;
  double us, cublas_us;
};

// A line holds a cell, and gpu_gemm_bench writes all of its members.
std::string member(const std::string& line, const std::string& name) {
  const std::string key = '"' + name + "\": ";
  const auto at = line.find(key);
  if (at == std::string::npos) ADD_FAILURE() << "no " << name << " in " << line;
  return at == std::string::npos ? "0" : line.substr(at + key.size());
}

std::vector<Cell> cells_of(const std::string& file) {
  std::ifstream in(SNUG_TEST_DIR "/../bench/results/" + file);
  std::vector<Cell> cells;
  for (std::string line; std::getline(in, line);) {
    const auto number = [&](const char* name) { return std::stod(member(line, name)); };
    const auto size = [&](const char* name) { return std::stoull(member(line, name)); };
    const auto part = [&](const char* name) { return std::stoi(member(line, name)); };
    const bool is_batch = member(line, "kernel").starts_with("\"batch\"");
    if (!is_batch && !member(line, "kernel").starts_with("\"few_rows\"")) continue;
    Cell cell{{size("n"), size("k"), size("m")}, {}, number("us"), number("cublas_us")};
    cell.plan.kernel = is_batch ? Kernel::kBatch : Kernel::kFewRows;
    cell.plan.split_k = part("splits");
    (is_batch ? cell.plan.strips : cell.plan.warps) = part("warps");
    cell.plan.tile_m = part("columns");
    cells.push_back(cell);
  }
  return cells;
}

bool are_same(const Plan& a, const Plan& b) {
  return a.kernel == b.kernel && a.split_k == b.split_k && a.warps == b.warps &&
         a.strips == b.strips && a.tile_m == b.tile_m;
}

class GemmCost : public testing::TestWithParam<const char*> {};

TEST_P(GemmCost, IsNearTheMeasuredTimes) {
  double squares = 0, worst = 0;
  const std::vector<Cell> cells = cells_of(GetParam());
  ASSERT_GE(cells.size(), 280u);
  for (const Cell& cell : cells) {
    const double us =
        cell.plan.kernel == Kernel::kBatch
            ? gemm::batch_us(kH200, cell.problem, cell.plan)
            : gemm::few_rows_us(kH200, cell.problem, fit_few_rows(kH200, cell.problem, cell.plan));
    const double error = std::abs(std::log(us / cell.us));
    squares += error * error;
    worst = std::max(worst, error);
  }
  const double rms = std::sqrt(squares / static_cast<double>(cells.size()));
  std::printf("%s: %zu cells, error %.1f %% (root mean square), at most %.1f %%\n", GetParam(),
              cells.size(), 100 * std::expm1(rms), 100 * std::expm1(worst));
  EXPECT_LT(rms, 0.07);
  EXPECT_LT(worst, 0.2);
}

// Policy speed multiplies packed weights where the expected gain is at least 1.05. Cells whose plan
// was measured say what that is worth.
TEST_P(GemmCost, ExpectsNoGainWherePackedWeightsAreMuchSlower) {
  int packed = 0, slower = 0;
  double worst = 2;
  for (const Cell& cell : cells_of(GetParam())) {
    const CompletePlan chosen = complete_plan(kH200, cell.problem, {});
    if (!are_same(chosen.plan, cell.plan) || chosen.gain < 1.05f) continue;
    const double gain = cell.cublas_us / cell.us;
    ++packed;
    if (gain < 1) ++slower;
    worst = std::min(worst, gain);
  }
  std::printf("%s: packed in %d of the cells measured, %d of them slower, the worst %.2fx\n",
              GetParam(), packed, slower, worst);
  EXPECT_GT(packed, 0);
  EXPECT_GE(worst, 0.94);
}

INSTANTIATE_TEST_SUITE_P(, GemmCost,
                         testing::Values("h200_gemm_grid.json", "h200_gemm_fresh.json",
                                         "h200_gemm_fresh2.json"));

}  // namespace
}  // namespace snug::test
