#include "cli/units.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

namespace snug::cli {
namespace {

// Three significant digits: 1.23, 12.3, 123.
std::string three_digits(double value) {
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

}  // namespace

std::string format_bytes(std::uint64_t num_bytes) {
  if (num_bytes < 1000) return fmt::format("{} B", num_bytes);
  static constexpr const char* kUnits[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(num_bytes) / 1000;
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return three_digits(value) + " " + kUnits[unit];
}

std::string format_rate(std::uint64_t num_bytes, double seconds) {
  if (seconds <= 0) return "-";
  const double rate = static_cast<double>(num_bytes) / seconds;
  if (rate < 1e3) return fmt::format("{:.0f} B/s", rate);
  if (rate < 1e6) return fmt::format("{:.0f} kB/s", rate / 1e3);
  if (rate < 1e9) return fmt::format("{:.0f} MB/s", rate / 1e6);
  return fmt::format("{:.2f} GB/s", rate / 1e9);
}

std::string format_percent(double share, int digits) {
  return fmt::format("{:.{}f} %", share * 100, digits);
}

std::string format_seconds(double seconds) {
  const auto total = static_cast<long long>(std::ceil(seconds));
  if (total >= 3600)
    return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
  return fmt::format("{}:{:02}", total / 60, total % 60);
}

std::uint64_t parse_bytes(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  while (*end == ' ') ++end;
  const std::string unit = end;
  double factor = 0;
  if (unit.empty() || unit == "B") factor = 1;
  const std::string prefixes = "kMGT";
  const std::size_t at =
      unit.empty() ? std::string::npos : prefixes.find(unit[0] == 'K' ? 'k' : unit[0]);
  if (at != std::string::npos) {
    const std::string rest = unit.substr(1);
    if (rest == "B" || rest.empty()) factor = std::pow(1000.0, static_cast<double>(at + 1));
    if (rest == "iB" || rest == "i") factor = std::pow(1024.0, static_cast<double>(at + 1));
  }
  const double bytes = value * factor;
  return bytes >= 1 && bytes <= 8e15 ? static_cast<std::uint64_t>(bytes) : 0;
}

std::size_t display_width(const std::string& text) {
  std::size_t width = 0;
  for (const char c : text) width += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return width;
}

std::string pad_right(const std::string& text, std::size_t width) {
  const std::size_t have = display_width(text);
  return have < width ? text + std::string(width - have, ' ') : text;
}

std::string pad_left(const std::string& text, std::size_t width) {
  const std::size_t have = display_width(text);
  return have < width ? std::string(width - have, ' ') + text : text;
}

std::string printable(const std::string& text) {
  std::string out;
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const unsigned c = byte(i);
    // C1 controls are C2 80..9F; marks that turn the direction of text are
    // E2 80 AA..AE and E2 81 A6..A9.
    const bool c1 = c == 0xC2 && byte(i + 1) >= 0x80 && byte(i + 1) <= 0x9F;
    const bool bidi =
        c == 0xE2 && ((byte(i + 1) == 0x80 && byte(i + 2) >= 0xAA && byte(i + 2) <= 0xAE) ||
                      (byte(i + 1) == 0x81 && byte(i + 2) >= 0xA6 && byte(i + 2) <= 0xA9));
    if (c1 || bidi) i += c1 ? 1 : 2;
    out += c1 || bidi || c < 0x20 || c == 0x7F ? '?' : text[i];
  }
  return out;
}

std::string bar(double share, std::size_t width) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<std::size_t>(share * static_cast<double>(width) * 8);
  std::string text;
  for (std::size_t i = 0; i < eighths / 8; ++i) text += "█";
  if (eighths / 8 < width) text += kEighths[eighths % 8];
  return pad_right(text, width);
}

}  // namespace snug::cli
