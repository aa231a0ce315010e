#include "wire/tls_channel.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "wire/handshake.h"

namespace snug::wire {
namespace {

// AES-GCM may encrypt some 2^24 records under one key.
constexpr std::uint64_t kKeyLifeBytes = std::uint64_t{64} << 30;

constexpr Status kClosed{Code::kPeer, "the peer closed the connection"};
constexpr Status kAltered{Code::kCorrupt, "the data was altered on its way"};
constexpr Status kAnotherToken{
    Code::kPeer, "the other side has another token, or runs as another user without one"};
constexpr Status kNoTls{Code::kPeer,
                        "the other side does not encrypt: it runs with --insecure, or is no Snug"};
constexpr Status kOtherVersion{Code::kUnsupportedVersion,
                               "the other side speaks another version of the protocol"};
constexpr Status kStopped{Code::kIo, "stopped by the caller"};

// ---- OpenSSL's view of the socket; its own would raise SIGPIPE ---------------------------------

int fd_of(BIO* bio) { return static_cast<const net::Socket*>(BIO_get_data(bio))->fd(); }

int after_call(BIO* bio, ssize_t n, int retry) {
  BIO_clear_retry_flags(bio);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
    BIO_set_flags(bio, retry | BIO_FLAGS_SHOULD_RETRY);
  return static_cast<int>(n);
}

int bio_write(BIO* bio, const char* data, int n) {
  return after_call(bio, ::send(fd_of(bio), data, static_cast<std::size_t>(n), MSG_NOSIGNAL),
                    BIO_FLAGS_WRITE);
}

int bio_read(BIO* bio, char* data, int n) {
  return after_call(bio, ::recv(fd_of(bio), data, static_cast<std::size_t>(n), 0), BIO_FLAGS_READ);
}

long bio_control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO* make_socket_bio(net::Socket* socket) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "snug socket");
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_ctrl(made, bio_control);
    return made;
  }();
  BIO* bio = BIO_new(method);
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio, socket);
  BIO_set_init(bio, 1);
  return bio;
}

struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

// What the first error in OpenSSL's queue means.
Status meaning_of_error(bool in_handshake) {
  const unsigned long error = ERR_peek_error();
  const int reason = ERR_GET_LIB(error) == ERR_LIB_SSL ? ERR_GET_REASON(error) : 0;
  if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING || reason == 0)
    return in_handshake ? kSentAway : kClosed;
  if (!in_handshake) return kAltered;
  switch (reason) {
    case SSL_R_NO_APPLICATION_PROTOCOL:
    case SSL_AD_REASON_OFFSET + SSL_AD_NO_APPLICATION_PROTOCOL: return kOtherVersion;
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_ENCRYPTED_LENGTH_TOO_LONG:
    case SSL_R_BAD_RECORD_TYPE: return kNoTls;
    default: return kAnotherToken;
  }
}

// One thread may send while another receives, but an SSL object serves one call at a time: calls
// never wait for the network while they hold the mutex.
class TlsChannel : public Channel {
 public:
  TlsChannel(Side side, net::Socket socket, SSL* ssl)
      : side_(side), socket_(std::move(socket)), ssl_(ssl) {}

  bool attach() {
    BIO* const bio = make_socket_bio(&socket_);
    if (bio == nullptr) return false;
    SSL_set_bio(ssl_.get(), bio, bio);
    if (side_ == Side::kDials)
      SSL_set_connect_state(ssl_.get());
    else
      SSL_set_accept_state(ssl_.get());
    return true;
  }

  Status open(Deadline deadline, const KeepGoing& keep_going) override {
    const Status s = repeat(deadline, keep_going, [this] {
      const int done = SSL_do_handshake(ssl_.get());
      // Past the peer's first message, which ends with its proof.
      const OSSL_HANDSHAKE_STATE state = SSL_get_state(ssl_.get());
      if (side_ == Side::kListens && state != TLS_ST_BEFORE && state != TLS_ST_SR_CLNT_HELLO &&
          SSL_session_reused(ssl_.get()))
        has_proved_ = true;
      return done;
    });
    if (!s.ok()) return s;
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    return SSL_session_reused(ssl_.get()) ? Status{} : kAnotherToken;
  }
  bool has_proved() const noexcept override { return has_proved_; }

  Status send(std::span<const std::byte> head, std::span<const std::byte> body,
              Deadline deadline) override {
    for (auto bytes : {head, body})
      while (!bytes.empty()) {
        std::size_t n = 0;
        const Status s = repeat(
            deadline, {}, [&] { return SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &n); });
        if (!s.ok()) return s;
        bytes = bytes.subspan(n);
        if ((sent_bytes_ += n) >= kKeyLifeBytes) renew_key();
      }
    return {};
  }

  Status recv(std::span<std::byte> bytes, Deadline deadline) override {
    while (!bytes.empty()) {
      std::size_t n = 0;
      const Status s = repeat(
          deadline, {}, [&] { return SSL_read_ex(ssl_.get(), bytes.data(), bytes.size(), &n); });
      if (!s.ok()) return s;
      bytes = bytes.subspan(n);
    }
    return {};
  }

  Status wait_readable(Deadline deadline) override {
    {
      const std::lock_guard lock(mutex_);
      if (SSL_has_pending(ssl_.get())) return {};
    }
    return socket_.wait_readable(deadline);
  }
  void shut_down() noexcept override { socket_.shut_down(); }
  std::string peer_name() const override { return socket_.peer_name(); }

 private:
  // Calls `step` until it returns more than 0; in between, waits for the socket.
  template <class Step>
  Status repeat(Deadline deadline, const KeepGoing& keep_going, Step step) {
    for (;;) {
      bool for_reading = false;
      {
        const std::lock_guard lock(mutex_);
        ERR_clear_error();
        const int n = step();
        if (n > 0) return {};
        const int why = SSL_get_error(ssl_.get(), n);
        if (why == SSL_ERROR_ZERO_RETURN || why == SSL_ERROR_SYSCALL)
          return is_open_ ? kClosed : kSentAway;
        if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE)
          return meaning_of_error(!is_open_);
        for_reading = why == SSL_ERROR_WANT_READ;
      }
      if (Status s = wait(for_reading, deadline, keep_going); !s.ok()) return s;
    }
  }

  Status wait(bool for_reading, Deadline deadline, const KeepGoing& keep_going) const {
    for (;;) {
      const Deadline look =
          keep_going ? std::min(deadline, net::after(std::chrono::milliseconds(50))) : deadline;
      const Status s = for_reading ? socket_.wait_readable(look) : socket_.wait_writable(look);
      if (s.code != Code::kTimeout || look == deadline) return s;
      if (!keep_going()) return kStopped;
    }
  }

  void renew_key() {
    const std::lock_guard lock(mutex_);
    SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
    sent_bytes_ = 0;
  }

  const Side side_;
  net::Socket socket_;
  std::mutex mutex_;
  std::unique_ptr<SSL, FreeSsl> ssl_;
  bool is_open_ = false;  // guarded by mutex_
  std::atomic<bool> has_proved_{false};
  std::uint64_t sent_bytes_ = 0;  // under this key
};

}  // namespace

Result<ChannelPtr> make_tls_channel(Side side, net::Socket socket, const TlsContext& context) {
  constexpr Status kNoMemory{Code::kInternal, "out of memory"};
  SSL* const ssl = SSL_new(context.get());
  if (ssl == nullptr) return kNoMemory;
  auto channel = std::make_unique<TlsChannel>(side, std::move(socket), ssl);
  if (!channel->attach()) return kNoMemory;
  return ChannelPtr(std::move(channel));
}

}  // namespace snug::wire
