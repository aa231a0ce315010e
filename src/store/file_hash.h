// store/file_hash.h - XXH3-128 of a whole file, fed in order.
//
// All bytes of a file go through one hash, one after the other: at SSE2's
// 17 GB/s it took as long as decoding, so there is an AVX2 build of it (40 GB/s).
#pragma once
#include <array>
#include <cstddef>
#include <string>

namespace snug::store {

inline constexpr std::size_t kHashBytes = 16;

// One build of the hash.
struct HashFunctions {
  void* (*create)();  // nullptr if out of memory
  void (*update)(void* state, const void* bytes, std::size_t num_bytes);
  void (*digest)(const void* state, unsigned char (&out)[kHashBytes]);
  void (*destroy)(void* state);
};
extern const HashFunctions kPortableHash;
const HashFunctions* avx2_hash() noexcept;  // nullptr where the CPU or the build lacks it

class FileHash {
 public:
  FileHash();
  explicit FileHash(const HashFunctions& functions);
  FileHash(const FileHash&) = delete;
  FileHash& operator=(const FileHash&) = delete;
  ~FileHash() { functions_.destroy(state_); }

  void update(const void* bytes, std::size_t num_bytes) noexcept {
    functions_.update(state_, bytes, num_bytes);
  }
  std::array<unsigned char, kHashBytes> bytes() const noexcept;
  std::string hex() const;  // 32 digits, as xxhsum -H2 prints them

 private:
  const HashFunctions& functions_;
  void* state_;
};

}  // namespace snug::store
