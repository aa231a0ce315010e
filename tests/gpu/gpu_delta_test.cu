// Deltas on the GPU: the CPU's bytes, the CPU's results, and tensors that are changed
// completely or not at all.
#include <cstring>
#include <string>

#include "delta/delta_format.h"
#include "gpu/gpu_buffers.h"
#include "snug/cuda.h"
#include "snug/delta.h"
#include "support/delta_versions.h"

namespace snug::test {
namespace {

constexpr DType kNarrow[] = {DType::kBF16,   DType::kF16, DType::kF8E4M3,
                             DType::kF8E5M2, DType::kI16, DType::kBytes};

cuda::DeviceResult* result_in(const DeviceBuffer& buffer) {
  return reinterpret_cast<cuda::DeviceResult*>(buffer.data());
}

Bytes gpu_delta(const Versions& versions, const cuda::DeltaOptions& options) {
  const delta::Options same{options.dtype, options.log2_block, false, 1};
  const DeviceBuffer base(versions.base), next(versions.next);
  const DeviceBuffer out(delta::encode_bound(versions.next.size(), same)),
      result(sizeof(cuda::DeviceResult));
  const DeviceBuffer workspace(cuda::delta_encode_workspace_bytes(versions.next.size(), options));
  const Status status = cuda::delta_encode(
      {base.data(), base.size()}, {next.data(), next.size()}, {out.data(), out.size()},
      {workspace.data(), workspace.size()}, result_in(result), options, nullptr);
  EXPECT_TRUE(status.ok()) << to_string(status);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const cuda::DeviceResult r = fetch_result(result);
  EXPECT_EQ(r.code, 0u) << to_string(cuda::to_status(r));
  EXPECT_TRUE(out.end_is_intact());
  EXPECT_TRUE(workspace.end_is_intact());
  return r.code == 0 ? out.download(r.num_bytes) : Bytes();
}

// Applies `delta` to `tensor` on the GPU.
Status gpu_apply(const Bytes& delta, Bytes& tensor, const cuda::DeltaOptions& options) {
  const DeviceBuffer update(delta), target(tensor), result(sizeof(cuda::DeviceResult));
  const DeviceBuffer workspace(cuda::delta_apply_workspace_bytes(tensor.size(), options));
  const Status status =
      cuda::delta_apply({update.data(), update.size()}, {target.data(), target.size()},
                        {workspace.data(), workspace.size()}, result_in(result), options, nullptr);
  EXPECT_TRUE(status.ok()) << to_string(status);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(target.end_is_intact());
  tensor = target.download(tensor.size());
  const cuda::DeviceResult r = fetch_result(result);
  return r.code == 0 ? Status{} : cuda::to_status(r);
}

// The same, to other memory; `tensor` becomes the target only if there is no error.
Status gpu_apply_to(const Bytes& delta, Bytes& tensor, const cuda::DeltaOptions& options) {
  const DeviceBuffer update(delta), base(tensor), target(tensor.size()),
      result(sizeof(cuda::DeviceResult));
  const DeviceBuffer workspace(cuda::delta_apply_workspace_bytes(tensor.size(), options));
  const Status status = cuda::delta_apply_to(
      {update.data(), update.size()}, {base.data(), base.size()}, {target.data(), target.size()},
      {workspace.data(), workspace.size()}, result_in(result), options, nullptr);
  EXPECT_TRUE(status.ok()) << to_string(status);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(target.end_is_intact());
  EXPECT_TRUE(base.download(tensor.size()) == tensor);
  const cuda::DeviceResult r = fetch_result(result);
  if (r.code != 0) return cuda::to_status(r);
  tensor = target.download(tensor.size());
  return {};
}

void check(const Versions& versions, DType dtype, int log2_block) {
  cuda::DeltaOptions options;
  options.dtype = dtype;
  options.log2_block = log2_block;
  const Bytes expected = encode_delta(versions, {dtype, log2_block, false, 1});
  const Bytes delta = gpu_delta(versions, options);
  ASSERT_EQ(delta.size(), expected.size());
  if (delta != expected) {
    std::size_t at = 0;
    while (delta[at] == expected[at]) ++at;
    FAIL() << "byte " << at << " of " << delta.size() << " differs";
  }
  for (const auto apply : {gpu_apply, gpu_apply_to}) {
    Bytes tensor = versions.base;
    const Status applied = apply(expected, tensor, options);
    EXPECT_TRUE(applied.ok()) << to_string(applied);
    EXPECT_TRUE(tensor == versions.next);
  }
}

TEST(GpuDelta, SameBytesAsTheCpuAndBack) {
  for (const DType dtype : kNarrow)
    for (const Change& change : changes())
      for (const int log2_block : {12, 13, 14}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + change.name + " " +
                     std::to_string(log2_block));
        const std::size_t block = std::size_t{1} << log2_block;
        for (const std::size_t n : {2 * block + 77, block})
          ASSERT_NO_FATAL_FAILURE(
              check(make_versions(change, dtype, n, elem_bytes(dtype) - 1), dtype, log2_block));
      }
}

TEST(GpuDelta, AllSizesAroundThreads) {
  for (const Change& change : changes())
    for (const std::size_t n : {0, 1, 31, 32, 33, 511, 512, 513, 1000, 4095, 4097}) {
      SCOPED_TRACE(std::string(change.name) + " " + std::to_string(n));
      for (const std::size_t extra : {0, 1})
        ASSERT_NO_FATAL_FAILURE(
            check(make_versions(change, DType::kBF16, n, extra), DType::kBF16, 12));
    }
}

TEST(GpuDelta, ManyBlocksOfATrainingStep) {
  for (const int log2_block : {12, 13, 14})
    ASSERT_NO_FATAL_FAILURE(
        check(training_step((std::size_t{1} << 22) + 12345, 8e-7), DType::kBF16, log2_block));
}

// Rounds of the encoder in which some blocks, or all, have more changes than its warps have
// room for; in the decoder, blocks that only the launch with more room can do.
TEST(GpuDelta, FewDenseBlocksAmongManySparseOnes) {
  constexpr std::size_t kBlock = 1 << 13;
  const auto change = [](Versions& versions, std::size_t first, std::size_t count, int one_in) {
    Prng prng(first);
    for (std::size_t i = first; i < first + count; ++i)
      if (prng.one_in(static_cast<std::size_t>(one_in)))
        versions.next[2 * i] ^= static_cast<std::byte>(1 + prng.below(255));
  };
  Versions versions = training_step(100 * kBlock + 33, 8e-7);
  change(versions, 20 * kBlock, kBlock, 8);       // one of a round
  change(versions, 35 * kBlock, kBlock, 1);       // all of a block's elements
  change(versions, 64 * kBlock, 16 * kBlock, 2);  // a whole round
  change(versions, 82 * kBlock, 5 * kBlock, 5);
  change(versions, 100 * kBlock, 33, 1);
  ASSERT_NO_FATAL_FAILURE(check(versions, DType::kBF16, 13));
  ASSERT_NO_FATAL_FAILURE(check(versions, DType::kI16, 12));
  ASSERT_NO_FATAL_FAILURE(check(versions, DType::kF16, 14));
}

TEST(GpuDelta, SmallerBlocksThanAskedFor) {
  const Versions versions = training_step(100'000, 2e-6);
  cuda::DeltaOptions options;
  options.log2_block = 14;
  Bytes tensor = versions.base;
  EXPECT_TRUE(
      gpu_apply(encode_delta(versions, {DType::kBF16, 12, false, 1}), tensor, options).ok());
  EXPECT_TRUE(tensor == versions.next);
}

TEST(GpuDelta, AnotherBaseIsRefused) {
  const Versions versions = training_step(40'000, 2e-6);
  const Bytes delta = encode_delta(versions, {DType::kBF16, 12, false, 1});
  Prng prng(5);
  for (int i = 0; i < 20; ++i) {
    Bytes tensor = versions.base;
    tensor[prng.below(tensor.size())] ^= static_cast<std::byte>(1 << prng.below(8));
    const Bytes before = tensor;
    EXPECT_EQ(gpu_apply(delta, tensor, {}).code, Code::kWrongBase);
    EXPECT_TRUE(tensor == before);
  }
  Bytes shorter(versions.base.begin(), versions.base.end() - 2);
  EXPECT_EQ(gpu_apply(delta, shorter, {}).code, Code::kWrongBase);
  EXPECT_EQ(gpu_apply_to(delta, shorter, {}).code, Code::kWrongBase);
}

// Every damaged delta is refused, or does what the CPU does with it.
TEST(GpuDelta, DamageGivesAnErrorOrTheRightData) {
  for (const char* change :
       {"few_last_bits", "some_small", "most_last_bits", "few_anything", "everything"}) {
    const Versions versions = make_versions(change_named(change), DType::kBF16, 4096 + 300, 1);
    const Bytes delta = encode_delta(versions, {DType::kBF16, 12, false, 1});
    Prng prng(9);
    for (int i = 0; i < 150; ++i) {
      Bytes damaged = delta;
      for (std::size_t k = 1 + prng.below(2); k-- > 0;)
        damaged[prng.below(i % 2 == 0 ? std::min<std::size_t>(damaged.size(), 110)
                                      : damaged.size())] = static_cast<std::byte>(prng.byte());
      if (const auto header = delta::read_header(view(damaged));
          header && header->payload_start() < damaged.size()) {
        const std::uint32_t sum = delta::head_checksum(
            reinterpret_cast<std::uint8_t*>(damaged.data()), header->payload_start());
        std::memcpy(damaged.data() + 56, &sum, 4);
      }
      Bytes on_cpu = versions.base;
      const Status cpu = delta::apply_in_place(view(damaged), on_cpu);
      for (const auto apply : {gpu_apply, gpu_apply_to}) {
        Bytes on_gpu = versions.base;
        const Status gpu = apply(damaged, on_gpu, {});
        EXPECT_EQ(cpu.ok(), gpu.ok()) << to_string(cpu) << " | " << to_string(gpu);
        EXPECT_TRUE(on_gpu == on_cpu) << change << " " << i;
      }
    }
  }
}

TEST(GpuDelta, HashesAreTheCpus) {
  for (const std::size_t n : {0, 1, 7, 8, 9, 4096, 100'003}) {
    const Bytes bytes = n == 0 ? Bytes() : make_input(input_named("random_bits"), DType::kBytes, n);
    const DeviceBuffer tensor(bytes), hash(8), workspace(256);
    EXPECT_TRUE(cuda::tensor_hash({tensor.data(), bytes.size()},
                                  reinterpret_cast<std::uint64_t*>(hash.data()),
                                  {workspace.data(), 256}, nullptr)
                    .ok());
    std::uint64_t found;
    std::memcpy(&found, hash.download(8).data(), 8);
    EXPECT_EQ(found, delta::tensor_hash(view(bytes))) << n;
  }
}

TEST(GpuDelta, NoRoomIsAnError) {
  const Versions versions = make_versions(change_named("everything"), DType::kBF16, 50'000);
  const DeviceBuffer base(versions.base), next(versions.next), out(5000),
      result(sizeof(cuda::DeviceResult));
  const DeviceBuffer workspace(cuda::delta_encode_workspace_bytes(versions.next.size(), {}));
  EXPECT_TRUE(cuda::delta_encode({base.data(), base.size()}, {next.data(), next.size()},
                                 {out.data(), out.size()}, {workspace.data(), workspace.size()},
                                 result_in(result), {}, nullptr)
                  .ok());
  EXPECT_EQ(fetch_result(result).code, static_cast<std::uint32_t>(Code::kDstTooSmall));
  EXPECT_TRUE(out.end_is_intact());
}

TEST(GpuDelta, RunsInAGraph) {
  const Versions versions = training_step(300'000, 2e-6);
  const DeviceBuffer base(versions.base), next(versions.next), tensor(versions.base);
  const DeviceBuffer delta(delta::encode_bound(next.size(), {DType::kBF16, 13, false, 1}));
  const DeviceBuffer results(2 * sizeof(cuda::DeviceResult));
  const DeviceBuffer workspace(cuda::delta_encode_workspace_bytes(next.size(), {}));
  cudaStream_t stream;
  SNUG_CUDA_OK(cudaStreamCreate(&stream));
  SNUG_CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  EXPECT_TRUE(cuda::delta_encode({base.data(), base.size()}, {next.data(), next.size()},
                                 {delta.data(), delta.size()}, {workspace.data(), workspace.size()},
                                 result_in(results), {}, stream)
                  .ok());
  EXPECT_TRUE(cuda::delta_apply({delta.data(), delta.size()}, {tensor.data(), tensor.size()},
                                {workspace.data(), workspace.size()}, result_in(results) + 1, {},
                                stream)
                  .ok());
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  SNUG_CUDA_OK(cudaStreamEndCapture(stream, &graph));
  SNUG_CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) {
    tensor.upload(versions.base);
    SNUG_CUDA_OK(cudaGraphLaunch(exec, stream));
    SNUG_CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_TRUE(tensor.download(tensor.size()) == versions.next);
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(GpuDelta, Usage) {
  cuda::DeltaOptions wide;
  wide.dtype = DType::kF32;
  EXPECT_EQ(cuda::delta_encode_workspace_bytes(1000, wide), 0u);
  const DeviceBuffer buffer(4096), result(sizeof(cuda::DeviceResult));
  const auto encode = [&](const cuda::DeltaOptions& options, std::size_t shift) {
    return cuda::delta_encode({buffer.data() + shift, 100}, {buffer.data(), 100},
                              {buffer.data(), 1000}, {buffer.data(), 1000}, result_in(result),
                              options, nullptr)
        .code;
  };
  EXPECT_EQ(encode(wide, 0), Code::kUsage);
  EXPECT_EQ(encode({}, 2), Code::kUsage);
  cuda::DeltaOptions large;
  large.log2_block = 15;
  EXPECT_EQ(encode(large, 0), Code::kUsage);
  const auto apply_to = [&](std::size_t from, std::size_t to, std::size_t room) {
    return cuda::delta_apply_to({buffer.data(), 100}, {buffer.data() + from, 100},
                                {buffer.data() + to, room}, {buffer.data(), 1000},
                                result_in(result), {}, nullptr)
        .code;
  };
  EXPECT_EQ(apply_to(1024, 1024 + 96, 100), Code::kUsage);  // overlap
  EXPECT_EQ(apply_to(1024, 2048, 99), Code::kDstTooSmall);
}

}  // namespace
}  // namespace snug::test
