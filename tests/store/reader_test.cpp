// Reading tensors and parts of them from plain and compressed files.
#include <gtest/gtest.h>

#include <cmath>

#include "snug/store.h"
#include "store/store_files.h"
#include "store/value_stats.h"
#include "support/prng.h"

namespace snug::test {
namespace {

class ReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    tensors_ = mixed_tensors();
    tensors_.push_back(make_tensor("big", "BF16", {1000, 700}));
    write_file(folder_ / "x.safetensors", make_file(tensors_, "{\"format\":\"pt\"}"));
    ASSERT_TRUE(compress_path(folder_ / "x.safetensors", "").ok());
  }

  std::vector<std::string> both() const {
    return {folder_ / "x.safetensors", folder_ / "x.snug.safetensors"};
  }

  ScratchFolder folder_;
  std::vector<TestTensor> tensors_;
};

std::string read_bytes(const Reader& reader, const TensorEntry& tensor, std::uint64_t first,
                       std::uint64_t count, int num_threads) {
  std::string bytes(count, '?');
  const StoreStatus status =
      reader.read_bytes(tensor, first, std::as_writable_bytes(std::span(bytes)), num_threads);
  EXPECT_TRUE(status.ok()) << to_string(status);
  return bytes;
}

TEST_F(ReaderTest, ReadsManyTensorsAtOnce) {
  for (const std::string& path : both()) {
    const auto reader = Reader::open(path);
    ASSERT_TRUE(reader.ok());
    for (const int num_threads : {1, 3}) {
      std::vector<std::string> data(reader->num_tensors());
      std::vector<TensorTarget> targets;
      for (std::size_t i = data.size(); i-- > 0;) {  // any order will do
        data[i].assign(reader->tensor(i).raw_bytes, '?');
        targets.push_back({i, std::as_writable_bytes(std::span(data[i]))});
      }
      const StoreStatus status = reader->read_all(targets, num_threads);
      ASSERT_TRUE(status.ok()) << to_string(status);
      for (const TestTensor& expected : tensors_)
        EXPECT_EQ(data[reader->find(expected.name)->idx], expected.data) << expected.name;

      targets[1].dst = targets[1].dst.first(0);
      const bool is_empty = reader->tensor(targets[1].idx).raw_bytes == 0;
      EXPECT_EQ(reader->read_all(targets, num_threads).ok(), is_empty);
      targets = {{data.size(), {}}};
      EXPECT_EQ(reader->read_all(targets, num_threads).status.code, Code::kUsage);
    }
  }
}

TEST_F(ReaderTest, ListsTheOriginalTensors) {
  for (const std::string& path : both()) {
    const auto reader = Reader::open(path);
    ASSERT_TRUE(reader.ok()) << to_string(reader.status());
    EXPECT_EQ(reader->compressed(), path == folder_ / "x.snug.safetensors");
    EXPECT_EQ(reader->raw_bytes(), read_file(folder_ / "x.safetensors").size());
    EXPECT_EQ(reader->stored_bytes(), read_file(path).size());
    ASSERT_EQ(reader->num_metadata(), 1u);
    EXPECT_EQ(reader->metadata(0).first, "format");
    ASSERT_EQ(reader->tensors().size(), tensors_.size());
    for (const TestTensor& expected : tensors_) {
      const auto tensor = reader->find(expected.name);
      ASSERT_TRUE(tensor) << expected.name;
      EXPECT_EQ(reader->tensor(tensor->idx).name, expected.name);
      EXPECT_EQ(tensor->dtype, expected.dtype);
      EXPECT_EQ(tensor->shape, expected.shape);
      EXPECT_EQ(tensor->raw_bytes, expected.data.size());
    }
    EXPECT_FALSE(reader->find("__snug__.header"));
  }
}

TEST_F(ReaderTest, ReadsWholeTensorsAndAnyRange) {
  Prng prng(7);
  for (const std::string& path : both()) {
    const auto reader = Reader::open(path);
    ASSERT_TRUE(reader.ok());
    for (const TestTensor& expected : tensors_) {
      const TensorEntry tensor = *reader->find(expected.name);
      for (const int num_threads : {1, 3}) {
        std::string all(expected.data.size(), '?');
        ASSERT_TRUE(reader->read(tensor, std::as_writable_bytes(std::span(all)), num_threads).ok());
        EXPECT_TRUE(all == expected.data) << expected.name;
        for (int i = 0; i < 20; ++i) {
          const std::size_t first = prng.below(expected.data.size() + 1),
                            count = prng.below(expected.data.size() - first + 1);
          EXPECT_TRUE(read_bytes(*reader, tensor, first, count, num_threads) ==
                      expected.data.substr(first, count))
              << expected.name;
        }
      }
    }
  }
}

TEST_F(ReaderTest, Rows) {
  const auto reader = Reader::open(folder_ / "x.snug.safetensors");
  ASSERT_TRUE(reader.ok());
  const auto range = reader->row_bytes(*reader->find("big"), 17, 20);
  ASSERT_TRUE(range.ok());
  EXPECT_EQ(*range, (std::pair<std::uint64_t, std::uint64_t>{17 * 1400, 3 * 1400}));
  EXPECT_EQ(reader->row_bytes(*reader->find("scalar"), 0, 1)->second, 4u);
  EXPECT_EQ(reader->row_bytes(*reader->find("nothing"), 0, 0)->second, 0u);
  EXPECT_EQ(reader->row_bytes(*reader->find("big"), 17, 1001).status().status.code, Code::kUsage);
  EXPECT_EQ(reader->row_bytes(*reader->find("big"), 3, 2).status().status.code, Code::kUsage);
  EXPECT_EQ(reader->row_bytes(*reader->find("unknown dtype"), 0, 1).status().status.code,
            Code::kUsage);
}

TEST_F(ReaderTest, RefusesWrongRequests) {
  const auto reader = Reader::open(folder_ / "x.snug.safetensors");
  ASSERT_TRUE(reader.ok());
  std::byte buffer[8];
  const TensorEntry scalar = *reader->find("scalar");
  EXPECT_EQ(reader->read(scalar, buffer).status.code, Code::kUsage);
  EXPECT_EQ(reader->read_bytes(scalar, 1, std::span(buffer).first(4)).status.code, Code::kUsage);
  EXPECT_EQ(reader->read_bytes(scalar, ~std::uint64_t{0}, std::span(buffer).first(4)).status.code,
            Code::kUsage);
  TensorEntry other = scalar;
  other.name = "not there";
  EXPECT_EQ(reader->read_bytes(other, 0, std::span(buffer).first(4)).status.code, Code::kNotFound);
  EXPECT_EQ(Reader::open(folder_ / "none").status().status.code, Code::kNotFound);
  EXPECT_EQ(Reader::open(folder_.path()).status().status.code, Code::kUsage);
}

TEST_F(ReaderTest, FrameStats) {
  const auto packed = Reader::open(folder_ / "x.snug.safetensors");
  ASSERT_TRUE(packed.ok());
  const auto zeros = packed->frame_stats(*packed->find("zeros"));
  ASSERT_TRUE(zeros.ok());
  EXPECT_EQ(zeros->num_blocks[static_cast<int>(Codec::kConstant)], 1u);
  EXPECT_EQ(
      packed->frame_stats(*packed->find("big"))->num_blocks[static_cast<int>(Codec::kEntropy)], 6u);
  const auto plain = Reader::open(folder_ / "x.safetensors");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->frame_stats(*plain->find("big")).status().status.code, Code::kUsage);
}

TEST_F(ReaderTest, StatsDoNotDependOnStorageOrThreads) {
  std::vector<std::vector<TensorStats>> all;
  for (const std::string& path : both())
    for (const int num_threads : {1, 4}) {
      const auto reader = Reader::open(path);
      ASSERT_TRUE(reader.ok());
      StoreOptions options;
      options.num_threads = num_threads;
      auto stats = reader->stats(options);
      ASSERT_TRUE(stats.ok());
      ASSERT_EQ(stats->size(), tensors_.size());
      all.push_back(std::move(*stats));
    }
  for (const auto& stats : all)
    for (std::size_t i = 0; i < stats.size(); ++i) {
      EXPECT_EQ(stats[i].histogram, all[0][i].histogram) << tensors_[i].name;
      EXPECT_EQ(stats[i].bound, all[0][i].bound);
    }
}

TensorStats stats_of(DType dtype, const std::string& bytes) {
  store::ValueCounter counter(dtype);
  counter.add(std::as_bytes(std::span(bytes)));
  return counter.stats();
}

TEST(ValueStats, KnownEntropies) {
  // Four BF16 values, two of them 1.0, one 2.0, one -0.5: exponents 127 127 128 126.
  const TensorStats bf16 =
      stats_of(DType::kBF16, std::string("\x80\x3F\x80\x3F\x00\x40\x00\xBF", 8));
  EXPECT_TRUE(bf16.of_exponents);
  EXPECT_EQ(bf16.histogram[127], 2u);
  EXPECT_EQ(bf16.histogram[128], 1u);
  EXPECT_EQ(bf16.histogram[126], 1u);
  EXPECT_DOUBLE_EQ(bf16.entropy_bits, 1.5);
  EXPECT_DOUBLE_EQ(bf16.bound, 9.5 / 16);

  const TensorStats bytes = stats_of(DType::kBytes, std::string("abababab"));
  EXPECT_FALSE(bytes.of_exponents);
  EXPECT_DOUBLE_EQ(bytes.entropy_bits, 1);
  EXPECT_DOUBLE_EQ(bytes.bound, 1.0 / 8);
}

TEST(ValueStats, ZeroMantissaBytesCostNothing) {
  std::string wide;
  const std::string narrow = weight_bytes("BF16", 100000, 3);
  for (std::size_t i = 0; i < narrow.size(); i += 2)
    wide += std::string(2, '\0') + narrow.substr(i, 2);
  const TensorStats f32 = stats_of(DType::kF32, wide), bf16 = stats_of(DType::kBF16, narrow);
  EXPECT_DOUBLE_EQ(f32.entropy_bits, bf16.entropy_bits);
  EXPECT_NEAR(f32.bound, bf16.bound / 2, 1e-12);
}

TEST(ValueStats, EmptyTensors) {
  EXPECT_EQ(stats_of(DType::kBF16, "").bound, 1);
  EXPECT_EQ(stats_of(DType::kBF16, "").entropy_bits, 0);
}

}  // namespace
}  // namespace snug::test
