// support/reseal.h - makes a tampered frame's checksums right again, so that
// hostile bytes reach the code behind them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace snug::test {

// Recomputes the checksum of every block whose payload lies inside the frame,
// then the one over header and index, as far as the header makes sense.
void reseal(std::span<std::byte> frame) noexcept;

// The header checksum alone.
void reseal_head(std::span<std::byte> frame) noexcept;

}  // namespace snug::test
