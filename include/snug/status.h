// snug/status.h - how every Snug function says what went wrong.
//
// A Status is a number that never changes, a static text, and the place: the
// block and byte where the problem is, and what was found against what was
// expected. Creating one never allocates; formatting happens on request.
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
  kTimeout = 12,            // the other side took longer than allowed
  kPeer = 13,               // the other side refused, went away or broke the protocol
  kWrongBase = 14,          // an update was made for another version of the data
};

inline constexpr std::uint64_t kNowhere = ~std::uint64_t{0};

struct [[nodiscard]] Status {
  Code code = Code::kOk;
  const char* what = "";           // static text
  std::uint64_t block = kNowhere;  // block of the frame
  std::uint64_t byte = kNowhere;   // offset from the start of the frame or file
  std::uint64_t found = kNowhere;
  std::uint64_t expected = kNowhere;

  bool ok() const noexcept { return code == Code::kOk; }
};

// "corrupt", "io", ...: the word a message starts with.
const char* code_name(Code code) noexcept;

// One line, e.g. "corrupt: block 17, byte 81920: table sums to 255, expected 256".
std::string to_string(const Status& status);

// Either a value or the reason why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) noexcept : value_(std::move(value)) {}
  Result(Status status) noexcept : status_(status) {}

  bool ok() const noexcept { return status_.ok(); }
  explicit operator bool() const noexcept { return ok(); }
  const Status& status() const noexcept { return status_; }
  T& operator*() noexcept { return value_; }
  const T& operator*() const noexcept { return value_; }
  T* operator->() noexcept { return &value_; }
  const T* operator->() const noexcept { return &value_; }

 private:
  Status status_;
  T value_{};
};

}  // namespace snug
