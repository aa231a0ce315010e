#include "wire/endpoints.h"

namespace snug::wire {
namespace {

constexpr std::string_view kShm = "shm:", kUcx = "ucx:";

#ifndef SNUG_HAVE_UCX
constexpr Status kNoUcx{Code::kUsage, "this build has no UCX (SNUG_UCX=ON)"};
#endif

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

#ifndef SNUG_HAVE_UCX
Result<ChannelPtr> dial_ucx(const std::string&, Deadline, const KeepGoing&) { return kNoUcx; }
Result<std::unique_ptr<ChannelListener>> listen_ucx(const std::string&) { return kNoUcx; }
#endif

Result<bool> is_local(const std::string& address) {
  if (address.starts_with(kShm)) return true;
  const auto parsed =
      net::parse_address(address.starts_with(kUcx) ? address.substr(kUcx.size()) : address);
  if (!parsed) return parsed.status();
  return parsed->host == "localhost" || parsed->host == "::1" || parsed->host.starts_with("127.");
}

Result<ChannelPtr> dial(const std::string& address, Deadline deadline,
                        const KeepGoing& keep_going) {
  if (address.starts_with(kShm)) return dial_shm(address.substr(kShm.size()));
  if (address.starts_with(kUcx)) return dial_ucx(address.substr(kUcx.size()), deadline, keep_going);
  const auto parsed = net::parse_address(address);
  if (!parsed) return parsed.status();
  auto socket = net::connect(*parsed, deadline, keep_going);
  if (!socket) return socket.status();
  return make_tcp_channel(std::move(*socket));
}

Result<std::unique_ptr<ChannelListener>> listen(const std::string& address) {
  if (address.starts_with(kShm)) return listen_shm(address.substr(kShm.size()));
  if (address.starts_with(kUcx)) return listen_ucx(address.substr(kUcx.size()));
  const auto parsed = net::parse_address(address);
  if (!parsed) return parsed.status();
  auto listener = net::Listener::open(*parsed);
  if (!listener) return listener.status();
  return std::unique_ptr<ChannelListener>(
      std::make_unique<TcpListener>(std::move(*listener), parsed->host));
}

}  // namespace snug::wire
