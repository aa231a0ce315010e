// tests/gpu_link/link_ends.h - both ends of a link in one process, from a to b.
#pragma once
#include <chrono>
#include <optional>
#include <stdexcept>

#include "gpu_link/link_cpu_engines.h"
#include "gpu_link/link_meeting.h"
#include "gpu_link/link_receiver.h"
#include "gpu_link/link_sender.h"
#include "support/paced_engine.h"

namespace snug::test {

// Waits for what another thread or process does, but not for ever.
template <class Condition>
[[nodiscard]] bool comes_true(Condition condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

struct LinkEnds {
  Pair pair = make_pair();
  std::optional<gpu_link::LinkMeeting> at_a, at_b;
  Bytes staging = Bytes(kTestStaging);
  std::optional<gpu_link::LinkSender> sender;
  std::optional<gpu_link::LinkReceiver> receiver;

  // Bytes a second; 0: as fast as memory.
  explicit LinkEnds(wire::Mode mode = wire::Mode::kAuto, double rate = 0,
                    std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    std::thread other([&] {
      if (auto met = gpu_link::LinkMeeting::meet(pair.a, {}, std::chrono::seconds(30)))
        at_a = std::move(*met);
    });
    if (auto met = gpu_link::LinkMeeting::meet(pair.b, {}, std::chrono::seconds(30)))
      at_b = std::move(*met);
    other.join();
    if (!at_a || !at_b) throw std::runtime_error("the ends of the link did not meet");
    gpu_link::LinkOptions options;
    options.mode = mode;
    options.timeout = timeout;
    options.check_peer = [this] { return at_a->check_peer(); };
    std::unique_ptr<gpu_link::SendEngine> engine = std::make_unique<CpuSendEngine>(staging.data());
    if (rate > 0) engine = std::make_unique<bench::PacedEngine>(std::move(engine), rate);
    sender.emplace(at_a->outgoing(), std::move(engine), kTestStaging, kTestChunk, options);
    options.check_peer = [this] { return at_b->check_peer(); };
    // The mapping of a: the thread sanitizer does not know that b's is the same memory.
    receiver.emplace(at_a->outgoing(), std::make_unique<CpuReceiveEngine>(staging.data()),
                     kTestStaging, kTestChunk, options);
  }

  wire::Transfer send(std::uint64_t tag, Bytes& data, DType dtype = DType::kBF16) {
    return sender->send(tag, std::make_shared<CpuTensor>(dtype, data.data(), data.size()));
  }
  wire::Transfer recv(std::uint64_t tag, Bytes& into, DType dtype = DType::kBF16) {
    return receiver->recv(tag, std::make_shared<CpuTensor>(dtype, into.data(), into.size()));
  }
};

inline void expect_ok(const wire::Transfer& transfer) {
  const Status s = transfer.wait_for(std::chrono::seconds(120));
  EXPECT_TRUE(s.ok()) << to_string(s);
}

}  // namespace snug::test
