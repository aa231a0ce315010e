// os/random.h - random bits from the kernel.
#pragma once
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <type_traits>

namespace snug::os {

// Not std::random_device: libstdc++'s makes every program that links it need glibc 2.36.
template <class T>
T random_value() {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 256);  // getentropy's limit
  T value;
  if (::getentropy(&value, sizeof value) != 0)
    throw std::system_error(errno, std::generic_category(), "no random bits from the kernel");
  return value;
}

}  // namespace snug::os
