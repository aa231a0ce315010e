// Memory that headers and indexes take, honest and hostile ones.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "codec/block.h"
#include "frame/frame.h"
#include "snug/store.h"
#include "store/compressed_header.h"
#include "store/file_hash.h"
#include "store/peak_memory.h"
#include "store/store_files.h"
#include "support/sanitizer.h"

namespace snug::test {
namespace {

namespace fs = std::filesystem;

// Appends what `make(i)` returns for each i, so that the test itself stays small.
template <class Make>
void write_pieces(const std::string& path, std::size_t count, Make make) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  std::uint64_t length = 0;
  out.write(reinterpret_cast<const char*>(&length), 8);
  for (std::size_t i = 0; i < count; ++i) out << make(i);
  length = static_cast<std::uint64_t>(out.tellp()) - 8;
  out.seekp(0);
  out.write(reinterpret_cast<const char*>(&length), 8);
  ASSERT_TRUE(out.good());
}

// Tensors of two bytes.
void write_many(const std::string& path, std::size_t count) {
  write_pieces(path, count + 1, [&](std::size_t i) {
    if (i == count) return std::string("}");
    return (i == 0 ? "{\"" : ",\"") + std::to_string(1000000 + i) +
           "\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[" + std::to_string(2 * i) + "," +
           std::to_string(2 * i + 2) + "]}";
  });
  fs::resize_file(path, fs::file_size(path) + 2 * count);
}

class HeaderMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "sanitizers have their own memory";
    options_.num_threads = 2;
    options_.force = true;
  }
  // Every way to open the file: all must do `as_expected`.
  template <class Expect>
  void expect_small(const std::string& path, Expect as_expected, long max_kib = kMaxKiB) {
    const std::string out = folder_ / "out";
    const auto peak = [&](const char* what, auto body) {
      const long kib = child_peak([&] { return as_expected(body()); });
      EXPECT_GE(kib, 0) << what;
      EXPECT_LT(kib, max_kib) << what;
      RecordProperty(what, std::to_string(kib));
    };
    peak("open", [&] { return Reader::open(path).status().status; });
    peak("stats", [&]() -> Status {
      const auto reader = Reader::open(path);
      if (!reader) return reader.status().status;
      return reader->visit_stats([](std::size_t, const TensorStats&) {}, options_).status;
    });
    peak("compress", [&] { return compress_path(path, out, options_).status().status; });
    peak("verify", [&] { return verify_path(path, options_).status().status; });
    peak("decompress", [&] { return decompress_path(path, out, options_).status().status; });
  }

  ScratchFolder folder_;
  StoreOptions options_;
};

// A quarter of a million, in a quarter of the memory: it grows with the number.
TEST_F(HeaderMemory, OfManyTensors) {
  write_many(folder_ / "x.safetensors", 250'000);
  ASSERT_GE(child_peak([&] { return compress_path(folder_ / "x.safetensors", "", options_).ok(); }),
            0);
  const auto any = [](const Status& s) {
    return s.ok() || s.code == Code::kUsage || s.code == Code::kBadMagic;
  };
  expect_small(folder_ / "x.safetensors", any, kMaxKiB / 4);
  expect_small(folder_ / "x.snug.safetensors", any, kMaxKiB / 4);
}

// A header that is one name, or one value of the metadata.
TEST_F(HeaderMemory, OfOneLongText) {
  const std::string path = folder_ / "x.safetensors";
  const auto write = [&](const std::string& before, const std::string& after) {
    constexpr std::size_t kPieces = 1450;
    write_pieces(path, kPieces + 2, [&](std::size_t i) {
      return i == 0 ? before : i <= kPieces ? std::string(64 << 10, 'x') : after;
    });
    fs::resize_file(path, fs::file_size(path) + 1);
  };
  const std::string tensor = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  write("{\"", "\":" + tensor);
  expect_small(path, [](const Status& s) {
    return s.what == std::string("tensor with a name of more than 64 KiB");
  });
  write("{\"__metadata__\":{\"k\":\"", "\"},\"t\":" + tensor);
  const auto any = [](const Status& s) { return s.ok() || s.code == Code::kBadMagic; };
  expect_small(path, any);
  fs::rename(folder_ / "out", path);
  expect_small(path, [](const Status& s) { return s.ok() || s.code == Code::kUsage; });
}

TEST(HeaderLimits, NamesOf64KiB) {
  ScratchFolder folder;
  StoreOptions options;
  options.force = true;
  for (const bool too_long : {false, true}) {
    const std::string name(65536 + (too_long ? 1 : 0), 'x'), path = folder / "x.safetensors";
    write_file(path, make_file({{name, "U8", {1}, "1"}}));
    EXPECT_EQ(compress_path(path, folder / "out", options).ok(), !too_long);
  }
}

// Those that Snug adds count, too. It said so when all was written, as if it were damage.
TEST(HeaderLimits, MetadataOfACompressedFile) {
  ScratchFolder folder;
  StoreOptions options;
  options.force = true;
  for (const std::size_t count : {999'997, 999'998}) {
    std::string json = "{\"__metadata__\":{";
    for (std::size_t i = 0; i < count; ++i)
      json += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"\"";
    json += "}}";
    const std::uint64_t length = json.size();
    write_file(folder / "x.safetensors",
               std::string(reinterpret_cast<const char*>(&length), 8) + json);
    const auto done = compress_path(folder / "x.safetensors", folder / "out", options);
    EXPECT_EQ(done.status().status.code, count == 999'997 ? Code::kOk : Code::kUsage)
        << to_string(done.status());
  }
}

// As many as fit into a header, with the shortest names.
TEST_F(HeaderMemory, OfAsManyTensorsAsThereCanBe) {
  const std::string path = folder_ / "x.safetensors";
  constexpr std::size_t kCount = 1'850'000;
  write_pieces(path, kCount + 1, [&](std::size_t i) {
    if (i == kCount) return std::string("}");
    char name[8] = {};
    for (std::size_t k = 0, rest = i; k < 4; ++k, rest /= 64)
      name[k] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[rest % 64];
    return std::string(i == 0 ? "{\"" : ",\"") + name +
           "\":{\"dtype\":\"\",\"shape\":[],\"data_offsets\":[0,0]}";
  });
  ASSERT_GT(fs::file_size(path), 95'000'000u);
  const long kib = child_peak([&] { return Reader::open(path).ok(); });
  EXPECT_GE(kib, 0);
  EXPECT_LT(kib, kMaxKiB / 2);
}

// Compressed files whose parts are made by hand.
struct Crafted {
  std::string json;              // of the original
  std::uint64_t data_bytes = 0;  // of the original
  std::string stored_tensors;    // JSON, each followed by a comma
  std::uint64_t stored_bytes = 0;
  std::vector<std::uint64_t> ties;
  std::string hash = std::string(32, '0');
};

// Writes all but the stored tensors; returns where these start.
std::uint64_t write_crafted(const std::string& path, const Crafted& crafted) {
  const std::uint64_t length = crafted.json.size();
  const store::ReadRange read = [&](std::uint64_t offset, std::span<std::byte> dst) {
    for (std::size_t i = 0; i < dst.size(); ++i, ++offset)
      dst[i] = offset < 8 ? reinterpret_cast<const std::byte*>(&length)[offset]
                          : static_cast<std::byte>(crafted.json[offset - 8]);
    return StoreStatus{};
  };
  write_file(path, "");
  const int fd = ::open(path.c_str(), O_RDWR);
  auto file = store::File::adopt(fd, path);
  std::uint64_t packed_end = 0;
  EXPECT_TRUE(store::write_packed_header(read, 8 + length, *file, packed_end).ok());
  const std::uint64_t tie_bytes = 8 * crafted.ties.size(), total = tie_bytes + packed_end;
  const std::string json =
      "{\"__metadata__\":{\"snug.format\":\"1\",\"snug.size\":\"" +
      std::to_string(8 + length + crafted.data_bytes) + "\",\"snug.xxh3_128\":\"" + crafted.hash +
      "\"}," + crafted.stored_tensors + "\"__snug__.header\":{\"dtype\":\"U8\",\"shape\":[" +
      std::to_string(total) + "],\"data_offsets\":[" + std::to_string(crafted.stored_bytes) + "," +
      std::to_string(crafted.stored_bytes + total) + "]}}";
  const std::uint64_t start = 8 + json.size(), json_bytes = json.size();
  EXPECT_TRUE(file->write_at(0, &json_bytes, 8).ok());
  EXPECT_TRUE(file->write_at(8, json.data(), json.size()).ok());
  const std::uint64_t end = start + crafted.stored_bytes;
  EXPECT_TRUE(file->write_at(end, crafted.ties.data(), tie_bytes).ok());
  std::uint64_t at = end + tie_bytes;
  EXPECT_TRUE(store::write_packed_header(read, 8 + length, *file, at).ok());
  fs::resize_file(path, at);
  return start;
}

TEST_F(HeaderMemory, OfMetadataThatUnpacksToMuch) {
  const std::string path = folder_ / "x.safetensors";
  const auto refused = [](const Status& s) { return s.code == Code::kCorrupt; };
  // Written in children: the texts are large.
  ASSERT_GE(child_peak([&] {
              Crafted bomb;
              bomb.json = "{\"__metadata__\":{\"\":\"\"";
              while (bomb.json.size() < 96'000'000) bomb.json += ",\"\":\"\"";
              bomb.json += "}}";
              write_crafted(path, bomb);
              return !HasFailure();
            }),
            0);
  EXPECT_LT(fs::file_size(path), 100'000u);
  expect_small(path, refused);
  // A long text, and as many entries as are allowed.
  ASSERT_GE(child_peak([&] {
              Crafted bomb;
              bomb.json = "{\"__metadata__\":{\"\":\"" + std::string(80'000'000, 'x') + "\"";
              for (int i = 0; i < 999'999; ++i) bomb.json += ",\"" + std::to_string(i) + "\":\"\"";
              bomb.json += "}}";
              write_crafted(path, bomb);
              return !HasFailure();
            }),
            0);
  const long kib = child_peak([&] {
    const auto reader = Reader::open(path);
    return reader && reader->num_metadata() == 1'000'000;
  });
  EXPECT_GE(kib, 0);
  EXPECT_LT(kib, kMaxKiB);
}

// Both headers have the metadata, one after the other in memory.
TEST_F(HeaderMemory, OfMetadataThatFillsTheHeader) {
  const std::string path = folder_ / "x.safetensors";
  write_pieces(path, 92, [](std::size_t i) {
    if (i == 0) return std::string("{\"__metadata__\":{\"\":\"");
    return i == 91 ? std::string("\"}}") : std::string(1 << 20, 'x');
  });
  const long compress = child_peak([&] { return compress_path(path, "", options_).ok(); });
  EXPECT_GE(compress, 0);
  EXPECT_LT(compress, kMaxKiB / 4 * 3);
  const long open = child_peak([&] { return Reader::open(folder_ / "x.snug.safetensors").ok(); });
  EXPECT_GE(open, 0);
  EXPECT_LT(open, kMaxKiB / 2);
}

// Files of some KB, each with a header of 96 MB: patches need its tensors and not its text.
TEST_F(HeaderMemory, OfAFolderOfSmallFiles) {
  const fs::path base = folder_ / "base", next = folder_ / "next";
  ASSERT_GE(child_peak([&] {
              Crafted bomb;
              bomb.json = "{\"__metadata__\":{\"\":\"" + std::string(96'000'000, 'x') + "\"}}";
              const std::uint64_t length = bomb.json.size();
              store::FileHash hash;
              hash.update(&length, 8);
              hash.update(bomb.json.data(), bomb.json.size());
              bomb.hash = hash.hex();
              fs::create_directory(base);
              write_crafted(base / "0", bomb);
              for (const char* name : {"1", "2", "3"}) fs::copy(base / "0", base / name);
              return !HasFailure();
            }),
            0);
  fs::copy(base, next);
  write_file(next / "4", "new");
  const long diff = child_peak([&] { return diff_path(base, next, folder_ / "patch").ok(); });
  EXPECT_GE(diff, 0);
  EXPECT_LT(diff, kMaxKiB);
  const long patch =
      child_peak([&] { return patch_path(base, folder_ / "patch", folder_ / "out").ok(); });
  EXPECT_GE(patch, 0);
  EXPECT_LT(patch, kMaxKiB);
}

// A tensor of `num_blocks` blocks of 4096 bytes, block i filled with byte i: 32 bytes a block.
struct LongFrame {
  frame::Header header;
  std::string json, stored;

  explicit LongFrame(std::uint64_t num_blocks) {
    header.dtype = DType::kBytes;
    header.log2_block = frame::kMinLog2Block;
    header.num_elems = num_blocks * 4096;
    header.frame_bytes = frame::kHeaderBytes + num_blocks * 32;
    json = tensor_json(header.num_elems);
    stored = tensor_json(header.frame_bytes);
  }
  static std::string tensor_json(std::uint64_t n) {
    return "\"a\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(n) + "],\"data_offsets\":[0," +
           std::to_string(n) + "]}";
  }
};

TEST_F(HeaderMemory, OfAnIndexThatFillsTheFile) {
  const std::string path = folder_ / "x.safetensors";
  const LongFrame frame(std::uint64_t{1} << 26);  // 2 GiB, sparse
  const std::uint64_t start = write_crafted(path, {"{" + frame.json + "}",
                                                   frame.header.num_elems,
                                                   frame.stored + ",",
                                                   frame.header.frame_bytes,
                                                   {0}});
  std::uint8_t bytes[frame::kHeaderBytes];
  frame::write_header(frame.header, bytes);
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out)
      .seekp(static_cast<std::streamoff>(start))
      .write(reinterpret_cast<const char*>(bytes), sizeof bytes);
  ASSERT_TRUE(Reader::open(path).ok()) << to_string(Reader::open(path).status());
  const auto peak = [&](auto body) {
    const long kib = child_peak([&] { return body().status.code == Code::kCorrupt; });
    EXPECT_GE(kib, 0);
    EXPECT_LT(kib, kMaxKiB / 4);
  };
  peak([&] { return verify_path(path, options_).status(); });
  peak([&] {
    const auto reader = Reader::open(path);
    std::byte row[16];
    return reader->read_bytes(reader->tensor(0), 0, row);
  });
}

TEST(LongIndex, IsReadInPieces) {
  ScratchFolder folder;
  constexpr std::uint64_t kBlocks = 70'000;  // more than 2^16: 1 MiB of index
  const std::string path = folder / "x.safetensors";
  LongFrame frame(kBlocks);
  std::vector<std::byte> head(frame.header.payload_start()), payload(16 * kBlocks);
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    std::uint8_t* constant = frame::bytes_of(std::span(payload)) + 16 * i;
    constant[0] = static_cast<std::uint8_t>(i);
    const frame::Entry entry = {head.size() + 16 * i, Codec::kConstant, 0, 16,
                                codec::payload_checksum(constant, 16)};
    frame::write_entry(entry, frame::bytes_of(std::span(head)) + frame::entry_offset(i));
  }
  frame::seal(frame.header, head);
  store::SlotTable slots(100);
  slots.text() = "a";
  const std::uint64_t shape[] = {frame.header.num_elems};
  slots.add("U8", shape, 0, frame.header.num_elems);
  Crafted crafted = {"{" + frame.json + "}",
                     frame.header.num_elems,
                     frame.stored + ",",
                     frame.header.frame_bytes,
                     {store::tensor_tie(slots[0], std::span(head).first(frame::kHeaderBytes))}};
  store::FileHash hash;
  const std::uint64_t length = crafted.json.size();
  hash.update(&length, 8);
  hash.update(crafted.json.data(), crafted.json.size());
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    const std::string block(4096, static_cast<char>(i));
    hash.update(block.data(), block.size());
  }
  crafted.hash = hash.hex();
  const std::uint64_t start = write_crafted(path, crafted);
  const auto write = [&](std::uint64_t at, std::span<const std::byte> bytes) {
    std::fstream(path, std::ios::binary | std::ios::in | std::ios::out)
        .seekp(static_cast<std::streamoff>(start + at))
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  };
  write(0, head);
  write(head.size(), payload);
  const auto verified = verify_path(path);
  EXPECT_TRUE(verified.ok()) << to_string(verified.status());
  const auto reader = Reader::open(path);
  ASSERT_TRUE(reader.ok());
  for (const std::uint64_t block : {std::uint64_t{0}, std::uint64_t{65'535}, kBlocks - 2}) {
    std::byte bytes[6];
    ASSERT_TRUE(reader->read_bytes(reader->tensor(0), 4096 * block + 4093, bytes).ok());
    for (std::size_t i = 0; i < 6; ++i)
      EXPECT_EQ(bytes[i], static_cast<std::byte>(block + (i < 3 ? 0 : 1)));
  }
  EXPECT_EQ(reader->frame_stats(reader->tensor(0))->num_blocks[static_cast<int>(Codec::kConstant)],
            kBlocks);
  // Damage in the last entries is found before the first bytes are given.
  head.back() ^= std::byte{1};
  write(0, head);
  std::byte first[1];
  EXPECT_STREQ(Reader::open(path)->read_bytes(reader->tensor(0), 0, first).status.what,
               "header checksum does not match");
}

}  // namespace
}  // namespace snug::test
