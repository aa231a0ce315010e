// snug/status.h - how every Snug function reports errors.
//
// A Status is a code whose number never changes, a static text, and a place: block and byte, and
// what was found and expected there. Creating one never allocates; to_string() formats it.
#pragma once
#include <cstdint>
#include <string>
#include <utility>

namespace snug {

// The CLI exits with these numbers and the C ABI returns them.
enum class Code : int {
  kOk = 0,
  kUsage = 2,               // an argument is not acceptable
  kBadMagic = 3,            // not a Snug frame or file
  kUnsupportedVersion = 4,  // written by a newer Snug
  kCorrupt = 5,             // damaged or hostile input
  kDstTooSmall = 6,         // the caller's buffer cannot hold the result
  kIo = 7,                  // the operating system refused a read or write
  kExists = 8,              // refusing to overwrite
  kNotFound = 9,            // no such tensor, file or shard
  kInternal = 10,           // a defect in Snug: please report it
  kNoDevice = 11,           // no usable GPU, or the GPU reported an error
  kTimeout = 12,            // the peer took longer than allowed
  kPeer = 13,               // the peer refused, disconnected or broke the protocol
  kWrongBase = 14,          // an update was made for another version of the data
};

inline constexpr std::uint64_t kNowhere = ~std::uint64_t{0};  // does not apply

struct [[nodiscard]] Status {
  Code code = Code::kOk;
  const char* what = "";           // static text
  std::uint64_t block = kNowhere;  // block of the frame
  std::uint64_t byte = kNowhere;   // offset from the start of the frame or file
  std::uint64_t found = kNowhere;
  std::uint64_t expected = kNowhere;

  bool ok() const noexcept { return code == Code::kOk; }
};

// The first word of a message: "corrupt", "io", ...
const char* code_name(Code code) noexcept;

// One line, e.g. "corrupt: block 17, byte 81920: table sums to 255, expected 256".
std::string to_string(const Status& status);

// Either a value or the status that tells why there is none.
template <class T, class S>
class [[nodiscard]] BasicResult {
 public:
  BasicResult(T value) noexcept : value_(std::move(value)) {}
  BasicResult(S status) noexcept : status_(std::move(status)) {}

  bool ok() const noexcept { return status_.ok(); }
  explicit operator bool() const noexcept { return ok(); }
  const S& status() const noexcept { return status_; }
  T& operator*() noexcept { return value_; }
  const T& operator*() const noexcept { return value_; }
  T* operator->() noexcept { return &value_; }
  const T* operator->() const noexcept { return &value_; }

 private:
  S status_;
  T value_{};
};

template <class T>
using Result = BasicResult<T, Status>;

}  // namespace snug
