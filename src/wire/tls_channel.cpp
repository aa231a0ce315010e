#include "wire/tls_channel.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string_view>
#include <vector>

#include "wire/handshake.h"
#include "wire/protocol.h"

namespace snug::wire {
namespace {

// The first record is a greeting. A channel that waits for the rest of its session is in no budget,
// so it must not hold more than that.
constexpr std::size_t kMaxFirstRecordBytes = std::size_t{4} << 10;

constexpr Status kAltered{Code::kCorrupt, "the data was altered on its way"};
constexpr Status kNoTls{Code::kPeer, kNoTlsText};
constexpr Status kOtherVersion{Code::kUnsupportedVersion,
                               "the other side speaks another version of the protocol"};
constexpr Status kNoCipher{Code::kInternal, "OpenSSL cannot encrypt"};

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

// What the first error in OpenSSL's queue means for a handshake.
Status meaning_of_error(Side side) {
  const unsigned long error = ERR_peek_error();
  switch (ERR_GET_LIB(error) == ERR_LIB_SSL ? ERR_GET_REASON(error) : 0) {
    case 0:
    case SSL_R_UNEXPECTED_EOF_WHILE_READING: return kSentAway;
    case SSL_R_NO_APPLICATION_PROTOCOL:
    case SSL_AD_REASON_OFFSET + SSL_AD_NO_APPLICATION_PROTOCOL: return kOtherVersion;
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_ENCRYPTED_LENGTH_TOO_LONG:
    case SSL_R_BAD_RECORD_TYPE: return kNoTls;
    case SSL_R_BINDER_DOES_NOT_VERIFY: return kAnotherToken;
    // The dialler gets one alert whatever was wrong with its hello. The listener knows better.
    default: return side == Side::kDials ? kAnotherToken : kNoTls;
  }
}

// TLS does the handshake. Records of its own then carry the bytes: they are larger than TLS's, need
// one system call each, and open in the memory of the caller, which takes half of the time.
class TlsChannel : public Channel {
 public:
  TlsChannel(Side side, net::Socket socket, SSL* ssl, std::uint64_t key_life_bytes)
      : side_(side),
        socket_(std::move(socket)),
        ssl_(ssl),
        seal_(make_aes_gcm(AesGcm::Work::kSeal), key_maker(side == Side::kDials), key_life_bytes),
        open_(make_aes_gcm(AesGcm::Work::kOpen), key_maker(side != Side::kDials), key_life_bytes) {}

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
    for (;;) {
      ERR_clear_error();
      const int done = SSL_do_handshake(ssl_.get());
      // Past the peer's first message, which ends with its proof.
      const OSSL_HANDSHAKE_STATE state = SSL_get_state(ssl_.get());
      if (side_ == Side::kListens && state != TLS_ST_BEFORE && state != TLS_ST_SR_CLNT_HELLO &&
          SSL_session_reused(ssl_.get()))
        has_proved_ = true;
      if (done == 1) return SSL_session_reused(ssl_.get()) ? Status{} : kAnotherToken;
      const int why = SSL_get_error(ssl_.get(), done);
      if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE)
        return why == SSL_ERROR_SSL ? meaning_of_error(side_) : kSentAway;
      const Status s = why == SSL_ERROR_WANT_READ ? socket_.wait_readable(deadline, keep_going)
                                                  : socket_.wait_writable(deadline, keep_going);
      if (!s.ok()) return s;
    }
  }
  bool has_proved() const noexcept override { return has_proved_; }
  bool authenticates() const noexcept override { return true; }

  // The head is a record of its own, which the peer reads first, but not a packet of its own.
  Status send(std::span<const std::byte> head, std::span<const std::byte> body,
              Deadline deadline) override {
    if (Status s = send_records(head, nullptr, !body.empty(), deadline); !s.ok()) return s;
    return send_records(body, nullptr, false, deadline);
  }
  Status send_and_spoil(std::span<const std::byte> head, std::span<std::byte> body,
                        Deadline deadline) override {
    if (Status s = send_records(head, nullptr, !body.empty(), deadline); !s.ok()) return s;
    return send_records(body, body.data(), false, deadline);
  }

  Status recv(std::span<std::byte> bytes, Deadline deadline) override {
    while (!bytes.empty()) {
      if (!unread_.empty()) {
        const std::size_t n = std::min(bytes.size(), unread_.size());
        std::ranges::copy(unread_.first(n), bytes.begin());
        unread_ = unread_.subspan(n);
        bytes = bytes.subspan(n);
        continue;
      }
      if (Status s = read_length(deadline); !s.ok()) return s;
      const std::uint32_t num_bytes = next_;
      if (num_bytes == 0 || num_bytes > max_record_bytes_) return kAltered;
      max_record_bytes_ = kMaxRecordBytes;
      if (num_bytes <= bytes.size()) {
        if (Status s = open_record(bytes.first(num_bytes), deadline); !s.ok()) return s;
        bytes = bytes.subspan(num_bytes);
      } else {  // the sender has cut its bytes elsewhere
        held_.resize(num_bytes);
        if (Status s = open_record(held_, deadline); !s.ok()) return s;
        unread_ = held_;
      }
    }
    return {};
  }

  Status wait_readable(Deadline deadline) override {
    const bool has_some = !unread_.empty() || next_bytes_ > 0;
    return has_some ? Status{} : socket_.wait_readable(deadline);
  }
  void shut_down() noexcept override { socket_.shut_down(); }
  std::string peer_name() const override { return socket_.peer_name(); }

 private:
  // `place`: where the ciphertext goes, which may be the place of `bytes`; null: memory of the
  // channel. `more`: other records follow at once.
  Status send_records(std::span<const std::byte> bytes, std::byte* place, bool more,
                      Deadline deadline) {
    while (!bytes.empty()) {
      auto num_bytes = static_cast<std::uint32_t>(std::min(bytes.size(), kMaxRecordBytes));
      if (place == nullptr && sealed_.size() < num_bytes) sealed_.resize(num_bytes);
      std::byte* const sealed = place != nullptr ? place : sealed_.data();
      std::byte tag[kTagBytes];
      if (!seal_.run(num_bytes, bytes.data(), sealed, std::span(tag))) return kNoCipher;
      bytes = bytes.subspan(num_bytes);
      if (place != nullptr) place += num_bytes;
      iovec pieces[] = {{&num_bytes, sizeof num_bytes}, {sealed, num_bytes}, {tag, kTagBytes}};
      const Status s = socket_.send_all(std::span(pieces), deadline, more || !bytes.empty());
      if (!s.ok()) return s;
    }
    return {};
  }

  // The length of the next record, of which the last one may have brought some bytes.
  Status read_length(Deadline deadline) {
    const auto missing = writable_bytes_of(next_).subspan(next_bytes_);
    if (Status s = socket_.recv_all(missing, deadline); !s.ok()) return s;
    next_bytes_ = 0;
    return {};
  }

  // The rest of a record behind its length, to where its bytes belong, and the length of the next
  // one if it is there: one system call a record. The bytes are not to be used before this returns.
  Status open_record(std::span<std::byte> bytes, Deadline deadline) {
    std::byte tag[kTagBytes];
    iovec pieces[] = {{bytes.data(), bytes.size()}, {tag, kTagBytes}, {&next_, sizeof next_}};
    const std::size_t num_needed = bytes.size() + kTagBytes;
    const auto got = socket_.recv_at_least(num_needed, std::span(pieces), deadline);
    if (!got) return got.status();
    next_bytes_ = *got - num_needed;
    const auto num_bytes = static_cast<std::uint32_t>(bytes.size());
    return open_.run(num_bytes, bytes.data(), bytes.data(), std::span(tag)) ? Status{} : kAltered;
  }

  // One key for what the dialling side sends, another for what it receives (RFC 8446, 7.5).
  RecordCipher::MakeKey key_maker(bool of_dialler) {
    return [this, of_dialler](std::uint64_t epoch, RecordCipher::Key& key) {
      constexpr std::string_view kLabel = "EXPORTER-snug-wire-2";
      unsigned char context[9] = {static_cast<unsigned char>(of_dialler ? 'D' : 'L')};
      std::memcpy(context + 1, &epoch, sizeof epoch);
      const std::lock_guard lock(mutex_);  // both directions may need one at a time
      return SSL_export_keying_material(ssl_.get(), reinterpret_cast<unsigned char*>(&key),
                                        sizeof key, kLabel.data(), kLabel.size(), context,
                                        sizeof context, 1) == 1;
    };
  }
  static_assert(sizeof(RecordCipher::Key) == 28);

  const Side side_;
  net::Socket socket_;
  std::mutex mutex_;
  std::unique_ptr<SSL, FreeSsl> ssl_;
  std::atomic<bool> has_proved_{false};
  // Of the thread that sends, and of the one that receives.
  RecordCipher seal_, open_;
  std::vector<std::byte> sealed_, held_;
  std::span<std::byte> unread_;                          // of held_
  std::size_t max_record_bytes_ = kMaxFirstRecordBytes;  // that this side takes
  std::uint32_t next_ = 0;  // length of the next record, of which `next_bytes_` have arrived
  std::size_t next_bytes_ = 0;
};

}  // namespace

Result<ChannelPtr> make_tls_channel(Side side, net::Socket socket, const TlsContext& context,
                                    std::uint64_t key_life_bytes) {
  constexpr Status kNoMemory{Code::kInternal, "out of memory"};
  SSL* const ssl = SSL_new(context.get());
  if (ssl == nullptr) return kNoMemory;
  auto channel = std::make_unique<TlsChannel>(side, std::move(socket), ssl, key_life_bytes);
  if (!channel->attach()) return kNoMemory;
  return ChannelPtr(std::move(channel));
}

}  // namespace snug::wire
