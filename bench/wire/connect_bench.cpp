// What a connection costs before its first byte: wire::connect over loopback with four lanes, both
// ends in this process, with and without encryption. The token needs no stretching.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <vector>

#include "snug/wire.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRuns = 150;

int measure(const char* name, const snug::wire::Options& options) {
  auto listener = snug::wire::Listener::open("127.0.0.1:0", options);
  if (!listener) return std::printf("cannot listen: %s\n", listener.status().what), 1;
  std::vector<double> ms;
  const std::clock_t cpu = std::clock();
  for (int i = 0; i < kRuns; ++i) {
    const auto start = Clock::now();
    const auto dialled = snug::wire::connect(listener->address(), options);
    ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    const auto accepted = listener->accept(std::chrono::seconds(5));
    if (!dialled || !accepted) return std::printf("cannot connect\n"), 1;
  }
  const double cpu_ms = 1e3 * static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC / kRuns;
  std::ranges::sort(ms);
  std::printf("%-10s  best %.2f  tenth percentile %.2f  median %.2f ms; CPU of both ends %.2f ms\n",
              name, ms[0], ms[kRuns / 10], ms[kRuns / 2], cpu_ms);
  return 0;
}

}  // namespace

int main() {
  const auto token = snug::wire::make_token();
  if (!token) return 1;
  snug::wire::Options insecure, encrypted;
  insecure.num_lanes = encrypted.num_lanes = 4;
  insecure.insecure = true;
  encrypted.token = *token;
  return measure("--insecure", insecure) + measure("encrypted", encrypted);
}
