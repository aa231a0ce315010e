// tests/transfer/one_receiver.h - a receiver of files inside the test.
#pragma once
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "snug/transfer.h"

namespace snug::test {

inline TransferOptions quick() {
  TransferOptions options;
  options.wire.timeout = std::chrono::seconds(3);
  options.wire.num_lanes = 2;
  options.wire.chunk_bytes = 64 << 10;
  return options;
}

// Receives on a thread until one transfer is complete.
class Receiver {
 public:
  explicit Receiver(std::string folder, TransferOptions options = quick())
      : folder_(std::move(folder)), options_(std::move(options)) {
    listener_ = std::move(*wire::Listener::open("127.0.0.1:0", options_.wire));
    thread_ = std::thread([this] { run(); });
  }
  ~Receiver() {
    stop_ = true;
    thread_.join();
  }
  std::string address() const { return listener_.address(); }
  std::vector<Code> codes() const { return codes_; }

 private:
  void run() {
    while (!stop_) {
      auto connection = listener_.accept(std::chrono::milliseconds(20));
      if (!connection) continue;
      const auto report = receive_path(*connection, folder_, options_);
      codes_.push_back(report.status().status.code);
      // The sender has heard; give it the time to hang up first.
      for (int i = 0; i < 100 && connection->status().ok(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  std::string folder_;
  TransferOptions options_;
  wire::Listener listener_;
  std::vector<Code> codes_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace snug::test
