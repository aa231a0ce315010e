#include "gpu_link/link_meeting.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>

#include "os/random.h"

namespace snug::gpu_link {
namespace {

using net::after;
using net::Deadline;
using std::chrono::milliseconds;
using wire::Transfer;

// The tag of the greeting of two links; applications should not use it.
constexpr std::uint64_t kHelloTag = 0x534E55475F504950;
constexpr char kMagic[8] = {'S', 'N', 'U', 'G', 'P', 'I', 'P', '3'};
constexpr Status kGone{Code::kPeer, "the peer closed the link"};
constexpr Status kCannot{Code::kPeer,
                         "the peer cannot use the link; the connection itself still works"};
constexpr Status kBroken{Code::kPeer, "the peer made a link that makes no sense; update both ends"};
constexpr Status kNotThere{
    Code::kPeer,
    "the peer is not on this host, or in another container: a link needs one "
    "network namespace; the connection itself works anywhere"};

constexpr Status kAnotherUser{Code::kPeer,
                              "the peer runs as another user; the connection itself still works"};

struct Hello {
  char magic[8];
  std::uint64_t process[2];             // drawn once in each process, and its pid: a fork copies it
  char host[40];                        // changes with every boot
  std::uint64_t meeting;                // in the socket's name, which all processes of the host see
  std::array<std::uint64_t, 2> secret;  // only the connection carries it
  LinkBlob blob;
};

Hello make_hello(const LinkBlob& blob) {
  static const auto process = os::random_value<std::uint64_t>();
  Hello hello{};
  std::memcpy(hello.magic, kMagic, sizeof kMagic);
  hello.process[0] = process;
  hello.process[1] = static_cast<std::uint64_t>(::getpid());
  std::ifstream("/proc/sys/kernel/random/boot_id").read(hello.host, sizeof hello.host - 1);
  hello.meeting = os::random_value<std::uint64_t>();
  hello.secret = os::random_value<std::array<std::uint64_t, 2>>();
  hello.blob = blob;
  return hello;
}

std::string socket_name(const Hello& listener) {
  return "snug-link-" + std::to_string(listener.meeting);
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

template <class T>
Transfer post(Connection& connection, T& place) {
  const std::span<std::byte> in[] = {std::as_writable_bytes(std::span(&place, 1))};
  return connection.recv(kHelloTag, in);
}
template <class T>
Transfer say(Connection& connection, const T& word) {
  const std::span<const std::byte> out[] = {bytes_of(word)};
  return connection.send(kHelloTag, DType::kBytes, out);
}

// Until both are done, or one fails. Then the buffers go out of scope, so no transfer may be left.
Status finish(Connection& connection, const Transfer& a, const Transfer& b, milliseconds timeout) {
  for (const Transfer& transfer : {a, b}) {
    const Status s = transfer.wait_for(timeout);
    if (s.ok()) continue;
    connection.close();
    (void)a.wait();
    (void)b.wait();
    return s.code == Code::kTimeout
               ? Status{Code::kTimeout, "the peer did not open the other end of the link"}
               : s;
  }
  return {};
}

Status exchange(Connection& connection, const Hello& own, Hello& peer, milliseconds timeout) {
  const Transfer received = post(connection, peer), sent = say(connection, own);
  if (Status s = finish(connection, received, sent, timeout); !s.ok()) return s;
  return std::memcmp(peer.magic, kMagic, sizeof kMagic) == 0 ? Status{} : kBroken;
}

}  // namespace

Status LinkMeeting::check_peer() const noexcept {
  return socket_.wait_readable(Deadline{}).ok() ? kGone : Status{};
}

Status LinkMeeting::connect(const std::string& name, const Secret& secret, Deadline deadline) {
  auto socket = net::connect_local(name, deadline);
  if (!socket) return kNotThere;
  if (!net::is_same_user(*socket)) return kAnotherUser;
  dialled_ = true;
  socket_ = std::move(*socket);
  if (!socket_.send_all(bytes_of(secret), deadline).ok()) return kGone;
  auto memory = net::SharedMemory::create(sizeof(LinkMemory), socket_);
  if (!memory) return memory.status();
  memory_ = std::move(*memory);
  std::byte ok;
  return socket_.recv_all({&ok, 1}, deadline).ok() ? Status{} : kGone;
}

Status LinkMeeting::answer(net::Socket client, Deadline deadline) {
  auto memory = net::SharedMemory::receive(sizeof(LinkMemory), client, deadline);
  if (!memory) return memory.status();
  memory_ = std::move(*memory);
  socket_ = std::move(client);
  return socket_.send_all(bytes_of('k'), deadline).ok() ? Status{} : kGone;
}

Status LinkMeeting::agree(bool is_ready, milliseconds timeout) {
  std::byte peer{};
  if (!socket_.send_all(bytes_of(is_ready ? 'y' : 'n'), after(timeout)).ok() ||
      !socket_.recv_all({&peer, 1}, after(timeout)).ok())
    return kGone;
  return peer == std::byte{'y'} ? Status{} : kCannot;
}

// Reports over the connection whether it succeeded: the other end need not wait in vain.
Result<LinkMeeting> LinkMeeting::dial(Connection& connection, const std::string& name,
                                      const Secret& secret, milliseconds timeout) {
  LinkMeeting meeting;
  const Status connected = meeting.connect(name, secret, after(timeout));
  const std::uint64_t word = connected.ok() ? 1 : 0;
  const Transfer said = say(connection, word);
  const Status s = finish(connection, said, said, timeout);
  if (!connected.ok()) return connected;
  return s.ok() ? Result<LinkMeeting>(std::move(meeting)) : s;
}

Result<LinkMeeting> LinkMeeting::wait(Connection& connection, const net::Listener& listener,
                                      const Secret& secret, milliseconds timeout) {
  LinkMeeting meeting;
  const Deadline deadline = after(timeout);
  std::uint64_t word = 0;
  const Transfer heard = post(connection, word);
  Status s = kNotThere;
  while (Deadline::clock::now() < deadline && !heard.done()) {
    auto client = listener.accept(std::min(deadline, after(milliseconds(20))));
    Secret said{};
    // A process of another user, or one that did not hear the secret over the connection, is a
    // stranger.
    if (!client || !net::is_same_user(*client) ||
        !client
             ->recv_all(std::as_writable_bytes(std::span(said)),
                        std::min(deadline, after(milliseconds(1000))))
             .ok())
      continue;
    if (((said[0] ^ secret[0]) | (said[1] ^ secret[1])) != 0) continue;
    s = meeting.answer(std::move(*client), deadline);
    break;
  }
  const auto left = std::chrono::ceil<milliseconds>(deadline - Deadline::clock::now());
  const Status told = finish(connection, heard, heard, std::max(left, milliseconds(1)));
  if (!told.ok()) return told;
  if (!s.ok()) return s;
  return word == 1 ? Result<LinkMeeting>(std::move(meeting)) : kGone;
}

Result<LinkMeeting> LinkMeeting::meet(Connection& connection, const LinkBlob& blob,
                                      milliseconds timeout) {
  const Hello own = make_hello(blob);
  const auto listener = net::listen_local(socket_name(own));
  if (!listener) return Status{Code::kIo, "cannot listen for the other end of the link"};
  Hello peer{};
  if (Status s = exchange(connection, own, peer, timeout); !s.ok()) return s;
  if (std::memcmp(own.host, peer.host, sizeof own.host) != 0) return kNotThere;
  if (own.meeting == peer.meeting) return kBroken;
  auto meeting = own.meeting < peer.meeting
                     ? dial(connection, socket_name(peer), peer.secret, timeout)
                     : wait(connection, *listener, own.secret, timeout);
  if (!meeting) return meeting;
  meeting->peer_ = peer.blob;
  meeting->is_same_process_ = std::equal(own.process, own.process + 2, peer.process) &&
                              net::is_own_process(meeting->socket_);
  return meeting;
}

}  // namespace snug::gpu_link
