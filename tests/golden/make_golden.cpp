// make_golden [DIR]: writes the golden files into DIR, tests/golden by default.
// To be run when the format gains something, never to make a test pass.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "golden/golden_cases.h"
#include "support/checks.h"

namespace {

namespace fs = std::filesystem;
using snug::test::Bytes;

bool write(const fs::path& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) std::fprintf(stderr, "cannot write %s\n", path.c_str());
  return static_cast<bool>(file);
}

}  // namespace

int main(int argc, char** argv) {
  const fs::path dir = argc > 1 ? argv[1] : SNUG_TEST_DIR "/golden";
  fs::create_directories(dir / "valid");
  fs::create_directories(dir / "invalid");
  for (const auto& c : snug::test::golden_valid()) {
    const Bytes raw = c.raw();
    const Bytes frame = snug::test::encode_or_fail(raw, {c.dtype, c.codec, c.log2_block, 1});
    if (!write(dir / "valid" / (c.name() + ".raw"), raw)) return 1;
    if (!write(dir / "valid" / (c.name() + ".snug"), frame)) return 1;
  }
  for (const auto& c : snug::test::golden_invalid())
    if (!write(dir / "invalid" / (c.name() + ".snug"), c.frame)) return 1;
  return 0;
}
