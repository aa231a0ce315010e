// mount/request.h - a request as it arrived from the kernel.
#pragma once
#include <linux/fuse.h>

#include <cstddef>
#include <span>

namespace snug::mount {

// Its bytes are the kernel's, not a stranger's; lengths are checked all the same.
struct Request {
  const fuse_in_header* header;
  std::span<const std::byte> body;

  // Null if it is too short.
  template <class T>
  const T* as(std::size_t min_bytes = sizeof(T)) const noexcept {
    return body.size() >= min_bytes ? reinterpret_cast<const T*>(body.data()) : nullptr;
  }
};

}  // namespace snug::mount
