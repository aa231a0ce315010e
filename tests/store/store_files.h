// tests/store/store_files.h - safetensors files and folders to test the store with.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "snug/store.h"

namespace snug::test {

// A folder that is gone when the test ends.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  // Names of everything in it, sorted, folders with a '/' at the end.
  std::vector<std::string> list() const;

 private:
  std::string path_;
};

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& bytes);

struct TestTensor {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::string data;
};

// Values as weights have them, of any dtype the store knows.
std::string weight_bytes(const std::string& dtype, std::uint64_t num_elems, std::uint64_t seed);
TestTensor make_tensor(const std::string& name, const std::string& dtype,
                       std::vector<std::uint64_t> shape, std::uint64_t seed = 1);

std::string json_string(const std::string& text);
// The header JSON of tensors that lie one behind the other.
std::string header_json(const std::vector<TestTensor>& tensors,
                        const std::string& metadata_json = {});
// Length, JSON and data as one file.
std::string with_length(const std::string& json, const std::string& data);
std::string make_file(const std::vector<TestTensor>& tensors,
                      const std::string& metadata_json = {});

// A few tensors of many kinds, about 200 kB.
std::vector<TestTensor> mixed_tensors();

}  // namespace snug::test
