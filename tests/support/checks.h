// support/checks.h - what must hold for any tensor and any options.
#pragma once
#include <gtest/gtest.h>

#include <span>

#include "snug/codec.h"
#include "support/inputs.h"

namespace snug::test {

std::span<const std::byte> view(const Bytes& bytes);

// One workspace for all tests of a program.
std::span<std::byte> shared_workspace();

// Encodes on this thread; fails the test and returns nothing on error.
Bytes encode_or_fail(std::span<const std::byte> raw, const EncodeOptions& options);

// Round trip with buffers of exactly the promised sizes, and all that the frame
// says about itself.
void check_round_trip(std::span<const std::byte> raw, const EncodeOptions& options);

// decode_range of some random ranges, and of the empty, first, last and whole ones.
void check_ranges(std::span<const std::byte> raw, std::span<const std::byte> frame, DType dtype);

// Calls every function that reads frames; none may crash or leave its buffers,
// and if the frame decodes, the result is returned.
Result<Bytes> read_hostile(std::span<const std::byte> frame);

}  // namespace snug::test
