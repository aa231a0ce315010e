// store/json_reader.h - a strict pull parser for safetensors headers.
//
// It builds no tree: memory is what the caller keeps. The first error sticks,
// after which every call returns false.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "snug/status.h"

namespace snug::store {

class JsonReader {
 public:
  // Errors report byte positions counted from `base_offset`.
  explicit JsonReader(std::string_view text, std::uint64_t base_offset = 0) noexcept
      : text_(text), base_offset_(base_offset) {}

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
  bool read_string(std::string& out);
  bool read_key(std::string& out) { return read_string(out) && expect(':'); }
  // A number without sign, fraction and exponent.
  bool read_uint(std::uint64_t& out) noexcept;
  bool skip_value(int depth = 0);
  // Only white space may follow.
  bool expect_end() noexcept;

  bool ok() const noexcept { return status_.ok(); }
  const Status& status() const noexcept { return status_; }
  std::uint64_t position() const noexcept { return base_offset_ + pos_; }
  bool fail(const char* what, std::uint64_t found = kNowhere) noexcept;

 private:
  bool read_escape(std::string& out);
  bool read_hex4(std::uint32_t& out) noexcept;
  bool read_utf8(std::string& out);
  bool skip_literal_or_number() noexcept;

  std::string_view text_;
  std::uint64_t base_offset_;
  std::size_t pos_ = 0;
  Status status_;
};

// Appends `text` as a JSON string with its quotes.
void append_json_string(std::string& out, std::string_view text);

}  // namespace snug::store
