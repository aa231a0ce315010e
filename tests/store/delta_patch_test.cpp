// Patches between files and folders: NEW comes back byte for byte, or not at all.
#include <gtest/gtest.h>

#include <filesystem>

#include "snug/store.h"
#include "store/output.h"
#include "store/patch_format.h"
#include "store/store_files.h"
#include "support/prng.h"

namespace snug::test {
namespace {

namespace fs = std::filesystem;

// The last bit of one in `one_in` elements of two bytes, and one byte in passing.
std::string stepped(std::string data, std::size_t one_in, std::uint64_t seed = 5) {
  Prng prng(seed);
  for (std::size_t i = 0; i + 1 < data.size(); i += 2)
    if (prng.one_in(one_in)) data[i] = static_cast<char>(data[i] ^ 1);
  return data;
}

std::vector<TestTensor> stepped(std::vector<TestTensor> tensors, std::size_t one_in) {
  for (TestTensor& tensor : tensors) tensor.data = stepped(tensor.data, one_in);
  return tensors;
}

void expect_ok(const StoreStatus& status) { EXPECT_TRUE(status.ok()) << to_string(status); }

// diff, patch and compare; returns the patch's size.
PatchInfo check_files(const ScratchFolder& folder, const std::string& base, const std::string& next,
                      int num_threads = 2) {
  write_file(folder / "base", base);
  write_file(folder / "next", next);
  StoreOptions options;
  options.num_threads = num_threads;
  options.force = true;
  const auto diffed = diff_path(folder / "base", folder / "next", folder / "patch", options);
  expect_ok(diffed.status());
  const auto patched = patch_path(folder / "base", folder / "patch", folder / "out", options);
  expect_ok(patched.status());
  EXPECT_TRUE(read_file(folder / "out") == next);
  const auto info = inspect_patch(folder / "patch");
  expect_ok(info.status());
  EXPECT_EQ(info->patch_bytes, read_file(folder / "patch").size());
  EXPECT_EQ(info->base_version, *version_of(folder / "base"));
  EXPECT_EQ(info->target_version, *version_of(folder / "out"));
  EXPECT_EQ(info->copied_bytes + info->delta_bytes + info->full_bytes, next.size());
  return *info;
}

TEST(Patch, SafetensorsFilesOfEveryKind) {
  const ScratchFolder folder;
  const auto tensors = mixed_tensors();
  const std::string base = make_file(tensors);
  auto renamed = tensors, reordered = tensors, fewer = tensors, reshaped = tensors, more = tensors;
  renamed[0].name += ".new";
  std::reverse(reordered.begin(), reordered.end());
  fewer.erase(fewer.begin());
  more.push_back(make_tensor("added", "BF16", {100, 30}, 77));
  for (TestTensor& tensor : reshaped)
    if (tensor.shape.size() == 2) tensor.shape = {tensor.shape[0] * tensor.shape[1]};
  const auto cut = make_tensor(tensors[0].name, tensors[0].dtype, {3, 5}, 8);
  auto smaller = tensors;
  smaller[0] = cut;
  for (const auto& variant : {tensors, stepped(tensors, 50), stepped(renamed, 50),
                              stepped(reordered, 50), fewer, reshaped, more, smaller})
    check_files(folder, base, make_file(variant));
  check_files(folder, base, make_file(tensors, R"({"step":"2"})"));
  const PatchInfo same = check_files(folder, base, base);
  EXPECT_EQ(same.copied_bytes, base.size());
  EXPECT_LT(same.patch_bytes, 400u);
  EXPECT_EQ(folder.list(), (std::vector<std::string>{"base", "next", "out", "patch"}));
}

TEST(Patch, AnyBytesAtAll) {
  const ScratchFolder folder;
  const std::string text(300'000, 'x'), noise = weight_bytes("BF16", 700'000, 3);
  for (const std::string& base : {std::string(), std::string("a"), text, noise})
    for (const std::string& next : {std::string(), std::string("b"), text + "y", noise,
                                    stepped(noise, 30), noise.substr(0, 5000)})
      check_files(folder, base, next);
}

TEST(Patch, ChangedTensorsAreSmall) {
  const ScratchFolder folder;
  const std::vector<TestTensor> tensors = {make_tensor("w", "BF16", {1024, 1024}, 1)};
  for (const int num_threads : {1, 4}) {
    const PatchInfo info =
        check_files(folder, make_file(tensors), make_file(stepped(tensors, 40)), num_threads);
    EXPECT_GT(info.delta_bytes, 2'000'000u);
    EXPECT_LT(info.patch_bytes, info.target_bytes / 50);
    EXPECT_NEAR(static_cast<double>(info.num_changed), 1024 * 1024 / 40., 1000);
  }
}

TEST(Patch, ThreadsWriteTheSamePatch) {
  const ScratchFolder folder;
  const std::vector<TestTensor> tensors = {make_tensor("w", "BF16", {3, 700'001}, 1)};
  check_files(folder, make_file(tensors), make_file(stepped(tensors, 40)), 1);
  const std::string one = read_file(folder / "patch");
  check_files(folder, make_file(tensors), make_file(stepped(tensors, 40)), 5);
  EXPECT_TRUE(read_file(folder / "patch") == one);
}

TEST(Patch, BaseMayBeCompressed) {
  const ScratchFolder folder;
  const auto tensors = mixed_tensors();
  check_files(folder, make_file(tensors), make_file(stepped(tensors, 20)));
  expect_ok(compress_path(folder / "base", folder / "base.snug").status());
  EXPECT_NE(*version_of(folder / "base.snug"), *version_of(folder / "base"));
  expect_ok(patch_path(folder / "base.snug", folder / "patch", folder / "out2").status());
  EXPECT_TRUE(read_file(folder / "out2") == read_file(folder / "next"));
  expect_ok(diff_path(folder / "base.snug", folder / "next", folder / "patch2").status());
  EXPECT_TRUE(read_file(folder / "patch2") == read_file(folder / "patch"));
  // A compressed NEW is a file like any other: it comes back compressed.
  expect_ok(diff_path(folder / "next", folder / "base.snug", folder / "patch3").status());
  expect_ok(patch_path(folder / "next", folder / "patch3", folder / "out3").status());
  EXPECT_TRUE(read_file(folder / "out3") == read_file(folder / "base.snug"));
}

struct Folders {
  ScratchFolder folder;
  Folders() {
    const auto tensors = mixed_tensors();
    const std::size_t half = tensors.size() / 2;
    const std::vector<TestTensor> first(tensors.begin(), tensors.begin() + static_cast<int>(half)),
        second(tensors.begin() + static_cast<int>(half), tensors.end());
    fs::create_directories(folder / "base/sub/empty");
    fs::create_directories(folder / "next/other/deep");
    write_file(folder / "base/a.safetensors", make_file(first));
    write_file(folder / "base/sub/b.safetensors", make_file(second));
    write_file(folder / "base/config.json", "{\"a\": 1}");
    write_file(folder / "base/gone.txt", "gone");
    // Shards swapped: tensors are found by name in any file.
    write_file(folder / "next/a.safetensors", make_file(stepped(second, 30)));
    write_file(folder / "next/other/deep/c.safetensors", make_file(stepped(first, 30)));
    write_file(folder / "next/config.json", "{\"a\": 2}");
    write_file(folder / "next/empty.txt", "");
  }
};

TEST(PatchFolder, EverythingComesBack) {
  const Folders f;
  const auto report = diff_path(f.folder / "base/", f.folder / "next", f.folder / "patch");
  expect_ok(report.status());
  EXPECT_LT(report->info.patch_bytes, report->info.target_bytes / 5);
  expect_ok(patch_path(f.folder / "base", f.folder / "patch", f.folder / "out/").status());
  for (const char* name : {"a.safetensors", "other/deep/c.safetensors", "config.json", "empty.txt"})
    EXPECT_TRUE(read_file(f.folder / "out" + ("/" + std::string(name))) ==
                read_file(f.folder / "next" + ("/" + std::string(name))))
        << name;
  EXPECT_FALSE(fs::exists(f.folder / "out/gone.txt"));
  EXPECT_EQ(*version_of(f.folder / "out"), report->info.target_version);
  // Again over itself: only with force.
  EXPECT_EQ(
      patch_path(f.folder / "base", f.folder / "patch", f.folder / "out").status().status.code,
      Code::kExists);
  StoreOptions force;
  force.force = true;
  expect_ok(patch_path(f.folder / "base", f.folder / "patch", f.folder / "out", force).status());
}

TEST(PatchFolder, ABaseOfMoreFilesWillDo) {
  const Folders f;
  expect_ok(diff_path(f.folder / "base", f.folder / "next", f.folder / "patch").status());
  write_file(f.folder / "base/notes.txt", "mine");
  expect_ok(patch_path(f.folder / "base", f.folder / "patch", f.folder / "out").status());
}

TEST(PatchFolder, WrongBasesAreNamed) {
  const Folders f;
  expect_ok(diff_path(f.folder / "base", f.folder / "next", f.folder / "patch").status());
  const auto refused = [&](const std::string& base) {
    const auto result = patch_path(base, f.folder / "patch", f.folder / "out");
    EXPECT_EQ(result.status().status.code, Code::kWrongBase) << to_string(result.status());
    EXPECT_FALSE(fs::exists(f.folder / "out"));
  };
  refused(f.folder / "next");
  refused(f.folder / "base/config.json");
  std::string bytes = read_file(f.folder / "base/a.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(f.folder / "base/a.safetensors", bytes);
  refused(f.folder / "base");
  fs::remove(f.folder / "base/gone.txt");
  refused(f.folder / "base");
}

TEST(PatchBad, CutsAndFlipsLeaveNoOutput) {
  const ScratchFolder folder;
  const auto tensors = mixed_tensors();
  check_files(folder, make_file(tensors), make_file(stepped(tensors, 20), R"({"step":"2"})"));
  const std::string patch = read_file(folder / "patch");
  StoreOptions options;
  options.num_threads = 2;
  Prng prng(11);
  for (int i = 0; i < 150; ++i) {
    std::string damaged = patch;
    if (i % 3 == 0)
      damaged.resize(prng.below(patch.size()));
    else
      damaged[prng.below(patch.size())] ^= static_cast<char>(1 << prng.below(8));
    write_file(folder / "damaged", damaged);
    const auto result = patch_path(folder / "base", folder / "damaged", folder / "fresh", options);
    if (result.ok()) {  // a bit that nobody reads
      EXPECT_TRUE(read_file(folder / "fresh") == read_file(folder / "next"));
      fs::remove(folder / "fresh");
    } else {
      EXPECT_NE(result.status().status.code, Code::kInternal) << to_string(result.status());
      EXPECT_FALSE(fs::exists(folder / "fresh"));
    }
  }
  EXPECT_EQ(folder.list(), (std::vector<std::string>{"base", "damaged", "next", "out", "patch"}));
}

TEST(PatchBad, NamesThatLeaveTheFolder) {
  for (const char* name : {"", "/x", "../x", "a/../../x", "a//b", "./a", "a/.", "a/", ".."})
    EXPECT_FALSE(store::is_safe_name(name)) << name;
  EXPECT_FALSE(store::is_safe_name(std::string_view("a\0b", 3)));
  for (const char* name : {"a", "a/b.c", "..a", "a..", ".hidden/x"})
    EXPECT_TRUE(store::is_safe_name(name)) << name;

  // A manifest that is good in every other way.
  const ScratchFolder folder;
  fs::create_directory(folder / "base");
  const auto apply = [&](const std::string& name, std::vector<std::string> sub_folders) {
    store::Manifest manifest;
    manifest.is_folder = true;
    manifest.sub_folders = std::move(sub_folders);
    manifest.files.push_back({name, 0, std::string(32, '0'), {}});
    auto output = store::OutputFile::create(folder / "evil", true);
    EXPECT_TRUE(store::write_manifest(output->file(), manifest, store::kPatchHeaderBytes).ok());
    expect_ok(output->commit());
    return patch_path(folder / "base", folder / "evil", folder / "out").status().status;
  };
  for (const char* name : {"../escaped", "/escaped", "a/b"})
    EXPECT_STREQ(apply(name, {}).what, "manifest is not valid") << name;
  EXPECT_STREQ(apply("a", {"../b"}).what, "manifest is not valid");
  EXPECT_STREQ(apply("a", {"a"}).what, "manifest is not valid");
  EXPECT_FALSE(fs::exists(folder / "escaped"));
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(PatchBad, Usage) {
  const Folders f;
  const std::string base = f.folder / "base", file = f.folder / "base/a.safetensors";
  EXPECT_EQ(diff_path(base, file, f.folder / "p").status().status.code, Code::kUsage);
  EXPECT_EQ(diff_path(file, file, file).status().status.code, Code::kUsage);
  EXPECT_EQ(diff_path(f.folder / "none", file, f.folder / "p").status().status.code,
            Code::kNotFound);
  EXPECT_EQ(patch_path(file, file, f.folder / "o").status().status.code, Code::kBadMagic);
  EXPECT_EQ(inspect_patch(base).status().status.code, Code::kUsage);
  EXPECT_FALSE(fs::exists(f.folder / "p"));
  // Stopped by the caller: nothing stays.
  StoreOptions options;
  options.progress = [](const Progress&) { return false; };
  EXPECT_EQ(diff_path(base, f.folder / "next", f.folder / "p", options).status().status.code,
            Code::kIo);
  for (const std::string& name : f.folder.list()) EXPECT_EQ(name.find(".tmp-"), std::string::npos);
}

}  // namespace
}  // namespace snug::test
