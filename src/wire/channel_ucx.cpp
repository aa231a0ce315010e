// A channel over UCX (RDMA where the hardware has it, shared memory or TCP elsewhere).
// Peers meet over TCP at ucx:HOST:PORT, exchange the addresses of their workers, and
// keep that connection: it tells when the other side is gone.
//
// Each channel has a worker of its own, which one thread at a time may use.
#include <poll.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "wire/endpoints.h"

namespace snug::wire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Status kGone{Code::kPeer, "the peer closed the connection"};
constexpr Status kLate{Code::kTimeout, "the peer took too long"};
constexpr Status kRefused{Code::kIo, "UCX cannot move data here"};
constexpr std::uint64_t kMaxAddressBytes = 64 << 10;
constexpr std::size_t kAheadBytes = 64 << 10;

// One for the process; UCX finds its devices once.
ucp_context_h context() {
  static const ucp_context_h made = [] {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_STREAM | UCP_FEATURE_WAKEUP;
    ucp_context_h result = nullptr;
    return ucp_init(&params, nullptr, &result) == UCS_OK ? result : nullptr;
  }();
  return made;
}

class UcxChannel : public Channel {
 public:
  explicit UcxChannel(net::Socket socket) : socket_(std::move(socket)) {}

  ~UcxChannel() override {
    shut_down();
    const std::lock_guard lock(mutex_);
    close_endpoint(0);
    (void)settle(ahead_request_);
    drop_worker();
  }

  // Exchanges addresses and connects.
  Status open(Deadline deadline) override {
    ucp_worker_params_t params{};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    if (context() == nullptr || ucp_worker_create(context(), &params, &worker_) != UCS_OK ||
        ucp_worker_get_efd(worker_, &event_fd_) != UCS_OK)
      return kRefused;
    ucp_address_t* mine = nullptr;
    std::size_t mine_bytes = 0;
    if (ucp_worker_get_address(worker_, &mine, &mine_bytes) != UCS_OK) return kRefused;
    const std::uint64_t length = mine_bytes;
    Status s = socket_.send_all(std::as_bytes(std::span(&length, 1)), deadline);
    if (s.ok())
      s = socket_.send_all({reinterpret_cast<const std::byte*>(mine), mine_bytes}, deadline);
    ucp_worker_release_address(worker_, mine);
    return s.ok() ? connect_to_peer(deadline) : s;
  }

  Status send(std::span<const std::byte> head, std::span<const std::byte> body,
              Deadline deadline) override {
    if (Status s = send_piece(head, deadline); !s.ok()) return s;
    return send_piece(body, deadline);
  }

  Status recv(std::span<std::byte> bytes, Deadline deadline) override {
    if (bytes.empty()) return {};
    if (ahead_request_ != nullptr)
      if (Status s = wait_readable(deadline); !s.ok()) return s;
    const std::size_t ahead = std::min(bytes.size(), ahead_end_ - ahead_begin_);
    std::memcpy(bytes.data(), ahead_.data() + ahead_begin_, ahead);
    ahead_begin_ += ahead;
    bytes = bytes.subspan(ahead);
    if (bytes.empty()) return {};
    std::size_t got = 0;
    void* request = start_receive(bytes, UCP_STREAM_RECV_FLAG_WAITALL, got);
    const Status s = wait(request, deadline, &got);
    if (!s.ok()) give_up(request);
    return s;
  }

  // A stream cannot be looked at, so the first bytes are taken out of it. UCX
  // cannot cancel this: what has not come by the deadline is waited for next time.
  Status wait_readable(Deadline deadline) override {
    if (ahead_begin_ < ahead_end_) return {};
    if (ahead_request_ == nullptr) {
      ahead_begin_ = ahead_end_ = 0;
      ahead_request_ = start_receive(ahead_, 0, ahead_end_);
    }
    const Status s = wait(ahead_request_, deadline, &ahead_end_);
    if (s.ok()) ahead_request_ = nullptr;
    return s;
  }

  void shut_down() noexcept override {
    closed_ = true;
    socket_.shut_down();
  }
  std::string peer_name() const override { return "ucx:" + socket_.peer_name(); }

 private:
  Status connect_to_peer(Deadline deadline) {
    std::uint64_t length = 0;
    if (Status s = socket_.recv_all(std::as_writable_bytes(std::span(&length, 1)), deadline);
        !s.ok())
      return s;
    if (length == 0 || length > kMaxAddressBytes)
      return {Code::kPeer, "the other side does not speak Snug's protocol"};
    std::vector<std::byte> address(length);
    if (Status s = socket_.recv_all(address, deadline); !s.ok()) return s;
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.err_handler.cb = [](void* self, ucp_ep_h, ucs_status_t) {
      static_cast<UcxChannel*>(self)->closed_ = true;
    };
    params.err_handler.arg = this;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    return ucp_ep_create(worker_, &params, &endpoint_) == UCS_OK ? Status{} : kRefused;
  }

  Status send_piece(std::span<const std::byte> bytes, Deadline deadline) {
    if (bytes.empty()) return {};
    const ucp_request_param_t param{};
    std::unique_lock lock(mutex_);
    if (endpoint_ == nullptr) return kGone;
    void* request = ucp_stream_send_nbx(endpoint_, bytes.data(), bytes.size(), &param);
    lock.unlock();
    const Status s = wait(request, deadline);
    if (!s.ok()) give_up(request);
    return s;
  }

  void* start_receive(std::span<std::byte> bytes, std::uint32_t flags, std::size_t& got) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = flags;
    const std::lock_guard lock(mutex_);
    if (endpoint_ == nullptr) return UCS_STATUS_PTR(UCS_ERR_CANCELED);
    return ucp_stream_recv_nbx(endpoint_, bytes.data(), bytes.size(), &got, &param);
  }

  // Drives the worker until the request is done, and frees it then.
  Status wait(void* request, Deadline deadline, std::size_t* received = nullptr) {
    if (request == nullptr) return {};
    if (UCS_PTR_IS_ERR(request)) return kGone;
    for (int idle = 0, looks_after_goodbye = 0;;) {
      std::unique_lock lock(mutex_);
      if (worker_ == nullptr) return kGone;
      const unsigned progress = ucp_worker_progress(worker_);
      const ucs_status_t status = received == nullptr
                                      ? ucp_request_check_status(request)
                                      : ucp_stream_recv_request_test(request, received);
      if (status == UCS_OK) ucp_request_free(request);
      if (status != UCS_INPROGRESS) return status == UCS_OK ? Status{} : kGone;
      // What the peer sent before it left may still be on its way.
      const bool left = peer_left_ && progress == 0 && ++looks_after_goodbye > kSpins + kLastLooks;
      if (closed_ || left) return kGone;
      if (Clock::now() >= deadline) return kLate;
      idle = progress > 0 ? 0 : idle + 1;
      if (idle < kSpins) continue;
      const bool may_sleep = ucp_worker_arm(worker_) == UCS_OK;
      lock.unlock();
      if (may_sleep) sleep_a_moment();
    }
  }

  // The memory of a request belongs to the caller again only when UCX has let go
  // of it, which takes the end of the channel.
  void give_up(void* request) {
    closed_ = true;
    const std::lock_guard lock(mutex_);
    if (worker_ == nullptr) return;
    if (request != nullptr && !UCS_PTR_IS_ERR(request)) ucp_request_cancel(worker_, request);
    close_endpoint(UCP_EP_CLOSE_FLAG_FORCE);
    if (!settle(request)) drop_worker();
  }

  // With mutex_ held. Without force, what was sent may still arrive.
  void close_endpoint(std::uint32_t flags) {
    if (endpoint_ == nullptr) return;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = flags;
    (void)settle(ucp_ep_close_nbx(std::exchange(endpoint_, nullptr), &param));
  }

  // With mutex_ held: drives the worker until the request has ended, and frees it. False
  // if UCX holds on to it: freeing it is right even so, but the memory that it works on is
  // free only when the worker is gone.
  bool settle(void* request) {
    if (request == nullptr || UCS_PTR_IS_ERR(request) || worker_ == nullptr) return true;
    const auto until = Clock::now() + kSettle;
    while (ucp_request_check_status(request) == UCS_INPROGRESS && Clock::now() < until)
      ucp_worker_progress(worker_);
    const bool ended = ucp_request_check_status(request) != UCS_INPROGRESS;
    ucp_request_free(request);
    return ended;
  }

  // With mutex_ held. Ends all that UCX still does with our memory.
  void drop_worker() {
    if (worker_ != nullptr) ucp_worker_destroy(std::exchange(worker_, nullptr));
  }

  // Short, because another thread of this channel may take the event that this one
  // waits for. Something on the socket means that the peer has closed it.
  void sleep_a_moment() {
    pollfd entries[2] = {{event_fd_, POLLIN, 0}, {socket_.fd(), POLLIN, 0}};
    ::poll(entries, peer_left_ ? 1 : 2, 1);
    if (entries[1].revents != 0) peer_left_ = true;
  }

  static constexpr int kSpins = 200, kLastLooks = 100;
  static constexpr std::chrono::milliseconds kSettle{500};
  net::Socket socket_;
  std::mutex mutex_;  // of the worker
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  int event_fd_ = -1;
  std::atomic<bool> closed_{false}, peer_left_{false};
  std::vector<std::byte> ahead_ = std::vector<std::byte>(kAheadBytes);
  std::size_t ahead_begin_ = 0, ahead_end_ = 0;
  void* ahead_request_ = nullptr;
};

class UcxListener : public ChannelListener {
 public:
  UcxListener(net::Listener listener, std::string host)
      : listener_(std::move(listener)), host_(std::move(host)) {}
  Result<ChannelPtr> accept(Deadline deadline) override {
    auto socket = listener_.accept(deadline);
    if (!socket) return socket.status();
    return ChannelPtr(std::make_unique<UcxChannel>(std::move(*socket)));
  }
  std::string address() const override {
    return "ucx:" + net::to_string(net::Address{host_, listener_.port()});
  }

 private:
  net::Listener listener_;
  const std::string host_;
};

}  // namespace

Result<ChannelPtr> dial_ucx(const std::string& address, Deadline deadline,
                            const KeepGoing& keep_going) {
  const auto parsed = net::parse_address(address);
  if (!parsed) return parsed.status();
  auto socket = net::connect(*parsed, deadline, keep_going);
  if (!socket) return socket.status();
  auto channel = std::make_unique<UcxChannel>(std::move(*socket));
  if (Status s = channel->open(deadline); !s.ok()) return s;
  return ChannelPtr(std::move(channel));
}

Result<std::unique_ptr<ChannelListener>> listen_ucx(const std::string& address) {
  const auto parsed = net::parse_address(address);
  if (!parsed) return parsed.status();
  auto listener = net::Listener::open(*parsed);
  if (!listener) return listener.status();
  return std::unique_ptr<ChannelListener>(
      std::make_unique<UcxListener>(std::move(*listener), parsed->host));
}

}  // namespace snug::wire
