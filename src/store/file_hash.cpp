#include "store/file_hash.h"

#include <xxhash.h>

#include <cstring>
#include <new>

namespace snug::store {
namespace {
#include "store/file_hash-inl.h"
}  // namespace

const HashFunctions kPortableHash = {create, update, digest, destroy};

FileHash::FileHash() : FileHash(avx2_hash() != nullptr ? *avx2_hash() : kPortableHash) {}

FileHash::FileHash(const HashFunctions& functions)
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
