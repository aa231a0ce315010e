// capi/convert.h - C's arguments to C++'s, and C++'s errors to C's.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <span>
#include <string_view>
#include <utility>

#include "snug/snug.h"
#include "snug/status.h"
#include "snug/store.h"

namespace snug::capi {

// An argument that C++ cannot take: thrown by the conversions, reported by call().
struct Refused {
  Status status;
};

template <class T>
T& deref(T* pointer) {
  if (pointer == nullptr) throw Refused{{Code::kUsage, "an argument is NULL"}};
  return *pointer;
}

template <class T>
std::span<T> span_of(T* data, std::size_t size) {
  if (data == nullptr && size != 0)
    throw Refused{{Code::kUsage, "a buffer is NULL but its size is not 0"}};
  return {data, size};
}
inline std::span<const std::byte> in(const void* data, std::size_t num_bytes) {
  return span_of(static_cast<const std::byte*>(data), num_bytes);
}
inline std::span<std::byte> out(void* data, std::size_t num_bytes) {
  return span_of(static_cast<std::byte*>(data), num_bytes);
}

// A number outside a byte-sized enum must not become one of its values by wrapping around.
template <class Enum>
Enum to_enum(int number) noexcept {
  return static_cast<Enum>(number >= 0 && number <= 255 ? number : 255);
}

// Like snprintf: writes what fits, returns the length of the whole text.
inline std::size_t write_text(std::string_view text, char* buffer,
                              std::size_t buffer_bytes) noexcept {
  if (buffer != nullptr && buffer_bytes != 0) {
    const std::size_t length = std::min(text.size(), buffer_bytes - 1);
    std::memcpy(buffer, text.data(), length);
    buffer[length] = '\0';
  }
  return text.size();
}

inline int report(const Status& from, snug_status* to) noexcept {
  if (to != nullptr) {
    to->code = static_cast<std::int32_t>(from.code);
    to->reserved = 0;
    to->what = from.what;
    to->block = from.block;
    to->byte = from.byte;
    to->found = from.found;
    to->expected = from.expected;
    to->line[0] = '\0';
  }
  return static_cast<int>(from.code);
}

inline int report(const StoreStatus& from, snug_status* to) {
  if (to != nullptr) {
    report(from.status, to);
    if (!from.ok()) write_text(to_string(from), to->line, sizeof to->line);
  }
  return static_cast<int>(from.status.code);
}

// Reports the status that `body` returns. No exception crosses the C border.
template <class Body>
int call(snug_status* status, Body body) noexcept {
  try {
    return report(body(), status);
  } catch (const Refused& refused) {
    return report(refused.status, status);
  } catch (const std::exception&) {
    return report(Status{Code::kInternal, "out of memory"}, status);
  }
}

// The same for a body that returns a result; on success its value goes to *value.
template <class T, class Body, class Convert = std::identity>
int call(snug_status* status, T* value, Body body, Convert convert = {}) noexcept {
  return call(status, [&] {
    const auto result = body();
    if (result && value != nullptr) *value = convert(*result);
    return result.status();
  });
}

// The same for a body whose value becomes the content of a new object.
template <class Object, class Body>
int create(snug_status* status, Object** object, Body body) noexcept {
  return call(status, [&] {
    Object*& place = deref(object);
    auto result = body();
    if (result) place = new Object{std::move(*result)};
    return result.status();
  });
}

}  // namespace snug::capi
