#include "wire/sha256.h"

#include <bit>
#include <cassert>
#include <cstring>

namespace snug::wire {
namespace {

constexpr std::size_t kBlockBytes = 64;

constexpr std::uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void compress(std::uint32_t (&state)[8], const std::uint8_t* block) noexcept {
  using std::rotr;
  std::uint32_t w[64];
  for (int i = 0; i < 16; ++i)
    w[i] = std::uint32_t{block[4 * i]} << 24 | std::uint32_t{block[4 * i + 1]} << 16 |
           std::uint32_t{block[4 * i + 2]} << 8 | block[4 * i + 3];
  for (int i = 16; i < 64; ++i) {
    const std::uint32_t s0 = rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const std::uint32_t s1 = rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int i = 0; i < 64; ++i) {
    const std::uint32_t s1 = rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const std::uint32_t s0 = rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::uint32_t sums[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state[i] += sums[i];
}

}  // namespace

Digest sha256(std::span<const std::byte> bytes) noexcept {
  std::uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                            0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const auto* at = reinterpret_cast<const std::uint8_t*>(bytes.data());
  std::size_t left = bytes.size();
  for (; left >= kBlockBytes; at += kBlockBytes, left -= kBlockBytes) compress(state, at);
  std::uint8_t tail[2 * kBlockBytes] = {};
  if (left > 0) std::memcpy(tail, at, left);
  tail[left] = 0x80;
  const std::size_t tail_bytes = left + 9 <= kBlockBytes ? kBlockBytes : 2 * kBlockBytes;
  const std::uint64_t num_bits = std::uint64_t{bytes.size()} * 8;
  for (int i = 0; i < 8; ++i)
    tail[tail_bytes - 1 - static_cast<std::size_t>(i)] =
        static_cast<std::uint8_t>(num_bits >> (8 * i));
  for (std::size_t i = 0; i < tail_bytes; i += kBlockBytes) compress(state, tail + i);
  Digest digest;
  for (std::size_t i = 0; i < digest.size(); ++i)
    digest[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message) noexcept {
  constexpr std::size_t kMaxMessage = 256;
  assert(message.size() <= kMaxMessage);
  std::uint8_t pad[kBlockBytes] = {};
  if (key.size() > kBlockBytes) {
    const Digest short_key = sha256(key);
    std::memcpy(pad, short_key.data(), short_key.size());
  } else if (!key.empty()) {
    std::memcpy(pad, key.data(), key.size());
  }
  std::uint8_t buffer[kBlockBytes + kMaxMessage];
  for (std::size_t i = 0; i < kBlockBytes; ++i) buffer[i] = pad[i] ^ 0x36;
  if (!message.empty()) std::memcpy(buffer + kBlockBytes, message.data(), message.size());
  const Digest inner = sha256(std::as_bytes(std::span(buffer, kBlockBytes + message.size())));
  for (std::size_t i = 0; i < kBlockBytes; ++i) buffer[i] = pad[i] ^ 0x5c;
  std::memcpy(buffer + kBlockBytes, inner.data(), inner.size());
  return sha256(std::as_bytes(std::span(buffer, kBlockBytes + inner.size())));
}

bool equal_in_constant_time(std::span<const std::uint8_t> a,
                            std::span<const std::uint8_t> b) noexcept {
  unsigned different = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    different |= static_cast<unsigned>(a[i] ^ b[i]);
  return different == 0;
}

}  // namespace snug::wire
