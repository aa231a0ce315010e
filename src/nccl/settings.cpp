#include "nccl/settings.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "nccl/log.h"

namespace snug::nccl {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

void read_number(const char* name, double lowest, double highest, auto& target) {
  const char* text = variable(name).data();
  if (*text == '\0') return;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (*end != '\0' || !(value >= lowest && value <= highest))
    return warn("%s=%s is not a number from %g to %g; using %g", name, text, lowest, highest,
                static_cast<double>(target));
  target = static_cast<std::remove_reference_t<decltype(target)>>(value);
}

// `words` lists the words for the warning.
template <class T>
void read_choice(const char* name, std::string_view value, const char* words,
                 std::initializer_list<std::pair<std::string_view, T>> choices, T& target) {
  for (const auto& [word, meaning] : choices)
    if (value == word) return void(target = meaning);
  if (!value.empty())
    warn("%s=%.*s is none of %s", name, static_cast<int>(value.size()), value.data(), words);
}

}  // namespace

Settings read_settings() {
  Settings settings;
  read_choice("SNUG_NCCL_CODEC", variable("SNUG_NCCL_CODEC"),
              "auto, off, fixed, entropy; using auto",
              {{"auto", CodecChoice::kAuto},
               {"off", CodecChoice::kOff},
               {"raw", CodecChoice::kOff},
               {"fixed", CodecChoice::kFixed},
               {"entropy", CodecChoice::kEntropy}},
              settings.codec);
  const std::string_view stats = variable("SNUG_NCCL_STATS");
  const std::size_t colon = std::min(stats.find(':'), stats.size());
  read_choice("SNUG_NCCL_STATS", stats.substr(0, colon),
              "text, json, text:PATH, json:PATH; no statistics",
              {{"text", StatsFormat::kText}, {"json", StatsFormat::kJson}}, settings.stats);
  settings.stats_path = stats.substr(std::min(colon + 1, stats.size()));
  std::string_view signal = variable("SNUG_NCCL_STATS_SIGNAL");
  if (signal.starts_with("SIG")) signal.remove_prefix(3);
  read_choice("SNUG_NCCL_STATS_SIGNAL", signal, "USR1, USR2; no signal is used",
              {{"USR1", SIGUSR1}, {"USR2", SIGUSR2}}, settings.stats_signal);
  read_number("SNUG_NCCL_MIN_BYTES", 1024, 1 << 20, settings.min_bytes);
  read_number("SNUG_NCCL_CHUNK_BYTES", 16 << 10, static_cast<double>(kMaxChunkBytes),
              settings.chunk_bytes);
  settings.chunk_bytes = settings.chunk_bytes / 4096 * 4096;  // whole elements of any type
  read_number("SNUG_NCCL_SOCKETS", 1, kMaxSockets, settings.num_sockets);
  read_number("SNUG_NCCL_THREADS", 1, 64, settings.num_threads);
  read_number("SNUG_NCCL_SMS", 0, kMaxWorkerSms, settings.num_sms);
  settings.worker_library = variable("SNUG_NCCL_WORKER_LIBRARY");
  read_number("SNUG_NCCL_PACE_GBPS", 0, 1e4, settings.pace_gbps);
  double seconds = std::chrono::duration<double>(settings.timeout).count();
  read_number("SNUG_NCCL_TIMEOUT", 0.1, 1e6, seconds);
  settings.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  settings.inner = variable("SNUG_NCCL_INNER");
  return settings;
}

}  // namespace snug::nccl
