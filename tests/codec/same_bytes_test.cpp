// Every SIMD target writes the same frames. Targets are chosen once a process,
// so this program runs itself once for each.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "support/checks.h"
#include "support/inputs.h"
#include "support/sanitizer.h"

namespace snug::test {
namespace {

constexpr char kPrintDigests[] = "--print-digests";

std::uint64_t digest(const Bytes& bytes) {
  std::uint64_t h = 0xCBF29CE484222325ull;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    h = (h ^ word) * 0x9FB21C651E98DF25ull;
    h ^= h >> 29;
  }
  for (; i < bytes.size(); ++i) h = (h ^ static_cast<std::uint8_t>(bytes[i])) * 0x100000001B3ull;
  return h;
}

// One line for each input and dtype: a digest over its frames.
void print_digests() {
  for (const Input& input : inputs())
    for (const DType dtype : all_dtypes()) {
      if (!input.applies(dtype)) continue;
      Bytes frames;
      for (const int log2_block : {12, 17}) {
        if (kSanitized && log2_block == 17) continue;
        const Bytes raw =
            make_input(input, dtype, log2_block == 12 ? 2 * 4096 + 100 : 131072 + 3001);
        for (const Codec codec : {Codec::kFixed, Codec::kEntropy}) {
          const Bytes frame = encode_or_fail(view(raw), {dtype, codec, log2_block, 1});
          frames.insert(frames.end(), frame.begin(), frame.end());
        }
      }
      std::printf("%s %s %016llx\n", dtype_name(dtype), input.name,
                  static_cast<unsigned long long>(digest(frames)));
    }
}

std::string digests_of(const std::string& target) {
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length < 0) return {};
  const std::string command = "SNUG_FORCE=" + target + " '" +
                              std::string(self, static_cast<std::size_t>(length)) + "' " +
                              kPrintDigests;
  FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  char piece[4096];
  for (std::size_t n; (n = fread(piece, 1, sizeof piece, pipe)) > 0;) text.append(piece, n);
  return pclose(pipe) == 0 ? text : std::string();
}

TEST(SameBytes, OnEveryTarget) {
  const std::string expected = digests_of("scalar");
  ASSERT_FALSE(expected.empty());
  for (const char* target : simd_targets()) EXPECT_EQ(digests_of(target), expected) << target;
}

}  // namespace
}  // namespace snug::test

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], snug::test::kPrintDigests) == 0) {
    snug::test::print_digests();
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
