// transfer/file_identity.h - numbers that change when files are replaced or written to. They stand
// for the contents where hashing a whole model would take minutes.
#pragma once
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace snug::transfer {

inline std::uint64_t mix(std::uint64_t sum, std::uint64_t more) {
  sum = (sum ^ more) * 0x9E3779B97F4A7C15u;
  return sum ^ (sum >> 29);
}

inline std::uint64_t file_identity(const struct stat& info) {
  std::uint64_t identity = mix(1, info.st_ino);
  identity = mix(identity, static_cast<std::uint64_t>(info.st_size));
  // The change time as well: anybody may put the modification time back.
  for (const struct timespec& time : {info.st_mtim, info.st_ctim}) {
    identity = mix(identity, static_cast<std::uint64_t>(time.tv_sec));
    identity = mix(identity, static_cast<std::uint64_t>(time.tv_nsec));
  }
  return identity;
}

// 0 if there is no such file.
inline std::uint64_t file_identity(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 ? file_identity(info) : 0;
}

// The sum of `identity` over `path` and, if it is a folder, everything in it. 0 if one of them is 0
// or cannot be read.
template <class Identity>
std::uint64_t tree_identity(const std::string& path, Identity identity) {
  std::uint64_t one = identity(path), sum = one;
  std::error_code error;
  if (one == 0 || !std::filesystem::is_directory(path, error)) return one;
  for (std::filesystem::recursive_directory_iterator it(path, error), end;
       one != 0 && !error && it != end; it.increment(error))
    sum += one = identity(it->path().string());
  return one == 0 || error ? 0 : sum;
}

}  // namespace snug::transfer
