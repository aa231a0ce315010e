// store/file_hash.h - XXH3-128 of a whole file, fed in order.
#pragma once
#include <xxhash.h>

#include <cstddef>
#include <memory>
#include <string>

namespace snug::store {

class FileHash {
 public:
  FileHash();
  void update(const void* bytes, std::size_t num_bytes) noexcept;
  std::string hex() const;  // 32 digits, as xxhsum -H2 prints them

 private:
  struct FreeState {
    void operator()(XXH3_state_t* state) const noexcept { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, FreeState> state_;
};

}  // namespace snug::store
