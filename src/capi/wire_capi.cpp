// The C ABI of the wire: a thin skin over snug/wire.h.
#include "capi/wire_capi.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "capi/convert.h"
#include "snug/snug.h"
#include "snug/wire.h"

using snug::Code;
using snug::DType;
using snug::Status;
using snug::capi::guarded;
using snug::capi::keep;
using snug::capi::kNull;
using snug::capi::report;
namespace wire = snug::wire;

namespace {

static_assert(SNUG_WIRE_AUTO == static_cast<int>(wire::Mode::kAuto));
static_assert(SNUG_WIRE_NUM_MODES == wire::kNumModes);

snug::Result<wire::Options> options_of(const snug_wire_options* from) {
  wire::Options options;
  if (from == nullptr) return options;
  if (from->mode < 0 || from->mode > SNUG_WIRE_AUTO) return Status{Code::kUsage, "no such mode"};
  if (from->token != nullptr) options.token = from->token;
  options.mode = static_cast<wire::Mode>(from->mode);
  options.num_lanes = from->num_lanes;
  options.chunk_bytes = from->chunk_bytes;
  options.timeout = std::chrono::milliseconds(from->timeout_ms);
  return options;
}

std::chrono::milliseconds patience_of(int64_t milliseconds) {
  return std::chrono::milliseconds(std::clamp<int64_t>(milliseconds, 0, int64_t{1} << 40));
}

template <class Byte>
snug::Result<std::vector<std::span<Byte>>> spans_of(const snug_wire_segment* segments, size_t n) {
  std::vector<std::span<Byte>> spans;
  std::uint64_t left = wire::kMaxMessageBytes;
  for (size_t i = 0; i < n; ++i) {
    if (segments[i].data == nullptr && segments[i].num_bytes != 0) return kNull;
    if (segments[i].num_bytes > left)
      return Status{Code::kUsage, "a message has at most 8 TiB, all segments together"};
    left -= segments[i].num_bytes;
    spans.emplace_back(static_cast<Byte*>(segments[i].data), segments[i].num_bytes);
  }
  return spans;
}

}  // namespace

int snug_wire_connect(const char* address, const snug_wire_options* options,
                      snug_wire_connection** connection, snug_status* status) {
  return guarded(status, [&] {
    if (address == nullptr || connection == nullptr) return report(kNull, status);
    const auto parsed = options_of(options);
    if (!parsed) return report(parsed.status(), status);
    auto made = wire::connect(address, *parsed);
    if (made) *connection = new snug_wire_connection{std::move(*made), {}, {}};
    return report(made.status(), status);
  });
}

int snug_wire_listen(const char* address, const snug_wire_options* options,
                     snug_wire_listener** listener, snug_status* status) {
  return guarded(status, [&] {
    if (address == nullptr || listener == nullptr) return report(kNull, status);
    const auto parsed = options_of(options);
    if (!parsed) return report(parsed.status(), status);
    auto made = wire::Listener::open(address, *parsed);
    if (made) *listener = new snug_wire_listener{std::move(*made)};
    return report(made.status(), status);
  });
}

size_t snug_wire_listener_address(const snug_wire_listener* listener, char* buffer,
                                  size_t buffer_bytes) {
  const std::string address = listener == nullptr ? "" : listener->listener.address();
  return snug::capi::write_text(address, buffer, buffer_bytes);
}

int snug_wire_accept(snug_wire_listener* listener, int64_t patience_ms,
                     snug_wire_connection** connection, snug_status* status) {
  return guarded(status, [&] {
    if (listener == nullptr || connection == nullptr) return report(kNull, status);
    auto made = listener->listener.accept(patience_of(patience_ms));
    if (made) *connection = new snug_wire_connection{std::move(*made), {}, {}};
    return report(made.status(), status);
  });
}

int snug_wire_send(snug_wire_connection* connection, uint64_t tag, int dtype,
                   const snug_wire_segment* segments, size_t num_segments,
                   snug_wire_transfer** transfer, snug_status* status) {
  return guarded(status, [&] {
    if (connection == nullptr || transfer == nullptr || (segments == nullptr && num_segments > 0))
      return report(kNull, status);
    if (dtype < 0 || dtype >= snug::kNumDTypes)
      return report({Code::kUsage, "no such dtype"}, status);
    const auto spans = spans_of<const std::byte>(segments, num_segments);
    if (!spans) return report(spans.status(), status);
    return keep(connection->connection.send(tag, static_cast<DType>(dtype), *spans), transfer,
                status);
  });
}

int snug_wire_recv(snug_wire_connection* connection, uint64_t tag,
                   const snug_wire_segment* segments, size_t num_segments,
                   snug_wire_transfer** transfer, snug_status* status) {
  return guarded(status, [&] {
    if (connection == nullptr || transfer == nullptr || (segments == nullptr && num_segments > 0))
      return report(kNull, status);
    const auto spans = spans_of<std::byte>(segments, num_segments);
    if (!spans) return report(spans.status(), status);
    return keep(connection->connection.recv(tag, *spans), transfer, status);
  });
}

int snug_wire_wait(const snug_wire_transfer* transfer, int64_t patience_ms, snug_status* status) {
  if (transfer == nullptr) return report(kNull, status);
  return report(patience_ms < 0 ? transfer->transfer.wait()
                                : transfer->transfer.wait_for(patience_of(patience_ms)),
                status);
}

int snug_wire_is_done(const snug_wire_transfer* transfer) {
  return transfer == nullptr || transfer->transfer.done() ? 1 : 0;
}

uint64_t snug_wire_done_bytes(const snug_wire_transfer* transfer) {
  return transfer == nullptr ? 0 : transfer->transfer.done_bytes();
}

int snug_wire_send_note(snug_wire_connection* connection, const void* note, size_t num_bytes,
                        snug_status* status) {
  return guarded(status, [&] {
    if (connection == nullptr || (note == nullptr && num_bytes > 0)) return report(kNull, status);
    return report(
        connection->connection.send_note(std::string(static_cast<const char*>(note), num_bytes)),
        status);
  });
}

int snug_wire_recv_note(snug_wire_connection* connection, int64_t patience_ms, void* buffer,
                        size_t buffer_bytes, size_t* num_bytes, snug_status* status) {
  return guarded(status, [&] {
    if (connection == nullptr || num_bytes == nullptr || (buffer == nullptr && buffer_bytes > 0))
      return report(kNull, status);
    const std::lock_guard lock(connection->mutex);
    std::optional<std::string>& note = connection->note;
    if (!note) {
      auto received = connection->connection.recv_note(patience_of(patience_ms));
      if (!received) return report(received.status(), status);
      note = std::move(*received);
    }
    *num_bytes = note->size();
    if (note->size() > buffer_bytes)
      return report({Code::kDstTooSmall, "the note is longer than the buffer", snug::kNowhere,
                     snug::kNowhere, note->size(), buffer_bytes},
                    status);
    if (!note->empty()) std::memcpy(buffer, note->data(), note->size());
    note.reset();
    return report({}, status);
  });
}

void snug_wire_stats_of(const snug_wire_connection* connection, snug_wire_stats* stats) {
  if (connection == nullptr || stats == nullptr) return;
  snug::capi::copy_stats(connection->connection.stats(), *stats);
}

void snug_wire_connection_free(snug_wire_connection* connection) { delete connection; }
void snug_wire_listener_free(snug_wire_listener* listener) { delete listener; }
void snug_wire_transfer_free(snug_wire_transfer* transfer) { delete transfer; }
