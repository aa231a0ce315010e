// The table of measured plans: lookups, and its text form.
#include "gemm/tuning.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <sstream>
#include <vector>

namespace snug::gemm {
namespace {

using ULL = unsigned long long;

constexpr const char* kKernelNames[] = {"auto", "generic", "few_rows", "batch", "unpack"};

std::atomic<std::uint64_t> generation{0};
std::mutex table_mutex;
std::vector<TuningEntry> table;

bool same_key(const TuningEntry& a, const char* device, std::uint64_t n, std::uint64_t k,
              std::uint64_t m) {
  return a.n == n && a.k == k && a.m == m && std::strcmp(a.device, device) == 0;
}

std::string line_of(const TuningEntry& e) {
  char line[256];
  std::snprintf(line, sizeof line,
                "n=%llu k=%llu m=%llu kernel=%s split_k=%d warps=%d strips=%d tile_m=%d gain=%.3f "
                "device=%s\n",
                ULL{e.n}, ULL{e.k}, ULL{e.m}, kernel_name(e.plan.kernel), e.plan.split_k,
                e.plan.warps, e.plan.strips, e.plan.tile_m, static_cast<double>(e.gain), e.device);
  return line;
}

bool parse_line(const std::string& line, TuningEntry* e) {
  ULL n, k, m;
  char kernel[16];
  int used = 0;
  *e = {};
  Plan& plan = e->plan;
  if (std::sscanf(line.c_str(),
                  "n=%llu k=%llu m=%llu kernel=%15s split_k=%d warps=%d strips=%d tile_m=%d "
                  "gain=%f device=%n",
                  &n, &k, &m, kernel, &plan.split_k, &plan.warps, &plan.strips, &plan.tile_m,
                  &e->gain, &used) != 9 ||
      used == 0)
    return false;
  const std::string device = line.substr(static_cast<std::size_t>(used));
  if (device.empty() || device.size() >= sizeof e->device) return false;
  std::memcpy(e->device, device.c_str(), device.size() + 1);
  e->n = n, e->k = k, e->m = m;
  for (int i = 1; i < 5; ++i)
    if (std::strcmp(kernel, kKernelNames[i]) == 0) plan.kernel = static_cast<Kernel>(i);
  return plan.kernel != Kernel::kAuto && m != 0 && m_bucket(m) == m &&
         plan.split_k >= (plan.kernel == Kernel::kBatch ? kStreamK : 0) && plan.warps >= 0 &&
         plan.strips >= 0 && plan.tile_m >= 0;
}

}  // namespace

const char* kernel_name(Kernel kernel) noexcept {
  const int i = static_cast<int>(kernel);
  return i < 0 || i > 4 ? "unknown" : kKernelNames[i];
}

std::uint64_t m_bucket(std::uint64_t m) noexcept {
  std::uint64_t bucket = 1;
  while (bucket < m && bucket < 8192) bucket *= 2;
  return bucket;
}

std::optional<TuningEntry> find_tuning(const char* device, std::uint64_t n, std::uint64_t k,
                                       std::uint64_t m) noexcept {
  const std::uint64_t bucket = m_bucket(m);
  const std::lock_guard lock(table_mutex);
  for (const TuningEntry& e : table)
    if (same_key(e, device, n, k, bucket)) return e;
  return std::nullopt;
}

void remember_tuning(const TuningEntry& entry) {
  const std::lock_guard lock(table_mutex);
  generation.fetch_add(1, std::memory_order_release);
  for (TuningEntry& e : table)
    if (same_key(e, entry.device, entry.n, entry.k, entry.m)) {
      e = entry;
      return;
    }
  table.push_back(entry);
}

std::uint64_t tuning_generation() noexcept { return generation.load(std::memory_order_acquire); }

std::string tuning_text() {
  std::string text;
  const std::lock_guard lock(table_mutex);
  for (const TuningEntry& e : table) text += line_of(e);
  return text;
}

Status load_tuning(const std::string& text) {
  std::istringstream lines(text);
  std::vector<TuningEntry> entries;
  std::string line;
  for (std::uint64_t number = 1; std::getline(lines, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    TuningEntry entry;
    if (!parse_line(line, &entry))
      return {Code::kCorrupt, "not a line of a tuning table: line", kNowhere, kNowhere, number};
    entries.push_back(entry);
  }
  for (const TuningEntry& entry : entries) remember_tuning(entry);
  return {};
}

}  // namespace snug::gemm
