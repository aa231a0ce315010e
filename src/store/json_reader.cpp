#include "store/json_reader.h"

#include <charconv>

namespace snug::store {
namespace {

// Real headers nest three deep; deeper input only aims at the stack.
constexpr int kMaxDepth = 32;

bool is_space(char c) noexcept { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) return out.push_back(static_cast<char>(code));
  const int num_more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  out.push_back(static_cast<char>((0xFF00u >> (num_more + 1) & 0xFF) | code >> 6 * num_more));
  for (int i = num_more; i-- > 0;) out.push_back(static_cast<char>(0x80 | (code >> 6 * i & 0x3F)));
}

}  // namespace

bool JsonReader::fail(const char* what, std::uint64_t found) noexcept {
  if (status_.ok()) status_ = {Code::kCorrupt, what, kNowhere, position(), found};
  return false;
}

char JsonReader::peek() noexcept {
  if (!ok()) return '\0';
  while (pos_ < text_.size() && is_space(text_[pos_])) ++pos_;
  return pos_ < text_.size() ? text_[pos_] : '\0';
}

bool JsonReader::try_take(char c) noexcept {
  if (peek() != c || pos_ >= text_.size()) return false;
  ++pos_;
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

bool JsonReader::try_null() noexcept {
  if (peek() != 'n' || text_.substr(pos_, 4) != "null") return false;
  pos_ += 4;
  return true;
}

bool JsonReader::next_member(char close, bool& first) noexcept {
  if (first) {
    first = false;
    return !try_take(close) && ok();
  }
  if (try_take(close)) return false;
  return expect(',');
}

bool JsonReader::read_string(std::string& out) {
  out.clear();
  if (!expect('"')) return false;
  while (pos_ < text_.size()) {
    const char c = text_[pos_];
    if (c == '"') {
      ++pos_;
      return true;
    }
    if (static_cast<unsigned char>(c) < 0x20) return fail("JSON: control character in a string");
    if (c == '\\') {
      if (!read_escape(out)) return false;
    } else if (static_cast<unsigned char>(c) < 0x80) {
      out.push_back(c);
      ++pos_;
    } else if (!read_utf8(out)) {
      return false;
    }
  }
  return fail("JSON: string does not end");
}

bool JsonReader::read_escape(std::string& out) {
  ++pos_;
  const char c = pos_ < text_.size() ? text_[pos_++] : '\0';
  constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  if (const std::size_t i = kLetters.find(c); i != std::string_view::npos)
    return out.push_back(kMeanings[i]), true;
  if (c != 'u') return fail("JSON: unknown escape");
  std::uint32_t code, low;
  if (!read_hex4(code)) return false;
  if (code >= 0xD800 && code < 0xE000) {
    if (code >= 0xDC00 || text_.substr(pos_, 2) != "\\u") return fail("JSON: lone surrogate");
    pos_ += 2;
    if (!read_hex4(low)) return false;
    if (low < 0xDC00 || low >= 0xE000) return fail("JSON: lone surrogate");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(out, code);
  return true;
}

bool JsonReader::read_hex4(std::uint32_t& out) noexcept {
  if (text_.size() - pos_ < 4) return fail("JSON: string does not end");
  const char *begin = text_.data() + pos_, *end = begin + 4;
  if (std::from_chars(begin, end, out, 16).ptr != end) return fail("JSON: unknown escape");
  pos_ += 4;
  return true;
}

bool JsonReader::read_utf8(std::string& out) {
  const auto lead = static_cast<unsigned char>(text_[pos_]);
  const std::size_t n = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text_.size() - pos_ < n)
    return fail("header is not UTF-8", lead);
  std::uint32_t code = lead & (0x7Fu >> n);
  for (std::size_t i = 1; i < n; ++i) {
    const auto c = static_cast<unsigned char>(text_[pos_ + i]);
    if ((c & 0xC0) != 0x80) return fail("header is not UTF-8", c);
    code = code << 6 | (c & 0x3Fu);
  }
  const bool overlong = (n == 3 && code < 0x800) || (n == 4 && code < 0x10000);
  if (overlong || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
    return fail("header is not UTF-8", lead);
  out.append(text_.substr(pos_, n));
  pos_ += n;
  return true;
}

bool JsonReader::read_uint(std::uint64_t& out) noexcept {
  if (!is_digit(peek())) return fail("JSON: expected a whole number");
  const std::size_t start = pos_;
  out = 0;
  for (; pos_ < text_.size() && is_digit(text_[pos_]); ++pos_) {
    const auto digit = static_cast<std::uint64_t>(text_[pos_] - '0');
    if (out > (~std::uint64_t{0} - digit) / 10) return fail("JSON: number too large");
    out = out * 10 + digit;
  }
  if (text_[start] == '0' && pos_ - start > 1) return fail("JSON: number starts with 0");
  const char after = pos_ < text_.size() ? text_[pos_] : '\0';
  if (after == '.' || after == 'e' || after == 'E') return fail("JSON: expected a whole number");
  return true;
}

bool JsonReader::skip_literal_or_number() noexcept {
  for (const std::string_view word : {"true", "false", "null"})
    if (text_.substr(pos_, word.size()) == word) {
      pos_ += word.size();
      return true;
    }
  const auto digits = [this] {
    const std::size_t start = pos_;
    while (pos_ < text_.size() && is_digit(text_[pos_])) ++pos_;
    return pos_ > start;
  };
  const auto at = [this](char c) { return pos_ < text_.size() && text_[pos_] == c; };
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
  std::string ignored;
  const char c = peek();
  if (c == '"') return read_string(ignored);
  if (c != '{' && c != '[') return skip_literal_or_number();
  ++pos_;
  const char close = c == '{' ? '}' : ']';
  for (bool first = true; next_member(close, first);) {
    if (c == '{' && !read_key(ignored)) return false;
    if (!skip_value(depth + 1)) return false;
  }
  return ok();
}

bool JsonReader::expect_end() noexcept {
  peek();
  if (ok() && pos_ < text_.size()) return fail("JSON: bytes after the end");
  return ok();
}

void append_json_string(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out.push_back('"');
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
  out.push_back('"');
}

}  // namespace snug::store
