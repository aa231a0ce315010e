// The C ABI of snug/gpu_link.h.
#include <chrono>

#include "capi/gpu_convert.h"
#include "capi/wire_objects.h"
#include "snug/gpu_link.h"

namespace gpu = snug::cuda;
using snug::Result;
using snug::capi::create;
using snug::capi::deref;
using snug::capi::to_dtype;
using snug::wire::Transfer;

struct snug_link {
  gpu::Link link;
};

namespace {

std::span<const gpu::Segment> to_cpp(const snug_segment* segments, size_t num_segments) {
  for (const snug_segment& segment : snug::capi::span_of(segments, num_segments))
    snug::capi::out(segment.data, segment.num_bytes);
  return {snug::capi::cpp(segments), num_segments};
}

}  // namespace

int snug_cuda_wire_send(snug_wire_connection* connection, uint64_t tag, int dtype,
                        const snug_segment* segments, size_t num_segments,
                        snug_wire_transfer** transfer, snug_status* status) {
  return create(status, transfer, [&]() -> Result<Transfer> {
    auto& sender = deref(connection).connection;
    const auto source = gpu::wire_source(to_dtype(dtype), to_cpp(segments, num_segments));
    if (!source) return source.status();
    return sender.send(tag, *source);
  });
}

int snug_cuda_wire_recv(snug_wire_connection* connection, uint64_t tag, int dtype,
                        const snug_segment* segments, size_t num_segments,
                        snug_wire_transfer** transfer, snug_status* status) {
  return create(status, transfer, [&]() -> Result<Transfer> {
    auto& receiver = deref(connection).connection;
    const auto sink = gpu::wire_sink(to_dtype(dtype), to_cpp(segments, num_segments));
    if (!sink) return sink.status();
    return receiver.recv(tag, *sink);
  });
}

int snug_link_open(snug_wire_connection* connection, int mode, int64_t timeout_ms, snug_link** link,
                   snug_status* status) {
  return create(status, link, [&] {
    return gpu::Link::open(deref(connection).connection, snug::capi::to_mode(mode),
                           std::chrono::milliseconds(timeout_ms));
  });
}

int snug_link_send(snug_link* link, uint64_t tag, int dtype, const snug_segment* segments,
                   size_t num_segments, snug_wire_transfer** transfer, snug_status* status) {
  return create(status, transfer, [&] {
    return Result<Transfer>(
        deref(link).link.send(tag, to_dtype(dtype), to_cpp(segments, num_segments)));
  });
}

int snug_link_recv(snug_link* link, uint64_t tag, int dtype, const snug_segment* segments,
                   size_t num_segments, snug_wire_transfer** transfer, snug_status* status) {
  return create(status, transfer, [&] {
    return Result<Transfer>(
        deref(link).link.recv(tag, to_dtype(dtype), to_cpp(segments, num_segments)));
  });
}

int snug_link_stats_of(const snug_link* link, snug_wire_stats* sent, snug_wire_stats* received,
                       snug_status* status) {
  return snug::capi::call(status, [&] {
    const gpu::Link& from = deref(link).link;
    if (sent != nullptr) *sent = snug::capi::to_c(from.sent());
    if (received != nullptr) *received = snug::capi::to_c(from.received());
    return snug::Status{};
  });
}

void snug_link_free(snug_link* link) { delete link; }
