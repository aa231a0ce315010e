// Pages to one frame and back, many tensors to many frames, transcoding, graphs.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "gpu/gpu_buffers.h"
#include "support/inputs.h"
#include "support/prng.h"

namespace snug::test {
namespace {

using cuda::DeviceResult;

DeviceResult* result_of(const DeviceBuffer& buffer) {
  return reinterpret_cast<DeviceResult*>(buffer.data());
}

// Splits a device buffer into segments of the given lengths, in shuffled places.
struct Pages {
  DeviceBuffer storage, list;
  std::vector<cuda::Segment> segments;

  Pages(std::size_t total, const std::vector<std::size_t>& lengths, Prng& prng)
      : storage(total + 64 * lengths.size()), list(lengths.size() * sizeof(cuda::Segment)) {
    std::size_t at = 0;
    for (const std::size_t length : lengths) {
      segments.push_back({storage.data() + at, length});
      at += length + (prng.one_in(3) ? prng.below(16) : 0);
      if (prng.one_in(2)) at = (at + 15) / 16 * 16;
    }
    Bytes bytes(lengths.size() * sizeof(cuda::Segment));
    std::memcpy(bytes.data(), segments.data(), bytes.size());
    list.upload(bytes);
  }
  void fill(const Bytes& raw) {
    std::size_t at = 0;
    for (const auto& s : segments) {
      SNUG_CUDA_OK(cudaMemcpy(s.data, raw.data() + at, s.num_bytes, cudaMemcpyHostToDevice));
      at += s.num_bytes;
    }
  }
  Bytes collect(std::size_t total) const {
    Bytes raw(total);
    std::size_t at = 0;
    for (const auto& s : segments) {
      EXPECT_EQ(cudaMemcpy(raw.data() + at, s.data, s.num_bytes, cudaMemcpyDeviceToHost),
                cudaSuccess);
      at += s.num_bytes;
    }
    return raw;
  }
  const cuda::Segment* device() const {
    return reinterpret_cast<const cuda::Segment*>(list.data());
  }
};

void check_pages(const Bytes& raw, const std::vector<std::size_t>& lengths, DType dtype,
                 Codec codec, int log2_block = 12) {
  Prng prng(lengths.size());
  Pages pages(raw.size(), lengths, prng), back(raw.size(), lengths, prng);
  pages.fill(raw);
  cuda::EncodeOptions options;
  options.dtype = dtype;
  options.codec = codec;
  options.log2_block = log2_block;
  const Bytes expected = encode_or_fail(view(raw), {dtype, codec, log2_block, 1});
  DeviceBuffer frame(encode_bound(raw.size(), {dtype, codec, log2_block, 1})),
      result(sizeof(DeviceResult));
  DeviceBuffer ws(cuda::paged_workspace_bytes(raw.size(), lengths.size(), dtype, log2_block));
  ASSERT_TRUE(cuda::encode_paged(pages.device(), lengths.size(), raw.size(),
                                 {frame.data(), frame.size()}, {ws.data(), ws.size()},
                                 result_of(result), options, nullptr)
                  .ok());
  SNUG_CUDA_OK(cudaDeviceSynchronize());
  const DeviceResult r = fetch_result(result);
  ASSERT_EQ(r.code, 0u) << to_string(cuda::to_status(r));
  ASSERT_EQ(r.num_bytes, expected.size());
  ASSERT_TRUE(frame.download(r.num_bytes) == expected);
  cuda::DecodeOptions d;
  d.dtype = dtype;
  d.codec = codec;
  d.log2_block = log2_block;
  ASSERT_TRUE(cuda::decode_paged({frame.data(), frame.size()}, back.device(), lengths.size(),
                                 raw.size(), {ws.data(), ws.size()}, result_of(result), d, nullptr)
                  .ok());
  SNUG_CUDA_OK(cudaDeviceSynchronize());
  ASSERT_EQ(fetch_result(result).code, 0u);
  EXPECT_TRUE(back.collect(raw.size()) == raw);
}

TEST(GpuPages, AnyLengths) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF8E5M2})
    for (const Codec codec : {Codec::kEntropy, Codec::kFixed}) {
      const Bytes raw = make_input(input_named("outliers"), dtype, 30011);
      Prng prng(7);
      std::vector<std::size_t> same, any;
      for (std::size_t left = raw.size(); left > 0; left -= same.back())
        same.push_back(std::min<std::size_t>(left, 8192));
      for (std::size_t left = raw.size(); left > 0; left -= any.back())
        any.push_back(
            std::min<std::size_t>(left, prng.one_in(4) ? prng.below(4) : 1 + prng.below(5000)));
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + codec_name(codec));
      check_pages(raw, same, dtype, codec);
      check_pages(raw, any, dtype, codec);
      if (testing::Test::HasFatalFailure()) return;
    }
}

// What paged_workspace_bytes() says is enough in both directions.
TEST(GpuPages, SmallTensors) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF8E5M2})
    for (const Codec codec : {Codec::kEntropy, Codec::kFixed})
      for (const std::size_t n : {1, 100, 4096}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + codec_name(codec) + " " +
                     std::to_string(n));
        const Bytes raw = make_input(input_named("gaussian"), dtype, n);
        check_pages(raw, {raw.size()}, dtype, codec);
        if (testing::Test::HasFatalFailure()) return;
      }
}

// Blocks too large for the usual kernels; the workspace is for either codec.
TEST(GpuPages, LargeBlocks) {
  for (const DType dtype : {DType::kBF16, DType::kF32})
    for (const Codec codec : {Codec::kEntropy, Codec::kFixed})
      for (const int log2_block : {15, 16, 17}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + codec_name(codec) + " log2_block " +
                     std::to_string(log2_block));
        const Bytes raw = make_input(input_named("gaussian"), dtype, 300011);
        std::vector<std::size_t> lengths;
        for (std::size_t left = raw.size(); left > 0; left -= lengths.back())
          lengths.push_back(std::min<std::size_t>(left, 32768));
        check_pages(raw, lengths, dtype, codec, log2_block);
        if (testing::Test::HasFatalFailure()) return;
      }
}

TEST(GpuBatch, ManyTensors) {
  Prng prng(3);
  std::vector<Bytes> tensors;
  std::size_t total = 0;
  for (const std::size_t n : {0, 1, 5000, 4096, 100, 33000, 8192, 0, 77}) {
    tensors.push_back(n == 0 ? Bytes() : make_input(input_named("gaussian"), DType::kBF16, n));
    if (n == 77) tensors.back().pop_back();
    total += tensors.back().size();
  }
  for (const Codec codec : {Codec::kEntropy, Codec::kFixed}) {
    cuda::EncodeOptions options;
    options.codec = codec;
    options.log2_block = 12;
    cuda::DecodeOptions d;
    d.codec = codec;
    std::vector<std::unique_ptr<DeviceBuffer>> src, frames, dst;
    std::vector<cuda::BatchItem> encode_items, decode_items;
    for (const Bytes& t : tensors) {
      src.push_back(std::make_unique<DeviceBuffer>(t, prng.below(3)));
      dst.push_back(std::make_unique<DeviceBuffer>(t.size()));
      frames.push_back(
          std::make_unique<DeviceBuffer>(encode_bound(t.size(), {DType::kBF16, codec, 12, 1})));
      encode_items.push_back(
          {src.back()->data(), t.size(), frames.back()->data(), frames.back()->size()});
      decode_items.push_back(
          {dst.back()->data(), t.size(), frames.back()->data(), frames.back()->size()});
    }
    const std::size_t count = tensors.size();
    DeviceBuffer items(count * sizeof(cuda::BatchItem)), results(count * sizeof(DeviceResult));
    DeviceBuffer ws(cuda::batch_workspace_bytes(total, count, DType::kBF16, 12));
    Bytes bytes(items.size());
    std::memcpy(bytes.data(), encode_items.data(), bytes.size());
    items.upload(bytes);
    const auto* list = reinterpret_cast<const cuda::BatchItem*>(items.data());
    ASSERT_TRUE(cuda::encode_batch(list, count, total, {ws.data(), ws.size()}, result_of(results),
                                   options, nullptr)
                    .ok());
    SNUG_CUDA_OK(cudaDeviceSynchronize());
    std::vector<DeviceResult> r(count);
    Bytes got = results.download(results.size());
    std::memcpy(r.data(), got.data(), got.size());
    for (std::size_t i = 0; i < count; ++i) {
      const Bytes expected = encode_or_fail(view(tensors[i]), {DType::kBF16, codec, 12, 1});
      ASSERT_EQ(r[i].code, 0u) << i;
      ASSERT_EQ(r[i].num_bytes, expected.size()) << i;
      EXPECT_TRUE(frames[i]->download(expected.size()) == expected) << i;
    }
    std::memcpy(bytes.data(), decode_items.data(), bytes.size());
    items.upload(bytes);
    ASSERT_TRUE(cuda::decode_batch(list, count, total, {ws.data(), ws.size()}, result_of(results),
                                   d, nullptr)
                    .ok());
    SNUG_CUDA_OK(cudaDeviceSynchronize());
    got = results.download(results.size());
    std::memcpy(r.data(), got.data(), got.size());
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(r[i].code, 0u) << i;
      EXPECT_TRUE(dst[i]->download(tensors[i].size()) == tensors[i]) << i;
    }
    // A total that is too small is noticed on the device.
    DeviceBuffer small(cuda::batch_workspace_bytes(4096, count, DType::kBF16, 12));
    ASSERT_TRUE(cuda::encode_batch(list, count, 4096, {small.data(), small.size()},
                                   result_of(results), options, nullptr)
                    .ok());
    SNUG_CUDA_OK(cudaDeviceSynchronize());
    EXPECT_EQ(fetch_result(results).code, static_cast<std::uint32_t>(Code::kUsage));
  }
}

TEST(GpuTranscode, BothWaysInsideAGraph) {
  const Bytes raw = make_input(input_named("gaussian"), DType::kBF16, 50001);
  cudaStream_t stream;
  SNUG_CUDA_OK(cudaStreamCreate(&stream));
  for (const auto& [from, to] :
       {std::pair{Codec::kEntropy, Codec::kFixed}, std::pair{Codec::kFixed, Codec::kEntropy}}) {
    Bytes framed = encode_or_fail(view(raw), {DType::kBF16, from, 12, 1});
    const Bytes expected = encode_or_fail(view(raw), {DType::kBF16, to, 13, 1});
    cuda::EncodeOptions options;
    options.codec = to;
    options.log2_block = 13;
    DeviceBuffer frame(framed), tensor(raw.size()),
        next(encode_bound(raw.size(), {DType::kBF16, to, 13, 1}));
    DeviceBuffer ws(cuda::transcode_workspace_bytes(raw.size(), options)),
        result(sizeof(DeviceResult));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    SNUG_CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    const Status status = cuda::transcode(
        {frame.data(), framed.size()}, {tensor.data(), raw.size()}, {next.data(), next.size()},
        {ws.data(), ws.size()}, result_of(result), options, stream);
    SNUG_CUDA_OK(cudaStreamEndCapture(stream, &graph));
    ASSERT_TRUE(status.ok()) << to_string(status);
    SNUG_CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 2; ++i) {
      SNUG_CUDA_OK(cudaGraphLaunch(exec, stream));
      SNUG_CUDA_OK(cudaStreamSynchronize(stream));
      ASSERT_EQ(fetch_result(result).code, 0u);
      ASSERT_TRUE(next.download(fetch_result(result).num_bytes) == expected);
    }
    // A damaged frame is reported, not transcoded.
    framed[framed.size() / 2] ^= std::byte{1};
    frame.upload(framed);
    SNUG_CUDA_OK(cudaGraphLaunch(exec, stream));
    SNUG_CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(fetch_result(result).code, static_cast<std::uint32_t>(Code::kCorrupt));
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  }
  cudaStreamDestroy(stream);
}

TEST(GpuLimits, FewSmsGiveTheSameBytes) {
  const Bytes raw = make_input(input_named("gaussian"), DType::kBF16, 100000);
  for (const Codec codec : {Codec::kEntropy, Codec::kFixed}) {
    cuda::EncodeOptions options;
    options.codec = codec;
    options.log2_block = 12;
    const Bytes all = gpu_encode(raw, options);
    options.max_sms = 1;
    EXPECT_TRUE(gpu_encode(raw, options) == all);
  }
}

}  // namespace
}  // namespace snug::test
