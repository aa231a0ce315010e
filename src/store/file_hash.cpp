#include "store/file_hash.h"

#include <new>

namespace snug::store {

FileHash::FileHash() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_128bits_reset(state_.get());
}

void FileHash::update(const void* bytes, std::size_t num_bytes) noexcept {
  XXH3_128bits_update(state_.get(), bytes, num_bytes);
}

std::string FileHash::hex() const {
  static constexpr char kHex[] = "0123456789abcdef";
  XXH128_canonical_t digest;
  XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(state_.get()));
  std::string text;
  for (const unsigned char byte : digest.digest) {
    text.push_back(kHex[byte >> 4]);
    text.push_back(kHex[byte & 15]);
  }
  return text;
}

}  // namespace snug::store
