// tests/wire/memory_channel.h - channels in memory, and a peer that speaks the protocol by hand.
#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "snug/wire.h"
#include "wire/channel.h"
#include "wire/connection_core.h"
#include "wire/protocol.h"

namespace snug::test {

// Bytes in one direction, at most kRoom of them.
class MemoryPipe {
 public:
  static constexpr std::size_t kRoom = std::size_t{1} << 20;

  Status write(std::span<const std::byte> bytes, wire::Deadline deadline) {
    std::unique_lock lock(mutex_);
    while (!bytes.empty()) {
      if (!changed_.wait_until(lock, deadline, [&] { return closed_ || bytes_.size() < kRoom; }))
        return {Code::kTimeout, "a pipe is full"};
      if (closed_) return {Code::kPeer, "a pipe is closed"};
      const std::size_t n = std::min(bytes.size(), kRoom - bytes_.size());
      bytes_.insert(bytes_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
      bytes = bytes.subspan(n);
      changed_.notify_all();
    }
    return {};
  }

  // What was written before the end can still be read.
  Status read(std::span<std::byte> bytes, wire::Deadline deadline) {
    std::unique_lock lock(mutex_);
    while (!bytes.empty()) {
      if (Status s = wait(lock, deadline); !s.ok()) return s;
      const std::size_t n = std::min(bytes.size(), bytes_.size());
      const auto end = bytes_.begin() + static_cast<std::ptrdiff_t>(n);
      std::copy(bytes_.begin(), end, bytes.begin());
      bytes_.erase(bytes_.begin(), end);
      bytes = bytes.subspan(n);
      changed_.notify_all();
    }
    return {};
  }

  Status wait_readable(wire::Deadline deadline) {
    std::unique_lock lock(mutex_);
    return wait(lock, deadline);
  }

  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return bytes_.size();
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  Status wait(std::unique_lock<std::mutex>& lock, wire::Deadline deadline) {
    const auto ready = [this] { return closed_ || !bytes_.empty(); };
    if (deadline == wire::Deadline::max())
      changed_.wait(lock, ready);
    else if (!changed_.wait_until(lock, deadline, ready))
      return {Code::kTimeout, "a pipe is empty"};
    return bytes_.empty() ? Status{Code::kPeer, "a pipe is closed"} : Status{};
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::byte> bytes_;
  bool closed_ = false;
};

class MemoryChannel : public wire::Channel {
 public:
  static std::pair<wire::ChannelPtr, wire::ChannelPtr> make_pair() {
    const auto there = std::make_shared<MemoryPipe>(), back = std::make_shared<MemoryPipe>();
    return {std::make_unique<MemoryChannel>(there, back),
            std::make_unique<MemoryChannel>(back, there)};
  }
  MemoryChannel(std::shared_ptr<MemoryPipe> out, std::shared_ptr<MemoryPipe> in)
      : out_(std::move(out)), in_(std::move(in)) {}
  ~MemoryChannel() override { MemoryChannel::shut_down(); }

  Status send(std::span<const std::byte> head, std::span<const std::byte> body,
              wire::Deadline deadline) override {
    const Status s = out_->write(head, deadline);
    return s.ok() ? out_->write(body, deadline) : s;
  }
  Status recv(std::span<std::byte> bytes, wire::Deadline deadline) override {
    return in_->read(bytes, deadline);
  }
  Status wait_readable(wire::Deadline deadline) override { return in_->wait_readable(deadline); }
  void shut_down() noexcept override {
    out_->close();
    in_->close();
  }
  std::string peer_name() const override { return "memory"; }

 private:
  const std::shared_ptr<MemoryPipe> out_, in_;
};

// A connection, and the bare channels of its peer: control first, then the lanes.
struct BarePeer {
  wire::Connection connection;
  std::vector<wire::ChannelPtr> channels;

  wire::Channel& control() { return *channels[0]; }
  Status tell(wire::ControlType type, std::uint64_t message, std::span<const std::byte> payload,
              wire::Deadline deadline) {
    wire::ControlHeader header;
    header.type = type;
    header.message = message;
    header.payload_bytes = payload.size();
    header.payload_hash = wire::hash_bytes(payload);
    wire::seal(header);
    return control().send(wire::bytes_of(header), payload, deadline);
  }
};

inline BarePeer make_bare_peer(const wire::Options& options) {
  BarePeer peer;
  std::vector<wire::ChannelPtr> ours;
  for (int i = 0; i <= options.num_lanes; ++i) {
    auto [a, b] = MemoryChannel::make_pair();
    ours.push_back(std::move(a));
    peer.channels.push_back(std::move(b));
  }
  peer.connection = *wire::make_connection(options, std::move(ours));
  return peer;
}

}  // namespace snug::test
