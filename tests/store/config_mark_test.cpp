// config.json of a compressed folder: marked, and restored byte for byte.
#include "store/config_mark.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <random>

#include "snug/store.h"
#include "store/store_files.h"

namespace snug::test {
namespace {

namespace fs = std::filesystem;
using store::ConfigState;
using store::find_mark;

std::string changed(const std::string& config) {
  const auto mark = find_mark(config);
  return config.substr(0, mark.begin) + mark.text + config.substr(mark.end);
}

TEST(ConfigMark, ComesAndGoes) {
  const std::string long_value(std::size_t{10} << 20, 'x');
  const std::string configs[] = {
      "{}",
      " \r\n{ \t}\n",
      "{\"a\":1}",
      "{\r\n  \"a\": [1, {\"b\": []}],\r\n  \"c\": null\r\n}\r\n",
      "\n\n  {\"model_type\": \"llama\", \"x\": \"}\\\"{\", \"quant\\u0069\": -1.5e-7}",
      "{\"limit\": [0.0, Infinity], \"none\": NaN}",
      "{\"quantization_config_of\": 1, \"text_config\": {\"quantization_config\": null}}",
      "{\"quant_method\": \"snug\", \"original_xxh3_128\": \"\"}",
      "{\"a\": \"" + long_value + "\"}"};
  for (const std::string& config : configs) {
    ASSERT_EQ(find_mark(config).state, ConfigState::kPlain) << config.substr(0, 200);
    const std::string marked = changed(config);
    EXPECT_EQ(find_mark(marked).state, ConfigState::kMarked) << marked.substr(0, 200);
    EXPECT_FALSE(find_mark(marked).is_edited);
    EXPECT_TRUE(changed(marked) == config) << changed(marked).substr(0, 200);
  }
}

TEST(ConfigMark, RestoresWhateverItMarks) {
  const std::string mark = changed("{}").substr(1, changed("{}").size() - 2);
  const std::string pieces[] = {
      "{",  "}",       "[",  "]",    "\"a\"", "\"",  ":",
      ",",  " ",       "\n", "null", "1e5",   "\\",  "{}",
      mark, "\"a\":1", "\0", "[]",   "{\"",   "\"}", "\"quantization_config\":"};
  std::mt19937 random(7);
  int num_plain = 0, num_marked = 0;
  for (int i = 0; i < 200000; ++i) {
    std::string config = random() % 4 != 0 ? "{" : "";
    for (std::size_t n = random() % 8; n > 0; --n) config += pieces[random() % std::size(pieces)];
    if (random() % 4 != 0) config += "}";
    const auto found = find_mark(config);
    ASSERT_LE(found.begin, found.end);
    ASSERT_LE(found.end, config.size());
    if (found.state == ConfigState::kPlain) {
      ++num_plain;
      const std::string marked = changed(config);
      ASSERT_EQ(find_mark(marked).state, ConfigState::kMarked) << config;
      ASSERT_FALSE(find_mark(marked).is_edited) << config;
      ASSERT_EQ(changed(marked), config);
    } else if (found.state == ConfigState::kMarked) {
      ++num_marked;
      const ConfigState rest = find_mark(changed(config)).state;
      ASSERT_TRUE(rest == ConfigState::kPlain || rest == ConfigState::kQuantized) << config;
    }
  }
  EXPECT_GT(num_plain, 1000);
  EXPECT_GT(num_marked, 100);
}

TEST(ConfigMark, IsTheFirstMember) {
  EXPECT_EQ(changed("{\"a\": 1}"),
            "{\n  \"quantization_config\": {\"quant_method\": \"snug\", \"format\": 1, "
            "\"original_xxh3_128\": \"8f1c29f50aa952dbd475f930065b4b4f\"},\"a\": 1}");
}

TEST(ConfigMark, StaysAwayFromOtherFiles) {
  for (const char* config : {"", " ", "[]", "[{}]", "\"{}\"", "1", "{", "{\"a\"}", "{\"a\":}",
                             "{\"a\":1", "{\"a\":1,}", "{\"a\":1}}", "{} {}", "{'a':1}",
                             "{\"a\":[1}", "{\"a\" 1}", "{\"a\":\"1}", "\xEF\xBB\xBF{\"a\":1}"}) {
    EXPECT_EQ(find_mark(config).state, ConfigState::kOther) << config;
    EXPECT_EQ(changed(config), config);
  }
  EXPECT_EQ(find_mark(std::string("{}\0", 3)).state, ConfigState::kOther);
  EXPECT_EQ(find_mark("{\"a\":" + std::string(100000, '[')).state, ConfigState::kOther);
  for (const char* config :
       {"{\"quantization_config\": {\"quant_method\": \"fp8\"}}", "{\"quantization_config\": {}}",
        "{\"quantization_config\": null}", "{\"quantization_config\": 1, \"a\": 2}",
        "{\"a\": 1, \"text_config\": {\"quantization_config\": {\"quant_method\": \"snug\"}}}",
        "{\"quantization_config\": {\"quant_method\": \"snug\"}, \"quantization_config\": {}}"}) {
    EXPECT_EQ(find_mark(config).state, ConfigState::kQuantized) << config;
    EXPECT_EQ(changed(config), config);
  }
}

TEST(ConfigMark, IsFoundWhereOthersPutIt) {
  // Without a hash, as transformers may write it, and in any place.
  const std::string mark = "\"quantization_config\": {\"bits\": [1], \"quant_method\": \"snug\"}";
  EXPECT_EQ(changed("{" + mark + "}"), "{}");
  EXPECT_EQ(changed("{ " + mark + " , \"a\": 1}"), "{ \"a\": 1}");
  EXPECT_EQ(changed("{\"a\": 1 , " + mark + " }"), "{\"a\": 1  }");
  EXPECT_EQ(changed("{\"a\": 1, " + mark + ", \"b\": 2}"), "{\"a\": 1, \"b\": 2}");
  EXPECT_FALSE(find_mark("{" + mark + "}").is_edited);
  // Whatever else was added further down.
  const std::string inner = "\"text_config\": {\"quantization_config\": {\"bits\": 4}}}";
  EXPECT_EQ(changed("{" + mark + "," + inner), "{" + inner);
}

class MarkedFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ / "model/sub");
    write_file(folder_ / "model/x.safetensors", make_file({make_tensor("a", "BF16", {300, 400})}));
    write_file(folder_ / "model/config.json", kConfig);
    write_file(folder_ / "model/sub/config.json", kConfig);
  }
  std::string config(const char* name) const { return read_file(folder_ / name + "/config.json"); }

  static constexpr char kConfig[] = "{\n  \"hidden_size\": 400\n}\n";
  ScratchFolder folder_;
};

TEST_F(MarkedFolder, RestoresTheOriginal) {
  const auto packed = compress_path(folder_ / "model", folder_ / "packed");
  ASSERT_TRUE(packed.ok()) << to_string(packed.status());
  EXPECT_TRUE(packed->notes.empty());
  EXPECT_EQ(find_mark(config("packed")).state, ConfigState::kMarked);
  EXPECT_EQ(config("packed/sub"), kConfig);
  const auto restored = decompress_path(folder_ / "packed", folder_ / "again");
  ASSERT_TRUE(restored.ok()) << to_string(restored.status());
  EXPECT_TRUE(restored->notes.empty());
  EXPECT_EQ(config("again"), kConfig);
  EXPECT_EQ(config("again/sub"), kConfig);
}

TEST_F(MarkedFolder, KeepsEdits) {
  ASSERT_TRUE(compress_path(folder_ / "model", folder_ / "packed").ok());
  std::string edited = config("packed");
  edited.replace(edited.find("400"), 3, "512");
  write_file(folder_ / "packed/config.json", edited);
  const auto verified = verify_path(folder_ / "packed");
  ASSERT_TRUE(verified.ok());
  ASSERT_EQ(verified->notes.size(), 1u);
  const auto restored = decompress_path(folder_ / "packed", folder_ / "again");
  ASSERT_TRUE(restored.ok());
  ASSERT_EQ(restored->notes.size(), 1u);
  EXPECT_NE(restored->notes[0].find("edited"), std::string::npos);
  EXPECT_EQ(config("again"), "{\n  \"hidden_size\": 512\n}\n");
}

TEST_F(MarkedFolder, RestoringAddsNoMark) {
  ASSERT_TRUE(compress_path(folder_ / "model", folder_ / "packed").ok());
  write_file(folder_ / "packed/config.json", kConfig);
  ASSERT_TRUE(decompress_path(folder_ / "packed", folder_ / "again").ok());
  EXPECT_EQ(config("again"), kConfig);
}

TEST_F(MarkedFolder, WhatIsMarkedIsNotTooLongToBeRestored) {
  const std::string path = folder_ / "long.json";
  const auto mark_of = [&](const std::string& config) {
    write_file(path, config);
    return find_mark(*store::File::open(path))->state;
  };
  const std::string longest = "{\"\":\"" + std::string((std::size_t{64} << 20) - 7, 'x') + "\"}";
  EXPECT_EQ(mark_of(longest), ConfigState::kPlain);
  EXPECT_EQ(mark_of(changed(longest)), ConfigState::kMarked);
  EXPECT_EQ(mark_of(longest + " "), ConfigState::kOther);
}

// The progress callback comes between the first look at the folder and the copy of config.json.
TEST_F(MarkedFolder, ConfigIsReadWhereItIsCopied) {
  fs::remove(folder_ / "model/x.safetensors");
  write_file(folder_ / "model/a.safetensors", make_file({make_tensor("a", "BF16", {3000, 2000})}));
  ASSERT_TRUE(compress_path(folder_ / "model", folder_ / "packed").ok());
  const std::string marked = config("packed"), moved = "{ \"b\": 1, " + marked.substr(1);
  int num_calls = 0;
  StoreOptions options;
  options.progress = [&](const Progress&) {
    ++num_calls;
    write_file(folder_ / "packed/config.json", moved);
    write_file(folder_ / "model/config.json", marked);
    return true;
  };
  ASSERT_TRUE(decompress_path(folder_ / "packed", folder_ / "again", options).ok());
  ASSERT_GT(num_calls, 0);
  EXPECT_EQ(config("again"), "{ \"b\": 1,\n  \"hidden_size\": 400\n}\n");
  write_file(folder_ / "model/config.json", kConfig);
  const auto again = compress_path(folder_ / "model", folder_ / "out", options);
  EXPECT_EQ(again.status().status.code, Code::kIo) << to_string(again.status());
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(MarkedFolder, LeavesQuantizedModelsAlone) {
  const std::string quantized = "{\"quantization_config\": {\"quant_method\": \"awq\"}}";
  write_file(folder_ / "model/config.json", quantized);
  const auto packed = compress_path(folder_ / "model", folder_ / "packed");
  ASSERT_TRUE(packed.ok());
  EXPECT_EQ(packed->notes.size(), 1u);
  EXPECT_EQ(config("packed"), quantized);
  const auto restored = decompress_path(folder_ / "packed", folder_ / "again");
  ASSERT_TRUE(restored.ok());
  EXPECT_TRUE(restored->notes.empty());
  EXPECT_EQ(config("again"), quantized);
}

TEST_F(MarkedFolder, IsNotMarkedTwice) {
  ASSERT_TRUE(compress_path(folder_ / "model", folder_ / "packed").ok());
  write_file(folder_ / "model/config.json", config("packed"));
  const auto again = compress_path(folder_ / "model", folder_ / "out");
  EXPECT_EQ(again.status().status.code, Code::kUsage) << to_string(again.status());
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

// A patch between plain folders applies to the compressed one, and from one to the other.
TEST_F(MarkedFolder, IsTheSameVersionForPatches) {
  ASSERT_TRUE(compress_path(folder_ / "model", folder_ / "packed").ok());
  fs::copy(folder_ / "model", folder_ / "next", fs::copy_options::recursive);
  write_file(folder_ / "next/x.safetensors", make_file({make_tensor("a", "BF16", {300, 400}, 2)}));
  for (const char* base : {"model", "packed"}) {
    const std::string patch = folder_ / "patch-from-" + base;
    ASSERT_TRUE(diff_path(folder_ / base, folder_ / "next", patch).ok());
    for (const char* from : {"model", "packed"}) {
      const std::string out = std::string(base) + "-" + from;
      const auto patched = patch_path(folder_ / from, patch, folder_ / out);
      ASSERT_TRUE(patched.ok()) << to_string(patched.status());
      EXPECT_EQ(config(out.c_str()), kConfig);
    }
  }
  // To the compressed form: its files as they are.
  ASSERT_TRUE(diff_path(folder_ / "packed", folder_ / "packed", folder_ / "none").ok());
  ASSERT_TRUE(patch_path(folder_ / "model", folder_ / "none", folder_ / "rebuilt").ok());
  EXPECT_EQ(config("rebuilt"), config("packed"));
  EXPECT_EQ(*version_of(folder_ / "rebuilt"), *version_of(folder_ / "packed"));
}

}  // namespace
}  // namespace snug::test
