#include "store/json_reader.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace snug::store {
namespace {

// Real headers nest three deep; deeper input only aims at the stack.
constexpr int kMaxDepth = 32;

bool is_space(char c) noexcept { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool is_plain(char c) noexcept {
  const auto u = static_cast<unsigned char>(c);
  return u >= 0x20 && u < 0x80 && c != '"' && c != '\\';
}
bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

constexpr std::size_t kBufferBytes = std::size_t{64} << 10;

std::size_t put_utf8(char* out, std::uint32_t code) noexcept {
  if (code < 0x80) return *out = static_cast<char>(code), 1;
  const std::size_t num_more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  *out++ = static_cast<char>((0xFF00u >> (num_more + 1) & 0xFF) | code >> 6 * num_more);
  for (std::size_t i = num_more; i-- > 0;)
    *out++ = static_cast<char>(0x80 | (code >> 6 * i & 0x3F));
  return num_more + 1;
}

}  // namespace

JsonReader::JsonReader(TextSource& source, std::uint64_t base_offset)
    : base_offset_(base_offset),
      source_(&source),
      buffer_(std::make_unique_for_overwrite<char[]>(kBufferBytes)) {}

bool JsonReader::refill(std::size_t num_bytes) noexcept {
  if (source_ == nullptr) return false;
  std::size_t size = text_.size() - pos_;
  if (size > 0) std::memmove(buffer_.get(), text_.data() + pos_, size);
  base_offset_ += pos_;
  pos_ = 0;
  for (std::size_t n; size < num_bytes; size += n) {
    n = source_->read({buffer_.get() + size, kBufferBytes - size});
    if (n == 0) break;
  }
  text_ = {buffer_.get(), size};
  return size >= num_bytes;
}

bool JsonReader::fail(const char* what, std::uint64_t found) noexcept {
  if (status_.ok()) status_ = {Code::kCorrupt, what, kNowhere, position(), found};
  return false;
}

char JsonReader::peek() noexcept {
  if (!ok()) return '\0';
  while (has(1) && is_space(text_[pos_])) ++pos_;
  return has(1) ? text_[pos_] : '\0';
}

bool JsonReader::try_take(char c) noexcept {
  if (peek() != c || !has(1)) return false;
  ++pos_;
  return true;
}

bool JsonReader::take_word(std::string_view word) noexcept {
  if (!has(word.size()) || text_.substr(pos_, word.size()) != word) return false;
  pos_ += word.size();
  return true;
}

bool JsonReader::expect(char c) noexcept {
  if (try_take(c)) return true;
  switch (c) {
    case '{': return fail("JSON: expected '{'");
    case '[': return fail("JSON: expected '['");
    case ':': return fail("JSON: expected ':'");
    case '"': return fail("JSON: expected a string");
    default: return fail("JSON: expected ',' or a closing bracket");
  }
}

bool JsonReader::try_null() noexcept { return peek() == 'n' && take_word("null"); }

bool JsonReader::next_member(char close, bool& first) noexcept {
  if (first) {
    first = false;
    return !try_take(close) && ok();
  }
  if (try_take(close)) return false;
  return expect(',');
}

bool JsonReader::read_text(std::string* out, std::size_t max_bytes) {
  if (!expect('"')) return false;
  const auto put = [&](const char* bytes, std::size_t num_bytes) {
    const std::size_t n = std::min(num_bytes, max_bytes);
    if (out != nullptr) out->append(bytes, n);
    max_bytes -= n;
  };
  while (has(1)) {
    const char c = text_[pos_];
    std::size_t num_bytes = 1;
    if (c == '"') {
      ++pos_;
      return true;
    }
    if (static_cast<unsigned char>(c) < 0x20) return fail("JSON: control character in a string");
    if (c == '\\') {
      char utf8[4];
      if (!read_escape(utf8, num_bytes)) return false;
      put(utf8, num_bytes);
      continue;
    }
    if (static_cast<unsigned char>(c) < 0x80) {
      // Plain characters in one go: most strings are nothing else.
      while (pos_ + num_bytes < text_.size() && is_plain(text_[pos_ + num_bytes])) ++num_bytes;
    } else if (!read_utf8(num_bytes)) {
      return false;
    }
    put(text_.data() + pos_, num_bytes);
    pos_ += num_bytes;
  }
  return fail("JSON: string does not end");
}

bool JsonReader::read_escape(char (&utf8)[4], std::size_t& num_bytes) noexcept {
  ++pos_;
  const char c = has(1) ? text_[pos_++] : '\0';
  constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  num_bytes = 1;
  if (const std::size_t i = kLetters.find(c); i != std::string_view::npos)
    return utf8[0] = kMeanings[i], true;
  if (c != 'u') return fail("JSON: unknown escape");
  std::uint32_t code, low;
  if (!read_hex4(code)) return false;
  if (code >= 0xD800 && code < 0xE000) {
    if (code >= 0xDC00 || !take_word("\\u")) return fail("JSON: lone surrogate");
    if (!read_hex4(low)) return false;
    if (low < 0xDC00 || low >= 0xE000) return fail("JSON: lone surrogate");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  num_bytes = put_utf8(utf8, code);
  return true;
}

bool JsonReader::read_hex4(std::uint32_t& out) noexcept {
  if (!has(4)) return fail("JSON: string does not end");
  const char *begin = text_.data() + pos_, *end = begin + 4;
  if (std::from_chars(begin, end, out, 16).ptr != end) return fail("JSON: unknown escape");
  pos_ += 4;
  return true;
}

// Checks the character at pos_.
bool JsonReader::read_utf8(std::size_t& num_bytes) noexcept {
  const auto lead = static_cast<unsigned char>(text_[pos_]);
  const std::size_t n = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || !has(n)) return fail("header is not UTF-8", lead);
  std::uint32_t code = lead & (0x7Fu >> n);
  for (std::size_t i = 1; i < n; ++i) {
    const auto c = static_cast<unsigned char>(text_[pos_ + i]);
    if ((c & 0xC0) != 0x80) return fail("header is not UTF-8", c);
    code = code << 6 | (c & 0x3Fu);
  }
  const bool overlong = (n == 3 && code < 0x800) || (n == 4 && code < 0x10000);
  if (overlong || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
    return fail("header is not UTF-8", lead);
  num_bytes = n;
  return true;
}

bool JsonReader::read_uint(std::uint64_t& out) noexcept {
  if (!is_digit(peek())) return fail("JSON: expected a whole number");
  const bool starts_with_0 = text_[pos_] == '0';
  bool several = false;
  out = 0;
  for (; has(1) && is_digit(text_[pos_]); ++pos_) {
    const auto digit = static_cast<std::uint64_t>(text_[pos_] - '0');
    if (out > (~std::uint64_t{0} - digit) / 10) return fail("JSON: number too large");
    if (starts_with_0 && several) return fail("JSON: number starts with 0");
    out = out * 10 + digit;
    several = true;
  }
  if (at('.') || at('e') || at('E')) return fail("JSON: expected a whole number");
  return true;
}

bool JsonReader::skip_literal_or_number() noexcept {
  for (const std::string_view word : {"true", "false", "null"})
    if (take_word(word)) return true;
  const auto digits = [this] {
    bool any = false;
    for (; has(1) && is_digit(text_[pos_]); ++pos_) any = true;
    return any;
  };
  if (at('-')) ++pos_;
  if (!digits()) return fail("JSON: expected a value");
  if (at('.')) {
    ++pos_;
    if (!digits()) return fail("JSON: malformed number");
  }
  if (at('e') || at('E')) {
    ++pos_;
    if (at('+') || at('-')) ++pos_;
    if (!digits()) return fail("JSON: malformed number");
  }
  return true;
}

bool JsonReader::skip_value(int depth) {
  if (depth > kMaxDepth) return fail("JSON: nested too deep");
  const char c = peek();
  if (c == '"') return skip_string();
  if (c != '{' && c != '[') return skip_literal_or_number();
  ++pos_;
  const char close = c == '{' ? '}' : ']';
  for (bool first = true; next_member(close, first);) {
    if (c == '{' && !(skip_string() && expect(':'))) return false;
    if (!skip_value(depth + 1)) return false;
  }
  return ok();
}

bool JsonReader::expect_end() noexcept {
  peek();
  if (ok() && has(1)) return fail("JSON: bytes after the end");
  return ok();
}

void append_json_text(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00";
      out.push_back(kHex[c >> 4 & 15]);
      out.push_back(kHex[c & 15]);
    } else {
      out.push_back(c);
    }
  }
}

void append_json_string(std::string& out, std::string_view text) {
  out.push_back('"');
  append_json_text(out, text);
  out.push_back('"');
}

}  // namespace snug::store
