// cli/new_file.h - a file that the tool itself makes: it appears under its name when it is
// complete.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "store/output.h"

namespace snug::cli {

class NewFile {
 public:
  NewFile() noexcept = default;
  // Also names what killed runs have left. `force` replaces a regular file.
  static StoreResult<NewFile> create(const std::string& path, bool force);

  // Appends. Once it has failed, it does nothing.
  bool write(const void* bytes, std::size_t num_bytes);
  // To disk, then to its name. Says what has failed, if anything has.
  StoreStatus commit();

 private:
  explicit NewFile(store::OutputFile output) : output_(std::move(output)) {}

  store::OutputFile output_;
  std::uint64_t num_bytes_ = 0;
  StoreStatus status_;
};

}  // namespace snug::cli
