// NCCL's network plugin without NCCL and without a GPU: one connection over loopback, messages of
// 4 MiB from host memory, eight at a time, as NCCL's proxy threads ask for them.
//
//   plugin_bench PLUGIN.so [OTHER.so ...]
//
// Plugins take turns, so that two versions can be compared on a machine that is not quite idle.
// Each run is a process of its own. SNUG_NCCL_CODEC, SNUG_NCCL_PACE_GBPS and others count as in
// NCCL.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "nccl/inner_plugin.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMessageBytes = std::size_t{4} << 20, kInFlight = 8;
constexpr int kMessages = 128, kWarmUp = 32, kRuns = 7;

struct Rates {
  double gb_per_s = 0, cpu_s_per_gb = 0;
};

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "plugin_bench: %s failed\n", what);
  std::_Exit(1);
}

void no_log(ncclDebugLogLevel, unsigned long, const char*, int, const char*, ...) {}

// BF16 values from a normal distribution, as weights have them.
std::vector<std::uint16_t> gaussian() {
  std::vector<std::uint16_t> values(kMessageBytes / 2);
  std::mt19937 bits(1);
  std::normal_distribution<float> normal(0, 0.02f);
  for (std::uint16_t& v : values)
    v = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(bits)) >> 16);
  return values;
}

// Starts `kMessages` requests, `kInFlight` at a time, and waits for all. `start` gives null while
// the plugin is busy.
template <class Start>
void drive(snug::nccl::InnerPlugin& net, int num_messages, Start&& start) {
  std::deque<void*> open;
  for (int begun = 0; begun < num_messages || !open.empty();) {
    if (begun < num_messages && open.size() < kInFlight) {
      if (void* request = start(begun)) {
        open.push_back(request);
        ++begun;
      }
    }
    int done = 0, sizes[NCCL_NET_MAX_RECVS];
    if (!open.empty()) require(net.test(open.front(), &done, sizes) == ncclSuccess, "test");
    if (done != 0) open.pop_front();
    std::this_thread::yield();
  }
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Rates measure(const char* path) {
  auto net = snug::nccl::load_inner_plugin(path);
  int num_devices = 0;
  require(net && net->init(no_log) == ncclSuccess && net->devices(&num_devices) == ncclSuccess &&
              num_devices > 0,
          "loading the plugin");
  char handle[NCCL_NET_HANDLE_MAXSIZE] = {};
  void *listening = nullptr, *sends = nullptr, *receives = nullptr;
  require(net->listen(0, handle, &listening) == ncclSuccess, "listen");
  while (sends == nullptr || receives == nullptr) {
    if (sends == nullptr) require(net->connect(0, handle, &sends) == ncclSuccess, "connect");
    if (receives == nullptr) require(net->accept(listening, &receives) == ncclSuccess, "accept");
  }
  std::vector<std::uint16_t> data = gaussian();
  std::vector<std::uint16_t> places[kInFlight];
  void *from = nullptr, *into[kInFlight];
  require(
      net->register_memory(sends, data.data(), kMessageBytes, NCCL_PTR_HOST, &from) == ncclSuccess,
      "register");
  for (std::size_t i = 0; i < kInFlight; ++i) {
    places[i].resize(data.size());
    require(net->register_memory(receives, places[i].data(), kMessageBytes, NCCL_PTR_HOST,
                                 &into[i]) == ncclSuccess,
            "register");
  }
  const auto transfer = [&](int num_messages) {
    std::thread receiver([&] {
      drive(*net, num_messages, [&](int idx) {
        void *request = nullptr, *place = places[idx % kInFlight].data();
        std::size_t size = kMessageBytes;
        int tag = 0;
        require(net->irecv(receives, 1, &place, &size, &tag, &into[idx % kInFlight], &request) ==
                    ncclSuccess,
                "irecv");
        return request;
      });
    });
    drive(*net, num_messages, [&](int) {
      void* request = nullptr;
      require(net->isend(sends, data.data(), kMessageBytes, 0, from, &request) == ncclSuccess,
              "isend");
      return request;
    });
    receiver.join();
  };
  transfer(kWarmUp);
  const double cpu = cpu_seconds();
  const auto start = Clock::now();
  transfer(kMessages);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const double gb = 1e-9 * kMessages * kMessageBytes;
  for (const auto& place : places) require(place == data, "comparing the bytes");
  return {gb / seconds, (cpu_seconds() - cpu) / gb};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: plugin_bench PLUGIN.so [OTHER.so ...]\n"), 2;
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  auto* result = static_cast<Rates*>(
      ::mmap(nullptr, sizeof(Rates), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  require(result != MAP_FAILED, "mmap");
  std::vector<std::vector<Rates>> all(static_cast<std::size_t>(argc - 1));
  for (int run = 0; run < kRuns; ++run)
    for (int i = 1; i < argc; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        *result = measure(argv[i]);
        std::_Exit(0);
      }
      int status = 0;
      require(child > 0 && ::waitpid(child, &status, 0) == child && status == 0, argv[i]);
      all[static_cast<std::size_t>(i - 1)].push_back(*result);
    }
  for (int i = 1; i < argc; ++i) {
    auto& runs = all[static_cast<std::size_t>(i - 1)];
    std::ranges::sort(runs, {}, &Rates::gb_per_s);
    std::printf("%-40s  %.3f GB/s (%.3f to %.3f), %.3f CPU s a GB\n", argv[i],
                runs[kRuns / 2].gb_per_s, runs.front().gb_per_s, runs.back().gb_per_s,
                runs[kRuns / 2].cpu_s_per_gb);
  }
}
