#include "store/stop.h"

#include <utility>

namespace snug {
namespace {

thread_local const StopScope* innermost = nullptr;

}  // namespace

StopScope::StopScope(std::function<bool()> keep_going)
    : keep_going_(std::move(keep_going)), outer_(innermost) {
  innermost = this;
}

StopScope::~StopScope() { innermost = outer_; }

bool StopScope::is_stopped() const {
  return stopped_ = stopped_ || (keep_going_ && !keep_going_());
}

namespace store {

bool is_stopped() { return innermost != nullptr && innermost->is_stopped(); }

StoreStatus check_stop(const std::string& path) {
  return is_stopped() ? StoreStatus{{Code::kIo, "stopped on request"}, path} : StoreStatus{};
}

}  // namespace store
}  // namespace snug
