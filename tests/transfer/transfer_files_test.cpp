// Files and folders over the wire: what arrives is what was sent, broken
// transfers go on, and names from outside stay inside.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "snug/transfer.h"
#include "store/store_files.h"
#include "transfer/manifest.h"
#include "transfer/one_receiver.h"
#include "wire/faulty_proxy.h"
#include "wire/wire_pairs.h"

namespace snug::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A safetensors file of about `num_bytes` that compresses as weights do.
std::string model_file(std::size_t num_bytes, std::uint64_t seed = 1) {
  return make_file({{"a", "BF16", {num_bytes / 2}, text_of(gaussian_bf16(num_bytes, seed))},
                    {"b", "F32", {10}, std::string(40, 'x')}});
}

TEST(WireFiles, OneFile) {
  ScratchFolder from, to;
  const std::string model = model_file(3 << 20);
  write_file(from / "m.safetensors", model);
  Receiver receiver(to.path());
  const auto report = send_path(from / "m.safetensors", receiver.address(), quick());
  ASSERT_TRUE(report.ok()) << to_string(report.status());
  EXPECT_EQ(report->raw_bytes, model.size());
  EXPECT_TRUE(read_file(to / "m.safetensors") == model);
  EXPECT_EQ(to.list(), std::vector<std::string>{"m.safetensors"});
}

TEST(WireFiles, AFolderWithEverything) {
  ScratchFolder from, to;
  fs::create_directories(from / "model/deep/er");
  write_file(from / "model/a.safetensors", model_file(700'000));
  write_file(from / "model/deep/er/b.safetensors", make_file(mixed_tensors()));
  write_file(from / "model/config.json", "{\"a\": 1}");
  write_file(from / "model/empty", "");
  write_file(from / "model/broken.safetensors", "no safetensors at all");
  ::chmod((from / "model/config.json").c_str(), 0640);
  Receiver receiver(to.path());
  const auto report = send_path(from / "model", receiver.address(), quick());
  ASSERT_TRUE(report.ok()) << to_string(report.status());
  EXPECT_EQ(report->num_files, 5u);
  for (const char* name :
       {"a.safetensors", "deep/er/b.safetensors", "config.json", "empty", "broken.safetensors"})
    EXPECT_TRUE(read_file(to / ("model/" + std::string(name))) ==
                read_file(from / ("model/" + std::string(name))))
        << name;
  struct stat info;
  ASSERT_EQ(::stat((to / "model/config.json").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0640u);
}

TEST(WireFiles, DoesNotReplaceUnlessTold) {
  ScratchFolder from, to;
  write_file(from / "x", "new");
  write_file(to / "x", "old");
  {
    Receiver receiver(to.path());
    EXPECT_EQ(send_path(from / "x", receiver.address(), quick()).status().status.code,
              Code::kExists);
    EXPECT_EQ(read_file(to / "x"), "old");
  }
  TransferOptions force = quick();
  force.force = true;
  Receiver receiver(to.path(), force);
  EXPECT_TRUE(send_path(from / "x", receiver.address(), quick()).ok());
  EXPECT_EQ(read_file(to / "x"), "new");
}

// The first session breaks; the second one sends only what is missing.
TEST(WireFiles, GoesOnAfterACutAndAfterDamage) {
  for (const Fault::Kind kind : {Fault::kCut, Fault::kFlipBit}) {
    ScratchFolder from, to;
    const std::string model = model_file(8 << 20);
    write_file(from / "m.safetensors", model);
    Receiver receiver(to.path());
    FaultyProxy proxy(receiver.address(), {kind, 1, 1'000'000});
    const auto report = send_path(from / "m.safetensors", proxy.address(), quick());
    ASSERT_TRUE(report.ok()) << to_string(report.status());
    EXPECT_TRUE(read_file(to / "m.safetensors") == model);
    if (!proxy.has_struck()) continue;
    EXPECT_EQ(report->num_attempts, 2);
    EXPECT_GT(report->stats.known_bytes, 0u);
  }
}

// What lies in the part file need not be right, nor even from this file.
TEST(WireFiles, TrustsNothingInAnOldPart) {
  ScratchFolder from, to;
  const std::string model = model_file(1 << 20);
  write_file(from / "m.safetensors", model);
  fs::create_directory(to / ".m.safetensors.snug-part");
  std::string part = model.substr(0, 600'000) + std::string(900'000, 'z');
  part[70'000] = static_cast<char>(part[70'000] ^ 1);
  write_file(to / ".m.safetensors.snug-part/m.safetensors", part);
  write_file(to / ".m.safetensors.snug-part/stranger", "?");
  Receiver receiver(to.path());
  const auto report = send_path(from / "m.safetensors", receiver.address(), quick());
  ASSERT_TRUE(report.ok()) << to_string(report.status());
  EXPECT_GT(report->stats.known_bytes, 400'000u);
  EXPECT_LT(report->stats.known_bytes, 600'000u);
  EXPECT_TRUE(read_file(to / "m.safetensors") == model);
}

TEST(WireFiles, LinksInThePartAreNotFollowed) {
  ScratchFolder from, to, outside;
  write_file(from / "x", "payload");
  write_file(outside / "victim", "untouched");
  fs::create_directory(to / ".x.snug-part");
  fs::create_symlink(outside / "victim", to / ".x.snug-part/x");
  Receiver receiver(to.path());
  EXPECT_FALSE(send_path(from / "x", receiver.address(), quick()).ok());
  EXPECT_EQ(read_file(outside / "victim"), "untouched");
}

// What lies in a part may belong to somebody who keeps it open.
TEST(WireFiles, PartsOfOthersAreRefused) {
  ScratchFolder from, to;
  write_file(from / "x", "payload");
  const std::string part = to / ".x.snug-part";
  const auto send = [&] {
    Receiver receiver(to.path());
    return send_path(from / "x", receiver.address(), quick()).status().status.code;
  };
  fs::create_directory(part);
  ::chmod(part.c_str(), 0770);
  EXPECT_EQ(send(), Code::kExists);
  ::chmod(part.c_str(), 0700);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(part.c_str(), 65534, 65534), 0);
    EXPECT_EQ(send(), Code::kExists);
    ASSERT_EQ(::chown(part.c_str(), 0, 0), 0);
    write_file(part + "/x", "");
    ASSERT_EQ(::chown((part + "/x").c_str(), 65534, 65534), 0);
    EXPECT_EQ(send(), Code::kIo);
    fs::remove(part + "/x");
  }
  EXPECT_EQ(send(), Code::kOk);
  EXPECT_EQ(read_file(to / "x"), "payload");
}

TEST(WireFiles, HardLinksInThePartAreNotWrittenThrough) {
  ScratchFolder from, to, outside;
  write_file(from / "x", "payload");
  write_file(outside / "victim", "untouched");
  fs::create_directory(to / ".x.snug-part");
  fs::permissions(to / ".x.snug-part", static_cast<fs::perms>(0700));
  fs::create_hard_link(outside / "victim", to / ".x.snug-part/x");
  Receiver receiver(to.path());
  EXPECT_EQ(send_path(from / "x", receiver.address(), quick()).status().status.code, Code::kIo);
  EXPECT_EQ(read_file(outside / "victim"), "untouched");
  EXPECT_FALSE(fs::exists(to / "x"));
}

// --force replaces what the sender has, and deletes nothing else.
TEST(WireFiles, ForceKeepsWhatTheSenderDoesNotHave) {
  ScratchFolder from, to;
  fs::create_directories(from / "m/deep");
  write_file(from / "m/a", "new");
  write_file(from / "m/deep/b", "new");
  TransferOptions force = quick();
  force.force = true;
  const auto send = [&] {
    Receiver receiver(to.path(), force);
    return send_path(from / "m", receiver.address(), quick()).ok();
  };
  ASSERT_TRUE(send());
  EXPECT_TRUE(send());
  EXPECT_EQ(to.list(), (std::vector<std::string>{"m/", "m/a", "m/deep/", "m/deep/b"}));
  write_file(to / "m/precious", "mine");
  EXPECT_TRUE(send());
  std::string kept;
  for (const auto& entry : fs::directory_iterator(to.path()))
    if (entry.path().filename().string().starts_with("m.kept-")) kept = entry.path();
  ASSERT_FALSE(kept.empty());
  EXPECT_EQ(read_file(kept + "/precious"), "mine");
  EXPECT_FALSE(fs::exists(to / "m/precious"));
  EXPECT_EQ(read_file(to / "m/a"), "new");
}

TEST(WireFiles, AFileTooLargeForTheDiskLeavesNoFinalName) {
  ScratchFolder from, to;
  write_file(from / "m.safetensors", model_file(4 << 20));
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{1 << 20, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  {
    Receiver receiver(to.path());
    const auto report = send_path(from / "m.safetensors", receiver.address(), quick());
    EXPECT_EQ(report.status().status.code, Code::kIo) << to_string(report.status());
  }
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_FALSE(fs::exists(to / "m.safetensors"));
  Receiver receiver(to.path());
  EXPECT_TRUE(send_path(from / "m.safetensors", receiver.address(), quick()).ok());
}

TEST(WireFiles, TheReceiverMayBeKilledAndComeBack) {
  ScratchFolder from, to;
  const std::string model = model_file(4 << 20);
  write_file(from / "m.safetensors", model);
  int asked = 0;
  TransferOptions stopping = quick();
  stopping.progress = [&](const Progress&) { return ++asked < 2; };
  {
    Receiver receiver(to.path(), stopping);
    (void)send_path(from / "m.safetensors", receiver.address(), quick());
  }
  if (!fs::exists(to / "m.safetensors")) {
    Receiver receiver(to.path());
    EXPECT_TRUE(send_path(from / "m.safetensors", receiver.address(), quick()).ok());
  }
  EXPECT_TRUE(read_file(to / "m.safetensors") == model);
}

TEST(WireFiles, OnlySafeNames) {
  for (const char* name : {"a", "a/b", "a.b/c d", "model-00001-of-00002.safetensors", ".hidden"})
    EXPECT_TRUE(transfer::is_safe_name(name)) << name;
  for (const std::string name : {"", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/..",
                                 "a\\b", "a\nb", "a/x.snug-part", "a/\x7f"})
    EXPECT_FALSE(transfer::is_safe_name(name)) << name;
  EXPECT_FALSE(transfer::is_safe_name(std::string_view("a\0b", 3)));
  EXPECT_FALSE(transfer::is_safe_name(std::string(300, 'a')));
}

// What patches and compression take for a file is a file for transfers, too.
TEST(WireFiles, ListsLinksToFilesAndRefusesThoseToFolders) {
  ScratchFolder outside, model;
  write_file(outside / "blob", "payload");
  fs::create_directory(model / "b");
  fs::create_symlink(outside / "blob", model / "b/link");
  write_file(model / "a", "x");
  const auto listed = transfer::list_path(model.path());
  ASSERT_TRUE(listed.ok()) << to_string(listed.status());
  ASSERT_EQ(listed->files.size(), 2u);
  EXPECT_EQ(listed->files[0].name, "a");
  EXPECT_EQ(listed->files[1].name, "b/link");
  EXPECT_EQ(listed->num_bytes(), 8u);
  fs::create_directory_symlink(outside.path(), model / "c");
  const auto refused = transfer::list_path(model.path());
  EXPECT_EQ(refused.status().status.code, Code::kUsage);
  EXPECT_STREQ(refused.status().status.what, "link to a folder is not followed");
}

TEST(WireFiles, ManifestsAreChecked) {
  transfer::FileManifest manifest{"model", true, {{"a", 1, 0644}, {"b/c", 2, 0600}}};
  const auto parsed = transfer::parse_manifest(transfer::to_json(manifest));
  ASSERT_TRUE(parsed.ok()) << to_string(parsed.status());
  EXPECT_EQ(parsed->files[1].name, "b/c");
  EXPECT_EQ(parsed->num_bytes(), 3u);
  const auto refused = [](const transfer::FileManifest& bad) {
    return transfer::parse_manifest(transfer::to_json(bad)).status().status.code == Code::kPeer;
  };
  EXPECT_TRUE(refused({"model", true, {{"../a", 1, 0644}}}));
  EXPECT_TRUE(refused({"..", true, {}}));
  EXPECT_TRUE(refused({".m", true, {}}));
  EXPECT_TRUE(refused({"a/b", true, {}}));
  EXPECT_TRUE(refused({"model", true, {{"a", 1, 0644}, {"a", 1, 0644}}}));
  EXPECT_TRUE(refused({"model", true, {{"a", std::uint64_t{1} << 62, 0644}}}));
  EXPECT_TRUE(refused({"model", false, {{"other", 1, 0644}}}));
  EXPECT_FALSE(transfer::parse_manifest("{\"name\":\"x\"").ok());
  EXPECT_FALSE(transfer::parse_manifest("").ok());
}

}  // namespace
}  // namespace snug::test
