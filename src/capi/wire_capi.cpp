// The C ABI of snug/wire.h.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "capi/wire_objects.h"
#include "snug/wire.h"

namespace wire = snug::wire;
using snug::Code;
using snug::Result;
using snug::Status;
using snug::capi::call;
using snug::capi::create;
using snug::capi::deref;
using snug::capi::Refused;

namespace {

wire::Options to_cpp(const snug_wire_options* from) {
  wire::Options options;
  if (from == nullptr) return options;
  if (from->token != nullptr) options.token = from->token;
  options.mode = snug::capi::to_mode(from->mode);
  options.num_lanes = from->num_lanes;
  options.chunk_bytes = from->chunk_bytes;
  options.timeout = std::chrono::milliseconds(from->timeout_ms);
  options.insecure = from->insecure != 0;
  return options;
}

std::chrono::milliseconds patience_of(int64_t milliseconds) {
  return std::chrono::milliseconds(std::clamp<int64_t>(milliseconds, 0, int64_t{1} << 40));
}

template <class Byte>
std::vector<std::span<Byte>> spans_of(const snug_segment* segments, size_t num_segments) {
  std::vector<std::span<Byte>> spans;
  std::uint64_t left = wire::kMaxMessageBytes;
  for (const snug_segment& segment : snug::capi::span_of(segments, num_segments)) {
    if (segment.num_bytes > left)
      throw Refused{{Code::kUsage, "a message has at most 8 TiB, all segments together"}};
    left -= segment.num_bytes;
    spans.push_back(snug::capi::span_of(static_cast<Byte*>(segment.data), segment.num_bytes));
  }
  return spans;
}

}  // namespace

int snug_wire_connect(const char* address, const snug_wire_options* options,
                      const volatile int* stop, snug_wire_connection** connection,
                      snug_status* status) {
  return create(status, connection, [&] {
    return wire::connect(&deref(address), to_cpp(options), [stop] {
      return stop == nullptr || __atomic_load_n(stop, __ATOMIC_RELAXED) == 0;
    });
  });
}

int snug_wire_listen(const char* address, const snug_wire_options* options,
                     snug_wire_listener** listener, snug_status* status) {
  return create(status, listener,
                [&] { return wire::Listener::open(&deref(address), to_cpp(options)); });
}

int snug_wire_accept(snug_wire_listener* listener, int64_t patience_ms,
                     snug_wire_connection** connection, snug_status* status) {
  return create(status, connection,
                [&] { return deref(listener).listener.accept(patience_of(patience_ms)); });
}

size_t snug_wire_listener_address(const snug_wire_listener* listener, char* buffer,
                                  size_t buffer_bytes) {
  const std::string address = listener == nullptr ? "" : listener->listener.address();
  return snug::capi::write_text(address, buffer, buffer_bytes);
}

int snug_wire_send(snug_wire_connection* connection, uint64_t tag, int dtype,
                   const snug_segment* segments, size_t num_segments, snug_wire_transfer** transfer,
                   snug_status* status) {
  return create(status, transfer, [&] {
    return Result<wire::Transfer>(
        deref(connection)
            .connection.send(tag, snug::capi::to_dtype(dtype),
                             spans_of<const std::byte>(segments, num_segments)));
  });
}

int snug_wire_recv(snug_wire_connection* connection, uint64_t tag, const snug_segment* segments,
                   size_t num_segments, snug_wire_transfer** transfer, snug_status* status) {
  return create(status, transfer, [&] {
    return Result<wire::Transfer>(
        deref(connection).connection.recv(tag, spans_of<std::byte>(segments, num_segments)));
  });
}

int snug_wire_wait(const snug_wire_transfer* transfer, int64_t patience_ms, snug_status* status) {
  return call(status, [&] {
    const wire::Transfer& waited = deref(transfer).transfer;
    return patience_ms < 0 ? waited.wait() : waited.wait_for(patience_of(patience_ms));
  });
}

int snug_wire_is_done(const snug_wire_transfer* transfer) {
  return transfer == nullptr || transfer->transfer.done() ? 1 : 0;
}

uint64_t snug_wire_done_bytes(const snug_wire_transfer* transfer) {
  return transfer == nullptr ? 0 : transfer->transfer.done_bytes();
}

int snug_wire_send_note(snug_wire_connection* connection, const void* note, size_t num_bytes,
                        snug_status* status) {
  return call(status, [&] {
    const auto text = snug::capi::span_of(static_cast<const char*>(note), num_bytes);
    return deref(connection).connection.send_note(std::string(text.begin(), text.end()));
  });
}

int snug_wire_recv_note(snug_wire_connection* connection, int64_t patience_ms, void* buffer,
                        size_t buffer_bytes, size_t* num_bytes, snug_status* status) {
  return call(status, [&]() -> Status {
    const auto room = snug::capi::out(buffer, buffer_bytes);
    size_t& size = deref(num_bytes);
    auto& [source, mutex, note] = deref(connection);
    const std::lock_guard lock(mutex);
    if (!note) {
      auto received = source.recv_note(patience_of(patience_ms));
      if (!received) return received.status();
      note = std::move(*received);
    }
    size = note->size();
    if (size > room.size())
      return {Code::kDstTooSmall,
              "the note is longer than the buffer",
              snug::kNowhere,
              snug::kNowhere,
              size,
              room.size()};
    if (size != 0) std::memcpy(room.data(), note->data(), size);
    note.reset();
    return {};
  });
}

int snug_wire_stats_of(const snug_wire_connection* connection, snug_wire_stats* stats,
                       snug_status* status) {
  return call(status, [&] {
    deref(stats) = snug::capi::to_c(deref(connection).connection.stats());
    return Status{};
  });
}

void snug_wire_connection_close(snug_wire_connection* connection) {
  if (connection != nullptr) connection->connection.close();
}

void snug_wire_connection_free(snug_wire_connection* connection) { delete connection; }
void snug_wire_listener_free(snug_wire_listener* listener) { delete listener; }
void snug_wire_transfer_free(snug_wire_transfer* transfer) { delete transfer; }
