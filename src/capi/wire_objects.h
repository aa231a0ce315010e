// capi/wire_objects.h - the objects behind the C ABI of the wire, for the GPU link too.
#pragma once
#include <mutex>
#include <optional>
#include <string>

#include "capi/convert.h"
#include "snug/wire.h"

struct snug_wire_listener {
  snug::wire::Listener listener;
};
struct snug_wire_connection {
  snug::wire::Connection connection;
  std::mutex mutex{};
  std::optional<std::string> note{};  // received, but longer than the caller's buffer
};
struct snug_wire_transfer {
  snug::wire::Transfer transfer;
};

namespace snug::capi {

inline wire::Mode to_mode(int mode) {
  static_assert(SNUG_WIRE_AUTO == static_cast<int>(wire::Mode::kAuto));
  if (mode < 0 || mode > SNUG_WIRE_AUTO) throw Refused{{Code::kUsage, "no such mode"}};
  return static_cast<wire::Mode>(mode);
}

inline DType to_dtype(int dtype) {
  if (dtype < 0 || dtype >= kNumDTypes) throw Refused{{Code::kUsage, "no such dtype"}};
  return static_cast<DType>(dtype);
}

inline snug_wire_stats to_c(const wire::Stats& from) noexcept {
  static_assert(SNUG_WIRE_NUM_MODES == wire::kNumModes);
  snug_wire_stats to{from.raw_bytes, from.wire_bytes, from.known_bytes, {}, {}};
  std::copy_n(from.num_chunks, wire::kNumModes, to.num_chunks);
  std::copy_n(from.goodput, wire::kNumModes, to.goodput);
  return to;
}

}  // namespace snug::capi
