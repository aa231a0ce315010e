// A link of a set rate out of a faster one, for tests and benchmarks.
#include <algorithm>
#include <mutex>
#include <thread>

#include "wire/channel.h"

namespace snug::wire {

class Pacer {
 public:
  explicit Pacer(double bytes_per_second) : rate_(bytes_per_second) {}

  // Reserves the link for `num_bytes`; returns when they may have passed.
  void pass(std::size_t num_bytes) {
    using std::chrono::duration;
    using std::chrono::steady_clock;
    steady_clock::time_point until;
    {
      const std::lock_guard lock(mutex_);
      free_at_ = std::max(free_at_, steady_clock::now()) +
                 std::chrono::duration_cast<steady_clock::duration>(
                     duration<double>(static_cast<double>(num_bytes) / rate_));
      until = free_at_;
    }
    std::this_thread::sleep_until(until);
  }

 private:
  const double rate_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point free_at_{};
};

namespace {

constexpr std::size_t kPieceBytes = std::size_t{64} << 10;

class PacedChannel : public Channel {
 public:
  PacedChannel(ChannelPtr inner, std::shared_ptr<Pacer> pacer)
      : inner_(std::move(inner)), pacer_(std::move(pacer)) {}

  Status send(std::span<const std::byte> head, std::span<const std::byte> body,
              Deadline deadline) override {
    for (std::size_t at = 0;; at += kPieceBytes) {
      const auto piece = body.subspan(at, std::min(kPieceBytes, body.size() - at));
      pacer_->pass(head.size() + piece.size());
      if (Status s = inner_->send(head, piece, deadline); !s.ok()) return s;
      head = {};
      if (at + piece.size() == body.size()) return {};
    }
  }
  Status recv(std::span<std::byte> bytes, Deadline deadline) override {
    return inner_->recv(bytes, deadline);
  }
  Status wait_readable(Deadline deadline) override { return inner_->wait_readable(deadline); }
  void shut_down() noexcept override { inner_->shut_down(); }
  std::string peer_name() const override { return inner_->peer_name(); }

 private:
  ChannelPtr inner_;
  std::shared_ptr<Pacer> pacer_;
};

}  // namespace

std::shared_ptr<Pacer> make_pacer(double bytes_per_second) {
  return std::make_shared<Pacer>(bytes_per_second);
}

ChannelPtr make_paced_channel(ChannelPtr inner, std::shared_ptr<Pacer> pacer) {
  return std::make_unique<PacedChannel>(std::move(inner), std::move(pacer));
}

}  // namespace snug::wire
