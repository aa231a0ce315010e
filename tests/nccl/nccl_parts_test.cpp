// Small parts of the plugin: types from bytes, settings, interfaces, statistics, the binary
// interface.
#include <gtest/gtest.h>

#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "nccl/chunk_codec.h"
#include "nccl/detect.h"
#include "nccl/interfaces.h"
#include "nccl/net_abi.h"
#include "nccl/settings.h"
#include "nccl/stats.h"
#include "support/inputs.h"

namespace snug::test {
namespace {

using namespace nccl;

// ---- types ---------------------------------------------------------------------

Guess guess(const char* input, DType dtype) {
  return guess_dtype(make_input(input_named(input), dtype, 65536));
}

TEST(NcclDetect, KnowsTheTypes) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF8E4M3}) {
    const Guess found = guess("gaussian", dtype);
    EXPECT_EQ(found.dtype, dtype) << dtype_name(dtype);
    EXPECT_LT(found.ratio, 0.94) << dtype_name(dtype);
  }
  EXPECT_LT(guess("gaussian", DType::kF8E5M2).ratio, 0.94);
  EXPECT_EQ(guess("f32_holding_bf16", DType::kF32).dtype, DType::kF32);
  EXPECT_LT(guess("f32_holding_bf16", DType::kF32).ratio, 0.4);
}

TEST(NcclDetect, KnowsNoise) {
  for (const DType dtype : {DType::kBF16, DType::kF32})
    EXPECT_GT(guess("random_bits", dtype).ratio, 0.97);
  EXPECT_EQ(guess_dtype({}).ratio, 1);
  EXPECT_EQ(guess_dtype(Bytes(7)).ratio, 1);
}

// The estimate is what compression then gives, within a few percent.
TEST(NcclDetect, PredictsTheRatio) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const Bytes data = make_input(input_named("gaussian"), dtype, 65536);
    Bytes frame(chunk_frame_bound(data.size()));
    const std::size_t size = ChunkCodec().encode(data, frame, dtype, Codec::kEntropy);
    EXPECT_NEAR(guess_dtype(data).ratio,
                static_cast<double>(size) / static_cast<double>(data.size()), 0.05)
        << dtype_name(dtype);
  }
}

// ---- settings --------------------------------------------------------------------

struct Variables {
  explicit Variables(std::initializer_list<std::pair<const char*, const char*>> list) {
    for (const auto& [name, value] : list) ::setenv(name, value, 1), names.push_back(name);
  }
  ~Variables() {
    for (const char* name : names) ::unsetenv(name);
  }
  std::vector<const char*> names;
};

TEST(NcclSettings, Defaults) {
  const Settings settings = read_settings();
  EXPECT_EQ(settings.codec, CodecChoice::kAuto);
  EXPECT_EQ(settings.num_sockets, 4);
  EXPECT_EQ(settings.timeout, std::chrono::minutes(10));
  EXPECT_EQ(settings.stats, StatsFormat::kNone);
}

TEST(NcclSettings, ReadsVariables) {
  const Variables variables{
      {"SNUG_NCCL_CODEC", "entropy"},        {"SNUG_NCCL_SOCKETS", "2"},
      {"SNUG_NCCL_TIMEOUT", "1.5"},          {"SNUG_NCCL_STATS", "json:/some/path"},
      {"SNUG_NCCL_STATS_SIGNAL", "SIGUSR2"}, {"SNUG_NCCL_CHUNK_BYTES", "100000"},
      {"SNUG_NCCL_PACE_GBPS", "2.5"}};
  const Settings settings = read_settings();
  EXPECT_EQ(settings.codec, CodecChoice::kEntropy);
  EXPECT_EQ(settings.num_sockets, 2);
  EXPECT_EQ(settings.timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(settings.stats, StatsFormat::kJson);
  EXPECT_EQ(settings.stats_path, "/some/path");
  EXPECT_EQ(settings.stats_signal, SIGUSR2);
  EXPECT_EQ(settings.chunk_bytes % 4096, 0u);
  EXPECT_EQ(settings.pace_gbps, 2.5);
}

TEST(NcclSettings, NonsenseKeepsDefaults) {
  const Variables variables{{"SNUG_NCCL_CODEC", "zip"},
                            {"SNUG_NCCL_SOCKETS", "many"},
                            {"SNUG_NCCL_TIMEOUT", "-1"},
                            {"SNUG_NCCL_STATS", "xml"},
                            {"SNUG_NCCL_CHUNK_BYTES", "1e99"}};
  const Settings settings = read_settings(), defaults;
  EXPECT_EQ(settings.codec, defaults.codec);
  EXPECT_EQ(settings.num_sockets, defaults.num_sockets);
  EXPECT_EQ(settings.timeout, defaults.timeout);
  EXPECT_EQ(settings.stats, defaults.stats);
  EXPECT_EQ(settings.chunk_bytes, defaults.chunk_bytes);
}

// ---- interfaces ----------------------------------------------------------------

TEST(NcclInterfaces, MatchesAsNcclDoes) {
  EXPECT_TRUE(interface_matches("eth0", "eth"));
  EXPECT_TRUE(interface_matches("ib1", "eth,ib"));
  EXPECT_FALSE(interface_matches("eth0", "^docker,eth"));
  EXPECT_TRUE(interface_matches("ens5", "^docker,lo"));
  EXPECT_TRUE(interface_matches("eth1", "=eth1,eth2"));
  EXPECT_FALSE(interface_matches("eth10", "=eth1,eth2"));
  EXPECT_FALSE(interface_matches("eth0", ""));
}

// ---- statistics ------------------------------------------------------------------

TEST(NcclStats, CountsPerPeerAndType) {
  PeerStats& peer = stats_of_peer("node7:123");
  EXPECT_EQ(&peer, &stats_of_peer("node7:123"));
  peer.sent.add(1000, 670, 2'000'000, Codec::kEntropy, DType::kBF16);
  peer.sent.add(1000, 750, 1'000'000, Codec::kFixed, DType::kBF16);
  peer.received.add(50, 90);
  const auto report = nlohmann::json::parse(format_stats(StatsFormat::kJson));
  ASSERT_EQ(report["peers"].size(), 2u);
  const auto& sent = report["peers"][0];
  EXPECT_EQ(sent["peer"], "node7:123");
  EXPECT_EQ(sent["direction"], "sent");
  EXPECT_EQ(sent["type"], "bf16");
  EXPECT_EQ(sent["data_bytes"], 2000);
  EXPECT_EQ(sent["wire_bytes"], 1420);
  EXPECT_EQ(sent["codec_ms"], 3.0);
  EXPECT_EQ(sent["entropy_chunks"], 1);
  EXPECT_EQ(sent["fixed_chunks"], 1);
  EXPECT_EQ(report["peers"][1]["type"], "raw");
  EXPECT_NE(format_stats(StatsFormat::kText).find("node7:123"), std::string::npos);
}

// ---- the binary interface ---------------------------------------------------------

// Offsets that NCCL's headers give on 64-bit Linux.
TEST(NcclAbi, LayoutIsNccls) {
  EXPECT_EQ(sizeof(ncclNetProperties_v8_t), 64u);
  EXPECT_EQ(offsetof(ncclNetProperties_v8_t, speed), 32u);
  EXPECT_EQ(offsetof(ncclNetProperties_v9_t, speed), 36u);
  EXPECT_EQ(offsetof(ncclNetProperties_v9_t, vProps), 64u);
  EXPECT_EQ(offsetof(ncclNetProperties_v9_t, maxP2pBytes), 88u);
  EXPECT_EQ(sizeof(ncclNetProperties_v9_t), 104u);
  EXPECT_EQ(sizeof(ncclNetProperties_v11_t), 112u);
  EXPECT_EQ(offsetof(ncclNetProperties_v12_t, maxP2pBytes), 104u);
  EXPECT_EQ(offsetof(ncclNetProperties_v12_t, railId), 124u);
  EXPECT_EQ(sizeof(ncclNetProperties_v12_t), 128u);
  EXPECT_EQ(sizeof(ncclNet_v8_t), 19 * sizeof(void*));
  EXPECT_EQ(sizeof(ncclNet_v9_t), 20 * sizeof(void*));
  EXPECT_EQ(sizeof(ncclNet_v10_t), 20 * sizeof(void*));
  EXPECT_EQ(sizeof(ncclNet_v11_t), 22 * sizeof(void*));
  EXPECT_EQ(sizeof(ncclNet_v12_t), 22 * sizeof(void*));
  EXPECT_EQ(offsetof(ncclNet_v12_t, isend), 10 * sizeof(void*));
  EXPECT_EQ(offsetof(ncclNet_v12_t, test), 13 * sizeof(void*));
  EXPECT_EQ(offsetof(ncclNet_v12_t, finalize), 20 * sizeof(void*));
}

}  // namespace
}  // namespace snug::test
