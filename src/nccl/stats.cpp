#include "nccl/stats.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "nccl/log.h"
#include "nccl/worker_desk.h"
#include "snug/codec.h"

namespace snug::nccl {
namespace {

// Never destroyed: the report is written while the process ends.
struct Registry {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<PeerStats>> peers;
};
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

Settings* active_settings = nullptr;
int wake_pipe[2] = {-1, -1};

const char* type_name(int type) {
  if (type == kRawRow) return "raw";
  // The sample does not tell the two FP8 types apart.
  return type == static_cast<int>(DType::kF8E4M3) ? "f8" : dtype_name(static_cast<DType>(type));
}

template <class... Arguments>
void append(std::string& out, const char* format, Arguments... arguments) {
  char line[512];
  std::snprintf(line, sizeof line, format, arguments...);
  out += line;
}

using ULL = unsigned long long;

// One row, in both formats with the same values in the same order.
void append_row(std::string& out, bool json, const char* peer, const char* direction, int type,
                const Counters& c) {
  const double data = static_cast<double>(c.data_bytes), wire = static_cast<double>(c.wire_bytes),
               codec_ms = static_cast<double>(c.codec_ns) / 1e6;
  const auto chunks = [&](Codec codec) { return ULL{c.chunks[static_cast<int>(codec)]}; };
  const ULL raw = chunks(Codec::kRaw), fixed = chunks(Codec::kFixed),
            entropy = chunks(Codec::kEntropy), gpu = ULL{c.worker_chunks};
  if (json)
    append(
        out,
        "%s\n  {\"peer\": \"%s\", \"direction\": \"%s\", \"type\": \"%s\", \"data_bytes\": %llu, "
        "\"wire_bytes\": %llu, \"codec_ms\": %.3f, \"raw_chunks\": %llu, "
        "\"fixed_chunks\": %llu, \"entropy_chunks\": %llu, \"gpu_chunks\": %llu}",
        out.back() == '[' ? "" : ",", peer, direction, type_name(type), ULL{c.data_bytes},
        ULL{c.wire_bytes}, codec_ms, raw, fixed, entropy, gpu);
  else
    append(out, "%-24s %-8s %-5s %14llu %14llu %6.3f %9.1f %8llu %8llu %8llu %8llu\n", peer,
           direction, type_name(type), ULL{c.data_bytes}, ULL{c.wire_bytes},
           data > 0 ? wire / data : 1.0, codec_ms, raw, fixed, entropy, gpu);
}

// What the workers on the GPU did for the whole process.
void append_workers(std::string& out, bool json) {
  const auto totals = WorkerDesk::instance().totals();
  if (!totals) return;
  append(out,
         json ? ",\n\"gpu_workers\": {\"launches\": %llu, \"chunks\": %llu, \"sm_ms\": %.3f, "
                "\"left_idle\": %llu}"
              : "GPU workers: %llu launches, %llu chunks, %.1f SM ms; %llu left for lack of work\n",
         ULL{totals->crews}, ULL{totals->orders}, totals->block_ms, ULL{totals->idle_exits});
}

void write_report() {
  const std::string report = format_stats(active_settings->stats);
  if (active_settings->stats_path.empty()) {
    std::fputs(report.c_str(), stderr);
    return;
  }
  // %p, so that the ranks of one machine do not write over each other.
  std::string path = active_settings->stats_path;
  if (const auto at = path.find("%p"); at != std::string::npos)
    path.replace(at, 2, std::to_string(::getpid()));
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return warn("cannot write the statistics to %s", path.c_str());
  std::fputs(report.c_str(), file);
  std::fclose(file);
}

// A signal handler may hardly do anything, so a thread writes the report.
void on_signal(int) {
  const int saved = errno;
  const char byte = 0;
  (void)!::write(wake_pipe[1], &byte, 1);
  errno = saved;
}

void take_signal(int number) {
  struct sigaction action {};
  if (::sigaction(number, nullptr, &action) != 0 || action.sa_handler != SIG_DFL)
    return warn("signal %d is in use by the program; statistics come at exit only", number);
  if (::pipe2(wake_pipe, O_CLOEXEC) != 0) return;
  std::thread([] {
    for (char byte; ::read(wake_pipe[0], &byte, 1) == 1;) write_report();
  }).detach();
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(number, &action, nullptr);
}

}  // namespace

void Traffic::add(std::uint64_t data_bytes, std::uint64_t wire_bytes, std::uint64_t codec_ns,
                  Codec codec, DType dtype, bool by_workers) noexcept {
  Counters& row = rows[codec == Codec::kRaw ? kRawRow : static_cast<int>(dtype)];
  row.data_bytes.fetch_add(data_bytes, std::memory_order_relaxed);
  row.wire_bytes.fetch_add(wire_bytes, std::memory_order_relaxed);
  row.codec_ns.fetch_add(codec_ns, std::memory_order_relaxed);
  row.chunks[static_cast<int>(codec)].fetch_add(1, std::memory_order_relaxed);
  if (by_workers) row.worker_chunks.fetch_add(1, std::memory_order_relaxed);
}

PeerStats& stats_of_peer(const std::string& name) {
  const std::lock_guard lock(registry().mutex);
  auto& entry = registry().peers[name];
  if (!entry) {
    entry = std::make_unique<PeerStats>();
    entry->name = name;
  }
  return *entry;
}

std::string format_stats(StatsFormat format) {
  const bool json = format == StatsFormat::kJson;
  std::string out;
  if (json)
    append(out, "{\"pid\": %d, \"simd\": \"%s\", \"peers\": [", static_cast<int>(::getpid()),
           simd_target());
  else
    append(out,
           "snug: NCCL traffic of process %d (%s)\n%-24s %-8s %-5s %14s %14s %6s %9s %8s %8s %8s "
           "%8s\n",
           static_cast<int>(::getpid()), simd_target(), "peer", "", "type", "data bytes",
           "wire bytes", "ratio", "codec ms", "raw", "fixed", "entropy", "by GPU");
  const std::lock_guard lock(registry().mutex);
  for (const auto& [name, peer] : registry().peers)
    for (const bool sent : {true, false})
      for (int type = 0; type <= kRawRow; ++type) {
        const Counters& counters = (sent ? peer->sent : peer->received).rows[type];
        if (counters.data_bytes != 0)
          append_row(out, json, name.c_str(), sent ? "sent" : "received", type, counters);
      }
  if (json) out += "\n]";
  append_workers(out, json);
  if (json) out += "}\n";
  return out;
}

void start_stats(const Settings& settings) {
  static std::once_flag once;
  if (settings.stats == StatsFormat::kNone) return;
  std::call_once(once, [&] {
    active_settings = new Settings(settings);
    std::atexit(write_report);
    if (settings.stats_signal != 0) take_signal(settings.stats_signal);
  });
}

}  // namespace snug::nccl
