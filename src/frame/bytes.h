// frame/bytes.h - numbers in byte buffers of any alignment. Little-endian, as the CPUs are.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace snug::frame {

template <class T>
T load(const std::uint8_t* p) noexcept {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <class T>
void store(std::uint8_t* p, T v) noexcept {
  std::memcpy(p, &v, sizeof v);
}

// Calls body with a zero of the unsigned type that has `width` bytes: 1, 2, 4 or 8.
template <class Body>
auto with_width(std::size_t width, Body body) {
  switch (width) {
    case 1: return body(std::uint8_t{});
    case 2: return body(std::uint16_t{});
    case 4: return body(std::uint32_t{});
    default: return body(std::uint64_t{});
  }
}

inline const std::uint8_t* bytes_of(std::span<const std::byte> span) noexcept {
  return reinterpret_cast<const std::uint8_t*>(span.data());
}
inline std::uint8_t* bytes_of(std::span<std::byte> span) noexcept {
  return reinterpret_cast<std::uint8_t*>(span.data());
}

}  // namespace snug::frame
