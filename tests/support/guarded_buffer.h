// support/guarded_buffer.h - memory that ends where the next byte faults.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace snug::test {

// The last byte is followed by a page without access, so that one byte read or
// written too far stops the test even without a sanitizer. Not for use by
// several threads at once: mappings are kept and used again.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(std::size_t num_bytes);
  explicit GuardedBuffer(std::span<const std::byte> content) : GuardedBuffer(content.size()) {
    if (!content.empty()) std::memcpy(data_, content.data(), content.size());
  }
  ~GuardedBuffer();
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  std::uint8_t* data() { return data_; }
  const std::uint8_t* data() const { return data_; }
  std::size_t size() const { return num_bytes_; }
  std::span<std::byte> span() { return {reinterpret_cast<std::byte*>(data_), num_bytes_}; }
  std::span<const std::byte> span() const {
    return {reinterpret_cast<const std::byte*>(data_), num_bytes_};
  }

  // Whether the 256 bytes in front of the buffer are as they were: there the
  // memory allows writing, so this is checked afterwards.
  bool front_intact() const;

 private:
  static constexpr std::size_t kFront = 256;

  std::uint8_t* data_ = nullptr;
  std::size_t num_bytes_ = 0;
  int size_class_ = 0;
};

}  // namespace snug::test
