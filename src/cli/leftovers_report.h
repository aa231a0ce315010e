// cli/leftovers_report.h - what killed runs have left, as commands that write files report it.
#pragma once
#include <string>
#include <vector>

#include "cli/json_text.h"
#include "snug/store.h"

namespace snug::cli {

// Finds what runs to `path` have left and, unless `quiet`, prints a line for each. Also called if
// the command has failed: the disk may be full of leftovers.
std::vector<Leftover> report_leftovers(const std::string& path, bool quiet);

Json leftovers_json(const std::vector<Leftover>& leftovers);

}  // namespace snug::cli
