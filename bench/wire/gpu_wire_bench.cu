// gpu_wire_bench [--data DIR] [--rates GB/s,...] [--only TEXT] [--sizes MB,...]: messages in GPU
// memory from one process to another on one GPU, through a Link whose copies are held back
// to the rate of a slower link (tests/support/paced_engine.h). A run is a pair of messages on the
// same pipeline, one raw and one of Snug's choice, which of them first alternates; a time is from
// the call of `send` until the receiver has said that every byte is in its place, a gain the median
// of those of all pairs, with the interval that holds it in 95 of 100 cases.
//
// The program starts itself again as the receiver. Both need to run on the GPU at the same
// time: start nvidia-cuda-mps-control first (scripts/gpu.sh does).
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gpu/codec_inputs.h"
#include "gpu_link/cuda/link.h"
#include "snug/wire.h"
#include "support/paced_engine.h"

namespace {

using snug::DType;
using snug::Status;
using snug::bench::Bytes;
using snug::bench::file_data;
using snug::bench::kTile;
using snug::cuda::Link;
using snug::cuda::Segment;
namespace gpu_link = snug::gpu_link;
namespace wire = snug::wire;

constexpr std::size_t kMB = 1'000'000;
constexpr std::size_t kRoom = std::size_t{2304} << 20;  // larger than any cache, and two messages
constexpr std::size_t kPage = 32 << 10;
constexpr std::chrono::seconds kTimeout{30};

[[noreturn]] void stop(const std::string& what) {
  std::fprintf(stderr, "gpu_wire_bench: %s\n", what.c_str());
  std::exit(1);
}
void check(cudaError_t error) {
  if (error != cudaSuccess) stop(cudaGetErrorString(error));
}
void check(const Status& status) {
  if (!status.ok()) stop(to_string(status));
}

// ---- what is measured, known to both processes ------------------------------------

struct Kind {
  std::string name;
  Bytes tile;
  bool is_paged = false;
  std::vector<int> sizes;  // MB
};
struct Row {
  double rate;  // GB/s; 0: as fast as the GPU copies
  const Kind* kind;
  std::size_t num_bytes;
  int num_runs;
};

std::vector<Kind> make_kinds(const std::string& data, const std::string& only,
                             const std::vector<double>& wanted) {
  const std::vector<int> all = {1, 2, 4, 8, 16, 32, 64, 214, 1024}, some = {8, 32, 214};
  std::vector<Kind> kinds;
  const auto add = [&](const char* name, Bytes tile, bool is_paged, const std::vector<int>& sizes) {
    if (tile.empty() || std::string(name).find(only) == std::string::npos) return;
    kinds.push_back({name, std::move(tile), is_paged, {}});
    for (const int size : sizes)
      if (wanted.empty() || std::find(wanted.begin(), wanted.end(), size) != wanted.end())
        kinds.back().sizes.push_back(size);
  };
  if (!data.empty())
    add("weights", file_data(data + "/model-00001-of-00002.safetensors"), false, all);
  add("gaussian", snug::bench::gaussian(DType::kBF16), false, all);
  if (!data.empty()) add("kv, pages", file_data(data + "/kv.safetensors"), true, {2, 8, 32, 214});
  add("random bits", snug::bench::random_bits(), false, some);
  return kinds;
}

std::vector<Row> make_rows(const std::vector<double>& rates, const std::vector<Kind>& kinds) {
  std::vector<Row> rows;
  for (const double rate : rates)
    for (const Kind& kind : kinds)
      for (const int mb : kind.sizes) {
        const std::size_t n = static_cast<std::size_t>(mb) * kMB;
        const double seconds = static_cast<double>(n) / ((rate == 0 ? 1000 : rate) * 1e9);
        // Small messages differ from each other by more than what is looked for.
        const double most = mb <= 4 ? 601 : 151;
        rows.push_back(
            {rate, &kind, n, static_cast<int>(std::clamp(0.08 / seconds, 7.0, most)) | 1});
      }
  return rows;
}

// Device memory full of one kind of data, and where messages start in it.
class Arena {
 public:
  Arena() { check(cudaMalloc(&data_, kRoom)); }
  ~Arena() { cudaFree(data_); }
  Arena(const Arena&) = delete;

  void fill(const Bytes& tile) {
    check(cudaMemcpy(data_, tile.data(), kTile, cudaMemcpyHostToDevice));
    for (std::size_t at = kTile; at < kRoom; at += kTile)
      check(cudaMemcpyAsync(data_ + at, data_, kTile, cudaMemcpyDeviceToDevice));
    check(cudaDeviceSynchronize());
  }
  void poison() {
    check(cudaMemset(data_, 0xA5, kRoom));
    check(cudaDeviceSynchronize());
  }
  // Where the run-th message starts: another place each time.
  std::uint8_t* start(const Row& row, int run) const {
    const std::size_t step = (row.num_bytes + kTile - 1) / kTile * kTile;
    const std::size_t num_places = std::max<std::size_t>(1, kRoom / step);
    return data_ + static_cast<std::size_t>(run) % num_places * step;
  }
  // Pages come in the same order at both ends, so that data keeps its place; the last one, which
  // is not full, stays the last.
  std::vector<Segment> message(const Row& row, int run) const {
    std::uint8_t* data = start(row, run);
    if (!row.kind->is_paged) return {{data, row.num_bytes}};
    std::vector<Segment> pages;
    for (std::size_t at = 0; at < row.num_bytes; at += kPage)
      pages.push_back({data + at, std::min(kPage, row.num_bytes - at)});
    std::shuffle(pages.begin(), pages.end() - 1, std::mt19937(7));
    return pages;
  }
  bool holds(const Bytes& tile, const Row& row, int run) const {
    Bytes got(kTile);
    for (std::size_t at = 0; at < row.num_bytes; at += kTile) {
      const std::size_t n = std::min(kTile, row.num_bytes - at);
      check(cudaMemcpy(got.data(), start(row, run) + at, n, cudaMemcpyDeviceToHost));
      if (std::memcmp(got.data(), tile.data(), n) != 0) return false;
    }
    return true;
  }

 private:
  std::uint8_t* data_ = nullptr;
};

// ---- both ends -----------------------------------------------------------------------

// Raw messages take the same link as the others, with the same threads.
class PacedLink {
 public:
  PacedLink(wire::Connection& connection, double rate) {
    auto link = snug::cuda::open_link(connection, wire::Mode::kAuto, kTimeout,
                                      [&](std::unique_ptr<gpu_link::SendEngine> engine) {
                                        return std::make_unique<snug::bench::PacedEngine>(
                                            std::move(engine), rate * 1e9, &allows_frames_);
                                      });
    check(link.status());
    link_ = std::move(*link);
  }
  wire::Transfer send(int tag, const std::vector<Segment>& message, bool is_raw) {
    allows_frames_ = !is_raw;
    return link_.send(static_cast<std::uint64_t>(tag), DType::kBF16, message);
  }
  wire::Transfer recv(int tag, const std::vector<Segment>& message) {
    return link_.recv(static_cast<std::uint64_t>(tag), DType::kBF16, message);
  }
  wire::Stats sent() const { return link_.sent(); }

 private:
  std::atomic<bool> allows_frames_{true};
  Link link_;
};

constexpr int kWarmUps = 3;

// Without taking the core away from its other thread, which may be one that is measured.
void spin_until_done(const wire::Transfer& transfer) {
  while (!transfer.done()) {
#if defined(__x86_64__)
    for (int i = 0; i < 8; ++i) __builtin_ia32_pause();
#endif
  }
}

// Every run is a raw message and a chosen one (way 1), in turns the first; the receiver is one
// message ahead.
int way_of(int message) { return (message + message / 2) % 2; }

void receive_row(PacedLink& link, const Row& row, Arena& arena) {
  arena.poison();
  const int num_messages = 2 * (row.num_runs + kWarmUps);
  std::vector<wire::Transfer> posted;
  const auto post = [&](int i) { posted.push_back(link.recv(i, arena.message(row, i))); };
  post(0);
  for (int i = 0; i < num_messages; ++i) {
    if (i + 1 < num_messages) post(i + 1);
    spin_until_done(posted[static_cast<std::size_t>(i)]);
    check(posted[static_cast<std::size_t>(i)].wait());
  }
  for (const int last : {num_messages - 2, num_messages - 1})  // one of each
    if (!arena.holds(row.kind->tile, row, last)) stop("wrong bytes arrived");
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The median, and between which values it lies with a certainty of 95 %: by order alone, whatever
// the distribution.
struct Estimate {
  double low, middle, high;
};
Estimate estimate(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const double n = static_cast<double>(values.size()), reach = 0.98 * std::sqrt(n);
  const auto low = static_cast<std::size_t>(std::max(0.0, n / 2 - reach));
  return {values[low], values[values.size() / 2], values[values.size() - 1 - low]};
}

// Of the messages that were Snug's to choose.
struct Sums {
  double raw_bytes = 0, wire_bytes = 0, encode_seconds = 0, num_chunks[wire::kNumModes] = {};
  void add(const wire::Stats& before, const wire::Stats& after) {
    raw_bytes += static_cast<double>(after.raw_bytes - before.raw_bytes);
    wire_bytes += static_cast<double>(after.wire_bytes - before.wire_bytes);
    encode_seconds += after.encode_seconds - before.encode_seconds;
    for (int i = 0; i < wire::kNumModes; ++i)
      num_chunks[i] += static_cast<double>(after.num_chunks[i] - before.num_chunks[i]);
  }
};

void send_row(PacedLink& link, const Row& row, const Arena& arena) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> us[2];
  Sums sums;
  for (int i = 0; i < 2 * (kWarmUps + row.num_runs); ++i) {
    const int way = way_of(i);
    const std::vector<Segment> message = arena.message(row, i);
    const wire::Stats before = link.sent();
    const auto start = Clock::now();
    const wire::Transfer sent = link.send(i, message, way == 0);
    spin_until_done(sent);
    const auto end = Clock::now();
    check(sent.wait());
    if (i < 2 * kWarmUps) continue;
    us[way].push_back(std::chrono::duration<double, std::micro>(end - start).count());
    if (way == 1) sums.add(before, link.sent());
  }
  const double raw = median(us[0]), chosen = median(us[1]);
  std::vector<double> gains;
  for (std::size_t i = 0; i < us[0].size(); ++i) gains.push_back((us[0][i] / us[1][i] - 1) * 100);
  const Estimate gain = estimate(gains);
  const double bytes = static_cast<double>(row.num_bytes);
  char link_rate[16] = "none";
  if (row.rate != 0) std::snprintf(link_rate, sizeof link_rate, "%g", row.rate);
  std::printf("| %s | %s | %zu | %d | %.1f | ", row.kind->name.c_str(), link_rate,
              row.num_bytes / kMB, row.num_runs, raw);
  if (row.rate == 0)
    std::printf("%.0f GB/s", bytes / raw * 1e-3);
  else
    std::printf("%.0f %%", bytes / row.rate * 1e-3 / raw * 100);
  std::printf(" | %.1f | %+.1f %% | %+.1f to %+.1f | %.3f |", chosen, gain.middle, gain.low,
              gain.high, sums.wire_bytes / sums.raw_bytes);
  for (int i = 0; i < wire::kNumModes; ++i)
    std::printf("%s%.1f", i == 0 ? " " : " / ", sums.num_chunks[i] / row.num_runs);
  const double coded = sums.num_chunks[1] + sums.num_chunks[2];
  std::printf(" | %.0f |\n", coded > 0 ? sums.encode_seconds / coded * 1e6 : 0.0);
  std::fflush(stdout);
}

void run(wire::Connection& connection, bool is_sender, const std::vector<double>& rates,
         const std::vector<Kind>& kinds) {
  std::optional<PacedLink> link;
  double rate = -1;
  const Kind* kind = nullptr;
  Arena arena;
  for (const Row& row : make_rows(rates, kinds)) {
    if (row.rate != rate) {
      link.reset();
      link.emplace(connection, rate = row.rate);
    }
    if (is_sender && row.kind != kind) arena.fill((kind = row.kind)->tile);
    if (is_sender)
      send_row(*link, row, arena);
    else
      receive_row(*link, row, arena);
    // Nobody starts a row before the other is ready for it.
    check(connection.send_note("next"));
    check(connection.recv_note(std::chrono::seconds(60)).status());
  }
}

std::vector<double> parse_numbers(const std::string& text) {
  std::vector<double> numbers;
  for (std::size_t at = 0; at < text.size(); at = text.find(',', at) + 1) {
    numbers.push_back(std::atof(text.c_str() + at));
    if (text.find(',', at) == std::string::npos) break;
  }
  return numbers;
}

}  // namespace

int main(int argc, char** argv) {
  std::string data, only, rates = "12.5,25,50,100,0", sizes, address;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--data") data = value;
    if (flag == "--only") only = value;
    if (flag == "--rates") rates = value;
    if (flag == "--sizes") sizes = value;
    if (flag == "--receive") address = value;
  }
  const auto kinds = [&] { return make_kinds(data, only, parse_numbers(sizes)); };
  if (!address.empty()) {
    auto connection = wire::connect(address);
    check(connection.status());
    run(*connection, false, parse_numbers(rates), kinds());
    return 0;
  }
  auto listener = wire::Listener::open("127.0.0.1:0");
  check(listener.status());
  const std::string here = listener->address();
  const pid_t child = ::fork();
  if (child == 0) {
    std::vector<char*> args(argv, argv + argc);
    std::string flag = "--receive", where = here;
    args.push_back(flag.data());
    args.push_back(where.data());
    args.push_back(nullptr);
    ::execv("/proc/self/exe", args.data());
    ::_exit(99);
  }
  auto connection = listener->accept(std::chrono::seconds(60));
  check(connection.status());
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0));
  std::printf("%s, two processes on one GPU; paced link\n\n", device.name);
  std::printf(
      "| data | link GB/s | MB | pairs | raw us | of the link | Snug us | gain | 95 %% | bytes | "
      "chunks raw / fixed / entropy | encode us |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  run(*connection, true, parse_numbers(rates), kinds());
  int status = 0;
  if (::waitpid(child, &status, 0) != child || status != 0) stop("the receiver failed");
  return 0;
}
