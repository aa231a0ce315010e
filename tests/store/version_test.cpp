// Versions: hashes of bytes that were read, of any number of files, or an error.
#include <gtest/gtest.h>

#include <filesystem>

#include "snug/store.h"
#include "store/file_hash.h"
#include "store/store_files.h"
#include "support/child_process.h"
#include "support/prng.h"
#include "support/sanitizer.h"

namespace snug::test {
namespace {

namespace fs = std::filesystem;

std::string hash_of(const std::string& bytes) {
  store::FileHash hash;
  hash.update(bytes.data(), bytes.size());
  return hash.hex();
}

TEST(Version, IsTheHashOfTheBytesOnDisk) {
  const ScratchFolder folder;
  write_file(folder / "plain", make_file(mixed_tensors()));
  ASSERT_TRUE(compress_path(folder / "plain", folder / "entropy").ok());
  StoreOptions fixed;
  fixed.codec = Codec::kFixed;
  ASSERT_TRUE(compress_path(folder / "plain", folder / "fixed", fixed).ok());
  for (const char* name : {"plain", "entropy", "fixed"})
    EXPECT_EQ(*version_of(folder / name), hash_of(read_file(folder / name))) << name;
}

// Whatever is damaged in a compressed file, it is no longer the version that it was; and what does
// not restore its original has no version at all.
TEST(Version, ADamagedCompressedFileIsNotTheVersionThatItClaims) {
  const ScratchFolder folder;
  write_file(folder / "plain", make_file(mixed_tensors()));
  for (const std::string name : {"c", "c.snug.safetensors"}) {
    ASSERT_TRUE(compress_path(folder / "plain", folder / name).ok());
    const std::string version = *version_of(folder / name), bytes = read_file(folder / name);
    Prng prng(3);
    int num_refused = 0;
    for (int i = 0; i < 120; ++i) {
      std::string damaged = bytes;
      // The first bytes are the ones that say what it is.
      damaged[i < 60 ? static_cast<std::size_t>(i) : prng.below(bytes.size())] ^=
          static_cast<char>(1 << prng.below(8));
      write_file(folder / "damaged" + name, damaged);
      const auto found = version_of(folder / "damaged" + name);
      EXPECT_TRUE(!found || *found != version) << i;
      EXPECT_TRUE(!found ||
                  verify_path(folder / "damaged" + name).status().status.code != Code::kCorrupt)
          << i;
      num_refused += !found;
    }
    EXPECT_GT(num_refused, 100);
  }
}

TEST(Version, BytesThatMerelyMentionSnugHaveOne) {
  const ScratchFolder folder;
  for (const std::string& text :
       {std::string("compress model.snug.safetensors: see snug.format"), std::string("snug."),
        std::string(), std::string("\x02\0\0\0\0\0\0\0{]", 10)}) {
    write_file(folder / "notes.md", text);
    EXPECT_EQ(*version_of(folder / "notes.md"), hash_of(text));
  }
}

// A name may hold what separates names.
TEST(Version, NoTwoFoldersHaveTheSame) {
  const ScratchFolder folder;
  fs::create_directory(folder / "two");
  fs::create_directory(folder / "one");
  write_file(folder / "two/a", "x");
  write_file(folder / "two/b", "y");
  write_file(folder / "one/a\n1\n" + hash_of("x") + "\nb", "y");
  EXPECT_NE(*version_of(folder / "two"), *version_of(folder / "one"));
  fs::rename(folder / "two/b", folder / "two/c");
  const std::string renamed = *version_of(folder / "two");
  fs::rename(folder / "two/c", folder / "two/b");
  EXPECT_NE(*version_of(folder / "two"), renamed);
}

// Sharded optimizer states have thousands of files; 1024 descriptors are the usual limit.
TEST(Version, ThousandsOfFilesNeedFewDescriptors) {
  const ScratchFolder folder;
  constexpr int kFiles = 1100;
  for (const char* name : {"base", "next"}) fs::create_directory(folder / name);
  for (int i = 0; i < kFiles; ++i) {
    const std::string name = "/" + std::to_string(i) + ".safetensors";
    auto tensor = make_tensor("t" + std::to_string(i), "BF16", {40}, static_cast<unsigned>(i));
    write_file(folder / "base" + name, make_file({tensor}));
    tensor.data[0] ^= 1;
    // Tensors are found in other files too.
    const std::string other = "/" + std::to_string((i + 7) % kFiles) + ".safetensors";
    write_file(folder / "next" + other, make_file({tensor}));
  }
  const auto report = in_child([&] {
    limit_descriptors(256);
    StoreOptions options;
    options.num_threads = 2;
    if (!compress_path(folder / "base", folder / "base.snug", options)) return 1;
    if (!diff_path(folder / "base.snug", folder / "next", folder / "patch", options)) return 2;
    if (!patch_path(folder / "base", folder / "patch", folder / "out", options)) return 3;
    const auto out = version_of(folder / "out"), next = version_of(folder / "next");
    if (!out || !next || *out != *next) return 4;
    return version_of(folder / "base.snug") ? 0 : 5;
  });
  EXPECT_EQ(report.code, 0);
}

// Errors are errors: a base that cannot be read is not taken for bytes that are no tensors.
TEST(Version, DiffNeverTakesAnErrorForPlainBytes) {
  const ScratchFolder folder;
  const auto tensors = mixed_tensors();
  auto changed = tensors;
  changed[0].data[5] ^= 1;
  write_file(folder / "base", make_file(tensors));
  write_file(folder / "next", make_file(changed));
  ASSERT_TRUE(compress_path(folder / "base", folder / "base.snug").ok());
  int num_failed = 0, num_done = 0;
  for (rlim_t limit = 3; limit < 40; ++limit) {
    const auto report = in_child([&] {
      limit_descriptors(limit);
      StoreOptions options;
      options.num_threads = 1;
      return diff_path(folder / "base.snug", folder / "next", folder / "patch", options) ? 0 : 1;
    });
    ASSERT_GE(report.code, 0);
    ASSERT_EQ(report.code == 0, fs::exists(folder / "patch")) << limit;
    ++(report.code == 0 ? num_done : num_failed);
    if (report.code != 0) continue;
    const auto patched = patch_path(folder / "base", folder / "patch", folder / "out");
    EXPECT_TRUE(patched.ok()) << limit << ": " << to_string(patched.status());
    EXPECT_LT(fs::file_size(folder / "patch"), 2000u) << limit;
    fs::remove(folder / "patch");
    fs::remove(folder / "out");
  }
  EXPECT_GT(num_failed, 0);
  EXPECT_GT(num_done, 0);
}

TEST(Version, DiffRefusesADamagedBase) {
  const ScratchFolder folder;
  write_file(folder / "base", make_file(mixed_tensors()));
  ASSERT_TRUE(compress_path(folder / "base", folder / "base.snug").ok());
  const std::string bytes = read_file(folder / "base.snug");
  Prng prng(9);
  for (int i = 0; i < 40; ++i) {
    std::string damaged = bytes;
    damaged[i < 8 ? static_cast<std::size_t>(i) : prng.below(bytes.size())] ^= 4;
    write_file(folder / "damaged", damaged);
    if (verify_path(folder / "damaged").ok()) continue;
    const auto report = diff_path(folder / "damaged", folder / "base", folder / "patch");
    EXPECT_EQ(report.status().status.code, Code::kCorrupt) << i;
    EXPECT_FALSE(fs::exists(folder / "patch")) << i;
  }
}

}  // namespace
}  // namespace snug::test
