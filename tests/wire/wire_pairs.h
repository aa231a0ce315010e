// tests/wire/wire_pairs.h - two ends of a connection in one process.
#pragma once
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "snug/wire.h"
#include "support/prng.h"

namespace snug::test {

using Bytes = std::vector<std::byte>;

struct Pair {
  wire::Connection a, b;
};

// Both ends over TCP on loopback.
Pair make_pair(const wire::Options& options = {}, const std::string& address = "127.0.0.1:0");
// `a` dials, `b` listens.
Pair make_unequal_pair(const wire::Options& a, const wire::Options& b);

// As weights: compresses to about two thirds.
Bytes gaussian_bf16(std::size_t num_bytes, std::uint64_t seed = 1);
Bytes random_bytes(std::size_t num_bytes, std::uint64_t seed = 1);

// Sends `data` from a to b in one piece and expects it to arrive.
void expect_round_trip(Pair& pair, DType dtype, const Bytes& data, std::uint64_t tag = 7);

}  // namespace snug::test
