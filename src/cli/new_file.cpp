#include "cli/new_file.h"

#include <sys/stat.h>

#include "cli/leftovers_report.h"

namespace snug::cli {

StoreResult<NewFile> NewFile::create(const std::string& path, bool force) {
  report_leftovers(path, false);
  auto output = store::OutputFile::create(path, force);
  if (!output) return output.status();
  const mode_t mask = ::umask(0);  // the store makes files private; ours are ordinary ones
  ::umask(mask);
  ::fchmod(output->file().fd(), 0666 & ~mask);
  return NewFile(std::move(*output));
}

bool NewFile::write(const void* bytes, std::size_t num_bytes) {
  if (status_.ok()) status_ = output_.file().write_at(num_bytes_, bytes, num_bytes);
  num_bytes_ += num_bytes;
  return status_.ok();
}

StoreStatus NewFile::commit() {
  if (status_.ok()) status_ = output_.sync();
  if (status_.ok()) status_ = output_.commit();
  return status_;
}

}  // namespace snug::cli
