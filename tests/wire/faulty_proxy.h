// tests/wire/faulty_proxy.h - a relay between two peers that damages, cuts or stalls
// what passes.
#pragma once
#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "net/socket.h"

namespace snug::test {

struct Fault {
  enum Kind { kNone, kFlipBit, kCut, kStall } kind = kNone;
  int connection = 0;  // counted as they come: 0 is the first control channel
  std::uint64_t after_bytes = 0;
  bool towards_server = true;
};

class FaultyProxy {
 public:
  FaultyProxy(const std::string& target, Fault fault);
  ~FaultyProxy();
  std::string address() const;
  bool has_struck() const { return struck_; }

 private:
  struct Relay {
    net::Socket client, server;
    std::thread up, down;
  };
  void run();
  void pump(const net::Socket& from, const net::Socket& to, const Fault& fault);

  const net::Address target_;
  const Fault fault_;
  net::Listener listener_;
  std::atomic<bool> stopping_{false}, struck_{false};
  std::list<Relay> relays_;
  std::thread accepting_;
};

}  // namespace snug::test
