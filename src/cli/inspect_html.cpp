// The page of snug inspect --html: no script, no network, light and dark.
#include <fmt/format.h>

#include <algorithm>

#include "cli/inspect_report.h"
#include "cli/units.h"

namespace snug::cli {
namespace {

constexpr char kStyle[] = R"(
:root { --bg:#fbfaf8; --card:#fff; --ink:#1d2329; --soft:#6b7480; --line:#e6e3dd; --bar:#2f7d6d; --rest:#e3ece9; --bound:#c2571a; }
@media (prefers-color-scheme: dark) {
  :root { --bg:#15181b; --card:#1d2125; --ink:#e8e6e1; --soft:#98a1ab; --line:#2d3338; --bar:#4fb39d; --rest:#28332f; --bound:#f0975a; }
}
* { box-sizing:border-box }
body { margin:0; background:var(--bg); color:var(--ink); font:15px/1.5 system-ui,sans-serif }
main { max-width:1320px; margin:0 auto; padding:40px 24px 64px }
h1 { font-size:22px; margin:0 0 4px; overflow-wrap:anywhere }
h2 { font-size:16px; margin:36px 0 12px }
p { color:var(--soft); margin:0 0 20px }
.cards { display:grid; grid-template-columns:repeat(auto-fit,minmax(170px,1fr)); gap:12px }
.card { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:14px 16px }
.card b { display:block; font-size:24px; font-weight:650; font-variant-numeric:tabular-nums }
.card span { color:var(--soft); font-size:13px }
.plot, .table { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:16px; overflow-x:auto }
svg { display:block; width:100%; height:auto; min-width:560px } svg text { fill:var(--soft); font-size:11px }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums; font-size:13.5px }
th { text-align:left; color:var(--soft); font-weight:550; border-bottom:1px solid var(--line) }
th, td { padding:6px 9px; white-space:nowrap } tr + tr td { border-top:1px solid var(--line) }
td.n, th.n { text-align:right } td.name { font-family:ui-monospace,monospace; font-size:12.5px }
tfoot td { font-weight:650; border-top:2px solid var(--line) }
.meter { position:relative; width:130px; height:12px; background:var(--rest); border-radius:3px; overflow:hidden }
.meter i { position:absolute; inset:0 auto 0 0; background:var(--bar) }
.meter u { position:absolute; top:0; bottom:0; width:2px; background:var(--bound) }
.key { color:var(--soft); font-size:13px; margin-top:10px } .key em { color:var(--bound); font-style:normal }
)";

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out.push_back(c);
    }
  }
  return out;
}

std::string card(const std::string& value, const std::string& label) {
  return fmt::format("<div class=card><b>{}</b><span>{}</span></div>\n", value, label);
}

std::string cards(const InspectReport& report) {
  std::string html = "<div class=cards>\n" + card(format_bytes(report.raw_file_bytes), "original");
  if (report.compressed) {
    html += card(format_bytes(report.stored_file_bytes), "compressed");
    html += card(format_percent(ratio(report.stored_bytes, report.raw_bytes), 2),
                 "of the original tensors");
    html += card(format_percent(report.bound, 2), "entropy bound");
    html += card(fmt::format("{:+.2f} %",
                             over_bound(report.stored_bytes, report.raw_bytes, report.bound) * 100),
                 "over the bound");
  } else {
    html += card(format_percent(report.bound, 2), "entropy bound: what compression can reach");
    html += card(format_percent(1 - report.bound), "can be saved");
  }
  if (!report.groups.empty())
    html += card(fmt::format("{:.3f} bits", report.groups[0].entropy_bits),
                 "entropy of the " + escape(report.groups[0].dtype) + " exponents");
  return html + "</div>\n";
}

std::string histogram_svg(const ExponentGroup& group) {
  const HistogramWindow window = histogram_window(group);
  const std::size_t num_bars = window.last - window.first + 1;
  constexpr double kWidth = 1100, kHeight = 220, kBase = 190;
  const double step = kWidth / static_cast<double>(num_bars);
  std::string svg = fmt::format(
      "<svg viewBox='0 0 {} {}' role=img aria-label='exponent histogram'>\n", kWidth, kHeight);
  const std::size_t label_every = num_bars / 24 + 1;
  for (std::size_t i = window.first; i <= window.last; ++i) {
    const double share =
        static_cast<double>(group.histogram[i]) / static_cast<double>(group.num_values);
    const double height =
        (kBase - 20) * static_cast<double>(group.histogram[i]) / static_cast<double>(window.peak);
    const double x = static_cast<double>(i - window.first) * step;
    const std::string power = fmt::format("2^{}", exponent_value(group.kind, i));
    svg += fmt::format(
        "<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' rx='2' "
        "fill='var(--bar)'><title>{}: {}</title></rect>\n",
        x + step * 0.1, kBase - height, step * 0.8, height, power, format_percent(share, 2));
    if ((i - window.first) % label_every != 0) continue;
    svg += fmt::format("<text x='{:.1f}' y='206' text-anchor='middle'>{}</text>\n", x + step / 2,
                       power);
    if (num_bars <= 24)
      svg += fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='middle'>{:.1f}</text>\n",
                         x + step / 2, kBase - height - 5, share * 100);
  }
  return svg + "</svg>\n";
}

std::string histograms(const InspectReport& report) {
  std::string html;
  for (const ExponentGroup& group : report.groups)
    html += fmt::format(
        "<h2>Exponents of {}: {:.3f} bits</h2>\n<div class=plot>{}<div class=key>Share of {:.3g} "
        "million values, in percent. Rare exponents at both ends are left out.</div></div>\n",
        escape(group.dtype), group.entropy_bits, histogram_svg(group),
        static_cast<double>(group.num_values) / 1e6);
  return html;
}

std::string meter(double value, double bound) {
  const auto percent = [](double x) { return std::clamp(x * 100, 0.0, 100.0); };
  return fmt::format(
      "<div class=meter><i style='width:{:.2f}%'></i><u style='left:{:.2f}%'></u></div>",
      percent(value), percent(bound));
}

std::string number(const std::string& text) { return "<td class=n>" + text; }

std::string tensor_line(const InspectRow& row, bool compressed) {
  const TensorEntry& t = row.tensor;
  const double share = ratio(t.stored_bytes, t.raw_bytes);
  std::string html = fmt::format("<tr><td class=name>{}<td>{}<td>{}", escape(t.name),
                                 escape(t.dtype), format_shape(t.shape)) +
                     number(format_bytes(t.raw_bytes));
  if (compressed) html += number(format_bytes(t.stored_bytes)) + number(format_percent(share, 2));
  html += "<td>" + meter(compressed ? share : row.stats.bound, row.stats.bound);
  html += number(fmt::format("{:.3f}{}", row.stats.entropy_bits, row.of_exponents() ? "" : "*")) +
          number(format_percent(row.stats.bound, 2));
  if (compressed)
    html += number(
        fmt::format("{:+.2f} %", over_bound(t.stored_bytes, t.raw_bytes, row.stats.bound) * 100));
  return html + "</tr>\n";
}

std::string total_line(const InspectReport& report) {
  std::string html = "<tfoot><tr><td>total<td><td>" + number(format_bytes(report.raw_bytes));
  if (report.compressed)
    html += number(format_bytes(report.stored_bytes)) +
            number(format_percent(ratio(report.stored_bytes, report.raw_bytes), 2));
  html += "<td>" +
          meter(report.compressed ? ratio(report.stored_bytes, report.raw_bytes) : report.bound,
                report.bound) +
          "<td>" + number(format_percent(report.bound, 2));
  if (report.compressed)
    html += number(fmt::format(
        "{:+.2f} %", over_bound(report.stored_bytes, report.raw_bytes, report.bound) * 100));
  return html + "</tr></tfoot>";
}

StoreStatus put_table(const InspectReport& report, TextOut& out) {
  out.put(
      "<h2>Tensors</h2>\n<div class=table><table><thead><tr><th>name<th>dtype<th>shape<th "
      "class=n>size");
  if (report.compressed) out.put("<th class=n>stored<th class=n>ratio");
  out.put("<th><th class=n>entropy<th class=n>bound");
  if (report.compressed) out.put("<th class=n>over");
  out.put("</tr></thead><tbody>\n");
  StoreStatus status = report.visit_rows(
      [&](const InspectRow& row) { return out.put(tensor_line(row, report.compressed)); });
  out.put("</tbody>" + total_line(report));
  out.put(
      "</table>\n<div class=key>Bar: stored size against the original. "
      "<em>Mark</em>: the entropy bound, where exponents cost "
      "their entropy and all other bits are stored as they are. * entropy of bytes: no exponent "
      "in this dtype.</div></div>\n");
  return status;
}

}  // namespace

StoreStatus inspect_html(const InspectReport& report, TextOut& out) {
  out.put(fmt::format(
      "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport "
      "content='width=device-width,initial-scale=1'>"
      "<title>{0} - snug inspect</title><style>{1}</style></head><body><main>\n<h1>{0}</h1>\n"
      "<p>{2} tensors{3}, {4}</p>\n{5}{6}",
      escape(report.path), kStyle, report.num_tensors,
      report.files.size() > 1 ? fmt::format(" in {} files", report.files.size()) : "",
      report.compressed ? "compressed by Snug" : "not compressed", cards(report),
      histograms(report)));
  StoreStatus status = put_table(report, out);
  out.put("</main></body></html>\n");
  return status;
}

}  // namespace snug::cli
