// wire/message_rules.h - rules for messages, the same on a connection and on a GPU link.
#pragma once
#include <chrono>

#include "snug/wire.h"

namespace snug::wire {

// Messages in one direction whose arrival is not confirmed yet.
inline constexpr std::size_t kMaxOpenMessages = 4096;
inline constexpr Status kTooManyMessages{Code::kUsage, "too many messages at once", kNowhere,
                                         kNowhere, kMaxOpenMessages};
inline constexpr Status kOtherDType{Code::kUsage, "the message has another dtype than the receive"};

inline Codec codec_of(Mode mode) noexcept {
  return mode == Mode::kFixed ? Codec::kFixed : Codec::kEntropy;
}

// Whether encoding saves enough to be worth the decoder's time: more than 1/32.
inline bool helps(std::uint64_t raw_bytes, std::uint64_t coded_bytes) noexcept {
  return coded_bytes < raw_bytes - raw_bytes / 32;
}

inline Status check_timeout(std::chrono::milliseconds timeout) noexcept {
  if (timeout.count() < 1) return {Code::kUsage, "the timeout must be at least 1 ms"};
  // Deadlines are nanoseconds in 64 bits.
  if (timeout > std::chrono::hours(24 * 365))
    return {Code::kUsage, "the timeout must be at most a year"};
  return {};
}

inline Status check_size(std::uint64_t message_bytes, std::uint64_t receive_bytes) noexcept {
  if (message_bytes == receive_bytes) return {};
  return {Code::kDstTooSmall, "the message has another size than the receive",
          kNowhere,           kNowhere,
          message_bytes,      receive_bytes};
}

// What the code with which the peer gave up means on this side.
inline Status peer_failure(std::uint64_t code, const char* goodbye) noexcept {
  switch (static_cast<Code>(code)) {
    case Code::kOk: return {Code::kPeer, goodbye};
    case Code::kCorrupt: return {Code::kCorrupt, "the peer received damaged data"};
    case Code::kIo: return {Code::kIo, "the peer could not read or write its data"};
    case Code::kTimeout: return {Code::kTimeout, "the peer waited too long for this side"};
    case Code::kDstTooSmall: return {Code::kPeer, "the peer expected a message of another size"};
    case Code::kUsage: return {Code::kPeer, "the peer expected a message of another dtype"};
    case Code::kNoDevice: return {Code::kPeer, "the GPU of the peer reported an error"};
    default: return {Code::kPeer, "the peer gave up", kNowhere, kNowhere, code};
  }
}

}  // namespace snug::wire
