#include "cli/new_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

namespace snug::cli {

NewFile::~NewFile() {
  if (file_ != nullptr) std::fclose(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

bool NewFile::create() {
  std::string name = path_ + ".tmp-XXXXXX";
  const int fd = ::mkstemp(name.data());
  if (fd < 0) return false;
  temporary_ = std::move(name);
  const mode_t mask = ::umask(0);  // mkstemp makes files private; ours are ordinary ones
  ::umask(mask);
  ::fchmod(fd, 0666 & ~mask);
  file_ = ::fdopen(fd, "wb");
  if (file_ == nullptr) ::close(fd);
  return file_ != nullptr;
}

bool NewFile::write(const void* bytes, std::size_t num_bytes) {
  return std::fwrite(bytes, 1, num_bytes, file_) == num_bytes;
}

bool NewFile::commit() {
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) return false;
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return false;
  temporary_.clear();
  return true;
}

}  // namespace snug::cli
