// cli/inspect_report.h - the result of snug inspect, and its three forms.
//
// A file may have millions of tensors: of each only two numbers are kept, and the forms are written
// row by row.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "snug/store.h"

namespace snug::cli {

// What was computed from the bytes of a tensor.
struct RowStats {
  double entropy_bits = 0, bound = 1;
};

struct InspectedFile {
  std::string path, name;       // the name is empty unless a folder is inspected
  std::vector<RowStats> stats;  // in the order of its tensors
};

struct InspectRow {
  const std::string& file;
  const Reader& reader;
  TensorEntry tensor;
  RowStats stats;

  bool of_exponents() const noexcept { return dtype_info(tensor.kind).exponent_bits != 0; }
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
  std::uint64_t raw_file_bytes = 0, stored_file_bytes = 0;  // headers included
  std::uint64_t raw_bytes = 0, stored_bytes = 0;            // tensors alone
  double bound = 1;                                         // of the tensors together
  std::uint64_t num_tensors = 0;
  bool any_bytes = false;  // tensors whose dtype has no exponent
  std::vector<InspectedFile> files;
  std::shared_ptr<const Reader> only;  // if there is one file
  std::vector<ExponentGroup> groups;   // most bytes first

  // Calls `visit` for every tensor of every file until it returns false.
  StoreStatus visit_rows(const std::function<bool(const InspectRow&)>& visit) const;
};

// Text on its way out, in pieces.
class TextOut {
 public:
  using Write = std::function<bool(const void* bytes, std::size_t num_bytes)>;
  explicit TextOut(Write write) : write_(std::move(write)) {}

  // False if something could not be written; errno says why.
  bool put(std::string_view text);
  bool flush();

 private:
  Write write_;
  std::string text_;
  int error_ = 0;
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

// They fail if a file can no longer be read; whether the text was written is for `out` to say.
StoreStatus inspect_text(const InspectReport& report, TextOut& out);
StoreStatus inspect_json(const InspectReport& report, TextOut& out);
StoreStatus inspect_html(const InspectReport& report, TextOut& out);

}  // namespace snug::cli
