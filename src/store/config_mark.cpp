#include "store/config_mark.h"

#include <algorithm>
#include <cstddef>

#include "store/file_hash.h"

namespace snug::store {
namespace {

constexpr std::string_view kKey = "quantization_config", kMethodKey = "quant_method",
                           kMethod = "snug", kHashKey = "original_xxh3_128";
constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kMaxMarkBytes = 256;
constexpr int kMaxDepth = 64;

std::string hash_of(std::string_view first, std::string_view second = {}) {
  FileHash hash;
  hash.update(first.data(), first.size());
  hash.update(second.data(), second.size());
  return hash.hex();
}

// Finds the mark, or the place for it. Not a JsonReader: Python writes NaN and Infinity, which are
// no JSON, into such files.
class ConfigScan {
 public:
  explicit ConfigScan(std::string_view text) : text_(text) {}

  ConfigMark run() {
    if (next() != '{') return {};
    const std::size_t open = ++pos_;
    const bool is_empty = next() == '}';
    pos_ = open;
    if (!skip_object(0) || next() != '\0' || pos_ != text_.size()) return {};
    if (is_marked_ && num_top_methods_ == 1) {
      const bool is_edited =
          !hash_.empty() && hash_ != hash_of(text_.substr(0, begin_), text_.substr(end_));
      return {ConfigState::kMarked, begin_, end_, {}, is_edited};
    }
    if (num_methods_ > 0) return {ConfigState::kQuantized, 0, 0, {}, false};
    std::string mark = "\n  \"" + std::string(kKey) + "\": {\"" + std::string(kMethodKey) +
                       "\": \"" + std::string(kMethod) + "\", \"format\": 1, \"" +
                       std::string(kHashKey) + "\": \"" + hash_of(text_) + "\"}";
    return {ConfigState::kPlain, open, open, mark + (is_empty ? "" : ","), false};
  }

 private:
  // The next character that is no white space; '\0' at the end.
  char next() {
    pos_ = std::min(text_.find_first_not_of(" \t\r\n", pos_), text_.size());
    return pos_ < text_.size() ? text_[pos_] : '\0';
  }
  bool take(char c) { return next() == c && ++pos_ > 0; }

  bool read_string(std::string_view& raw) {
    if (!take('"')) return false;
    const std::size_t begin = pos_;
    for (; pos_ < text_.size() && text_[pos_] != '"'; ++pos_)
      if (text_[pos_] == '\\') ++pos_;
    if (pos_ >= text_.size()) return false;
    raw = text_.substr(begin, pos_++ - begin);
    return true;
  }

  bool skip_value(int depth) {
    std::string_view ignored;
    if (depth > kMaxDepth) return false;
    if (next() == '"') return read_string(ignored);
    if (take('{')) return skip_object(depth);
    if (take('[')) {
      if (take(']')) return true;
      do
        if (!skip_value(depth + 1)) return false;
      while (take(','));
      return take(']');
    }
    const std::size_t begin = pos_;
    pos_ = std::min(text_.find_first_of(" \t\r\n,:\"[]{}", pos_), text_.size());
    return pos_ > begin;
  }

  // Behind its '{'.
  bool skip_object(int depth) {
    std::size_t before = pos_;  // behind the '{', or the comma before the member
    if (take('}')) return true;
    for (bool first = true;; first = false) {
      std::string_view key;
      if (!read_string(key) || !take(':') || next() == '\0') return false;
      const std::size_t value = pos_;
      if (!skip_value(depth + 1)) return false;
      const std::size_t end = pos_;
      const bool is_last = !take(',');
      if (key == kKey)
        see_method(text_.substr(value, end - value), depth, before, first && !is_last ? pos_ : end);
      before = pos_ - 1;
      if (is_last) return take('}');
    }
  }

  // The value of a quantization_config, which would be cut with [begin, end).
  void see_method(std::string_view value, int depth, std::size_t begin, std::size_t end) {
    if (depth > 0 && value == "null") return;
    ++num_methods_;
    if (depth == 0) ++num_top_methods_;
    ConfigScan inner(value);
    std::string_view key, text, hash;
    bool is_ours = false;
    if (depth == 0 && inner.take('{') && inner.next() != '}') {
      do {
        if (!inner.read_string(key) || !inner.take(':')) return;
        const bool is_text = inner.next() == '"';
        if (is_text ? !inner.read_string(text) : !inner.skip_value(depth)) return;
        if (is_text && key == kMethodKey) is_ours = text == kMethod;
        if (is_text && key == kHashKey) hash = text;
      } while (inner.take(','));
    }
    if (!is_ours) return;
    is_marked_ = true;
    begin_ = begin;
    end_ = end;
    hash_ = hash;
  }

  std::string_view text_;
  std::size_t pos_ = 0;
  int num_methods_ = 0, num_top_methods_ = 0;  // at any depth; in the outermost object
  bool is_marked_ = false;
  std::size_t begin_ = 0, end_ = 0;
  std::string_view hash_;
};

}  // namespace

ConfigMark find_mark(std::string_view config) { return ConfigScan(config).run(); }

StoreResult<ConfigMark> find_mark(const File& config) {
  if (config.num_bytes() > kMaxConfigBytes + kMaxMarkBytes) return ConfigMark{};
  std::string text(static_cast<std::size_t>(config.num_bytes()), '\0');
  if (StoreStatus s = config.read_at(0, text.data(), text.size()); !s.ok()) return s;
  ConfigMark mark = find_mark(text);
  // With a mark it would be too long to be read again.
  if (mark.state == ConfigState::kPlain && text.size() > kMaxConfigBytes) return ConfigMark{};
  return mark;
}

}  // namespace snug::store
