// tests/wire/faulty_proxy.h - a relay between two peers that reads what passes, and damages, drops,
// repeats, reorders, cuts, delays or stalls it.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "net/socket.h"
#include "snug/wire.h"

namespace snug::test {

struct Fault {
  enum Kind { kNone, kFlipBit, kDrop, kRepeat, kReorder, kCut, kStall } kind = kNone;
  int connection = 0;  // counted as they come: 0 is the first control channel
  std::uint64_t after_bytes = 0;
  bool towards_server = true;
  std::chrono::milliseconds delay{0};  // of everything, in both directions
  int num_connections = 1;             // so many have the fault, from that one on
};

class FaultyProxy {
 public:
  FaultyProxy(const std::string& target, Fault fault);
  ~FaultyProxy();
  std::string address() const;
  bool has_struck() const { return struck_; }

  // What one side has sent over one connection, as it was before the fault.
  struct Seen {
    int connection;
    bool towards_server;
    std::vector<std::byte> bytes;
  };
  std::vector<Seen> seen() const;

 private:
  struct Relay {
    net::Socket client, server;
    Seen seen_up, seen_down;
    std::thread up, down;
  };
  void run();
  void pump(const net::Socket& from, const net::Socket& to, const Fault& fault, Seen& seen);

  const net::Address target_;
  const Fault fault_;
  net::Listener listener_;
  std::atomic<bool> stopping_{false}, struck_{false};
  mutable std::mutex mutex_;
  std::list<Relay> relays_;
  std::thread accepting_;
};

// One message from `connect` through the proxy to `listener`.
struct Outcome {
  Status connected;
  Status sent{Code::kPeer, "never connected"}, received = sent;
  bool same = false, struck = false;
};
Outcome send_through(FaultyProxy& proxy, wire::Listener& listener, const wire::Options& options,
                     const std::vector<std::byte>& data);

}  // namespace snug::test
