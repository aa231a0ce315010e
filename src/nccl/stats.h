// nccl/stats.h - what went over the wire, per peer and element type.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "nccl/settings.h"
#include "snug/tensor.h"

namespace snug::nccl {

// The row of chunks whose type was not looked at or not recognised.
inline constexpr int kUnknownType = kNumDTypes;

struct Counters {
  std::atomic<std::uint64_t> data_bytes{0};
  std::atomic<std::uint64_t> wire_bytes{0};
  std::atomic<std::uint64_t> codec_ns{0};
  std::atomic<std::uint64_t> chunks[kNumCodecs] = {};

  void add(std::uint64_t data, std::uint64_t wire, std::uint64_t nanoseconds, Codec codec) noexcept;
};

struct PeerStats {
  std::string name;
  Counters sent[kNumDTypes + 1], received[kNumDTypes + 1];
};

// Lives until the process ends; the same name gives the same entry.
PeerStats& stats_of_peer(const std::string& name);

std::string format_stats(StatsFormat format);

// Arranges for the report at exit and on the signal, as the settings say. Once a process.
void start_stats(const Settings& settings);

}  // namespace snug::nccl
