// cli/units.h - numbers for people.
#pragma once
#include <cstdint>
#include <string>

namespace snug::cli {

std::string format_bytes(std::uint64_t num_bytes);                 // "15.7 MB": decimal units
std::string format_rate(std::uint64_t num_bytes, double seconds);  // "2.31 GB/s"
std::string format_percent(double share, int digits = 1);          // 0.661 -> "66.1 %"
std::string format_seconds(double seconds);                        // "0:07", "1:02:03"

// "64MiB", "1.5 GB", "4096"; 0 if it is none of these.
std::uint64_t parse_bytes(const std::string& text);

// Columns that a UTF-8 text takes on a terminal, near enough.
std::size_t display_width(const std::string& text);
std::string pad_right(const std::string& text, std::size_t width);
std::string pad_left(const std::string& text, std::size_t width);
// Makes control characters of names visible, so that no file name moves the cursor.
std::string printable(const std::string& text);

}  // namespace snug::cli
