#include "store/store_files.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "store/safetensors.h"
#include "support/prng.h"

namespace snug::test {

namespace fs = std::filesystem;

ScratchFolder::ScratchFolder() {
  std::string name = (fs::temp_directory_path() / "snug-test-XXXXXX").string();
  EXPECT_NE(::mkdtemp(name.data()), nullptr);
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::vector<std::string> ScratchFolder::list() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(path_))
    names.push_back(entry.path().lexically_relative(path_).string() +
                    (entry.is_directory() ? "/" : ""));
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good()) << path;
}

std::string weight_bytes(const std::string& dtype, std::uint64_t num_elems, std::uint64_t seed) {
  Prng prng(seed);
  const std::uint64_t bits = store::dtype_bits(dtype) == 0 ? 8 : store::dtype_bits(dtype);
  std::string bytes(num_elems * bits / 8, '\0');
  const auto width = static_cast<std::size_t>(std::max<std::uint64_t>(1, bits / 8));
  for (std::size_t i = 0; i + width <= bytes.size(); i += width) {
    const auto value = static_cast<float>(0.02 * prng.normal());
    std::uint64_t word = prng.next() & prng.next() & prng.next();  // integers with few bits set
    if (dtype == "F32") word = std::bit_cast<std::uint32_t>(value);
    if (dtype == "BF16") word = std::bit_cast<std::uint32_t>(value) >> 16;
    if (dtype == "F64") word = std::bit_cast<std::uint64_t>(static_cast<double>(value));
    std::memcpy(bytes.data() + i, &word, width);
  }
  return bytes;
}

TestTensor make_tensor(const std::string& name, const std::string& dtype,
                       std::vector<std::uint64_t> shape, std::uint64_t seed) {
  std::uint64_t n = 1;
  for (const std::uint64_t dim : shape) n *= dim;
  return {name, dtype, std::move(shape), weight_bytes(dtype, n, seed)};
}

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text)
    out += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return out + "\"";
}

std::string header_json(const std::vector<TestTensor>& tensors, const std::string& metadata_json) {
  std::string json = "{";
  if (!metadata_json.empty()) json += "\"__metadata__\":" + metadata_json;
  std::size_t at = 0;
  for (const TestTensor& tensor : tensors) {
    if (json.size() > 1) json += ",";
    json += json_string(tensor.name);
    json += ":{\"dtype\":" + json_string(tensor.dtype) + ",\"shape\":[";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      if (i > 0) json += ",";
      json += std::to_string(tensor.shape[i]);
    }
    json += "],\"data_offsets\":[" + std::to_string(at) + "," +
            std::to_string(at + tensor.data.size()) + "]}";
    at += tensor.data.size();
  }
  return json + "}";
}

std::string with_length(const std::string& json, const std::string& data) {
  std::string file(8, '\0');
  const std::uint64_t length = json.size();
  std::memcpy(file.data(), &length, 8);
  return file + json + data;
}

std::string make_file(const std::vector<TestTensor>& tensors, const std::string& metadata_json) {
  std::string data;
  for (const TestTensor& tensor : tensors) data += tensor.data;
  return with_length(header_json(tensors, metadata_json), data);
}

std::vector<TestTensor> mixed_tensors() {
  std::vector<TestTensor> tensors;
  std::uint64_t seed = 1;
  for (const char* dtype : {"BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4",
                            "I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64", "BOOL"})
    tensors.push_back(make_tensor(std::string("layer.") + dtype, dtype, {10, 250}, ++seed));
  tensors.push_back(make_tensor("scalar", "F32", {}));
  tensors.push_back(make_tensor("nothing", "BF16", {0, 7}));
  tensors.push_back({"unknown dtype", "Q3_K", {5, 5}, weight_bytes("U8", 333, 5)});
  tensors.push_back(make_tensor("größe/重み \xF0\x9F\x98\x80", "BF16", {3, 33}));
  tensors.push_back({"noise", "U8", {4001}, weight_bytes("U64", 501, 9).substr(0, 4001)});
  tensors.push_back({"zeros", "BF16", {100, 100}, std::string(20000, '\0')});
  tensors.push_back(make_tensor("large", "BF16", {50, 1000}));
  return tensors;
}

}  // namespace snug::test
