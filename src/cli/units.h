// cli/units.h - numbers, names and bars for a terminal.
#pragma once
#include <cstdint>
#include <string>

namespace snug::cli {

std::string format_bytes(std::uint64_t num_bytes);                 // "15.7 MB": decimal units
std::string format_rate(std::uint64_t num_bytes, double seconds);  // "2.31 GB/s"
std::string format_percent(double share, int digits = 1);          // 0.661 -> "66.1 %"
std::string format_seconds(double seconds);                        // "0:07", "1:02:03"

// Parses "64MiB", "1.5 GB", "4096", up to 8000TB; 0 for anything else.
std::uint64_t parse_bytes(const std::string& text);

// Terminal columns of a UTF-8 text, approximately.
std::size_t display_width(const std::string& text);
std::string pad_right(const std::string& text, std::size_t width);
std::string pad_left(const std::string& text, std::size_t width);
// Makes control characters visible, so that no file name moves the cursor.
std::string printable(const std::string& text);
// A bar of `share` times `width` columns, padded to `width`.
std::string bar(double share, std::size_t width);

// part / whole; `of_nothing` if there is no whole.
inline double ratio(std::uint64_t part, std::uint64_t whole, double of_nothing = 1) {
  return whole == 0 ? of_nothing : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace snug::cli
