// store/json_reader.h - a strict pull parser for safetensors headers.
//
// It builds no tree and needs the text only piece by piece: memory is what the caller keeps. The
// first error sticks, after which every call returns false.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "snug/status.h"

namespace snug::store {

// Text that comes in pieces.
class TextSource {
 public:
  virtual ~TextSource() = default;
  // Fills `dst` from its start and returns how much: 0 at the end, and after an error, which the
  // owner of the source asks it for.
  virtual std::size_t read(std::span<char> dst) noexcept = 0;
};

class JsonReader {
 public:
  // Errors report byte positions counted from `base_offset`.
  explicit JsonReader(std::string_view text, std::uint64_t base_offset = 0) noexcept
      : text_(text), base_offset_(base_offset) {}
  explicit JsonReader(TextSource& source, std::uint64_t base_offset = 0);

  // The next character that is no white space; '\0' at the end.
  char peek() noexcept;
  // Consumes `c` if it comes next.
  bool try_take(char c) noexcept;
  bool expect(char c) noexcept;
  bool try_null() noexcept;

  // Iterates an object or array: call after its opening bracket and then after
  // every member. True while another member follows.
  bool next_member(char close, bool& first) noexcept;

  // Strings must be valid UTF-8, without lone surrogates.
  bool read_string(std::string& out) { return out.clear(), append_string(out); }
  bool read_key(std::string& out) { return read_string(out) && expect(':'); }
  bool append_string(std::string& out) { return read_text(&out, out.max_size()); }
  bool skip_string() { return read_text(nullptr, 0); }
  // Of a string that is longer than all that are known, its first bytes.
  bool read_short(std::string& out) { return out.clear(), read_text(&out, kShortBytes); }
  bool read_short_key(std::string& out) { return read_short(out) && expect(':'); }
  // A number without sign, fraction and exponent.
  bool read_uint(std::uint64_t& out) noexcept;
  bool skip_value(int depth = 0);
  // Only white space may follow.
  bool expect_end() noexcept;

  static constexpr std::size_t kShortBytes = 4096;

  bool ok() const noexcept { return status_.ok(); }
  const Status& status() const noexcept { return status_; }
  std::uint64_t position() const noexcept { return base_offset_ + pos_; }
  bool fail(const char* what, std::uint64_t found = kNowhere) noexcept;

 private:
  // Up to `max_bytes` of a string are appended to `out`, if there is one.
  bool read_text(std::string* out, std::size_t max_bytes);
  bool read_escape(char (&utf8)[4], std::size_t& num_bytes) noexcept;
  bool read_hex4(std::uint32_t& out) noexcept;
  bool read_utf8(std::size_t& num_bytes) noexcept;
  bool skip_literal_or_number() noexcept;

  // Whether text_ has `num_bytes` from pos_ on, after more was read where possible.
  bool has(std::size_t num_bytes) noexcept {
    return text_.size() - pos_ >= num_bytes || refill(num_bytes);
  }
  bool refill(std::size_t num_bytes) noexcept;
  bool at(char c) noexcept { return has(1) && text_[pos_] == c; }
  bool take_word(std::string_view word) noexcept;

  std::string_view text_;  // what is at hand
  std::uint64_t base_offset_;
  std::size_t pos_ = 0;
  TextSource* source_ = nullptr;
  std::unique_ptr<char[]> buffer_;  // if there is a source
  Status status_;
};

// Appends `text` as a JSON string with its quotes.
void append_json_string(std::string& out, std::string_view text);
// The same without quotes, for a string that is written in pieces.
void append_json_text(std::string& out, std::string_view text);

}  // namespace snug::store
