// Encoding of BF16 tensors by few multiprocessors, so that every warp has several blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gpu/gpu_buffers.h"
#include "support/inputs.h"

namespace snug::test {
namespace {

cuda::EncodeOptions few_sms(int log2_block, int max_sms) {
  cuda::EncodeOptions options;
  options.codec = Codec::kEntropy;
  options.log2_block = log2_block;
  options.max_sms = max_sms;
  return options;
}

void check(const Bytes& raw, int log2_block, const std::string& what) {
  const Bytes expected = encode_or_fail(view(raw), {DType::kBF16, Codec::kEntropy, log2_block, 1});
  for (const int max_sms : {1, 3})
    for (const std::size_t misalign : {0, 2}) {
      SCOPED_TRACE(what + " log2_block " + std::to_string(log2_block) + " max_sms " +
                   std::to_string(max_sms) + " misalign " + std::to_string(misalign));
      EXPECT_TRUE(gpu_encode(raw, few_sms(log2_block, max_sms), misalign) == expected);
    }
}

Bytes bf16_input(const std::string& name, std::size_t n) {
  return make_input(input_named(name.c_str()), DType::kBF16, n);
}

TEST(GpuFewSms, AllInputs) {
  for (const Input& input : inputs())
    if (input.applies(DType::kBF16))
      check(make_input(input, DType::kBF16, (std::size_t{50} << 12) + 1234), 12, input.name);
}

// Blocks that are coded, written raw, constant or sent the general way, in turn.
TEST(GpuFewSms, AllKindsOfBlocksInTurn) {
  for (const int log2_block : {12, 13, 14}) {
    Bytes raw;
    for (int i = 0; i < 14; ++i)
      for (const Input& input : inputs()) {
        if (!input.applies(DType::kBF16)) continue;
        const Bytes part = make_input(input, DType::kBF16, std::size_t{1} << log2_block);
        raw.insert(raw.end(), part.begin(), part.end());
        if (raw.size() > std::size_t{120} << log2_block) break;
      }
    raw.resize(raw.size() - 333);
    check(raw, log2_block, "mixed");
  }
}

void check_many_tensors(int log2_block) {
  SCOPED_TRACE(log2_block);
  std::vector<Bytes> tensors;
  std::size_t total = 0;
  for (std::size_t i = 0; i < 60; ++i) {
    tensors.push_back(i % 7 == 3 ? Bytes() : bf16_input("gaussian", 1 + i * 997 % 20000));
    total += tensors.back().size();
  }
  const std::size_t count = tensors.size();
  std::vector<std::unique_ptr<DeviceBuffer>> src, frames;
  std::vector<cuda::BatchItem> list;
  for (const Bytes& t : tensors) {
    src.push_back(std::make_unique<DeviceBuffer>(t));
    frames.push_back(std::make_unique<DeviceBuffer>(
        encode_bound(t.size(), {DType::kBF16, Codec::kEntropy, log2_block, 1})));
    list.push_back({src.back()->data(), t.size(), frames.back()->data(), frames.back()->size()});
  }
  DeviceBuffer items(count * sizeof(cuda::BatchItem)), results(count * sizeof(cuda::DeviceResult));
  DeviceBuffer ws(cuda::batch_workspace_bytes(total, count, DType::kBF16, log2_block));
  Bytes bytes(items.size());
  std::memcpy(bytes.data(), list.data(), bytes.size());
  items.upload(bytes);
  for (const int max_sms : {1, 3}) {
    ASSERT_TRUE(cuda::encode_batch(reinterpret_cast<const cuda::BatchItem*>(items.data()), count,
                                   total, {ws.data(), ws.size()},
                                   reinterpret_cast<cuda::DeviceResult*>(results.data()),
                                   few_sms(log2_block, max_sms), nullptr)
                    .ok());
    SNUG_CUDA_OK(cudaDeviceSynchronize());
    std::vector<cuda::DeviceResult> r(count);
    const Bytes got = results.download(results.size());
    std::memcpy(r.data(), got.data(), got.size());
    for (std::size_t i = 0; i < count; ++i) {
      const Bytes expected =
          encode_or_fail(view(tensors[i]), {DType::kBF16, Codec::kEntropy, log2_block, 1});
      ASSERT_EQ(r[i].code, 0u) << i;
      ASSERT_EQ(r[i].num_bytes, expected.size()) << i;
      EXPECT_TRUE(frames[i]->download(expected.size()) == expected) << i;
    }
  }
}

TEST(GpuFewSms, ManyTensorsSomeOfThemEmpty) { check_many_tensors(12); }
TEST(GpuFewSms, ManyTensorsOfLargeBlocks) { check_many_tensors(14); }

void check_room_too_small(int log2_block) {
  SCOPED_TRACE(log2_block);
  const Bytes raw = bf16_input("gaussian", 300000);
  const cuda::EncodeOptions options = few_sms(log2_block, 1);
  const std::size_t whole =
      encode_or_fail(view(raw), {DType::kBF16, Codec::kEntropy, log2_block, 1}).size();
  DeviceBuffer src(raw), result(sizeof(cuda::DeviceResult)),
      ws(cuda::encode_workspace_bytes(raw.size(), options));
  for (const std::size_t room :
       {std::size_t{0}, std::size_t{112}, whole / 2 / 16 * 16, whole - 16}) {
    DeviceBuffer small(room);
    ASSERT_TRUE(cuda::encode({src.data(), raw.size()}, {small.data(), room}, {ws.data(), ws.size()},
                             reinterpret_cast<cuda::DeviceResult*>(result.data()), options, nullptr)
                    .ok());
    SNUG_CUDA_OK(cudaDeviceSynchronize());
    EXPECT_EQ(fetch_result(result).code, static_cast<std::uint32_t>(Code::kDstTooSmall)) << room;
    EXPECT_TRUE(small.end_is_intact());
  }
}

TEST(GpuFewSms, RoomTooSmall) { check_room_too_small(12); }
TEST(GpuFewSms, RoomTooSmallForLargeBlocks) { check_room_too_small(14); }

// One warp more than once, and small enough for slow tools.
TEST(GpuFewSms, FewLargeBlocks) {
  for (const char* name : {"gaussian", "random_bits"}) {
    const Bytes raw = bf16_input(name, (std::size_t{17} << 14) + 777);
    EXPECT_TRUE(gpu_encode(raw, few_sms(14, 1), 0) ==
                encode_or_fail(view(raw), {DType::kBF16, Codec::kEntropy, 14, 1}))
        << name;
  }
}

}  // namespace
}  // namespace snug::test
