// nccl/comm_error.h - the first error of a communicator.
#pragma once
#include <atomic>

#include "nccl/log.h"
#include "nccl/net_abi.h"
#include "snug/status.h"

namespace snug::nccl {

// What NCCL is told: the peer's fault, or this system's.
inline ncclResult_t result_of(const Status& status) noexcept {
  switch (status.code) {
    case Code::kOk: return ncclSuccess;
    case Code::kIo: return ncclSystemError;
    case Code::kInternal: return ncclInternalError;
    case Code::kDstTooSmall: return ncclInvalidUsage;
    default: return ncclRemoteError;
  }
}

inline Status too_large(std::uint64_t message_bytes, std::uint64_t room) {
  return {
      Code::kDstTooSmall,
      "the peer's message is larger than the receive; do sizes, NCCL_PROTO and NCCL_ALGO agree?",
      kNowhere,
      kNowhere,
      message_bytes,
      room};
}

// NCCL frees the memory of messages that it gave up. No thread may use it any more.
inline constexpr Status kGivenUp{Code::kPeer, "NCCL gave up a message that was under way"};

class CommError {
 public:
  ncclResult_t get() const noexcept { return result_.load(std::memory_order_acquire); }
  // True for the first error; that one is reported.
  bool set(const Status& status, const char* peer) {
    ncclResult_t none = ncclSuccess;
    if (!result_.compare_exchange_strong(none, result_of(status))) return false;
    warn("connection with %s failed: %s", peer, to_string(status).c_str());
    return true;
  }

 private:
  std::atomic<ncclResult_t> result_{ncclSuccess};
};

}  // namespace snug::nccl
