// Channels over TCP, one connection each, and the choice of a transport by address. The socket's
// buffers decouple encoding from the link: send returns while the kernel still transmits.
#include <arpa/inet.h>
#include <netinet/in.h>

#include "wire/channel.h"

namespace snug::wire {
namespace {

constexpr std::string_view kShm = "shm:";

class TcpChannel : public Channel {
 public:
  explicit TcpChannel(net::Socket socket) : socket_(std::move(socket)) {}

  Status send(std::span<const std::byte> head, std::span<const std::byte> body,
              Deadline deadline) override {
    iovec pieces[2] = {{const_cast<std::byte*>(head.data()), head.size()},
                       {const_cast<std::byte*>(body.data()), body.size()}};
    return socket_.send_all(std::span(pieces), deadline);
  }
  Status recv(std::span<std::byte> bytes, Deadline deadline) override {
    return socket_.recv_all(bytes, deadline);
  }
  Status wait_readable(Deadline deadline) override { return socket_.wait_readable(deadline); }
  void shut_down() noexcept override { socket_.shut_down(); }
  std::string peer_name() const override { return socket_.peer_name(); }

 private:
  net::Socket socket_;
};

Result<ChannelPtr> channel_of(Result<net::Socket> socket) {
  if (!socket) return socket.status();
  return ChannelPtr(std::make_unique<TcpChannel>(std::move(*socket)));
}

class TcpListener : public ChannelListener {
 public:
  TcpListener(net::Listener listener, std::string host)
      : listener_(std::move(listener)), host_(std::move(host)) {}
  Result<ChannelPtr> accept(Deadline deadline) override {
    return channel_of(listener_.accept(deadline));
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
  // Any other name may resolve to anything, whatever it looks like.
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
  return channel_of(net::connect(*parsed, deadline, keep_going));
}

Result<ChannelListenerPtr> listen(const std::string& address) {
  if (address.starts_with(kShm)) return listen_shm(address.substr(kShm.size()));
  const auto parsed = net::parse_address(address);
  if (!parsed) return parsed.status();
  auto listener = net::Listener::open(*parsed);
  if (!listener) return listener.status();
  return ChannelListenerPtr(std::make_unique<TcpListener>(std::move(*listener), parsed->host));
}

}  // namespace snug::wire
