// The C ABI of messages in GPU memory: nothing but conversions.
#include <vector>

#include "capi/wire_capi.h"
#include "snug/gpu_link.h"
#include "snug/snug_gpu.h"

using snug::Code;
using snug::DType;
using snug::Status;
using snug::capi::guarded;
using snug::capi::keep;
using snug::capi::kNull;
using snug::capi::report;
namespace gpu = snug::cuda;

struct snug_cuda_link {
  gpu::Link link;
};

namespace {

using Segments = std::span<const gpu::Segment>;

// Checks what all four calls take and starts the transfer that `start` makes of it.
template <class Start>
int start_transfer(const void* object, int dtype, const snug_cuda_segment* segments,
                   size_t num_segments, snug_wire_transfer** transfer, snug_status* status,
                   Start start) {
  return guarded(status, [&] {
    if (object == nullptr || transfer == nullptr || (segments == nullptr && num_segments > 0))
      return report(kNull, status);
    if (dtype < 0 || dtype >= snug::kNumDTypes)
      return report({Code::kUsage, "no such dtype"}, status);
    std::vector<gpu::Segment> list;
    for (size_t i = 0; i < num_segments; ++i) {
      if (segments[i].data == nullptr && segments[i].num_bytes != 0) return report(kNull, status);
      list.push_back({segments[i].data, segments[i].num_bytes});
    }
    return start(static_cast<DType>(dtype), Segments(list));
  });
}

}  // namespace

extern "C" {

int snug_cuda_wire_send(snug_wire_connection* connection, uint64_t tag, int dtype,
                        const snug_cuda_segment* segments, size_t num_segments,
                        snug_wire_transfer** transfer, snug_status* status) {
  return start_transfer(connection, dtype, segments, num_segments, transfer, status,
                        [&](DType type, Segments list) {
                          auto source = gpu::wire_source(type, list);
                          if (!source) return report(source.status(), status);
                          return keep(connection->connection.send(tag, *source), transfer, status);
                        });
}

int snug_cuda_wire_recv(snug_wire_connection* connection, uint64_t tag, int dtype,
                        const snug_cuda_segment* segments, size_t num_segments,
                        snug_wire_transfer** transfer, snug_status* status) {
  return start_transfer(connection, dtype, segments, num_segments, transfer, status,
                        [&](DType type, Segments list) {
                          auto sink = gpu::wire_sink(type, list);
                          if (!sink) return report(sink.status(), status);
                          return keep(connection->connection.recv(tag, *sink), transfer, status);
                        });
}

int snug_cuda_link_open(snug_wire_connection* connection, int mode, int64_t timeout_ms,
                        snug_cuda_link** link, snug_status* status) {
  return guarded(status, [&] {
    if (connection == nullptr || link == nullptr) return report(kNull, status);
    if (mode < 0 || mode > SNUG_WIRE_AUTO) return report({Code::kUsage, "no such mode"}, status);
    auto made = gpu::Link::open(connection->connection, static_cast<snug::wire::Mode>(mode),
                                std::chrono::milliseconds(timeout_ms));
    if (made) *link = new snug_cuda_link{std::move(*made)};
    return report(made.status(), status);
  });
}

int snug_cuda_link_send(snug_cuda_link* link, uint64_t tag, int dtype,
                        const snug_cuda_segment* segments, size_t num_segments,
                        snug_wire_transfer** transfer, snug_status* status) {
  return start_transfer(link, dtype, segments, num_segments, transfer, status,
                        [&](DType type, Segments list) {
                          return keep(link->link.send(tag, type, list), transfer, status);
                        });
}

int snug_cuda_link_recv(snug_cuda_link* link, uint64_t tag, int dtype,
                        const snug_cuda_segment* segments, size_t num_segments,
                        snug_wire_transfer** transfer, snug_status* status) {
  return start_transfer(link, dtype, segments, num_segments, transfer, status,
                        [&](DType type, Segments list) {
                          return keep(link->link.recv(tag, type, list), transfer, status);
                        });
}

void snug_cuda_link_stats(const snug_cuda_link* link, snug_wire_stats* sent,
                          snug_wire_stats* received) {
  if (link == nullptr) return;
  if (sent != nullptr) snug::capi::copy_stats(link->link.sent(), *sent);
  if (received != nullptr) snug::capi::copy_stats(link->link.received(), *received);
}

void snug_cuda_link_free(snug_cuda_link* link) { delete link; }

}  // extern "C"
