// The safetensors header: what is accepted, and where each defect is reported.
#include "store/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "store/store_files.h"

namespace snug {
namespace {

using store::parse_layout;

// Header and number of data bytes of a file, and what is wrong with it.
struct BadHeader {
  const char* name;
  std::string json;
  std::uint64_t num_data_bytes;
  Code code;
  const char* what;
  const char* tensor;
};

std::string tensor_json(const char* name, const char* dtype, const char* shape,
                        const char* offsets) {
  return std::string("\"") + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

std::vector<BadHeader> bad_headers() {
  const std::string a = tensor_json("a", "U8", "[4]", "[0,4]");
  std::string deep = "{\"a\":{\"x\":";
  for (int i = 0; i < 100000; ++i) deep += "[";
  const auto one = [](const char* dtype, const char* shape, const char* offsets) {
    return "{" + tensor_json("a", dtype, shape, offsets) + "}";
  };
  return {
      {"empty", "", 0, Code::kBadMagic, "not a safetensors file: header is no JSON object", ""},
      {"no_object", "[]", 0, Code::kBadMagic, "not a safetensors file: header is no JSON object",
       ""},
      {"leading_space", " {}", 0, Code::kBadMagic,
       "not a safetensors file: header is no JSON object", ""},
      {"open", "{" + a, 4, Code::kCorrupt, "JSON: expected ',' or a closing bracket", ""},
      {"after_end", "{" + a + "}}", 4, Code::kCorrupt, "JSON: bytes after the end", ""},
      {"nul_padding", "{" + a + "}" + std::string(1, '\0'), 4, Code::kCorrupt,
       "JSON: bytes after the end", ""},
      {"trailing_comma", "{" + a + ",}", 4, Code::kCorrupt, "JSON: expected a string", ""},
      {"long_dtype", one(std::string(256, 'D').c_str(), "[4]", "[0,4]"), 4, Code::kCorrupt,
       "dtype of more than 255 bytes", "a"},
      {"deep", deep, 0, Code::kCorrupt, "JSON: nested too deep", "a"},
      {"not_utf8", "{\"\xFF\":1}", 0, Code::kCorrupt, "header is not UTF-8", ""},
      {"overlong_utf8", "{\"\xC0\xAF\":1}", 0, Code::kCorrupt, "header is not UTF-8", ""},
      {"surrogate", "{\"\\ud800\":1}", 0, Code::kCorrupt, "JSON: lone surrogate", ""},
      {"control", "{\"\n\":1}", 0, Code::kCorrupt, "JSON: control character in a string", ""},
      {"twice", "{" + a + "," + tensor_json("a", "U8", "[0]", "[4,4]") + "}", 4, Code::kCorrupt,
       "tensor listed twice", "a"},
      {"twice_escaped", "{" + a + "," + tensor_json("\\u0061", "U8", "[0]", "[4,4]") + "}", 4,
       Code::kCorrupt, "tensor listed twice", "a"},
      {"key_twice",
       "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
       Code::kCorrupt, "key given twice", "a"},
      {"metadata_twice", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, Code::kCorrupt,
       "__metadata__ given twice", ""},
      {"metadata_key_twice", "{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, Code::kCorrupt,
       "__metadata__ has a key twice", ""},
      {"metadata_number", "{\"__metadata__\":{\"k\":1}}", 0, Code::kCorrupt,
       "JSON: expected a string", ""},
      {"no_shape", "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,0]}}", 0, Code::kCorrupt,
       "tensor without dtype, shape or data_offsets", "a"},
      {"negative", one("U8", "[-4]", "[0,4]"), 4, Code::kCorrupt, "JSON: expected a whole number",
       "a"},
      {"fraction", one("U8", "[4.0]", "[0,4]"), 4, Code::kCorrupt, "JSON: expected a whole number",
       "a"},
      {"leading_zero", one("U8", "[04]", "[0,4]"), 4, Code::kCorrupt, "JSON: number starts with 0",
       "a"},
      {"huge_number", one("U8", "[99999999999999999999]", "[0,4]"), 4, Code::kCorrupt,
       "JSON: number too large", "a"},
      {"three_offsets", one("U8", "[4]", "[0,4,4]"), 4, Code::kCorrupt,
       "JSON: expected ',' or a closing bracket", "a"},
      {"backwards", one("U8", "[4]", "[4,0]"), 4, Code::kCorrupt, "data_offsets run backwards",
       "a"},
      {"beyond_end", one("U8", "[5]", "[0,5]"), 4, Code::kCorrupt,
       "tensor reaches beyond the end of the file", "a"},
      {"wrong_size", one("BF16", "[4]", "[0,4]"), 4, Code::kCorrupt,
       "size does not agree with dtype and shape", "a"},
      {"overflow", one("F32", "[4294967296,4294967296]", "[0,4]"), 4, Code::kCorrupt,
       "shape too large", "a"},
      {"half_byte", one("F4", "[3]", "[0,2]"), 2, Code::kCorrupt, "tensor ends inside a byte", "a"},
      {"hole_first", one("U8", "[3]", "[1,4]"), 4, Code::kCorrupt, "hole before the tensor", "a"},
      {"hole",
       "{" + tensor_json("a", "U8", "[1]", "[0,1]") + "," + tensor_json("b", "U8", "[2]", "[2,4]") +
           "}",
       4, Code::kCorrupt, "hole before the tensor", "b"},
      {"overlap",
       "{" + tensor_json("a", "U8", "[3]", "[0,3]") + "," + tensor_json("b", "U8", "[2]", "[2,4]") +
           "}",
       4, Code::kCorrupt, "tensor overlaps the one before it", "b"},
      {"not_covered", one("U8", "[3]", "[0,3]"), 4, Code::kCorrupt, "bytes after the last tensor",
       ""},
      {"no_tensors_but_data", "{}", 1, Code::kCorrupt, "bytes after the last tensor", ""},
  };
}

TEST(Safetensors, RefusesBadHeaders) {
  for (const BadHeader& bad : bad_headers()) {
    const auto layout = parse_layout(bad.json, 8 + bad.json.size() + bad.num_data_bytes);
    ASSERT_FALSE(layout.ok()) << bad.name;
    EXPECT_EQ(layout.status().status.code, bad.code) << bad.name;
    EXPECT_STREQ(layout.status().status.what, bad.what) << bad.name;
    EXPECT_EQ(layout.status().tensor, bad.tensor) << bad.name;
    if (bad.code == Code::kCorrupt && std::string(bad.what) != "tensor listed twice") {
      EXPECT_LE(layout.status().status.byte, 8 + bad.json.size() + bad.num_data_bytes) << bad.name;
    }
  }
}

TEST(Safetensors, SortsByOffsetAndFindsByName) {
  const std::string json = "{" + tensor_json("z", "U8", "[1]", "[3,4]") +
                           ", \"__metadata__\" : {\"k\":\"v\\u00e9\\n\"} ,\n" +
                           tensor_json("\\u0061\\ud83d\\ude00", "BF16", "[]", "[0,2]") + "," +
                           "\"m\":{\"extra\":[1,{\"x\":-1.5e+3}],\"data_offsets\":[2,3],\"shape\":["
                           "1,1],\"dtype\":\"NEW\"}}   ";
  const auto layout = parse_layout(json, 8 + json.size() + 4);
  ASSERT_TRUE(layout.ok()) << to_string(layout.status());
  ASSERT_EQ(layout->slots.size(), 3u);
  EXPECT_EQ(layout->slots[0].name, "a\xF0\x9F\x98\x80");
  EXPECT_EQ(layout->slots[1].dtype, "NEW");
  EXPECT_EQ(layout->slots[2].name, "z");
  EXPECT_EQ(layout->data_start, 8 + json.size());
  EXPECT_EQ(layout->slots[1].shape(), (std::vector<std::uint64_t>{1, 1}));
  EXPECT_EQ(layout->slots.find("z"), 2u);
  EXPECT_EQ(layout->slots.find("y"), std::nullopt);
  ASSERT_TRUE(layout->metadata.find("k"));
  EXPECT_EQ(*layout->metadata.find("k"), "v\xC3\xA9\n");
}

// Gives a few bytes at a time, so that every token is cut somewhere.
class Drops : public store::TextSource {
 public:
  Drops(std::string_view text, std::size_t num_bytes) : text_(text), num_bytes_(num_bytes) {}
  std::size_t read(std::span<char> dst) noexcept override {
    const std::size_t n = std::min({dst.size(), num_bytes_, text_.size()});
    std::memcpy(dst.data(), text_.data(), n);
    text_.remove_prefix(n);
    return n;
  }

 private:
  std::string_view text_;
  const std::size_t num_bytes_;
};

TEST(Safetensors, TextInPiecesMeansTheSame) {
  for (const BadHeader& bad : bad_headers())
    for (const std::size_t num_bytes : {1, 7}) {
      const std::uint64_t file_bytes = 8 + bad.json.size() + bad.num_data_bytes;
      const auto whole = parse_layout(bad.json, file_bytes);
      Drops drops(bad.json, num_bytes);
      const auto pieces = parse_layout(drops, bad.json.size(), file_bytes);
      EXPECT_EQ(to_string(pieces.status()), to_string(whole.status())) << bad.name;
    }
  const std::string json = "{\"__metadata__\":{\"k\\ud83d\\ude00\":\"\xF0\x9F\x98\x80\"},  " +
                           tensor_json("t\\u0061", "BF16", "[10,20]", "[0,400]") + "}  ";
  Drops drops(json, 1);
  const auto layout = parse_layout(drops, json.size(), 8 + json.size() + 400);
  ASSERT_TRUE(layout.ok()) << to_string(layout.status());
  EXPECT_EQ(layout->slots[0].name, "ta");
  EXPECT_EQ(layout->slots[0].shape(), (std::vector<std::uint64_t>{10, 20}));
  EXPECT_EQ(layout->metadata[0].first, "k\xF0\x9F\x98\x80");
  EXPECT_EQ(layout->metadata[0].second, "\xF0\x9F\x98\x80");
}

TEST(Safetensors, KeepsZeroBytesInNames) {
  const std::string json = "{\"__metadata__\":{\"a\\u0000\":\"\\u0000b\",\"a\":\"\"}," +
                           tensor_json("n\\u0000", "d\\u0000d", "[1]", "[0,1]") + "," +
                           tensor_json("n", "U8", "[1]", "[1,2]") + "}";
  const auto layout = parse_layout(json, 8 + json.size() + 2);
  ASSERT_TRUE(layout.ok()) << to_string(layout.status());
  EXPECT_EQ(layout->slots[0].name, std::string("n\0", 2));
  EXPECT_EQ(layout->slots[0].dtype, std::string("d\0d", 3));
  EXPECT_EQ(layout->slots[0].shape(), std::vector<std::uint64_t>{1});
  EXPECT_EQ(layout->slots.find("n"), 1u);
  EXPECT_EQ(layout->metadata[0].second, std::string("\0b", 2));
}

TEST(Safetensors, AcceptsNullMetadataAndZeroDimensions) {
  const std::string json = "{\"__metadata__\":null," +
                           tensor_json("a", "F32", "[18446744073709551615,0]", "[0,0]") + "}";
  EXPECT_TRUE(parse_layout(json, 8 + json.size()).ok());
}

TEST(Safetensors, ChecksTheLength) {
  const auto check = [](std::uint64_t length, std::uint64_t file_bytes) {
    std::byte bytes[8];
    std::memcpy(bytes, &length, 8);
    return store::check_header_length(bytes, file_bytes).status().code;
  };
  EXPECT_EQ(check(2, 10), Code::kOk);
  EXPECT_EQ(check(3, 10), Code::kCorrupt);
  EXPECT_EQ(check(100'000'000, 100'000'008), Code::kOk);
  EXPECT_EQ(check(100'000'001, 200'000'000), Code::kBadMagic);
  EXPECT_EQ(check(~std::uint64_t{0}, 10), Code::kBadMagic);
}

}  // namespace
}  // namespace snug
