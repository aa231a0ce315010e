// Any bytes as a file, plain or compressed: read, verify, and there and back.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "fuzz/fuzz_frame.h"
#include "snug/store.h"

namespace {

namespace fs = std::filesystem;

// In memory where the system offers that; files are small.
struct Folder {
  fs::path path;
  Folder()
      : path((fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path()) /
             ("snug-fuzz-" + std::to_string(getpid()))) {
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
};

const fs::path& folder() {
  static const Folder made;
  return made.path;
}

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void read_all(const std::string& path) {
  const auto reader = snug::Reader::open(path);
  if (!reader.ok()) return snug::test::require(!snug::to_string(reader.status()).empty());
  for (const snug::TensorEntry& tensor : reader->tensors()) {
    if (tensor.raw_bytes > snug::test::kMaxDecodedBytes) continue;
    std::vector<std::byte> whole(tensor.raw_bytes);
    if (!reader->read(tensor, whole).ok() || whole.empty()) continue;
    const std::size_t first = whole.size() / 3;
    std::vector<std::byte> part(whole.size() - first);
    snug::test::require(reader->read_bytes(tensor, first, part).ok());
    snug::test::require(std::memcmp(part.data(), whole.data() + first, part.size()) == 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace snug;
  const fs::path in = folder() / "in.safetensors", packed = folder() / "packed.safetensors",
                 out = folder() / "out.safetensors";
  std::ofstream(in, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  StoreOptions options;
  options.num_threads = 1;
  options.force = true;

  read_all(in);
  const bool intact = verify_path(in, options).ok();
  const bool restored = decompress_path(in, out, options).ok();
  test::require(intact == restored);
  if (compress_path(in, packed, options).ok()) {
    test::require(verify_path(packed, options).ok());
    test::require(decompress_path(packed, out, options).ok());
    test::require(bytes_of(out) == bytes_of(in));
  }
  // Nothing temporary is left behind, whatever happened.
  for (const auto& entry : fs::directory_iterator(folder()))
    test::require(entry.path() == in || entry.path() == packed || entry.path() == out);
  return 0;
}
