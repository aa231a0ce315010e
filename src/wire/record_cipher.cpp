#include "wire/record_cipher.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <span>

namespace snug::wire {

// Changes nothing unless there is a new key: numbers of records begin again with it alone.
bool RecordCipher::renew_key() {
  Key key;
  const bool ok = make_key_(num_keys_, key) && gcm_->set_key(key.key);
  if (ok) {
    iv_ = key.iv;
    ++num_keys_;
    num_records_ = 0;
    bytes_left_ = key_life_bytes_;
  }
  OPENSSL_cleanse(&key, sizeof key);
  return ok;
}

bool RecordCipher::run(std::uint32_t num_bytes, const std::byte* in, std::byte* out,
                       AesGcm::Tag tag) {
  if (bytes_left_ == 0 && !renew_key()) return false;
  bytes_left_ -= std::min<std::uint64_t>(bytes_left_, num_bytes);
  auto nonce = iv_;
  for (std::size_t i = 0; i < 8; ++i)
    nonce[4 + i] ^= static_cast<unsigned char>(num_records_ >> (56 - 8 * i));
  ++num_records_;
  return gcm_->run(nonce, std::as_bytes(std::span(&num_bytes, 1)), {in, num_bytes}, out, tag);
}

}  // namespace snug::wire
