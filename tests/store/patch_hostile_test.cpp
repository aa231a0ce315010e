// Patches that claim more than they have: refused before memory is taken for it.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "snug/store.h"
#include "store/file_hash.h"
#include "store/output.h"
#include "store/patch_format.h"
#include "store/store_files.h"
#include "support/child_process.h"
#include "support/sanitizer.h"

namespace snug::test {
namespace {

namespace fs = std::filesystem;

constexpr long kMaxKiB = 256 << 10;

// One zstd frame of `start` and `num_zeros` zero bytes, in a few hundred bytes.
std::string zstd_frame(const std::string& start, std::uint32_t num_zeros) {
  constexpr std::uint32_t kBlock = 128 << 10;
  const auto little = [](std::uint32_t value, int num_bytes) {
    std::string bytes;
    for (int i = 0; i < num_bytes; ++i) bytes += static_cast<char>(value >> 8 * i);
    return bytes;
  };
  std::string frame = "\x28\xB5\x2F\xFD\xA0" +
                      little(static_cast<std::uint32_t>(start.size()) + num_zeros, 4) +
                      little(static_cast<std::uint32_t>(start.size()) << 3, 3) + start;
  for (std::uint32_t left = num_zeros; left > 0;) {  // blocks of one repeated byte
    const std::uint32_t n = std::min(left, kBlock);
    left -= n;
    frame += little(n << 3 | 1 << 1 | (left == 0), 3) + std::string(1, '\0');
  }
  return frame;
}

std::string patch_of(const std::string& packed, std::uint64_t plain_bytes) {
  std::string header(store::kPatchHeaderBytes, '\0');
  const std::uint64_t numbers[] = {1, header.size(), packed.size(), plain_bytes};
  std::memcpy(header.data(), "SNUGPTCH", 8);
  std::memcpy(header.data() + 8, numbers, sizeof numbers);
  store::FileHash hash;
  hash.update(header.data(), 64);
  hash.update(packed.data(), packed.size());
  const std::string digits = hash.hex();
  std::memcpy(header.data() + 64, digits.data(), digits.size());
  return header + packed;
}

std::string number(std::uint64_t value) {
  std::string bytes;
  store::append_number(bytes, value);
  return bytes;
}

// What inspect and patch say about the patch: codes, and the most memory they take.
void expect_refused(const ScratchFolder& folder, const char* what) {
  const auto inspect = in_child(
      [&] { return static_cast<int>(inspect_patch(folder / "evil").status().status.code); });
  const auto patch = in_child([&] {
    const auto result = patch_path(folder / "base", folder / "evil", folder / "out");
    return static_cast<int>(result.status().status.code);
  });
  for (const ChildReport& report : {inspect, patch}) {
    EXPECT_EQ(report.code, static_cast<int>(Code::kCorrupt)) << what;
    EXPECT_TRUE(kSanitized || report.peak_kib < kMaxKiB / 2) << what << ": " << report.peak_kib;
  }
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(PatchHostile, CountsAreCheckedBeforeAnythingIsResized) {
  const ScratchFolder folder;
  fs::create_directory(folder / "base");
  constexpr std::uint32_t kZeros = 15 << 20;
  const std::string count = number(kZeros - 100);
  const std::string file = number(1) + "a" + number(0) + number(32) + std::string(32, '0');
  const std::pair<const char*, std::string> starts[] = {
      {"files of BASE", number(1) + number(0) + count},
      {"folders", number(1) + number(0) + number(0) + count},
      {"files", number(1) + number(0) + number(0) + number(0) + count},
      {"pieces", number(1) + number(0) + number(0) + number(0) + number(1) + file + count},
      {"a folder a byte", number(1) + number(0) + number(0) + number(kZeros / 2)},
      {"files that fit", number(1) + number(0) + number(kZeros / 36)},
  };
  for (const auto& [what, start] : starts) {
    const std::string evil = patch_of(zstd_frame(start, kZeros), start.size() + kZeros);
    EXPECT_LT(evil.size(), 1000u);
    write_file(folder / "evil", evil);
    expect_refused(folder, what);
  }
}

TEST(PatchHostile, AManifestOfManyGigabytesIsNotRead) {
  const ScratchFolder folder;
  fs::create_directory(folder / "base");
  constexpr std::uint64_t kBytes = std::uint64_t{8} << 30;
  for (const std::uint64_t plain : {kBytes, std::uint64_t{1} << 20}) {
    std::string header = patch_of("", 0);
    const std::uint64_t numbers[] = {1, header.size(), kBytes - header.size(), plain};
    std::memcpy(header.data() + 8, numbers, sizeof numbers);
    write_file(folder / "evil", header);
    fs::resize_file(folder / "evil", kBytes);
    expect_refused(folder, "sparse");
  }
}

// Writes a manifest in a process of its own, which takes its memory with it.
template <class Fill>
Code write_in_child(const std::string& path, Fill fill) {
  return static_cast<Code>(in_child([&] {
                             store::Manifest manifest;
                             fill(manifest);
                             auto output = store::OutputFile::create(path, true);
                             const auto written = store::write_manifest(output->file(), manifest,
                                                                        store::kPatchHeaderBytes);
                             if (written && !output->commit().ok()) return 255;
                             return static_cast<int>(written.status().status.code);
                           }).code);
}

// The largest manifests there are: what is larger is not written.
TEST(PatchHostile, GoodManifestsTakeLittleMemory) {
  if (kSanitized) GTEST_SKIP() << "sanitizers have their own memory";
  const ScratchFolder folder;
  const std::string hash(32, '0');
  const auto pieces = [&](store::Manifest& manifest, bool too_many) {
    constexpr std::uint64_t kPieces = 21'000'000;
    manifest.base.push_back({"", 0, hash});
    manifest.files.push_back({"", kPieces, hash});
    store::Piece piece;
    piece.kind = store::PieceKind::kZstd;
    piece.num_bytes = 1;
    piece.stored_bytes = too_many ? 200 : 0;  // takes one byte more
    for (std::uint64_t i = 0; i < kPieces; ++i) manifest.files[0].pieces.add(piece);
  };
  const auto files = [&](store::Manifest& manifest, bool too_many) {
    constexpr std::size_t kFiles = store::kMaxManifestEntries / 2;
    manifest.is_folder = true;
    for (std::size_t i = 0; i < kFiles + too_many; ++i) {
      const std::string name = std::to_string(1'000'000 + i) + std::string(110, 'x');
      manifest.base.push_back({name, 0, hash});
      manifest.files.push_back({name, 0, hash});
    }
  };
  const auto expect_small = [&](const char* what, auto fill) {
    EXPECT_EQ(write_in_child(folder / "patch", [&](auto& manifest) { fill(manifest, true); }),
              Code::kUsage)
        << what;
    EXPECT_EQ(write_in_child(folder / "patch", [&](auto& manifest) { fill(manifest, false); }),
              Code::kOk)
        << what;
    const auto report = in_child([&] { return inspect_patch(folder / "patch").ok() ? 0 : 1; });
    EXPECT_EQ(report.code, 0) << what;
    EXPECT_LT(report.peak_kib, kMaxKiB) << what;
    RecordProperty(what, std::to_string(report.peak_kib));
  };
  expect_small("pieces", pieces);
  expect_small("files", files);
}

// A header of 20 MB, compressed in BASE and plain in NEW.
TEST(PatchHostile, DiffOfManyTensorsTakesLittleMemory) {
  if (kSanitized) GTEST_SKIP() << "sanitizers have their own memory";
  const ScratchFolder folder;
  constexpr int kTensors = 200'000, kTensorBytes = 128;
  const auto write = [&](const char* name, char last) {
    std::string json = "{";
    for (std::int64_t i = 0; i < kTensors; ++i)
      json += (i == 0 ? "\"layer." : ",\"layer.") + std::to_string(i) +
              "\":{\"dtype\":\"BF16\",\"shape\":[64],\"data_offsets\":[" +
              std::to_string(i * kTensorBytes) + "," + std::to_string((i + 1) * kTensorBytes) +
              "]}";
    write_file(folder / name,
               with_length(json + "}", std::string(kTensors * kTensorBytes - 1, 'x') + last));
  };
  ASSERT_EQ(in_child([&] {
              write("base", 'y');
              write("next", 'z');
              return compress_path(folder / "base", folder / "base.snug").ok() ? 0 : 1;
            }).code,
            0);
  const auto diff = in_child([&] {
    const auto report = diff_path(folder / "base.snug", folder / "next", folder / "patch");
    return report && report->info.num_changed == 1 ? 0 : 1;
  });
  EXPECT_EQ(diff.code, 0);
  EXPECT_LT(diff.peak_kib, kMaxKiB);
  RecordProperty("diff_kib", std::to_string(diff.peak_kib));
  const auto patch = in_child([&] {
    return patch_path(folder / "base.snug", folder / "patch", folder / "out").ok() ? 0 : 1;
  });
  EXPECT_EQ(patch.code, 0);
  EXPECT_LT(patch.peak_kib, kMaxKiB);
  RecordProperty("patch_kib", std::to_string(patch.peak_kib));
}

TEST(PatchHostile, NamesAreInOrder) {
  const ScratchFolder folder;
  const auto read = [&](std::vector<std::string> base, std::vector<std::string> folders,
                        std::vector<std::string> files) {
    store::Manifest manifest;
    manifest.is_folder = true;
    manifest.sub_folders = std::move(folders);
    const std::string hash = store::FileHash().hex();
    for (const std::string& name : base) manifest.base.push_back({name, 0, hash});
    for (const std::string& name : files) manifest.files.push_back({name, 0, hash});
    auto output = store::OutputFile::create(folder / "patch", true);
    EXPECT_TRUE(store::write_manifest(output->file(), manifest, store::kPatchHeaderBytes).ok());
    EXPECT_TRUE(output->commit().ok());
    return inspect_patch(folder / "patch").ok();
  };
  EXPECT_TRUE(read({"a", "b"}, {"x", "x/y"}, {"a", "x/y/z"}));
  EXPECT_FALSE(read({"b", "a"}, {}, {"a"}));
  EXPECT_FALSE(read({"a", "a"}, {}, {"a"}));
  EXPECT_FALSE(read({"a"}, {}, {"b", "a"}));
  EXPECT_FALSE(read({"a"}, {"x/y"}, {"a"}));
  EXPECT_FALSE(read({"a"}, {"x", "x"}, {"a"}));
  EXPECT_FALSE(read({"a"}, {"x"}, {"x"}));
  EXPECT_FALSE(read({"a"}, {"x"}, {"y/z"}));
}

}  // namespace
}  // namespace snug::test
