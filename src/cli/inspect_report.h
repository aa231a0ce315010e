// cli/inspect_report.h - the result of snug inspect, and its three forms.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "snug/store.h"

namespace snug::cli {

struct InspectRow {
  std::string file;  // empty unless a folder is inspected
  TensorEntry tensor;
  TensorStats stats;
  FrameStats frames;  // zeros for plain files
};

// Exponents of all tensors of one dtype.
struct ExponentGroup {
  std::string dtype;
  DType kind = DType::kBytes;
  std::uint64_t num_bytes = 0, num_values = 0;
  std::vector<std::uint64_t> histogram;
  double entropy_bits = 0;
};

struct InspectReport {
  std::string path;
  bool compressed = false;
  std::uint64_t num_files = 0;
  std::uint64_t raw_file_bytes = 0, stored_file_bytes = 0;  // headers included
  std::uint64_t raw_bytes = 0, stored_bytes = 0;            // tensors alone
  double bound = 1;                                         // of the tensors together
  std::vector<InspectRow> rows;
  std::vector<ExponentGroup> groups;  // most bytes first
};

// How far above the bound, e.g. 0.002 for 0.2 %.
double over_bound(std::uint64_t stored, std::uint64_t raw, double bound);
std::string format_shape(const std::vector<std::uint64_t>& shape);

// The exponents to show: all but the rare ones at both ends.
struct HistogramWindow {
  std::size_t first = 0, last = 0;  // inclusive
  std::uint64_t peak = 0, outside = 0;
};
HistogramWindow histogram_window(const ExponentGroup& group);
// The power of two that an exponent field stands for.
int exponent_value(DType kind, std::size_t field);

std::string inspect_text(const InspectReport& report);
std::string inspect_json(const InspectReport& report);
std::string inspect_html(const InspectReport& report);

}  // namespace snug::cli
