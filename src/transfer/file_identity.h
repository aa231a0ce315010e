// transfer/file_identity.h - a number that changes when a file is replaced or written to.
#pragma once
#include <sys/stat.h>

#include <cstdint>

namespace snug::transfer {

inline std::uint64_t mix(std::uint64_t sum, std::uint64_t more) {
  sum = (sum ^ more) * 0x9E3779B97F4A7C15u;
  return sum ^ (sum >> 29);
}

inline std::uint64_t file_identity(const struct stat& info) {
  std::uint64_t identity = mix(1, info.st_ino);
  identity = mix(identity, static_cast<std::uint64_t>(info.st_size));
  identity = mix(identity, static_cast<std::uint64_t>(info.st_mtim.tv_sec));
  return mix(identity, static_cast<std::uint64_t>(info.st_mtim.tv_nsec));
}

}  // namespace snug::transfer
