#include "wire/endpoints.h"

#include <arpa/inet.h>
#include <netinet/in.h>

namespace snug::wire {
namespace {

constexpr std::string_view kShm = "shm:";

class TcpListener : public ChannelListener {
 public:
  TcpListener(net::Listener listener, std::string host)
      : listener_(std::move(listener)), host_(std::move(host)) {}
  Result<ChannelPtr> accept(Deadline deadline) override {
    auto socket = listener_.accept(deadline);
    if (!socket) return socket.status();
    return make_tcp_channel(std::move(*socket));
  }
  std::string address() const override {
    return net::to_string(net::Address{host_, listener_.port()});
  }

 private:
  net::Listener listener_;
  const std::string host_;
};

}  // namespace

Result<bool> is_local(const std::string& address) {
  if (address.starts_with(kShm)) return true;
  const auto parsed = net::parse_address(address);
  if (!parsed) return parsed.status();
  // Names may mean anything, whatever they look like; but for this one.
  if (parsed->host == "localhost") return true;
  in_addr v4;
  in6_addr v6;
  return (::inet_pton(AF_INET, parsed->host.c_str(), &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127) ||
         (::inet_pton(AF_INET6, parsed->host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6));
}

Result<ChannelPtr> dial(const std::string& address, Deadline deadline,
                        const KeepGoing& keep_going) {
  if (address.starts_with(kShm)) return dial_shm(address.substr(kShm.size()), deadline);
  const auto parsed = net::parse_address(address);
  if (!parsed) return parsed.status();
  auto socket = net::connect(*parsed, deadline, keep_going);
  if (!socket) return socket.status();
  return make_tcp_channel(std::move(*socket));
}

Result<std::unique_ptr<ChannelListener>> listen(const std::string& address) {
  if (address.starts_with(kShm)) return listen_shm(address.substr(kShm.size()));
  const auto parsed = net::parse_address(address);
  if (!parsed) return parsed.status();
  auto listener = net::Listener::open(*parsed);
  if (!listener) return listener.status();
  return std::unique_ptr<ChannelListener>(
      std::make_unique<TcpListener>(std::move(*listener), parsed->host));
}

}  // namespace snug::wire
