// Mutated files of every kind in front of everything that reads files: an error, or exactly the
// bytes of the original. SNUG_MUTATIONS sets the number of files (`make mutation-test`: 100,000
// under AddressSanitizer), SNUG_MUTATION_SEED which ones.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>

#include "snug/store.h"
#include "store/peak_memory.h"
#include "store/store_files.h"
#include "support/prng.h"
#include "support/reseal.h"
#include "support/sanitizer.h"

namespace snug::test {
namespace {

namespace fs = std::filesystem;
using Tree = std::map<std::string, std::string>;  // file name to content

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

StoreOptions quietly(Codec codec = Codec::kEntropy) {
  StoreOptions options;
  options.codec = codec;
  options.num_threads = 1;
  options.force = true;
  return options;
}

Tree tree_of(const fs::path& path) {
  Tree tree;
  for (const auto& entry : fs::directory_iterator(path))
    tree[entry.path().filename()] = read_file(entry.path());
  return tree;
}

void write_tree(const fs::path& path, const Tree& tree) {
  fs::create_directory(path);
  for (const auto& [name, bytes] : tree) write_file(path / name, bytes);
}

// ---- mutations ---------------------------------------------------------------

class Mutator {
 public:
  Mutator(std::uint64_t seed, const std::vector<std::string>& others)
      : prng_(seed), others_(others) {}

  // One change or several.
  std::string mutate(const std::string& original) {
    std::string bytes = original;
    do {
      (this->*kChanges[prng_.below(kChanges.size())])(bytes);
    } while (prng_.one_in(4) || bytes == original);
    return bytes;
  }

 private:
  // Half of the places are in the header: it is small, and the most delicate.
  std::size_t place(const std::string& bytes) {
    const std::size_t n = bytes.size() + 1;
    return prng_.below(prng_.one_in(2) ? std::min<std::size_t>(n, header_bytes(bytes)) : n);
  }
  static std::size_t header_bytes(const std::string& bytes) {
    std::uint64_t length = 0;
    if (bytes.size() >= 8) std::memcpy(&length, bytes.data(), 8);
    return length > 0 && length < bytes.size() ? length + 8 : 256;
  }
  std::size_t length(std::size_t limit) {  // mostly short
    return limit == 0 ? 0 : 1 + prng_.below(prng_.one_in(4) ? limit : std::min(limit, {16}));
  }

  void flip_bits(std::string& bytes) {
    for (std::size_t i = 1 + prng_.below(3); i > 0 && !bytes.empty(); --i) {
      char& byte = bytes[std::min(place(bytes), bytes.size() - 1)];
      byte = static_cast<char>(byte ^ 1 << prng_.below(8));
    }
  }
  void noise(std::string& bytes) {
    const std::size_t at = place(bytes);
    for (std::size_t i = at, n = length(bytes.size() - at); i < at + n; ++i)
      bytes[i] = static_cast<char>(prng_.byte());
  }
  void cut_end(std::string& bytes) { bytes.resize(place(bytes)); }
  void cut_out(std::string& bytes) {
    const std::size_t at = place(bytes);
    bytes.erase(at, length(bytes.size() - at));
  }
  void grow(std::string& bytes) {
    bytes.insert(place(bytes), length(5000), static_cast<char>(prng_.byte() & prng_.byte()));
  }
  // A piece of this or another file, over what is there or between it.
  void splice(std::string& bytes) {
    const std::string from = prng_.one_in(2) ? bytes : others_[prng_.below(others_.size())];
    const std::size_t first = prng_.below(from.size() + 1), at = place(bytes);
    const std::string piece = from.substr(first, length(from.size() - first));
    bytes.replace(at, prng_.one_in(2) ? 0 : piece.size(), piece);
  }
  void swap(std::string& bytes) {
    const std::size_t a = place(bytes), b = place(bytes), n = length(100);
    if (std::max(a, b) + n > bytes.size() || std::max(a, b) - std::min(a, b) < n) return;
    std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(a),
                     bytes.begin() + static_cast<std::ptrdiff_t>(a + n),
                     bytes.begin() + static_cast<std::ptrdiff_t>(b));
  }
  // Lengths, counts and offsets are eight bytes, most of them aligned.
  void set_number(std::string& bytes) {
    if (bytes.size() < 8) return;
    std::size_t at = prng_.one_in(8) ? 0 : std::min(place(bytes), bytes.size() - 8);
    if (!prng_.one_in(4)) at &= ~std::size_t{7};
    std::uint64_t value;
    std::memcpy(&value, &bytes[at], 8);
    const std::uint64_t values[] = {0,
                                    1,
                                    value + 1,
                                    value - 1,
                                    value * 2,
                                    bytes.size(),
                                    ~0ull,
                                    1ull << 63,
                                    1ull << prng_.below(64),
                                    value ^ 1ull << prng_.below(64)};
    value = values[prng_.below(std::size(values))];
    std::memcpy(&bytes[at], &value, 8);
  }
  // A number, name or mark of the JSON header becomes another.
  void edit_json(std::string& bytes) {
    static const std::array<std::string, 24> kTexts = {"0",
                                                       "1",
                                                       "-1",
                                                       "18446744073709551615",
                                                       "99999999999999999999",
                                                       "1e9",
                                                       "null",
                                                       "true",
                                                       "{}",
                                                       "[]",
                                                       "\"\"",
                                                       "\"BF16\"",
                                                       "\"U8\"",
                                                       "\"F4\"",
                                                       "\"\\u0000\"",
                                                       "\"\\ud800\"",
                                                       "[[[[[[",
                                                       "\"shape\"",
                                                       "\"dtype\"",
                                                       "\"data_offsets\"",
                                                       "\"__metadata__\"",
                                                       ",",
                                                       ":",
                                                       "}"};
    const std::size_t end = std::min(header_bytes(bytes), bytes.size());
    if (end <= 8) return;
    const auto is_token = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
    std::size_t first = 8 + prng_.below(end - 8);
    while (first < end && !is_token(bytes[first])) ++first;
    std::size_t last = first;
    while (last < end && is_token(bytes[last])) ++last;
    std::string text = kTexts[prng_.below(kTexts.size())];
    if (prng_.one_in(2)) {  // a digit more, less or changed
      text = bytes.substr(first, last - first);
      if (!text.empty()) text[prng_.below(text.size())] = static_cast<char>('0' + prng_.below(10));
    }
    const bool fit_length = prng_.one_in(2);
    const std::size_t before = bytes.size();
    bytes.replace(first, last - first, text);
    if (!fit_length) return;
    std::uint64_t json_bytes;
    std::memcpy(&json_bytes, bytes.data(), 8);
    json_bytes += bytes.size() - before;
    std::memcpy(bytes.data(), &json_bytes, 8);
  }
  // A frame is changed, and its checksums are made right again.
  void reseal_frame(std::string& bytes) {
    static const std::string kMagic = "SNUG";
    std::size_t at = bytes.find(kMagic, header_bytes(bytes) + prng_.below(bytes.size() + 1));
    if (at == std::string::npos) at = bytes.find(kMagic, header_bytes(bytes));
    if (at == std::string::npos) return flip_bits(bytes);
    const auto frame = std::as_writable_bytes(std::span(bytes)).subspan(at);
    for (std::size_t i = 1 + prng_.below(4); i > 0; --i)
      frame[prng_.below(std::min<std::size_t>(frame.size(), prng_.one_in(2) ? 96 : 4000))] ^=
          static_cast<std::byte>(1 << prng_.below(8));
    reseal(frame);
  }

  static constexpr std::array kChanges = {
      &Mutator::flip_bits, &Mutator::flip_bits, &Mutator::noise,      &Mutator::cut_end,
      &Mutator::cut_out,   &Mutator::grow,      &Mutator::splice,     &Mutator::swap,
      &Mutator::edit_json, &Mutator::edit_json, &Mutator::set_number, &Mutator::reseal_frame};
  Prng prng_;
  const std::vector<std::string>& others_;
};

// ---- readers -----------------------------------------------------------------

constexpr std::uint64_t kMaxTensorBytes = 16 << 20;

// Every tensor, whole and in parts. Whatever can be read of a compressed file is the original's.
bool read_tensors(const std::string& path, const std::vector<TestTensor>& tensors,
                  bool must_be_original) {
  const auto reader = Reader::open(path);
  if (!reader) {
    EXPECT_FALSE(to_string(reader.status()).empty());
    return false;
  }
  EXPECT_TRUE(reader->compressed() || !must_be_original);
  bool all = true;
  for (const TensorEntry& tensor : reader->tensors()) {
    if (tensor.raw_bytes > kMaxTensorBytes) continue;  // a claim, which read would refuse
    std::string bytes(tensor.raw_bytes, '?');
    const bool whole = reader->read(tensor, std::as_writable_bytes(std::span(bytes))).ok();
    all &= whole;
    if (whole && must_be_original) {
      const auto same = [&](const TestTensor& t) { return t.name == tensor.name; };
      const auto original = std::find_if(tensors.begin(), tensors.end(), same);
      EXPECT_NE(original, tensors.end()) << tensor.name;
      if (original == tensors.end()) continue;
      EXPECT_EQ(tensor.dtype, original->dtype);
      EXPECT_EQ(tensor.shape, original->shape);
      EXPECT_TRUE(bytes == original->data) << tensor.name;
    }
    const std::size_t first = bytes.size() / 3, count = bytes.size() / 2 - first;
    std::string part(count, '?');
    const bool ok = reader->read_bytes(tensor, first, std::as_writable_bytes(std::span(part))).ok();
    EXPECT_TRUE(!whole || (ok && part == bytes.substr(first, count))) << tensor.name;
    const auto rows = reader->row_bytes(tensor, 0, tensor.num_rows());
    EXPECT_TRUE(!rows || rows->second == tensor.raw_bytes || tensor.num_rows() == 0) << tensor.name;
    if (reader->compressed()) (void)reader->frame_stats(tensor).ok();
  }
  (void)reader->stats(quietly()).ok();
  return all;
}

// A kind of input: files to mutate one of, and what reads them.
struct Subject {
  std::string name;
  Tree files;
  // True if the mutated input was accepted. It lies at PATH, which is a folder or a file as `files`
  // has several or one.
  std::function<bool(const std::string& path)> check;
};

class StoreMutations : public ::testing::Test {
 protected:
  const ScratchFolder folder_;
  std::vector<Subject> subjects_;

  std::string out() const { return folder_ / "out"; }

  // Restored, and all calls agree on whether it can be.
  bool restores(const std::string& path) {
    const bool intact = verify_path(path, quietly()).ok();
    EXPECT_EQ(decompress_path(path, out(), quietly()).ok(), intact);
    return intact;
  }

  void add_compressed(const std::string& name, const std::vector<TestTensor>& tensors,
                      Codec codec) {
    const std::string plain = make_file(tensors, "{\"format\":\"pt\"}");
    write_file(folder_ / "in.safetensors", plain);
    const std::string packed = folder_ / "packed.safetensors";
    ASSERT_TRUE(compress_path(folder_ / "in.safetensors", packed, quietly(codec)).ok());
    subjects_.push_back({name,
                         {{"x.safetensors", read_file(packed)}},
                         [this, plain, tensors](const std::string& path) {
                           const bool readable = read_tensors(path, tensors, true);
                           const bool intact = restores(path);
                           if (intact) {
                             EXPECT_TRUE(readable);
                             EXPECT_TRUE(version_of(path, quietly()).ok());
                             EXPECT_TRUE(read_file(out()) == plain);
                           }
                           return intact;
                         }});
  }

  // Without checksums a mutated plain file is another file: what is accepted survives the round
  // trip.
  void add_plain(const std::string& name, const std::vector<TestTensor>& tensors) {
    subjects_.push_back({name,
                         {{"x.safetensors", make_file(tensors, "{\"a\":\"b\"}")}},
                         [this](const std::string& path) {
                           read_tensors(path, {}, false);
                           const std::string packed = folder_ / "packed.safetensors";
                           if (!compress_path(path, packed, quietly()).ok()) return false;
                           EXPECT_TRUE(restores(packed));
                           EXPECT_TRUE(read_file(out()) == read_file(path));
                           return true;
                         }});
  }

  static Tree shards(std::uint64_t seed) {
    const auto a = make_tensor("a", "BF16", {40, 30}, seed), b = make_tensor("b", "F16", {9}, seed);
    return {{"m-1.safetensors", make_file({a}, "{\"format\":\"pt\"}")},
            {"m-2.safetensors", make_file({b})},
            {"config.json", "{\"layers\": 2}"},
            {"m.safetensors.index.json",
             "{\"metadata\": {\"total_size\": 2418}, \"weight_map\": "
             "{\"a\": \"m-1.safetensors\", \"b\": \"m-2.safetensors\"}}"}};
  }

  void add_folder() {
    const Tree plain = shards(7);
    write_tree(folder_ / "plain", plain);
    ASSERT_TRUE(compress_path(folder_ / "plain", folder_ / "packed", quietly()).ok());
    // Other files than safetensors are copied as they are; edits of config.json are kept.
    const Tree packed = tree_of(folder_ / "packed");
    subjects_.push_back(
        {"compressed folder", packed, [this, plain, packed](const std::string& path) {
           if (!restores(path)) return false;
           Tree expected = plain;
           const Tree now = tree_of(path), restored = tree_of(out());
           for (auto& [name, bytes] : expected)
             if (!name.ends_with(".safetensors") && now.at(name) != packed.at(name))
               bytes = name == "config.json" ? restored.at(name) : now.at(name);
           EXPECT_TRUE(restored == expected);
           return true;
         }});
    subjects_.push_back({"plain folder", plain, [this](const std::string& path) {
                           const std::string packed = folder_ / "packed";
                           if (!compress_path(path, packed, quietly()).ok()) return false;
                           EXPECT_TRUE(restores(packed));
                           EXPECT_TRUE(tree_of(out()) == tree_of(path));
                           return true;
                         }});
  }

  // The patch is mutated, or its base.
  void add_patches() {
    const std::string base = folder_ / "base", next = folder_ / "next", patch = folder_ / "patch";
    const Tree old = shards(1), target = shards(2);
    write_tree(base, old);
    write_tree(next, target);
    ASSERT_TRUE(diff_path(base, next, patch, quietly()).ok());
    subjects_.push_back({"patch of a folder",
                         {{"x.patch", read_file(patch)}},
                         [this, base, target](const std::string& path) {
                           (void)inspect_patch(path).ok();
                           if (!patch_path(base, path, out(), quietly()).ok()) return false;
                           EXPECT_TRUE(tree_of(out()) == target);
                           return true;
                         }});
    subjects_.push_back({"base", old, [this, patch, target](const std::string& path) {
                           if (!patch_path(path, patch, out(), quietly()).ok()) return false;
                           EXPECT_TRUE(tree_of(out()) == target);
                           return true;
                         }});
    const std::string old_file = folder_ / "base/m-1.safetensors",
                      new_file = target.at("m-1.safetensors");
    const std::string file_patch = folder_ / "file.patch";
    ASSERT_TRUE(diff_path(old_file, folder_ / "next/m-1.safetensors", file_patch, quietly()).ok());
    subjects_.push_back({"patch",
                         {{"x.patch", read_file(file_patch)}},
                         [this, old_file, new_file](const std::string& path) {
                           if (!patch_path(old_file, path, out(), quietly()).ok()) return false;
                           EXPECT_TRUE(read_file(out()) == new_file);
                           return true;
                         }});
    // Both sides of a diff, mutated in the same way: what is accepted gives a patch that applies.
    subjects_.push_back({"files of a diff",
                         {{"x.safetensors", new_file}},
                         [this, old_file](const std::string& path) {
                           const std::string made = folder_ / "made.patch";
                           if (!diff_path(old_file, path, made, quietly()).ok()) return false;
                           EXPECT_TRUE(patch_path(old_file, made, out(), quietly()).ok());
                           EXPECT_TRUE(read_file(out()) == read_file(path));
                           return true;
                         }});
  }

  void SetUp() override {
    std::vector<TestTensor> small;
    for (const TestTensor& tensor : mixed_tensors())
      if (tensor.data.size() < 4000) small.push_back(tensor);
    const std::vector<TestTensor> tiny = {make_tensor("s", "F32", {})};
    add_compressed("compressed", mixed_tensors(), Codec::kEntropy);
    add_compressed("compressed, small", small, Codec::kEntropy);
    add_compressed("compressed, fixed", small, Codec::kFixed);
    add_compressed("compressed, raw", small, Codec::kRaw);
    add_compressed("compressed, tiny", tiny, Codec::kEntropy);
    add_compressed("compressed, empty", {}, Codec::kEntropy);
    add_plain("plain", small);
    add_plain("plain, tiny", tiny);
    add_plain("plain, empty", {});
    add_folder();
    add_patches();
  }

  bool try_one(const Subject& subject, Mutator& mutator, Prng& prng) {
    auto victim = std::next(subject.files.begin(),
                            static_cast<std::ptrdiff_t>(prng.below(subject.files.size())));
    fs::remove_all(out());
    Tree files = subject.files;
    files[victim->first] = mutator.mutate(victim->second);
    const std::string path = folder_ / "mutated";
    write_tree(path, files);
    return subject.check(files.size() > 1 ? path : path + "/" + victim->first);
  }
};

TEST_F(StoreMutations, GiveAnErrorOrTheOriginal) {
  ASSERT_FALSE(HasFailure());
  std::vector<std::string> all;
  for (const Subject& subject : subjects_)
    for (const auto& [name, bytes] : subject.files) all.push_back(bytes);
  for (const Subject& subject : subjects_) {
    fs::remove_all(out());
    write_tree(folder_ / "mutated", subject.files);
    const std::string path = folder_ / "mutated";
    EXPECT_TRUE(
        subject.check(subject.files.size() > 1 ? path : path + "/" + subject.files.begin()->first))
        << subject.name << ", as it is";
    fs::remove_all(path);
  }
  const std::uint64_t num_files = setting("SNUG_MUTATIONS", repetitions(3000));
  const std::uint64_t seed = setting("SNUG_MUTATION_SEED", 1);
  std::map<std::string, std::array<std::uint64_t, 2>> counts;  // refused, accepted
  for (std::uint64_t i = 0; i < num_files; ++i) {
    const Subject& subject = subjects_[(seed + i) % subjects_.size()];
    Mutator mutator(seed + i, all);
    Prng prng(~(seed + i));
    ++counts[subject.name][try_one(subject, mutator, prng)];
    if (HasFailure()) FAIL() << subject.name << ": SNUG_MUTATION_SEED=" << seed + i;
    fs::remove_all(folder_ / "mutated");
  }
  for (const auto& [name, n] : counts)
    std::printf("%-20s %8llu refused %8llu accepted\n", name.c_str(),
                static_cast<unsigned long long>(n[0]), static_cast<unsigned long long>(n[1]));
  struct rusage usage;
  ASSERT_EQ(::getrusage(RUSAGE_SELF, &usage), 0);
  std::printf("%llu files, peak of memory %ld MiB\n", static_cast<unsigned long long>(num_files),
              usage.ru_maxrss >> 10);
  // Freed memory is kept for a while by AddressSanitizer.
  EXPECT_LT(usage.ru_maxrss, kSanitized ? 4 * kMaxKiB : kMaxKiB);
}

}  // namespace
}  // namespace snug::test
