// A channel over one TCP connection. The socket's buffers are what decouples
// encoding from the link: send returns while the kernel still transmits.
#include "wire/channel.h"

namespace snug::wire {
namespace {

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

}  // namespace

ChannelPtr make_tcp_channel(net::Socket socket) {
  return std::make_unique<TcpChannel>(std::move(socket));
}

}  // namespace snug::wire
