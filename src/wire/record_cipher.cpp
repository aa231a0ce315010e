#include "wire/record_cipher.h"

#include <algorithm>
#include <new>
#include <utility>

namespace snug::wire {
namespace {

const unsigned char* bytes_of(const void* p) { return static_cast<const unsigned char*>(p); }
unsigned char* bytes_of(void* p) { return static_cast<unsigned char*>(p); }

}  // namespace

RecordCipher::RecordCipher(Work work, MakeKey make_key, std::uint64_t key_life_bytes)
    : work_(work),
      make_key_(std::move(make_key)),
      key_life_bytes_(key_life_bytes),
      context_(EVP_CIPHER_CTX_new()) {
  if (!context_) throw std::bad_alloc();
}

bool RecordCipher::renew_key() {
  Key key;
  if (!make_key_(num_keys_, key)) return false;
  const bool ok = EVP_CipherInit_ex(context_.get(), EVP_aes_128_gcm(), nullptr, key.key.data(),
                                    nullptr, work_ == Work::kSeal ? 1 : 0) == 1;
  iv_ = key.iv;
  ++num_keys_;
  num_records_ = 0;
  bytes_left_ = key_life_bytes_;
  return ok;
}

bool RecordCipher::run(std::uint32_t num_bytes, const std::byte* in, std::byte* out,
                       std::span<std::byte, kTagBytes> tag) {
  if (bytes_left_ == 0 && !renew_key()) return false;
  bytes_left_ -= std::min<std::uint64_t>(bytes_left_, num_bytes);
  auto nonce = iv_;
  for (std::size_t i = 0; i < 8; ++i)
    nonce[4 + i] ^= static_cast<unsigned char>(num_records_ >> (56 - 8 * i));
  ++num_records_;
  EVP_CIPHER_CTX* const c = context_.get();
  const bool seals = work_ == Work::kSeal;
  int n = 0;
  if (EVP_CipherInit_ex(c, nullptr, nullptr, nullptr, nonce.data(), -1) != 1 ||
      EVP_CipherUpdate(c, nullptr, &n, bytes_of(&num_bytes), sizeof num_bytes) != 1 ||
      EVP_CipherUpdate(c, bytes_of(out), &n, bytes_of(in), static_cast<int>(num_bytes)) != 1)
    return false;
  if (!seals && EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag.data()) != 1)
    return false;
  unsigned char rest[16];
  if (EVP_CipherFinal_ex(c, rest, &n) != 1) return false;
  return !seals || EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag.data()) == 1;
}

}  // namespace snug::wire
