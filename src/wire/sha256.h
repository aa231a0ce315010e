// wire/sha256.h - SHA-256 and HMAC, for the proof of the token.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace snug::wire {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(std::span<const std::byte> bytes) noexcept;
// HMAC-SHA-256; `message` is at most 256 bytes.
Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message) noexcept;

bool equal_in_constant_time(std::span<const std::uint8_t> a,
                            std::span<const std::uint8_t> b) noexcept;

}  // namespace snug::wire
