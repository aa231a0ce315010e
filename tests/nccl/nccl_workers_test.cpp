// The plugin with codec workers, as NCCL drives both of its tables; threads play the workers.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "nccl/net_ranks.h"
#include "nccl/profiler_abi.h"
#include "support/inputs.h"

namespace snug::test {
namespace {

void drop_log(ncclDebugLogLevel, unsigned long, const char*, int, const char*, ...) {}

// What NCCL does around a kernel.
class Profiler {
 public:
  explicit Profiler(const std::string& plugin = SNUG_NCCL_PLUGIN) {
    void* handle = ::dlopen(plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
    SNUG_RANK_CHECK(handle != nullptr);
    table_ = static_cast<const ncclProfiler_v5_t*>(::dlsym(handle, "ncclProfiler_v5"));
    SNUG_RANK_CHECK(table_ != nullptr);
    SNUG_RANK_CHECK(table_->init(&context_, 1, &mask_, "test", 2, 2, 0, drop_log) == ncclSuccess);
  }
  int mask() const { return mask_; }
  void* start_kernel(std::size_t bytes) {
    ncclProfilerEventDescr_v5_t event{};
    void* handle = nullptr;
    event.type = ncclProfileCollApi;
    event.collApi.count = bytes / 2;
    event.collApi.datatype = "ncclBfloat16";
    SNUG_RANK_CHECK(table_->startEvent(context_, &handle, &event) == ncclSuccess);
    SNUG_RANK_CHECK(handle == nullptr);
    event = {};
    event.type = ncclProfileKernelLaunch;
    SNUG_RANK_CHECK(table_->startEvent(context_, &handle, &event) == ncclSuccess);
    return handle;
  }
  void stop_kernel(void* handle) { SNUG_RANK_CHECK(table_->stopEvent(handle) == ncclSuccess); }

 private:
  const ncclProfiler_v5_t* table_ = nullptr;
  void* context_ = nullptr;
  int mask_ = 0;
};

constexpr std::size_t kSize = 1 << 20;
constexpr int kRounds = 4;

// NCCL registers its buffers when it connects, before the first kernel.
void* regist(Rank& rank, void* comm, Bytes& bytes) {
  void* mhandle = nullptr;
  SNUG_RANK_CHECK(rank.net().register_memory(comm, bytes.data(), bytes.size(), NCCL_PTR_HOST,
                                             &mhandle) == ncclSuccess);
  return mhandle;
}

Bytes data_of(int round) {
  const DType dtype = round % 3 == 0 ? DType::kBF16 : round % 3 == 1 ? DType::kF32 : DType::kF16;
  return make_input(input_named("gaussian"), dtype, kSize / elem_bytes(dtype));
}

void send_rounds(Rank& rank, Profiler& profiler, bool with_kernels) {
  void* comm = rank.connect_to(1);
  Bytes bytes(kSize);
  void* mhandle = regist(rank, comm, bytes);
  for (int i = 0; i < kRounds; ++i) {
    bytes = data_of(i);
    void* kernel = with_kernels ? profiler.start_kernel(64 << 20) : nullptr;
    SNUG_RANK_CHECK((kernel != nullptr) == with_kernels);
    void* request = nullptr;
    while (request == nullptr)
      SNUG_RANK_CHECK(rank.net().isend(comm, bytes.data(), bytes.size(), 0, mhandle, &request) ==
                      ncclSuccess);
    // Ends while messages are on their way, as a kernel may.
    if (i % 2 == 1) profiler.stop_kernel(kernel);
    rank.wait(request);
    if (i % 2 == 0) profiler.stop_kernel(kernel);
  }
  SNUG_RANK_CHECK(rank.net().deregister_memory(comm, mhandle) == ncclSuccess);
  rank.close_send(comm);
}

void receive_rounds(Rank& rank, Profiler& profiler, bool with_kernels) {
  void* comm = rank.accept_from(0);
  Bytes bytes(kSize);
  void* mhandle = regist(rank, comm, bytes);
  for (int i = 0; i < kRounds; ++i) {
    std::ranges::fill(bytes, std::byte{0xEE});
    void* kernel = with_kernels ? profiler.start_kernel(64 << 20) : nullptr;
    void *request = nullptr, *data = bytes.data();
    std::size_t size = bytes.size();
    int tag = 0;
    while (request == nullptr)
      SNUG_RANK_CHECK(rank.net().irecv(comm, 1, &data, &size, &tag, &mhandle, &request) ==
                      ncclSuccess);
    rank.wait(request);
    profiler.stop_kernel(kernel);
    SNUG_RANK_CHECK(bytes == data_of(i));
  }
  SNUG_RANK_CHECK(rank.net().deregister_memory(comm, mhandle) == ncclSuccess);
  rank.close_recv(comm);
}

// Chunks that workers coded, and chunks compressed at all, sent and received.
struct Counts {
  std::uint64_t by_gpu = 0, coded = 0, launches = 0;
};
Counts run_pair(bool with_kernels, const std::string& library) {
  const std::string folder = ::testing::TempDir() + "/nccl_workers." + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  const Environment environment = {{"SNUG_NCCL_CODEC", "entropy"},
                                   {"SNUG_NCCL_SMS", "8"},
                                   {"SNUG_NCCL_WORKER_LIBRARY", library},
                                   {"SNUG_NCCL_STATS", "json:" + folder + "/%p.json"}};
  EXPECT_TRUE(all_succeeded(run_ranks(2, environment, [&](int idx, Shared& shared) {
    Rank rank(idx, shared);
    Profiler profiler;
    SNUG_RANK_CHECK((profiler.mask() != 0) == with_kernels);
    idx == 0 ? send_rounds(rank, profiler, with_kernels)
             : receive_rounds(rank, profiler, with_kernels);
    std::exit(0);  // writes the statistics
  })));
  Counts counts;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto report = nlohmann::json::parse(std::ifstream(entry.path()));
    for (const auto& row : report["peers"]) {
      counts.by_gpu += row["gpu_chunks"].get<std::uint64_t>();
      counts.coded += row["entropy_chunks"].get<std::uint64_t>();
    }
    if (report.contains("gpu_workers"))
      counts.launches += report["gpu_workers"]["launches"].get<std::uint64_t>();
  }
  std::filesystem::remove_all(folder);
  return counts;
}

TEST(NcclWorkers, CodeChunksBitForBit) {
  const Counts counts = run_pair(true, SNUG_NCCL_FAKE_WORKERS);
  EXPECT_GT(counts.by_gpu, 0u);
  EXPECT_GE(counts.coded, counts.by_gpu);
  EXPECT_GT(counts.launches, 0u);
}

TEST(NcclWorkers, WithoutTheirLibraryTheCpuDoesEverything) {
  const Counts counts = run_pair(false, "/nowhere/libnccl-snug-workers.so");
  EXPECT_EQ(counts.by_gpu, 0u);
  EXPECT_GT(counts.coded, 0u);
}

TEST(NcclWorkers, AreFoundBesideThePlugin) {
  namespace fs = std::filesystem;
  const fs::path folder = ::testing::TempDir() + "/nccl_beside." + std::to_string(::getpid());
  fs::create_directories(folder / "real");
  fs::copy_file(SNUG_NCCL_PLUGIN, folder / "real/libnccl-net-snug.so");
  fs::create_symlink("real/libnccl-net-snug.so", folder / "libnccl-net.so");
  const auto expect = [&](bool are_found) {
    EXPECT_TRUE(all_succeeded(run_ranks(1, {{"SNUG_NCCL_SMS", "8"}}, [&](int, Shared&) {
      const Profiler profiler(folder / "libnccl-net.so");
      SNUG_RANK_CHECK((profiler.mask() != 0) == are_found);
      std::exit(0);
    })));
  };
  expect(false);
  for (const char* where : {"real", "."}) {  // or beside the link
    SCOPED_TRACE(where);
    const fs::path workers = folder / where / "libnccl-snug-workers.so";
    fs::copy_file(SNUG_NCCL_FAKE_WORKERS, workers);
    expect(true);
    fs::remove(workers);
  }
  fs::remove_all(folder);
}

// A thread makes a communicator on another GPU while this one launches a kernel.
TEST(NcclWorkers, EndTheirKernelWhenAnotherGpuComes) {
  const Environment environment = {{"SNUG_NCCL_SMS", "8"},
                                   {"SNUG_NCCL_WORKER_LIBRARY", SNUG_NCCL_FAKE_WORKERS}};
  EXPECT_TRUE(all_succeeded(run_ranks(1, environment, [](int, Shared&) {
    Profiler profiler;
    SNUG_RANK_CHECK(profiler.mask() != 0);
    void* kernel = profiler.start_kernel(64 << 20);
    SNUG_RANK_CHECK(kernel != nullptr);
    ::setenv("SNUG_TEST_ANOTHER_GPU", "1", 1);
    Profiler other;
    SNUG_RANK_CHECK(other.mask() == 0);
    profiler.stop_kernel(kernel);
    SNUG_RANK_CHECK(profiler.start_kernel(64 << 20) == nullptr);
    std::exit(0);  // waits for the threads that play the workers
  })));
}

}  // namespace
}  // namespace snug::test
