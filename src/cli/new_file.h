// cli/new_file.h - a file that appears under its name only when it is complete.
#pragma once
#include <cstddef>
#include <cstdio>
#include <string>

namespace snug::cli {

// Functions return false with the reason in errno.
class NewFile {
 public:
  explicit NewFile(std::string path) : path_(std::move(path)) {}
  NewFile(const NewFile&) = delete;
  ~NewFile();  // removes what was never committed

  bool create();
  bool write(const void* bytes, std::size_t num_bytes);
  // To disk, then to its name. Replaces what has that name: callers look first.
  bool commit();

 private:
  std::string path_, temporary_;
  std::FILE* file_ = nullptr;
};

}  // namespace snug::cli
