// Packing on the GPU: the CPU's bytes, the exact matrix back, frames, bad input.
#include <gtest/gtest.h>

#include "gpu/gemm_device.h"
#include "snug/codec.h"

namespace snug::test {
namespace {

using gemm::Kind;

void expect_same_as_cpu(const Weights& w, std::uint64_t n, std::uint64_t k, Kind kind,
                        std::size_t misalign = 0, std::uint64_t ld = 0) {
  if (ld == 0) ld = k;
  std::vector<std::byte> want(gemm::packed_bound(n, k, kind));
  const auto used = gemm::pack_host(w.data(), ld, n, k, kind, want);
  const DeviceMatrix got(w, n, k, kind, misalign, ld);
  ASSERT_EQ(got.status.code, used.status().code) << n << " x " << k;
  if (!used.ok()) return;
  ASSERT_EQ(got.matrix.num_bytes, *used);
  const Bytes bytes = got.buffer.download(*used);
  for (std::size_t i = 0; i < *used; ++i)
    ASSERT_EQ(std::uint8_t(bytes[i]), static_cast<std::uint8_t>(want[i]))
        << "byte " << i << " of " << n << " x " << k;

  for (const std::size_t shift : {std::size_t{0}, std::size_t{2}}) {
    DeviceBuffer back(((n - 1) * ld + k) * 2, shift);
    const Status status = gemm::unpack(got.matrix, back.data(), ld, nullptr);
    ASSERT_TRUE(status.ok()) << to_string(status);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_TRUE(back.end_is_intact());
    const Weights values = values_of(back.download(back.size()));
    for (std::uint64_t row = 0; row < n; ++row)
      for (std::uint64_t col = 0; col < ld && row * ld + col < values.size(); ++col)
        ASSERT_EQ(values[row * ld + col], col < k ? w[row * ld + col] : 0xA5A5)
            << row << ", " << col;
  }
}

TEST(GemmPacking, SameBytesAsTheCpu) {
  constexpr std::uint64_t kShapes[][2] = {{1, 1},      {16, 128},  {17, 129},
                                          {100, 1000}, {64, 4096}, {333, 777}};
  for (const auto& [n, k] : kShapes)
    for (const Kind kind : {Kind::kFixed, Kind::kRaw}) {
      expect_same_as_cpu(normal_weights(n * k, 0.02f, 0, n), n, k, kind);
      expect_same_as_cpu(normal_weights(n * k, 0.02f, 600, k), n, k, kind);
      expect_same_as_cpu(special_weights(n * k, n * k), n, k, kind);
    }
}

TEST(GemmPacking, AnyAddressAndLeadingDimension) {
  for (const std::size_t misalign : {2, 4, 6})
    for (const std::uint64_t ld : {150, 151, 160})
      expect_same_as_cpu(normal_weights(40 * ld, 0.02f, 600, ld), 40, 150, Kind::kFixed, misalign,
                         ld);
}

TEST(GemmPacking, ManyEscapesInOneTile) {
  Weights w = normal_weights(48 * 2048, 0.02f, 0, 1);
  for (std::uint32_t i = 0; i < 200; ++i)
    w[(16 + i % 16) * 2048 + 300 + i / 16] = static_cast<std::uint16_t>(i * 0x0153);
  expect_same_as_cpu(w, 48, 2048, Kind::kFixed);
}

TEST(GemmPacking, RandomBitsAreRefused) {
  Prng prng(2);
  Weights w(256 * 256);
  for (auto& v : w) v = static_cast<std::uint16_t>(prng.next());
  const DeviceMatrix packed(w, 256, 256, Kind::kFixed);
  EXPECT_EQ(packed.status.code, Code::kDstTooSmall);
  EXPECT_STREQ(packed.status.what, "too many weights outside of their palettes; pack as raw");
}

struct FromFrame {
  Bytes packed;
  Status status;
};

FromFrame pack_from(const Bytes& frame, std::uint64_t n, std::uint64_t k) {
  DeviceBuffer device_frame(frame), dst(gemm::packed_bound(n, k, Kind::kFixed));
  DeviceBuffer workspace(gemm::pack_frame_workspace_bytes(n, k)),
      result(sizeof(gemm::DeviceResult));
  FromFrame out;
  out.status = gemm::pack_frame({device_frame.data(), frame.size()}, n, k, Kind::kFixed,
                                {dst.data(), dst.size()}, {workspace.data(), workspace.size()},
                                result_in(result), nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(dst.end_is_intact());
  const gemm::DeviceResult r = fetch_result(result);
  if (out.status.ok()) out.status = cuda::to_status(r);
  if (out.status.ok()) out.packed = dst.download(r.num_bytes);
  return out;
}

TEST(GemmPacking, FromFrames) {
  const std::uint64_t n = 160, k = 640;
  const Weights w = normal_weights(n * k, 0.02f, 2000, 3);
  const DeviceMatrix direct(w, n, k, Kind::kFixed);
  ASSERT_TRUE(direct.status.ok());
  const Bytes raw = bytes_of(w);
  for (const Codec codec : {Codec::kEntropy, Codec::kFixed, Codec::kRaw}) {
    Bytes frame = encode_or_fail(view(raw), {DType::kBF16, codec, 0, 1});
    const FromFrame packed = pack_from(frame, n, k);
    ASSERT_TRUE(packed.status.ok()) << to_string(packed.status);
    EXPECT_EQ(packed.packed, direct.buffer.download(direct.matrix.num_bytes));

    EXPECT_EQ(pack_from(frame, n / 2, k).status.code, Code::kDstTooSmall);
    EXPECT_EQ(pack_from(frame, n + 1, k).status.code, Code::kUsage);
    frame[frame.size() / 2] ^= std::byte{0x10};
    EXPECT_EQ(pack_from(frame, n, k).status.code, Code::kCorrupt);
    frame[0] ^= std::byte{0xFF};
    EXPECT_EQ(pack_from(frame, n, k).status.code, Code::kBadMagic);
  }
}

TEST(GemmPacking, DamagedMatricesAreNotOpened) {
  const DeviceMatrix packed(normal_weights(64 * 256, 0.02f, 0, 4), 64, 256, Kind::kFixed);
  ASSERT_TRUE(packed.status.ok());
  EXPECT_EQ(gemm::open(packed.buffer.data(), packed.matrix.num_bytes - 4, nullptr).status().code,
            Code::kCorrupt);
  EXPECT_EQ(gemm::open(packed.buffer.data(), 100, nullptr).status().code, Code::kCorrupt);
  EXPECT_EQ(gemm::open(packed.buffer.data() + 64, 5000, nullptr).status().code, Code::kUsage);
  SNUG_CUDA_OK(cudaMemset(packed.buffer.data() + 16, 0x7F, 1));
  EXPECT_EQ(gemm::open(packed.buffer.data(), packed.buffer.size(), nullptr).status().code,
            Code::kCorrupt);
  SNUG_CUDA_OK(cudaMemset(packed.buffer.data(), 0, 8));
  EXPECT_EQ(gemm::open(packed.buffer.data(), packed.buffer.size(), nullptr).status().code,
            Code::kBadMagic);
}

// Wild escape words may spoil weights, but lead nowhere outside.
TEST(GemmPacking, HostileEscapesStayInside) {
  const std::uint64_t n = 64, k = 512;
  const DeviceMatrix packed(normal_weights(n * k, 0.02f, 500, 5), n, k, Kind::kFixed);
  ASSERT_TRUE(packed.status.ok());
  const gemm::Layout layout(n, k, Kind::kFixed);
  Prng prng(6);
  Bytes words(layout.tiles - layout.escapes);
  for (auto& b : words) b = std::byte{prng.byte()};
  SNUG_CUDA_OK(cudaMemcpy(packed.buffer.data() + layout.escapes, words.data(), words.size(),
                          cudaMemcpyHostToDevice));
  LinearRun run(n, k, 40);
  for (const std::uint64_t m : {1, 40})
    for (const gemm::Plan& plan : plans_for(n, k, m)) {
      run(packed.matrix, m, plan);
      EXPECT_TRUE(run.status.ok());
    }
  DeviceBuffer back(n * k * 2);
  EXPECT_TRUE(gemm::unpack(packed.matrix, back.data(), k, nullptr).ok());
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(back.end_is_intact());
}

TEST(GemmPacking, BadArgumentsAreRefused) {
  DeviceBuffer w(64 * 64 * 2), dst(1 << 16), ws(1 << 16), result(sizeof(gemm::DeviceResult));
  const auto code = [&](const void* source, std::uint64_t ld, std::uint64_t n, cuda::Target to,
                        cuda::Target workspace, gemm::DeviceResult* r) {
    return gemm::pack(source, ld, n, 64, Kind::kFixed, to, workspace, r, nullptr).code;
  };
  const cuda::Target to{dst.data(), dst.size()}, workspace{ws.data(), ws.size()};
  EXPECT_EQ(code(w.data(), 64, 64, to, workspace, result_in(result)), Code::kOk);
  EXPECT_EQ(code(nullptr, 64, 64, to, workspace, result_in(result)), Code::kUsage);
  EXPECT_EQ(code(w.data() + 1, 64, 64, to, workspace, result_in(result)), Code::kUsage);
  EXPECT_EQ(code(w.data(), 63, 64, to, workspace, result_in(result)), Code::kUsage);
  EXPECT_EQ(code(w.data(), 64, 0, to, workspace, result_in(result)), Code::kUsage);
  EXPECT_EQ(code(w.data(), 64, 64, {dst.data() + 16, 5000}, workspace, result_in(result)),
            Code::kUsage);
  EXPECT_EQ(code(w.data(), 64, 64, {dst.data(), 100}, workspace, result_in(result)),
            Code::kDstTooSmall);
  EXPECT_EQ(code(w.data(), 64, 64, to, {ws.data(), 8}, result_in(result)), Code::kUsage);
  EXPECT_EQ(code(w.data(), 64, 64, to, workspace, nullptr), Code::kUsage);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace snug::test
