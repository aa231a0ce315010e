// nccl/settings.h - the plugin's environment variables, read once.
#pragma once
#include <chrono>
#include <cstddef>
#include <string>

namespace snug::nccl {

enum class CodecChoice { kAuto, kOff, kFixed, kEntropy };
enum class StatsFormat { kNone, kText, kJson };

// docs/nccl.md explains each; defaults are the ones below.
struct Settings {
  CodecChoice codec = CodecChoice::kAuto;      // SNUG_NCCL_CODEC
  std::size_t min_bytes = 64 << 10;            // SNUG_NCCL_MIN_BYTES
  std::size_t chunk_bytes = 256 << 10;         // SNUG_NCCL_CHUNK_BYTES
  int num_sockets = 4;                         // SNUG_NCCL_SOCKETS
  std::chrono::milliseconds timeout{600'000};  // SNUG_NCCL_TIMEOUT, in seconds
  std::string inner;                           // SNUG_NCCL_INNER
  int num_threads = 4;                         // SNUG_NCCL_THREADS, of a stacked plugin
  int num_sms = 0;                             // SNUG_NCCL_SMS, of GPU workers; 0: none
  std::string worker_library;                  // SNUG_NCCL_WORKER_LIBRARY; empty: beside the plugin
  double pace_gbps = 0;                        // SNUG_NCCL_PACE_GBPS; 0: no pacing
  StatsFormat stats = StatsFormat::kNone;      // SNUG_NCCL_STATS
  std::string stats_path;                      // empty: stderr
  int stats_signal = 0;                        // SNUG_NCCL_STATS_SIGNAL
};

inline constexpr int kMaxSockets = 16;
inline constexpr int kMaxWorkerSms = 32;
inline constexpr std::size_t kMaxChunkBytes = std::size_t{4} << 20;

// Warns about values that make no sense, and keeps the default.
Settings read_settings();

}  // namespace snug::nccl
