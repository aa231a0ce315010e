// The terminal form of snug inspect.
#include <fmt/format.h>

#include <algorithm>

#include "cli/inspect_report.h"
#include "cli/units.h"

namespace snug::cli {
namespace {

using Cells = std::vector<std::string>;
constexpr std::size_t kBarColumns = 40;
constexpr double kRareShare = 0.0005;

// Columns of a table whose lines are made twice: to measure them, and to print them.
class Table {
 public:
  void measure(const Cells& line) {
    widths_.resize(std::max(widths_.size(), line.size()));
    for (std::size_t i = 0; i < line.size(); ++i)
      widths_[i] = std::max(widths_[i], display_width(line[i]));
  }
  // The first three columns are text, the rest numbers.
  std::string line(const Cells& line) const {
    std::string row;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (i > 0) row += "  ";
      row += i < 3 ? pad_right(line[i], widths_[i]) : pad_left(line[i], widths_[i]);
    }
    row.erase(row.find_last_not_of(' ') + 1);
    return row += "\n";
  }

 private:
  std::vector<std::size_t> widths_;
};

std::string signed_percent(double share) { return fmt::format("{:+.2f} %", share * 100); }

Cells tensor_cells(const InspectRow& row, bool compressed) {
  const TensorEntry& t = row.tensor;
  Cells cells = {printable(t.name), printable(t.dtype), format_shape(t.shape),
                 format_bytes(t.raw_bytes)};
  if (compressed) {
    cells.push_back(format_bytes(t.stored_bytes));
    cells.push_back(format_percent(ratio(t.stored_bytes, t.raw_bytes), 2));
  }
  cells.push_back(fmt::format("{:.3f}{}", row.stats.entropy_bits, row.of_exponents() ? "" : "*"));
  cells.push_back(format_percent(row.stats.bound, 2));
  if (compressed)
    cells.push_back(signed_percent(over_bound(t.stored_bytes, t.raw_bytes, row.stats.bound)));
  return cells;
}

std::string histogram_text(const ExponentGroup& group) {
  std::string text =
      fmt::format("\nExponents of {} ({:.3g} M values, entropy {:.3f} bits)\n", group.dtype,
                  static_cast<double>(group.num_values) / 1e6, group.entropy_bits);
  const HistogramWindow window = histogram_window(group);
  const auto share = [&](std::uint64_t n) { return ratio(n, group.num_values); };
  for (std::size_t i = window.first; i <= window.last; ++i) {
    text += fmt::format("  {:>6}  {} {}\n", fmt::format("2^{}", exponent_value(group.kind, i)),
                        bar(ratio(group.histogram[i], window.peak), kBarColumns),
                        pad_left(format_percent(share(group.histogram[i]), 2), 8));
  }
  if (window.outside > 0)
    text += fmt::format("  {:>6}  {} {}\n", "other", std::string(kBarColumns, ' '),
                        pad_left(format_percent(share(window.outside), 2), 8));
  return text;
}

}  // namespace

double over_bound(std::uint64_t stored, std::uint64_t raw, double bound) {
  return raw == 0 || bound <= 0 ? 0.0 : ratio(stored, raw) / bound - 1;
}

std::string format_shape(const std::vector<std::uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

HistogramWindow histogram_window(const ExponentGroup& group) {
  HistogramWindow window;
  const auto rare = static_cast<std::uint64_t>(static_cast<double>(group.num_values) * kRareShare);
  window.last = group.histogram.size() - 1;
  while (window.first < window.last && group.histogram[window.first] <= rare) ++window.first;
  while (window.last > window.first && group.histogram[window.last] <= rare) --window.last;
  std::uint64_t inside = 0;
  for (std::size_t i = window.first; i <= window.last; ++i) {
    window.peak = std::max(window.peak, group.histogram[i]);
    inside += group.histogram[i];
  }
  window.peak = std::max<std::uint64_t>(window.peak, 1);
  window.outside = group.num_values - std::min(inside, group.num_values);
  return window;
}

int exponent_value(DType kind, std::size_t field) {
  const int bias = (1 << (dtype_info(kind).exponent_bits - 1)) - 1;
  return static_cast<int>(field) - bias;
}

namespace {

std::string title_text(const InspectReport& report) {
  std::string text = fmt::format("{}: {} tensor{}", printable(report.path), report.num_tensors,
                                 report.num_tensors == 1 ? "" : "s");
  if (report.files.size() > 1) text += fmt::format(" in {} files", report.files.size());
  if (!report.compressed)
    return text + fmt::format(", {}, not compressed\n\n", format_bytes(report.raw_file_bytes));
  return text +
         fmt::format(", {} -> {}, {}\n\n", format_bytes(report.raw_file_bytes),
                     format_bytes(report.stored_file_bytes),
                     format_percent(ratio(report.stored_file_bytes, report.raw_file_bytes), 2));
}

Cells total_cells(const InspectReport& report) {
  Cells total = {"total", "", "", format_bytes(report.raw_bytes)};
  if (report.compressed) {
    total.push_back(format_bytes(report.stored_bytes));
    total.push_back(format_percent(ratio(report.stored_bytes, report.raw_bytes), 2));
  }
  total.push_back("");
  total.push_back(format_percent(report.bound, 2));
  if (report.compressed)
    total.push_back(
        signed_percent(over_bound(report.stored_bytes, report.raw_bytes, report.bound)));
  return total;
}

}  // namespace

StoreStatus inspect_text(const InspectReport& report, TextOut& out) {
  const Cells titles =
      report.compressed
          ? Cells{"tensor", "dtype", "shape", "size", "stored", "ratio", "entropy", "bound", "over"}
          : Cells{"tensor", "dtype", "shape", "size", "entropy", "bound"};
  const Cells total = total_cells(report);
  Table table;
  table.measure(titles);
  table.measure(total);
  if (StoreStatus s = report.visit_rows([&](const InspectRow& row) {
        table.measure(tensor_cells(row, report.compressed));
        return true;
      });
      !s.ok())
    return s;

  out.put(title_text(report));
  out.put(table.line(titles));
  if (StoreStatus s = report.visit_rows([&](const InspectRow& row) {
        return out.put(table.line(tensor_cells(row, report.compressed)));
      });
      !s.ok())
    return s;
  out.put(table.line(total));
  if (report.any_bytes) out.put("* entropy of bytes: this dtype has no exponent\n");
  if (!report.compressed)
    out.put(fmt::format("\nsnug compress would come close to {} of {} ({} less).\n",
                        format_bytes(static_cast<std::uint64_t>(
                            report.bound * static_cast<double>(report.raw_bytes))),
                        format_bytes(report.raw_bytes), format_percent(1 - report.bound)));
  if (!report.groups.empty()) out.put(histogram_text(report.groups[0]));
  return {};
}

}  // namespace snug::cli
