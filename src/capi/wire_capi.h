// capi/wire_capi.h - the objects behind the C ABI of the wire, for all files that make it.
#pragma once
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "capi/convert.h"
#include "snug/snug.h"
#include "snug/wire.h"

struct snug_wire_listener {
  snug::wire::Listener listener;
};
struct snug_wire_connection {
  snug::wire::Connection connection;
  std::mutex mutex;
  std::optional<std::string> note;  // taken, but too long for the buffer given
};
struct snug_wire_transfer {
  snug::wire::Transfer transfer;
};

namespace snug::capi {

// No exception crosses the C border.
template <class Body>
int guarded(snug_status* status, Body body) noexcept {
  try {
    return body();
  } catch (const std::exception&) {
    return report({Code::kInternal, "out of memory"}, status);
  }
}

inline int keep(wire::Transfer made, snug_wire_transfer** transfer, snug_status* status) {
  *transfer = new snug_wire_transfer{std::move(made)};
  return report({}, status);
}

inline void copy_stats(const wire::Stats& from, snug_wire_stats& to) noexcept {
  to = {from.raw_bytes, from.wire_bytes, from.known_bytes, {}, {}};
  for (int i = 0; i < wire::kNumModes; ++i) {
    to.num_chunks[i] = from.num_chunks[i];
    to.goodput[i] = from.goodput[i];
  }
}

}  // namespace snug::capi
