// nccl/message_numbers.h - counts the messages of each tag.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace snug::nccl {

// NCCL uses one tag per pair of ranks, so a list is quickest.
class MessageNumbers {
 public:
  std::uint32_t next(int tag) {
    for (auto& [known, count] : counts_)
      if (known == tag) return count++;
    counts_.emplace_back(tag, 1);
    return 0;
  }

 private:
  std::vector<std::pair<int, std::uint32_t>> counts_;
};

}  // namespace snug::nccl
