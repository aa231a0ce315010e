// frame/bytes.h - numbers in byte buffers of any alignment. Little-endian, as the CPUs are.
#pragma once
#include <cstdint>
#include <cstring>

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

}  // namespace snug::frame
