#include "store/file_hash.h"

#include <new>

namespace snug::store {

FileHash::FileHash(const hash::Xxh3& functions)
    : functions_(functions), state_(functions.create()) {
  if (state_ == nullptr) throw std::bad_alloc();
}

std::array<unsigned char, kHashBytes> FileHash::bytes() const noexcept {
  unsigned char digest[kHashBytes];
  functions_.digest(state_, digest);
  return std::to_array(digest);
}

std::string FileHash::hex() const {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes()) {
    text.push_back(kHex[byte >> 4]);
    text.push_back(kHex[byte & 15]);
  }
  return text;
}

}  // namespace snug::store
