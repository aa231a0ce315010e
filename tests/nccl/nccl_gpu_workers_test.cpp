// The codec workers on a real GPU, without NCCL: their frames are the CPU's, byte for byte, and
// they restore what the CPU compressed.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "nccl/worker_desk.h"
#include "nccl/worker_library.h"
#include "snug/codec.h"
#include "support/inputs.h"

namespace snug::test {
namespace {

using namespace nccl;
using Answer = WorkerDesk::Answer;

constexpr std::size_t kMemory = 64 << 20, kSlot = 2 << 20;
constexpr int kSms = 8;

// One for all tests: the library opens once a process.
struct Workers {
  const WorkerLibrary* library = nullptr;
  std::string reason;
  WorkerDesk desk;
  std::byte* memory = nullptr;
  std::atomic<bool> spins{false};  // instead of sleeping between polls

  Workers() {
    void* handle = ::dlopen(SNUG_NCCL_WORKERS, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      reason = ::dlerror();
      return;
    }
    library = static_cast<const WorkerLibrary*>(::dlsym(handle, kWorkerLibrarySymbol));
    WorkerBoard* board = nullptr;
    if (const char* why = library->open(kSms, kMemory, &board, &memory)) {
      reason = why;
      return;
    }
    desk.open(board, {}, kSlot);
  }
  std::span<std::byte> slot(int i, std::size_t size) { return {memory + kSlot * i, size}; }

  bool start() {
    if (!library->before_kernel(nullptr)) return false;
    for (int i = 0; i < 20000 && !desk.is_manned(); ++i)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    return desk.is_manned();
  }
  void stop() {
    library->after_kernel(nullptr);
    for (int i = 0; i < 20000 && desk.is_manned(); ++i)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  OrderResult run(const WorkerDesk::Job& job) {
    const auto posted = desk.post(job);
    OrderResult result{};
    if (!posted) return result.code = 1001, result;
    if (spins) {
      while (desk.poll(*posted, result) == Answer::kPending) {
      }
      return result;
    }
    if (desk.wait(*posted, result, std::chrono::seconds(10)) != Answer::kDone) result.code = 1000;
    return result;
  }
};
Workers& workers() {
  static auto* const all = new Workers;
  return *all;
}
class NcclGpuWorkers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!workers().reason.empty()) GTEST_SKIP() << "needs a GPU: " << workers().reason;
    ASSERT_TRUE(workers().start());
  }
  void TearDown() override {
    if (workers().reason.empty()) workers().stop();
  }
};

constexpr DType kTypes[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kF8E4M3, DType::kF8E5M2};
constexpr const char* kKinds[] = {"gaussian", "random_bits", "constant", "half_and_half"};

TEST_F(NcclGpuWorkers, MakeTheFramesOfTheCpu) {
  int cases = 0, wrong = 0;
  std::vector<std::byte> expected, workspace(workspace_bytes());
  for (const DType dtype : kTypes)
    for (const Codec codec : {Codec::kEntropy, Codec::kFixed})
      for (const char* kind : kKinds)
        for (std::size_t size : {1 << 10, 64 << 10, 65540, 128 << 10, 256 << 10, 1 << 20}) {
          if (codec == Codec::kFixed && dtype != DType::kBF16) continue;
          Bytes input = make_input(input_named(kind), dtype, size / elem_bytes(dtype));
          size = input.size();
          const EncodeOptions options{dtype, codec, worker_log2_block(size, dtype)};
          expected.resize(encode_bound(size, options));
          const auto num_bytes = encode(input, expected, options, workspace);
          ASSERT_TRUE(num_bytes);
          const auto tensor = workers().slot(0, size);
          const auto frame = workers().slot(1, expected.size());
          std::memcpy(tensor.data(), input.data(), size);
          std::memset(frame.data(), 0xEE, frame.size());
          const auto name = testing::Message() << dtype_name(dtype) << " " << kind << " " << size
                                               << " codec " << static_cast<int>(codec);
          const OrderResult made = workers().run({OrderKind::kEncode, dtype, codec, tensor, frame});
          EXPECT_EQ(made.code, 0u) << name;
          EXPECT_EQ(made.num_bytes, *num_bytes) << name;
          const bool same = made.num_bytes == *num_bytes &&
                            std::memcmp(frame.data(), expected.data(), *num_bytes) == 0;
          EXPECT_TRUE(same) << name;
          // And back, from the CPU's frame.
          std::memcpy(frame.data(), expected.data(), *num_bytes);
          std::memset(tensor.data(), 0xDD, size);
          const OrderResult restored =
              workers().run({OrderKind::kDecode, dtype, codec, tensor, frame.first(*num_bytes)});
          EXPECT_EQ(restored.code, 0u) << name;
          const bool right = std::memcmp(tensor.data(), input.data(), size) == 0;
          EXPECT_TRUE(right) << name;
          // Damage is found.
          frame[*num_bytes / 2] ^= std::byte{1};
          const OrderResult refused =
              workers().run({OrderKind::kDecode, dtype, codec, tensor, frame.first(*num_bytes)});
          EXPECT_NE(refused.code, 0u) << name;
          ++cases;
          wrong += !same || !right;
          if (wrong > 8) FAIL() << "too many differences";
        }
  std::printf("%d cases, %d wrong\n", cases, wrong);
}

// Not a test of speed; it prints what a round trip takes.
TEST_F(NcclGpuWorkers, ManyOrdersAtOnce) {
  constexpr std::size_t kSize = 256 << 10;
  constexpr int kThreads = 8, kRounds = 200;
  const Bytes input = make_input(input_named("gaussian"), DType::kBF16, kSize / 2);
  std::atomic<int> wrong{0};
  for (const int num_threads : {-1, 1, 4, kThreads, -kThreads}) {
    std::vector<std::thread> threads;
    const auto begin = std::chrono::steady_clock::now();
    workers().spins = num_threads < 0;
    for (int t = 0; t < std::abs(num_threads); ++t)
      threads.emplace_back([&, t] {
        const auto tensor = workers().slot(2 * t, kSize), back = tensor.subspan(0);
        const auto frame = workers().slot(2 * t + 1, kSize + (64 << 10));
        std::memcpy(tensor.data(), input.data(), kSize);
        for (int i = 0; i < kRounds; ++i) {
          const OrderResult made =
              workers().run({OrderKind::kEncode, DType::kBF16, Codec::kEntropy, tensor, frame});
          const OrderResult restored =
              workers().run({OrderKind::kDecode, DType::kBF16, Codec::kEntropy, back,
                             frame.first(made.num_bytes)});
          if (made.code != 0 || restored.code != 0) ++wrong;
          if (i % 16 == 0 && std::memcmp(back.data(), input.data(), kSize) != 0) ++wrong;
        }
      });
    for (std::thread& thread : threads) thread.join();
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    workers().spins = false;
    std::printf("%d threads%s: %.1f us for a chunk there and back, %.2f GB/s each way\n",
                std::abs(num_threads), num_threads < 0 ? " that spin" : "", seconds / kRounds * 1e6,
                1e-9 * static_cast<double>(kSize) * kRounds * std::abs(num_threads) / seconds);
  }
  EXPECT_EQ(wrong.load(), 0);
}

TEST_F(NcclGpuWorkers, ComeAndGo) {
  constexpr std::size_t kSize = 64 << 10;
  const Bytes input = make_input(input_named("gaussian"), DType::kBF16, kSize / 2);
  std::memcpy(workers().slot(0, kSize).data(), input.data(), kSize);
  for (int i = 0; i < 50; ++i) {
    workers().stop();
    EXPECT_FALSE(workers().desk.is_manned());
    ASSERT_TRUE(workers().start());
    const OrderResult made = workers().run({OrderKind::kEncode, DType::kBF16, Codec::kEntropy,
                                            workers().slot(0, kSize), workers().slot(1, kSlot)});
    EXPECT_EQ(made.code, 0u);
  }
  const auto totals = workers().desk.totals();
  std::printf("%llu crews, %llu orders, %.1f SM ms, %llu left idle\n",
              static_cast<unsigned long long>(totals->crews),
              static_cast<unsigned long long>(totals->orders), totals->block_ms,
              static_cast<unsigned long long>(totals->idle_exits));
}

}  // namespace
}  // namespace snug::test
