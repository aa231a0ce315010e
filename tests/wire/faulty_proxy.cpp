#include "wire/faulty_proxy.h"

#include <utility>

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
    const std::lock_guard lock(mutex_);
    Relay& relay = relays_.emplace_back();
    relay.client = std::move(*client);
    relay.server = std::move(*server);
    relay.seen_up = {number, true, {}};
    relay.seen_down = {number, false, {}};
    Fault up = fault_, down = fault_;
    const int nth = number - fault_.connection;
    const bool has_fault = nth >= 0 && nth < fault_.num_connections;
    if (!has_fault || !fault_.towards_server) up.kind = Fault::kNone;
    if (!has_fault || fault_.towards_server) down.kind = Fault::kNone;
    ++number;
    relay.up = std::thread([&, up] { pump(relay.client, relay.server, up, relay.seen_up); });
    relay.down =
        std::thread([&, down] { pump(relay.server, relay.client, down, relay.seen_down); });
  }
}

std::vector<FaultyProxy::Seen> FaultyProxy::seen() const {
  const std::lock_guard lock(mutex_);
  std::vector<Seen> all;
  for (const Relay& relay : relays_)
    for (const Seen* seen : {&relay.seen_up, &relay.seen_down}) all.push_back(*seen);
  return all;
}

void FaultyProxy::pump(const net::Socket& from, const net::Socket& to, const Fault& fault,
                       Seen& seen) {
  std::vector<std::byte> buffer(32 << 10), held;
  std::uint64_t passed = 0;
  const auto forward = [&](std::span<const std::byte> bytes) {
    return to.send_all(bytes, net::Deadline::max()).ok();
  };
  for (;;) {
    const auto got = from.recv_some(buffer, net::Deadline::max());
    if (!got || *got == 0) break;
    const auto bytes = std::span(buffer).first(*got);
    {
      const std::lock_guard lock(mutex_);
      seen.bytes.insert(seen.bytes.end(), bytes.begin(), bytes.end());
    }
    if (fault.delay.count() > 0) std::this_thread::sleep_for(fault.delay);
    const bool strikes = fault.kind != Fault::kNone && passed <= fault.after_bytes &&
                         fault.after_bytes < passed + *got;
    bool is_dropped = false;
    if (strikes) {
      struck_ = true;
      if (fault.kind == Fault::kCut) break;
      if (fault.kind == Fault::kFlipBit) buffer[fault.after_bytes - passed] ^= std::byte{16};
      if (fault.kind == Fault::kRepeat && !forward(bytes)) break;
      if (fault.kind == Fault::kReorder) held.assign(bytes.begin(), bytes.end());
      is_dropped = fault.kind == Fault::kDrop || fault.kind == Fault::kReorder;
      // Both connections stay open, but nothing passes any more.
      while (fault.kind == Fault::kStall && !stopping_) std::this_thread::sleep_for(10ms);
    }
    passed += *got;
    if (is_dropped) continue;
    if (!forward(bytes)) break;
    if (!held.empty() && !forward(std::exchange(held, {}))) break;
  }
  from.shut_down();
  to.shut_down();
}

Outcome send_through(FaultyProxy& proxy, wire::Listener& listener, const wire::Options& options,
                     const std::vector<std::byte>& data) {
  Outcome outcome;
  std::atomic<bool> failed{false};
  std::thread receiving([&] {
    auto connection = listener.accept(10ms);
    while (!connection && !failed) connection = listener.accept(10ms);
    if (!connection) return;
    std::vector<std::byte> got(data.size());
    const std::span<std::byte> to[] = {got};
    outcome.received = connection->recv(1, to).wait_for(30s);
    outcome.same = got == data;
  });
  auto connection = wire::connect(proxy.address(), options);
  outcome.connected = connection.status();
  if (connection) {
    const std::span<const std::byte> from[] = {data};
    outcome.sent = connection->send(1, DType::kBF16, from).wait_for(30s);
  }
  failed = true;
  receiving.join();
  outcome.struck = proxy.has_struck();
  return outcome;
}

}  // namespace snug::test
