#include "support/guarded_buffer.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace snug::test {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::uint8_t kFill = 0xA5;
constexpr int kNumClasses = 48;

// Mappings by size, 2^size_class usable bytes each. Mapping afresh for every
// buffer would take most of a test's time.
std::vector<std::uint8_t*> free_maps[kNumClasses];

std::uint8_t* take_map(int size_class) {
  auto& maps = free_maps[size_class];
  if (!maps.empty()) {
    std::uint8_t* map = maps.back();
    maps.pop_back();
    return map;
  }
  const std::size_t usable = std::size_t{1} << size_class;
  void* at =
      mmap(nullptr, usable + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED || mprotect(static_cast<char*>(at) + usable, kPage, PROT_NONE) != 0) {
    std::perror("GuardedBuffer");
    std::abort();
  }
  return static_cast<std::uint8_t*>(at);
}

}  // namespace

GuardedBuffer::GuardedBuffer(std::size_t num_bytes) : num_bytes_(num_bytes), size_class_(12) {
  while ((std::size_t{1} << size_class_) < num_bytes + kFront) ++size_class_;
  data_ = take_map(size_class_) + (std::size_t{1} << size_class_) - num_bytes;
  std::memset(data_ - kFront, kFill, kFront + num_bytes);
}

GuardedBuffer::~GuardedBuffer() {
  free_maps[size_class_].push_back(data_ + num_bytes_ - (std::size_t{1} << size_class_));
}

bool GuardedBuffer::front_intact() const {
  for (const std::uint8_t* p = data_ - kFront; p < data_; ++p)
    if (*p != kFill) return false;
  return true;
}

}  // namespace snug::test
