// Runs a fuzz target over files and folders, where there is no libFuzzer. Each
// file is also tried cut short and with bytes changed, always in the same way.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/prng.h"
#include "support/sanitizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;

void run(const std::vector<std::uint8_t>& bytes) {
  // A copy of exact size, so that sanitizers see the end.
  const std::vector<std::uint8_t> exact(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

void run_variants(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<std::uint8_t> bytes(std::istreambuf_iterator<char>(file), {});
  run(bytes);
  if (bytes.empty()) return;
  snug::test::Prng prng(bytes.size());
  for (std::size_t i = 0; i < snug::test::repetitions(60); ++i) {
    auto variant = bytes;
    if (i % 4 == 0) variant.resize(prng.below(bytes.size()));
    for (std::size_t changes = prng.below(4); changes-- > 0 && !variant.empty();)
      variant[prng.below(variant.size())] = prng.byte();
    run(variant);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t num_files = 0;
  for (int i = 1; i < argc; ++i) {
    if (fs::is_regular_file(argv[i])) {
      run_variants(argv[i]);
      ++num_files;
    } else if (fs::is_directory(argv[i])) {
      for (const auto& entry : fs::recursive_directory_iterator(argv[i]))
        if (entry.is_regular_file()) run_variants(entry.path()), ++num_files;
    }
  }
  std::printf("replayed %zu files\n", num_files);
  return 0;
}
