// frame/errors.h - the usual kinds of Status, one call each.
#pragma once
#include <cstdint>

#include "snug/status.h"

namespace snug::frame {

constexpr Status corrupt(const char* what, std::uint64_t byte = kNowhere,
                         std::uint64_t found = kNowhere, std::uint64_t expected = kNowhere,
                         std::uint64_t block = kNowhere) noexcept {
  return {Code::kCorrupt, what, block, byte, found, expected};
}

// A failure that has no place in the data.
constexpr Status failure(Code code, const char* what, std::uint64_t found = kNowhere,
                         std::uint64_t expected = kNowhere) noexcept {
  return {code, what, kNowhere, kNowhere, found, expected};
}

}  // namespace snug::frame
