// transfer/refusals.h - tell of connections that a listener refused.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "snug/store.h"
#include "snug/wire.h"

namespace snug::transfer {

// Whoever wonders why a peer gets nothing reads it here; a port scan does not fill the log.
class Refusals {
 public:
  // What there is to say now, if anything.
  std::optional<StoreStatus> news(const wire::Listener& listener, const wire::Options& options) {
    const std::uint64_t count = listener.num_refused();
    const auto now = std::chrono::steady_clock::now();
    if (count == num_told_ || now < quiet_until_) return std::nullopt;
    const char* what = options.token.empty()
                           ? "connections ended before they proved to be Snug"
                           : "connections ended before they proved to know the token";
    const std::uint64_t num_new = count - num_told_;
    num_told_ = count;
    quiet_until_ = now + std::chrono::seconds(10);
    return StoreStatus{{Code::kPeer, what}, {}, {}, std::to_string(num_new)};
  }

 private:
  std::uint64_t num_told_ = 0;
  std::chrono::steady_clock::time_point quiet_until_{};
};

}  // namespace snug::transfer
