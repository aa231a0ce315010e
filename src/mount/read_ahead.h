// mount/read_ahead.h - what a reader will ask for next, guessed from what it has asked for.
#pragma once
#include <array>
#include <cstdint>
#include <mutex>

namespace snug::mount {

// The positions at which one file is being read. A file that is mapped has one descriptor and many
// readers, so positions are told apart by their place in the file.
class ReadAhead {
 public:
  static constexpr std::size_t kMaxStreams = 32;

  struct Range {
    std::uint64_t begin = 0, end = 0;
  };

  // Bytes [begin, end) are asked for: what to read ahead. At most `max_window` bytes behind `end`,
  // and nothing for one who jumps about.
  Range next(std::uint64_t begin, std::uint64_t end, std::uint64_t max_window);

 private:
  struct Stream {
    std::uint64_t end = 0;     // of the last request
    std::uint64_t ahead = 0;   // where what was read ahead ends
    std::uint64_t window = 0;  // grows while guesses come true
    std::uint64_t used = 0;    // when, counted in requests
  };
  std::mutex mutex_;
  std::array<Stream, kMaxStreams> streams_;
  std::uint64_t num_requests_ = 0;
};

}  // namespace snug::mount
