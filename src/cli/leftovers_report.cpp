#include "cli/leftovers_report.h"

#include <fmt/format.h>

#include "cli/terminal.h"
#include "cli/units.h"

namespace snug::cli {

std::vector<Leftover> report_leftovers(const std::string& path, bool quiet) {
  std::vector<Leftover> leftovers = find_leftovers(path);
  if (quiet) return leftovers;
  for (const Leftover& left : leftovers)
    print_stderr(fmt::format("snug: {} ({}) is left of a run that was killed; it may be deleted\n",
                             printable(left.path), format_bytes(left.num_bytes)));
  return leftovers;
}

Json leftovers_json(const std::vector<Leftover>& leftovers) {
  auto list = Json::array();
  for (const Leftover& left : leftovers)
    list.push_back({{"path", left.path}, {"num_bytes", left.num_bytes}});
  return list;
}

}  // namespace snug::cli
