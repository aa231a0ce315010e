#include "wire/faulty_proxy.h"

#include <vector>

namespace snug::test {

using namespace std::chrono_literals;

FaultyProxy::FaultyProxy(const std::string& target, Fault fault)
    : target_(*net::parse_address(target)), fault_(fault) {
  listener_ = std::move(*net::Listener::open(net::Address{"127.0.0.1", 0}));
  accepting_ = std::thread([this] { run(); });
}

FaultyProxy::~FaultyProxy() {
  stopping_ = true;
  accepting_.join();
  for (Relay& relay : relays_) {
    relay.client.shut_down();
    relay.server.shut_down();
    relay.up.join();
    relay.down.join();
  }
}

std::string FaultyProxy::address() const {
  return net::to_string(net::Address{"127.0.0.1", listener_.port()});
}

void FaultyProxy::run() {
  for (int number = 0; !stopping_;) {
    auto client = listener_.accept(net::after(50ms));
    if (!client) continue;
    auto server = net::connect(target_, net::after(5s));
    if (!server) continue;
    Relay& relay = relays_.emplace_back();
    relay.client = std::move(*client);
    relay.server = std::move(*server);
    const bool mine = number++ == fault_.connection;
    relay.up = std::thread([&, mine] {
      pump(relay.client, relay.server, mine && fault_.towards_server ? fault_ : Fault{});
    });
    relay.down = std::thread([&, mine] {
      pump(relay.server, relay.client, mine && !fault_.towards_server ? fault_ : Fault{});
    });
  }
}

void FaultyProxy::pump(const net::Socket& from, const net::Socket& to, const Fault& fault) {
  std::vector<std::byte> buffer(32 << 10);
  std::uint64_t passed = 0;
  for (;;) {
    const auto got = from.recv_some(buffer, net::Deadline::max());
    if (!got || *got == 0) break;
    const bool strikes = fault.kind != Fault::kNone && passed <= fault.after_bytes &&
                         fault.after_bytes < passed + *got;
    if (strikes) {
      struck_ = true;
      if (fault.kind == Fault::kCut) break;
      if (fault.kind == Fault::kFlipBit) buffer[fault.after_bytes - passed] ^= std::byte{16};
      // Both connections stay open, but nothing passes any more.
      while (fault.kind == Fault::kStall && !stopping_) std::this_thread::sleep_for(10ms);
    }
    passed += *got;
    if (!to.send_all(std::span(buffer).first(*got), net::Deadline::max()).ok()) break;
  }
  from.shut_down();
  to.shut_down();
}

}  // namespace snug::test
