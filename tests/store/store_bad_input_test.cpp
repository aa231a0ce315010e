// Bad input: a precise error, and nothing written.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>

#include "snug/store.h"
#include "store/store_files.h"

namespace snug::test {
namespace {

namespace fs = std::filesystem;

class StoreBadInput : public ::testing::Test {
 protected:
  std::string plain() { return make_file(mixed_tensors()); }

  std::string compressed() {
    ScratchFolder folder;
    write_file(folder / "x.safetensors", plain());
    EXPECT_TRUE(compress_path(folder / "x.safetensors", "").ok());
    return read_file(folder / "x.snug.safetensors");
  }

  StoreStatus compress(const std::string& bytes) {
    write_file(folder_ / "x.safetensors", bytes);
    const auto report = compress_path(folder_ / "x.safetensors", "");
    EXPECT_EQ(folder_.list(), std::vector<std::string>{"x.safetensors"});
    EXPECT_TRUE(read_file(folder_ / "x.safetensors") == bytes);
    return report.status();
  }

  StoreStatus decompress(const std::string& bytes) {
    write_file(folder_ / "x.snug.safetensors", bytes);
    const auto report = decompress_path(folder_ / "x.snug.safetensors", "");
    EXPECT_EQ(folder_.list(), std::vector<std::string>{"x.snug.safetensors"});
    EXPECT_EQ(verify_path(folder_ / "x.snug.safetensors").status().status.code,
              report.status().status.code);
    return report.status();
  }

  ScratchFolder folder_;
};

TEST_F(StoreBadInput, ForeignFiles) {
  EXPECT_EQ(compress("").status.code, Code::kBadMagic);
  EXPECT_EQ(compress("1234567").status.code, Code::kBadMagic);
  EXPECT_EQ(compress("\x89PNG\r\n\x1a\n and so on").status.code, Code::kBadMagic);
  EXPECT_EQ(compress(std::string(100, '\0')).status.code, Code::kBadMagic);
  EXPECT_EQ(compress(with_length("{}", "") + "x").status.code, Code::kCorrupt);
}

TEST_F(StoreBadInput, HugeHeaderIsRefusedWithoutReadingIt) {
  std::string length(8, '\0');
  const std::uint64_t claim = 100'000'001;
  std::memcpy(length.data(), &claim, 8);
  write_file(folder_ / "x.safetensors", length);
  fs::resize_file(folder_ / "x.safetensors", 300'000'000);  // sparse
  EXPECT_EQ(compress_path(folder_ / "x.safetensors", "").status().status.code, Code::kBadMagic);
}

TEST_F(StoreBadInput, TruncatedPlainFiles) {
  const std::string file = plain();
  for (const std::size_t size :
       {std::size_t{7}, std::size_t{8}, std::size_t{100}, file.size() / 2, file.size() - 1}) {
    const StoreStatus status = compress(file.substr(0, size));
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.file, folder_ / "x.safetensors");
  }
}

TEST_F(StoreBadInput, TruncatedCompressedFiles) {
  const std::string file = compressed();
  for (std::size_t size = 0; size < file.size(); size += size < 64 ? 1 : file.size() / 97)
    EXPECT_FALSE(decompress(file.substr(0, size)).ok());
}

TEST_F(StoreBadInput, DamageIsNamedByTensorBlockAndByte) {
  std::string file = compressed();
  file[file.size() - 20000] ^= 1;  // inside "large", the last tensor before the header
  const StoreStatus status = decompress(file);
  EXPECT_EQ(status.status.code, Code::kCorrupt);
  EXPECT_EQ(status.tensor, "large");
  EXPECT_EQ(status.status.block, 0u);
  EXPECT_LE(status.status.byte, file.size() - 20000);
  EXPECT_GT(status.status.byte, file.size() - 90000);
  EXPECT_EQ(to_string(status).find("corrupt: " + (folder_ / "x.snug.safetensors") +
                                   ": tensor \"large\": block 0, byte "),
            0u)
      << to_string(status);
}

TEST_F(StoreBadInput, SwappedTensorsOfEqualShapeAreFound) {
  // Every checksum of the frames still holds. 64 values are frames, 4 are stored as they are.
  for (const std::uint64_t n : {1000u, 64u, 4u}) {
    ScratchFolder folder;
    write_file(folder / "x.safetensors",
               make_file({make_tensor("aa", "U64", {n}, 1), make_tensor("bb", "U64", {n}, 2),
                          make_tensor("cc", "U64", {n}, 3)}));
    StoreOptions raw;
    raw.codec = Codec::kRaw;
    ASSERT_TRUE(compress_path(folder / "x.safetensors", "", raw).ok());
    std::string file = read_file(folder / "x.snug.safetensors");
    const std::size_t aa = file.find("\"aa\""), bb = file.find("\"bb\"");
    file.replace(aa, 4, "\"bb\"");
    file.replace(bb, 4, "\"aa\"");
    EXPECT_STREQ(decompress(file).status.what, "not the bytes that were stored under this name");
    const auto reader = Reader::open(folder_ / "x.snug.safetensors");
    ASSERT_TRUE(reader.ok());
    std::vector<std::byte> bytes(8 * n);
    for (const char* name : {"aa", "bb"}) {
      const TensorEntry tensor = *reader->find(name);
      for (const std::size_t part : {8 * n, std::uint64_t{8}}) {
        const StoreStatus status = reader->read_bytes(tensor, 0, std::span(bytes).first(part));
        EXPECT_EQ(status.status.code, Code::kCorrupt);
        EXPECT_EQ(status.tensor, name);
      }
    }
    EXPECT_TRUE(reader->read(*reader->find("cc"), bytes).ok());
  }
}

TEST_F(StoreBadInput, MetadataOfSnug) {
  const std::string file = compressed();
  const auto edited = [&](const std::string& from, const std::string& to) {
    std::string bytes = file;
    EXPECT_EQ(from.size(), to.size());
    bytes.replace(bytes.find(from), from.size(), to);
    // No command takes it for a plain file.
    const Code code = decompress(bytes).status.code;
    EXPECT_EQ(Reader::open(folder_ / "x.snug.safetensors").status().status.code, code);
    EXPECT_EQ(compress_path(folder_ / "x.snug.safetensors", folder_ / "y").status().status.code,
              code);
    return code;
  };
  EXPECT_EQ(edited("\"snug.format\":\"1\"", "\"snug.format\":\"2\""), Code::kUnsupportedVersion);
  EXPECT_EQ(edited("\"snug.format\":\"1\"", "\"snug.format\":\"q\""), Code::kCorrupt);
  EXPECT_EQ(edited("\"snug.format\"", "\"snag.format\""), Code::kCorrupt);
  EXPECT_EQ(edited("\"snug.format\"", "\"snug.formad\""), Code::kCorrupt);
  EXPECT_EQ(edited("\"snug.size\"", "\"snug.sise\""), Code::kCorrupt);
  EXPECT_EQ(edited("\"snug.xxh3_128\"", "\"snug.xxh3_127\""), Code::kCorrupt);
  EXPECT_EQ(edited("\"__snug__.header\"", "\"__snag__.header\""), Code::kCorrupt);
  EXPECT_EQ(edited("\"layer.F16\":{\"dtype\":\"U8\"", "\"layer.F16\":{\"dtype\":\"I8\""),
            Code::kCorrupt);
  EXPECT_EQ(edited("\"scalar\":{\"dtype\":\"F32\"", "\"scalar\":{\"dtype\":\"I32\""),
            Code::kCorrupt);
  EXPECT_EQ(edited("\"scalar\"", "\"scalor\""), Code::kCorrupt);
}

TEST_F(StoreBadInput, MarksThatAreThereTwice) {
  for (const std::string extra :
       {"\"snug.format\":\"1\",", "\"snug.size\":\"1\",", "\"snug.format\":\"2\","}) {
    std::string file = compressed();
    const std::string start = "{\"__metadata__\":{";
    file.insert(file.find(start) + start.size(), extra);
    std::uint64_t length;
    std::memcpy(&length, file.data(), 8);
    length += extra.size();
    std::memcpy(file.data(), &length, 8);
    EXPECT_STREQ(decompress(file).status.what, "__metadata__ has a key twice");
  }
}

TEST_F(StoreBadInput, NamesOfSnugWithoutItsFormatAreDamage) {
  // As if a tool had rewritten a compressed file without its metadata.
  EXPECT_EQ(compress(make_file({make_tensor("__snug__.header", "U8", {5})})).status.code,
            Code::kCorrupt);
  for (const char* key : {"snug.size", "snug.xxh3_128", "snug.odd"})
    EXPECT_EQ(compress(make_file({}, "{" + json_string(key) + ":\"1\"}")).status.code,
              Code::kCorrupt);
  fs::remove(folder_ / "x.safetensors");
  EXPECT_EQ(decompress(make_file({}, "{\"snug.size\":\"1\"}")).status.code, Code::kCorrupt);
}

TEST_F(StoreBadInput, PlainFilesAreNotRestored) {
  EXPECT_EQ(decompress(plain()).status.code, Code::kBadMagic);
}

TEST_F(StoreBadInput, CompressedFilesAreNotCompressedAgain) {
  EXPECT_STREQ(compress(compressed()).status.what, "already compressed by Snug");
}

TEST_F(StoreBadInput, ExistingOutputIsKept) {
  write_file(folder_ / "x.safetensors", plain());
  write_file(folder_ / "x.snug.safetensors", "precious");
  EXPECT_EQ(compress_path(folder_ / "x.safetensors", "").status().status.code, Code::kExists);
  EXPECT_EQ(read_file(folder_ / "x.snug.safetensors"), "precious");
  StoreOptions force;
  force.force = true;
  EXPECT_EQ(compress_path(folder_ / "x.safetensors", folder_ / "x.safetensors", force)
                .status()
                .status.code,
            Code::kUsage);
  EXPECT_TRUE(compress_path(folder_ / "x.safetensors", "", force).ok());
}

TEST_F(StoreBadInput, PathsThatAreNotThere) {
  EXPECT_EQ(compress_path(folder_ / "no.safetensors", "").status().status.code, Code::kNotFound);
  EXPECT_EQ(compress_path(folder_ / "no", "").status().status.code, Code::kNotFound);
  EXPECT_EQ(verify_path(folder_ / "no").status().status.code, Code::kNotFound);
  write_file(folder_ / "x.safetensors", plain());
  EXPECT_EQ(compress_path(folder_ / "x.safetensors", folder_ / "no/x").status().status.code,
            Code::kNotFound);
  write_file(folder_ / "x.bin", plain());
  EXPECT_EQ(compress_path(folder_ / "x.bin", "").status().status.code, Code::kUsage);
}

TEST_F(StoreBadInput, FullDisk) {
  // A limit on file sizes makes writes fail halfway, as a full disk does.
  write_file(folder_ / "x.safetensors", make_file({make_tensor("a", "BF16", {1000, 1000})}));
  std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit old;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const struct rlimit small = {500'000, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto report = compress_path(folder_ / "x.safetensors", "");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_EQ(report.status().status.code, Code::kIo);
  EXPECT_EQ(folder_.list(), std::vector<std::string>{"x.safetensors"});
}

TEST_F(StoreBadInput, MessagesStayOnOneLine) {
  const std::string text =
      to_string(StoreStatus{{Code::kCorrupt, "what"}, "a\nb", "t\x1b[31m", "d\te"});
  EXPECT_EQ(text, "corrupt: a?b: tensor \"t?[31m\": what: d?e");
}

}  // namespace
}  // namespace snug::test
