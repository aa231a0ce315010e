// Whatever goes into the store comes out byte for byte.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>
#include <utility>

#include "snug/store.h"
#include "store/safetensors.h"
#include "store/store_files.h"
#include "support/prng.h"

namespace snug::test {
namespace {

namespace fs = std::filesystem;

// Compresses, verifies and restores `file`; returns the compressed bytes.
std::string round_trip(const std::string& file, const StoreOptions& options = {}) {
  ScratchFolder folder;
  write_file(folder / "x.safetensors", file);
  const auto packed = compress_path(folder / "x.safetensors", "", options);
  EXPECT_TRUE(packed.ok()) << to_string(packed.status());
  if (!packed) return {};
  EXPECT_EQ(packed->output, folder / "x.snug.safetensors");
  EXPECT_EQ(packed->raw_bytes, file.size());
  const std::string stored = read_file(packed->output);
  EXPECT_EQ(packed->stored_bytes, stored.size());
  EXPECT_TRUE(verify_path(packed->output).ok());
  const auto restored = decompress_path(packed->output, folder / "y.safetensors", options);
  EXPECT_TRUE(restored.ok()) << to_string(restored.status());
  EXPECT_TRUE(read_file(folder / "y.safetensors") == file);
  EXPECT_TRUE(read_file(folder / "x.safetensors") == file);
  EXPECT_EQ(folder.list().size(), 3u);  // no temporary file left
  return stored;
}

TEST(StoreRoundTrip, EveryDtypeCodecAndThreadCount) {
  const std::string file = make_file(mixed_tensors(), "{\"format\":\"pt\"}");
  for (const Codec codec : {Codec::kRaw, Codec::kFixed, Codec::kEntropy}) {
    std::string first;
    for (const int num_threads : {1, 2, 7, 64}) {
      StoreOptions options;
      options.codec = codec;
      options.num_threads = num_threads;
      const std::string stored = round_trip(file, options);
      if (first.empty()) first = stored;
      EXPECT_TRUE(stored == first) << "bytes depend on the number of threads";
    }
  }
}

TEST(StoreRoundTrip, OutputIsValidSafetensors) {
  const std::string file = make_file(mixed_tensors(), "{\"format\":\"pt\"}");
  const std::string stored = round_trip(file);
  std::uint64_t length;
  std::memcpy(&length, stored.data(), 8);
  const auto layout =
      store::parse_layout(std::string_view(stored).substr(8, length), stored.size());
  ASSERT_TRUE(layout.ok()) << to_string(layout.status());
  EXPECT_EQ(layout->slots.size(), mixed_tensors().size() + 1);
  EXPECT_EQ(*layout->metadata.find("format"), "pt");
  EXPECT_EQ(*layout->metadata.find("snug.format"), "1");
  EXPECT_EQ(*layout->metadata.find("snug.size"), std::to_string(file.size()));
  for (const TestTensor& tensor : mixed_tensors()) {
    const auto idx = layout->slots.find(tensor.name);
    ASSERT_TRUE(idx) << tensor.name;
    const store::Slot slot = layout->slots[*idx];
    if (tensor.data.size() <= 96) {
      EXPECT_EQ(slot.dtype, tensor.dtype);
      EXPECT_EQ(slot.shape(), tensor.shape);
      continue;
    }
    EXPECT_EQ(slot.dtype, "U8");
    EXPECT_EQ((layout->data_start + slot.begin) % 16, 0u) << tensor.name;
  }
}

TEST(StoreRoundTrip, HeadersOfAnyForm) {
  const std::vector<TestTensor> tensors = {make_tensor("b", "BF16", {20, 30}),
                                           make_tensor("a", "F32", {7})};
  const std::string data = tensors[0].data + tensors[1].data;
  const std::string json = header_json(tensors);
  for (const std::string& header :
       {json, json + "   ", json + "\n\t ", json + std::string(100000, ' '),
        std::string(
            "{\"a\" : "
            "{\"data_offsets\":[1200,1228],\"x\":{\"y\":null},\"shape\":[7],\"dtype\":\"F32\"},\n"
            "\"\\u0062\":{\"shape\":[20,30],\"dtype\":\"BF16\",\"data_offsets\":[0,1200]},\"__"
            "metadata__\":{}}")})
    round_trip(with_length(header, data));
}

TEST(StoreRoundTrip, FilesWithoutData) {
  round_trip(with_length("{}", ""));
  round_trip(with_length("{\"__metadata__\":{\"a\":\"b\"}}", ""));
  round_trip(make_file({make_tensor("a", "BF16", {0}), make_tensor("b", "F32", {3, 0})}));
}

TEST(StoreRoundTrip, BlockBoundaries) {
  for (const std::uint64_t n :
       {1u, 131071u, 131072u, 131073u, 262143u, 262144u, 262145u, 700001u}) {
    round_trip(make_file({make_tensor("w", "BF16", {n}), make_tensor("b", "U8", {n})}));
    round_trip(
        make_file({make_tensor("w", "F64", {n / 4 + 1}), make_tensor("f", "F32", {n / 2 + 1})}));
  }
}

// Random bytes have no smaller frame; equal ones have.
TEST(StoreRoundTrip, TinyTensorsAreStoredAsTheyAre) {
  std::vector<TestTensor> tensors;
  for (const std::size_t n : {0, 1, 2, 15, 16, 95, 96, 97, 112, 113, 4080, 4096, 4097, 4112, 5000})
    for (const char* kind : {"noise", "zeros"}) {
      std::string data = kind[0] == 'z' ? std::string(n, '\0') : std::string();
      Prng prng(n);
      while (data.size() < n) data.push_back(static_cast<char>(prng.next()));
      tensors.push_back({kind + std::to_string(n), n % 2 == 0 ? "U8" : "ODD", {n}, data});
    }
  ScratchFolder folder;
  write_file(folder / "x.safetensors", make_file(tensors));
  round_trip(make_file(tensors));
  ASSERT_TRUE(compress_path(folder / "x.safetensors", "").ok());
  const auto reader = Reader::open(folder / "x.snug.safetensors");
  ASSERT_TRUE(reader.ok()) << to_string(reader.status());
  for (const TestTensor& tensor : tensors) {
    const std::uint64_t n = tensor.data.size(), stored = reader->find(tensor.name)->stored_bytes;
    const bool kept = n <= 96 || (tensor.name[0] == 'n' && n <= 4096 && n % 16 == 0);
    EXPECT_EQ(kept, stored == n) << tensor.name;
    EXPECT_LE(stored, n <= 96 ? n : n + 95) << tensor.name;
    EXPECT_EQ(reader->frame_stats(*reader->find(tensor.name))->num_blocks[1],
              !kept && tensor.name[0] == 'z' ? 1u : 0u);
  }
}

TEST(StoreRoundTrip, ManyTinyTensorsGrowLittle) {
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 10000; ++i)
    tensors.push_back(
        make_tensor("model.layers." + std::to_string(i) + ".scale", "U64", {4}, i + 1u));
  const std::string file = make_file(tensors);
  EXPECT_LT(round_trip(file).size(), file.size() * 5 / 4);
}

TEST(StoreRoundTrip, LongHeadersArePackedInPieces) {
  std::string metadata = "{\"a\":\"";
  Prng prng(3);
  while (metadata.size() < (5u << 19)) metadata.push_back(static_cast<char>('a' + prng.below(26)));
  round_trip(make_file({make_tensor("b", "BF16", {20, 30})}, metadata + "\"}"));
  // The last piece is full, and has one byte.
  const std::string json = header_json({make_tensor("b", "BF16", {20, 30})});
  for (const std::size_t size : {(1u << 20) - 8, (1u << 20) - 7, 2u << 20})
    round_trip(
        with_length(json + std::string(size - json.size(), ' '), weight_bytes("BF16", 600, 1)));
}

TEST(StoreRoundTrip, ManyTensors) {
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 3000; ++i)
    tensors.push_back(make_tensor("t" + std::to_string(i), i % 3 == 0 ? "F32" : "BF16", {3, 4}));
  round_trip(make_file(tensors));
}

TEST(StoreRoundTrip, RealWeightsMeetTheBound) {
  const std::string file = read_file(std::string(SNUG_TEST_DIR) + "/data/sample.safetensors");
  round_trip(file);
  ScratchFolder folder;
  ASSERT_TRUE(compress_path(std::string(SNUG_TEST_DIR) + "/data/sample.safetensors",
                            folder / "s.snug.safetensors")
                  .ok());
  const auto reader = Reader::open(folder / "s.snug.safetensors");
  ASSERT_TRUE(reader.ok());
  const auto stats = reader->stats();
  ASSERT_TRUE(stats.ok());
  for (std::size_t i = 0; i < reader->tensors().size(); ++i) {
    const TensorEntry tensor = reader->tensors()[i];
    if (tensor.raw_bytes < 90000) continue;  // lane states and tables weigh on small tensors
    EXPECT_LT(static_cast<double>(tensor.stored_bytes),
              static_cast<double>(tensor.raw_bytes) * (*stats)[i].bound * 1.012)
        << tensor.name;
  }
}

TEST(StoreRoundTrip, KeepsPermissionsAndTime) {
  ScratchFolder folder;
  write_file(folder / "x.safetensors", make_file({make_tensor("a", "BF16", {4})}));
  ASSERT_EQ(::chmod((folder / "x.safetensors").c_str(), 0640), 0);
  const struct timespec times[2] = {{1000000000, 0}, {1234567890, 500}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (folder / "x.safetensors").c_str(), times, 0), 0);
  ASSERT_TRUE(compress_path(folder / "x.safetensors", "").ok());
  ASSERT_TRUE(decompress_path(folder / "x.snug.safetensors", folder / "y.safetensors").ok());
  struct stat info;
  ASSERT_EQ(::stat((folder / "y.safetensors").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
  EXPECT_EQ(info.st_mtim.tv_sec, 1234567890);
}

TEST(StoreRoundTrip, ProgressReachesTheEndAndCanStop) {
  ScratchFolder folder;
  write_file(folder / "x.safetensors", make_file({make_tensor("a", "BF16", {3000, 1000})}));
  StoreOptions options;
  std::uint64_t last = 0;
  bool monotone = true;
  options.progress = [&](const Progress& progress) {
    monotone &= progress.done_bytes >= last && progress.done_bytes <= progress.total_bytes;
    last = progress.done_bytes;
    return true;
  };
  ASSERT_TRUE(compress_path(folder / "x.safetensors", "", options).ok());
  EXPECT_TRUE(monotone);
  EXPECT_GT(last, 3'000'000u);
  options.force = true;
  options.progress = [](const Progress&) { return false; };
  const std::string before = read_file(folder / "x.snug.safetensors");
  const auto stopped = compress_path(folder / "x.safetensors", "", options);
  EXPECT_EQ(stopped.status().status.code, Code::kIo);
  EXPECT_TRUE(read_file(folder / "x.snug.safetensors") == before);
  EXPECT_EQ(folder.list().size(), 2u);
}

// Calls `change` once, while the input is being compressed.
StoreStatus compress_while(const std::string& path, const std::function<void()>& change) {
  StoreOptions options;
  options.num_threads = 1;
  bool done = false;
  options.progress = [&](const Progress&) {
    if (!std::exchange(done, true)) change();
    return true;
  };
  return compress_path(path, path + ".out", options).status();
}

TEST(StoreRoundTrip, AnInputThatChangesIsAnErrorEvenIfItsTimeIsPutBack) {
  ScratchFolder folder;
  const std::string path = folder / "x.safetensors";
  write_file(path, make_file({make_tensor("a", "BF16", {3000, 1000})}));
  // Clocks of file systems tick slowly: the change must not fall into the tick of the creation.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  struct stat before;
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  const StoreStatus status = compress_while(path, [&] {
    const int fd = ::open(path.c_str(), O_WRONLY);
    EXPECT_EQ(::pwrite(fd, "changed", 7, before.st_size - 7), 7);
    const struct timespec times[2] = {before.st_atim, before.st_mtim};
    EXPECT_EQ(::futimens(fd, times), 0);
    ::close(fd);
  });
  EXPECT_STREQ(status.status.what, "file changed while it was read");
  EXPECT_EQ(folder.list(), std::vector<std::string>{"x.safetensors"});
}

TEST(StoreRoundTrip, AnInputThatIsReplacedOrDeletedWasNotChanged) {
  ScratchFolder folder;
  const std::string path = folder / "x.safetensors";
  const std::string bytes = make_file({make_tensor("a", "BF16", {3000, 1000})});
  write_file(path, bytes);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const StoreStatus status = compress_while(path, [&] { fs::remove(path); });
  EXPECT_TRUE(status.ok()) << to_string(status);
  ASSERT_TRUE(decompress_path(path + ".out", folder / "y").ok());
  EXPECT_TRUE(read_file(folder / "y") == bytes);
}

TEST(StorePaths, DefaultNames) {
  ScratchFolder folder;
  fs::create_directory(folder / "m");
  fs::create_directory(folder / "m.snug");
  EXPECT_EQ(default_compressed_path("a/x.safetensors"), "a/x.snug.safetensors");
  EXPECT_EQ(default_compressed_path("a/x.bin"), "");
  EXPECT_EQ(default_compressed_path("a/.safetensors"), "");
  EXPECT_EQ(default_compressed_path(folder / "m/"), folder / "m.snug");
  EXPECT_EQ(default_restored_path("x.snug.safetensors"), "x.safetensors");
  EXPECT_EQ(default_restored_path("x.safetensors"), "");
  EXPECT_EQ(default_restored_path(folder / "m.snug"), folder / "m");
}

}  // namespace
}  // namespace snug::test
