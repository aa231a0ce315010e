// wire/record_cipher.h - AES-128-GCM over the records of one direction of a channel.
//
// A record is u32 bytes of plaintext | as many bytes of ciphertext | a tag of 16 bytes. The length
// is authenticated too. Records are numbered, and the number is part of the nonce: one that was
// changed, repeated, left out or moved does not open. Keys come from the TLS handshake and are
// replaced after `key_life_bytes`, at the same record at both ends.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "wire/aes_gcm.h"

namespace snug::wire {

inline constexpr std::size_t kMaxRecordBytes = std::size_t{128} << 10;
inline constexpr std::size_t kTagBytes = AesGcm::kTagBytes;
// GCM's bounds allow some 400 GB under one key (RFC 8446, section 5.5).
inline constexpr std::uint64_t kKeyLifeBytes = std::uint64_t{64} << 30;

class RecordCipher {
 public:
  struct Key {
    AesGcm::Key key;
    AesGcm::Nonce iv;
  };
  // Makes the key number `epoch` of this direction; false if OpenSSL fails.
  using MakeKey = std::function<bool(std::uint64_t epoch, Key& key)>;

  RecordCipher(std::unique_ptr<AesGcm> gcm, MakeKey make_key, std::uint64_t key_life_bytes)
      : gcm_(std::move(gcm)), make_key_(std::move(make_key)), key_life_bytes_(key_life_bytes) {}

  // The length, as in front of the record, then bytes from `in` to `out`, which may be the same.
  // The tag is written or compared as by AesGcm: false if the record is not what was sealed, or
  // there is no key.
  bool run(std::uint32_t num_bytes, const std::byte* in, std::byte* out, AesGcm::Tag tag);

 private:
  bool renew_key();

  const std::unique_ptr<AesGcm> gcm_;
  const MakeKey make_key_;
  const std::uint64_t key_life_bytes_;
  AesGcm::Nonce iv_{};
  std::uint64_t num_keys_ = 0, num_records_ = 0, bytes_left_ = 0;  // records under this key
};

}  // namespace snug::wire
