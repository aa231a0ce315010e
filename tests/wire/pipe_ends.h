// tests/wire/pipe_ends.h - both ends of a pipe in one process, from a to b.
#pragma once
#include <chrono>
#include <optional>
#include <stdexcept>

#include "../../bench/wire/paced_engine.h"
#include "wire/pipe_cpu_engines.h"
#include "wire/pipe_meeting.h"
#include "wire/pipe_receiver.h"
#include "wire/pipe_sender.h"

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

struct PipeEnds {
  Pair pair = make_pair();
  std::optional<wire::PipeMeeting> at_a, at_b;
  Bytes staging = Bytes(kTestStaging);
  std::optional<wire::PipeSender> sender;
  std::optional<wire::PipeReceiver> receiver;

  // Bytes a second; 0: as fast as memory.
  explicit PipeEnds(wire::Mode mode = wire::Mode::kAuto, double rate = 0,
                    std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    std::thread other([&] {
      if (auto met = wire::PipeMeeting::meet(pair.a, {}, std::chrono::seconds(30)))
        at_a = std::move(*met);
    });
    if (auto met = wire::PipeMeeting::meet(pair.b, {}, std::chrono::seconds(30)))
      at_b = std::move(*met);
    other.join();
    if (!at_a || !at_b) throw std::runtime_error("the ends of the pipe did not meet");
    wire::PipeOptions options;
    options.mode = mode;
    options.timeout = timeout;
    options.check_peer = [this] { return at_a->check_peer(); };
    std::unique_ptr<wire::SendEngine> engine = std::make_unique<CpuSendEngine>(staging.data());
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
