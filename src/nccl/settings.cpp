#include "nccl/settings.h"

#include <csignal>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "nccl/log.h"

namespace snug::nccl {
namespace {

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

void read_number(const char* name, double lowest, double highest, auto& target) {
  const char* text = variable(name);
  if (text == nullptr) return;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (*end != '\0' || !(value >= lowest && value <= highest)) {
    warn("%s=%s is not a number from %g to %g; using %g", name, text, lowest, highest,
         static_cast<double>(target));
    return;
  }
  target = static_cast<std::remove_reference_t<decltype(target)>>(value);
}

void read_codec(Settings& settings) {
  const char* text = variable("SNUG_NCCL_CODEC");
  if (text == nullptr) return;
  const std::string_view value = text;
  if (value == "auto")
    settings.codec = CodecChoice::kAuto;
  else if (value == "off" || value == "raw")
    settings.codec = CodecChoice::kOff;
  else if (value == "fixed")
    settings.codec = CodecChoice::kFixed;
  else if (value == "entropy")
    settings.codec = CodecChoice::kEntropy;
  else
    warn("SNUG_NCCL_CODEC=%s is none of auto, off, fixed, entropy; using auto", text);
}

// text, json, text:PATH or json:PATH
void read_stats(Settings& settings) {
  const char* text = variable("SNUG_NCCL_STATS");
  if (text == nullptr) return;
  const std::string_view value = text;
  const auto colon = value.find(':');
  const std::string_view format = value.substr(0, colon);
  if (format == "text")
    settings.stats = StatsFormat::kText;
  else if (format == "json")
    settings.stats = StatsFormat::kJson;
  else
    return warn("SNUG_NCCL_STATS=%s is none of text, json, text:PATH, json:PATH; no statistics",
                text);
  if (colon != std::string_view::npos) settings.stats_path = value.substr(colon + 1);
}

void read_signal(Settings& settings) {
  const char* text = variable("SNUG_NCCL_STATS_SIGNAL");
  if (text == nullptr) return;
  std::string_view value = text;
  if (value.starts_with("SIG")) value.remove_prefix(3);
  if (value == "USR1")
    settings.stats_signal = SIGUSR1;
  else if (value == "USR2")
    settings.stats_signal = SIGUSR2;
  else
    warn("SNUG_NCCL_STATS_SIGNAL=%s is neither USR1 nor USR2; no signal is taken", text);
}

}  // namespace

Settings read_settings() {
  Settings settings;
  read_codec(settings);
  read_stats(settings);
  read_signal(settings);
  read_number("SNUG_NCCL_MIN_BYTES", 1024, 1 << 20, settings.min_bytes);
  read_number("SNUG_NCCL_CHUNK_BYTES", 16 << 10, static_cast<double>(kMaxChunkBytes),
              settings.chunk_bytes);
  settings.chunk_bytes = settings.chunk_bytes / 4096 * 4096;  // whole elements of any type
  read_number("SNUG_NCCL_SOCKETS", 1, kMaxSockets, settings.num_sockets);
  read_number("SNUG_NCCL_THREADS", 1, 64, settings.num_threads);
  read_number("SNUG_NCCL_PACE_GBPS", 0, 1e4, settings.pace_gbps);
  double seconds = std::chrono::duration<double>(settings.timeout).count();
  read_number("SNUG_NCCL_TIMEOUT", 0.1, 1e6, seconds);
  settings.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  if (const char* inner = variable("SNUG_NCCL_INNER")) settings.inner = inner;
  return settings;
}

}  // namespace snug::nccl
