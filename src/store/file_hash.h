// store/file_hash.h - XXH3-128 of a whole file, fed in order.
#pragma once
#include <array>
#include <cstddef>
#include <string>

#include "hash/xxh3.h"

namespace snug::store {

using hash::kHashBytes;

class FileHash {
 public:
  explicit FileHash(const hash::Xxh3& functions = hash::xxh3());
  FileHash(const FileHash&) = delete;
  FileHash& operator=(const FileHash&) = delete;
  ~FileHash() { functions_.destroy(state_); }

  void update(const void* bytes, std::size_t num_bytes) noexcept {
    functions_.update(state_, bytes, num_bytes);
  }
  std::array<unsigned char, kHashBytes> bytes() const noexcept;
  std::string hex() const;  // 32 digits, as xxhsum -H2 prints them

 private:
  const hash::Xxh3& functions_;
  void* state_;
};

}  // namespace snug::store
