// support/sanitizer.h - how much work a test may do.
#pragma once
#include <cstddef>

namespace snug::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

// Repetitions of a randomised test: sanitizers make each some ten times slower.
inline constexpr std::size_t repetitions(std::size_t normally) {
  return kSanitized ? (normally + 9) / 10 : normally;
}

}  // namespace snug::test
