// nccl/stats.h - what went over the wire, per peer and element type.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "nccl/settings.h"
#include "snug/tensor.h"

namespace snug::nccl {

// The row of chunks that went raw, whatever their type.
inline constexpr int kRawRow = kNumDTypes;

struct Counters {
  std::atomic<std::uint64_t> data_bytes{0};
  std::atomic<std::uint64_t> wire_bytes{0};
  std::atomic<std::uint64_t> codec_ns{0};
  std::atomic<std::uint64_t> chunks[kNumCodecs] = {};
  std::atomic<std::uint64_t> worker_chunks{0};  // of these, by workers on the GPU
};

// One direction, by element type.
struct Traffic {
  Counters rows[kNumDTypes + 1];

  // dtype and codec of a frame; kRaw: no frame. codec_ns: CPU time.
  void add(std::uint64_t data_bytes, std::uint64_t wire_bytes, std::uint64_t codec_ns = 0,
           Codec codec = Codec::kRaw, DType dtype = DType::kBytes,
           bool by_workers = false) noexcept;
};

struct PeerStats {
  std::string name;
  Traffic sent, received;
};

inline std::uint64_t nanoseconds_since(std::chrono::steady_clock::time_point start) {
  return static_cast<std::uint64_t>((std::chrono::steady_clock::now() - start) /
                                    std::chrono::nanoseconds(1));
}

// One entry a name, which lives until the process ends.
PeerStats& stats_of_peer(const std::string& name);

std::string format_stats(StatsFormat format);

// Arranges the report at exit and on the signal that the settings name; once a process.
void start_stats(const Settings& settings);

}  // namespace snug::nccl
