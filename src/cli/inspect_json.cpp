// The JSON form of snug inspect.
#include "cli/inspect_report.h"
#include "cli/json_text.h"
#include "cli/units.h"

namespace snug::cli {
namespace {

// `value` as text inside something that is indented by `indent` columns.
std::string dump(const Json& value, std::size_t indent) {
  std::string out;
  for (const char c : json_text(value)) {
    out.push_back(c);
    if (c == '\n') out.append(indent, ' ');
  }
  return out;
}

StoreResult<Json> tensor_json(const InspectRow& row, bool any_compressed) {
  const TensorEntry& t = row.tensor;
  Json item = {{"name", t.name},
               {"dtype", t.dtype},
               {"shape", t.shape},
               {"raw_bytes", t.raw_bytes},
               {"entropy_bits", row.stats.entropy_bits},
               {"entropy_of", row.of_exponents() ? "exponents" : "bytes"},
               {"bound", row.stats.bound}};
  if (!row.file.empty()) item["file"] = row.file;
  if (!any_compressed) return item;
  item["stored_bytes"] = t.stored_bytes;
  item["ratio"] = ratio(t.stored_bytes, t.raw_bytes);
  item["over_bound"] = over_bound(t.stored_bytes, t.raw_bytes, row.stats.bound);
  FrameStats frames;
  if (row.reader.compressed()) {
    const auto read = row.reader.frame_stats(t);
    if (!read) return read.status();
    frames = *read;
  }
  for (int c = 0; c < kNumCodecs; ++c)
    item["blocks"][codec_name(static_cast<Codec>(c))] = frames.num_blocks[c];
  return item;
}

}  // namespace

StoreStatus inspect_json(const InspectReport& report, TextOut& out) {
  const Json all = {{"path", report.path},
                    {"compressed", report.compressed},
                    {"num_files", report.files.size()},
                    {"raw_file_bytes", report.raw_file_bytes},
                    {"stored_file_bytes", report.stored_file_bytes},
                    {"raw_bytes", report.raw_bytes},
                    {"stored_bytes", report.stored_bytes},
                    {"ratio", ratio(report.stored_bytes, report.raw_bytes)},
                    {"bound", report.bound}};
  out.put("{\n");
  for (const auto& [key, value] : all.items())
    out.put("  " + dump(key, 2) + ": " + dump(value, 2) + ",\n");

  out.put("  \"tensors\": [");
  StoreStatus failed;
  const char* separator = "\n    ";
  StoreStatus status = report.visit_rows([&](const InspectRow& row) {
    const auto item = tensor_json(row, report.compressed);
    if (!item) failed = item.status();
    return item && out.put(separator + dump(*item, 4)) && (separator = ",\n    ", true);
  });
  if (!status.ok() || !failed.ok()) return failed.ok() ? status : failed;
  out.put(report.num_tensors == 0 ? "],\n" : "\n  ],\n");

  Json groups = Json::array();
  for (const ExponentGroup& group : report.groups)
    groups.push_back({{"dtype", group.dtype},
                      {"num_values", group.num_values},
                      {"entropy_bits", group.entropy_bits},
                      {"histogram", group.histogram}});
  out.put("  \"exponents\": " + dump(groups, 2) + "\n}\n");
  return {};
}

}  // namespace snug::cli
