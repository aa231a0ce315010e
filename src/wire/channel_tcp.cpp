// Channels over TCP, one connection each, and the choice of a transport by address. The socket's
// buffers decouple encoding from the link: send returns while the kernel still transmits.
#include <arpa/inet.h>
#include <netinet/in.h>

#include "wire/channel.h"
#include "wire/tls_channel.h"
#include "wire/user_secret.h"

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

Result<ChannelPtr> channel_of(Result<net::Socket> socket, Side side, const Door& door) {
  if (!socket) return socket.status();
  if (door.tls) return make_tls_channel(side, std::move(*socket), door.tls);
  return ChannelPtr(std::make_unique<TcpChannel>(std::move(*socket)));
}

class TcpListener : public ChannelListener {
 public:
  TcpListener(net::Listener listener, std::string host, Door door)
      : listener_(std::move(listener)), host_(std::move(host)), door_(std::move(door)) {}
  Result<ChannelPtr> accept(Deadline deadline) override {
    return channel_of(listener_.accept(deadline), Side::kListens, door_);
  }
  std::string address() const override {
    return net::to_string(net::Address{host_, listener_.port()});
  }

 private:
  net::Listener listener_;
  const std::string host_;
  const Door door_;
};

bool is_loopback(const std::string& host) {
  // Any other name may resolve to anything, whatever it looks like.
  if (host == "localhost") return true;
  in_addr v4;
  in6_addr v6;
  return (::inet_pton(AF_INET, host.c_str(), &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127) ||
         (::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6));
}

}  // namespace

Result<Door> door_of(Side side, const std::string& address, const Options& options) {
  if (address.starts_with(kShm)) return Door{nullptr, !options.insecure};
  const auto parsed = net::parse_address(address);
  if (!parsed) return parsed.status();
  if (options.insecure) return Door{};
  auto token = given_token(options.token);
  if (!token) return token.status();
  if (token->empty()) {
    if (!is_loopback(parsed->host))
      return Status{Code::kUsage, side == Side::kListens
                                      ? "an address that other hosts can reach needs a token "
                                        "(SNUG_TOKEN, --token-file, token= in Python)"
                                      : "another host needs the token of its side "
                                        "(SNUG_TOKEN, --token-file, token= in Python)"};
    token = user_secret();
    if (!token) return token.status();
  }
  auto context = make_tls_context(side, *token);
  if (!context) return context.status();
  return Door{std::move(*context)};
}

Result<ChannelPtr> dial(const std::string& address, const Door& door, Deadline deadline,
                        const KeepGoing& keep_going) {
  if (address.starts_with(kShm)) return dial_shm(address.substr(kShm.size()), door, deadline);
  const auto parsed = net::parse_address(address);
  if (!parsed) return parsed.status();
  return channel_of(net::connect(*parsed, deadline, keep_going), Side::kDials, door);
}

Result<ChannelListenerPtr> listen(const std::string& address, const Door& door) {
  if (address.starts_with(kShm)) return listen_shm(address.substr(kShm.size()), door);
  const auto parsed = net::parse_address(address);
  if (!parsed) return parsed.status();
  auto listener = net::Listener::open(*parsed);
  if (!listener) return listener.status();
  return ChannelListenerPtr(
      std::make_unique<TcpListener>(std::move(*listener), parsed->host, door));
}

}  // namespace snug::wire
