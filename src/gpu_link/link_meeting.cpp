#include "gpu_link/link_meeting.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include "net/pass_descriptor.h"

namespace snug::gpu_link {
namespace {

using net::connect_local;
using net::receive_descriptor;
using net::send_descriptor;
using wire::Transfer;

// No application should use this one: the greeting of two links.
constexpr std::uint64_t kHelloTag = 0x534E55475F504950;
constexpr char kMagic[8] = {'S', 'N', 'U', 'G', 'P', 'I', 'P', '2'};
constexpr Status kGone{Code::kPeer, "the peer closed the link"};
constexpr Status kCannot{Code::kPeer,
                         "the peer cannot use the link; the connection itself works on"};
constexpr Status kBroken{Code::kPeer, "the peer made a link that makes no sense; update both ends"};
constexpr Status kNotThere{
    Code::kPeer,
    "the peer is not on this host, or in another container: a link needs one "
    "network namespace; the connection itself works anywhere"};

struct Hello {
  char magic[8];
  std::uint64_t process[2];  // chosen once in each process, and its number: forks share the first
  char host[40];             // changes with every boot
  std::uint64_t meeting;     // of the socket's name, which everybody on the host can see
  std::uint64_t secret[2];   // which only the connection has carried
  LinkBlob blob;
};

template <class T>
void fill_random(T& value) {
  std::random_device random;
  auto* bytes = reinterpret_cast<unsigned char*>(&value);
  for (std::size_t i = 0; i < sizeof value; ++i) bytes[i] = static_cast<unsigned char>(random());
}

std::uint64_t process_word() {
  static const std::uint64_t word = [] {
    std::uint64_t random;
    fill_random(random);
    return random;
  }();
  return word;
}

Hello make_hello(const LinkBlob& blob) {
  Hello hello{};
  std::memcpy(hello.magic, kMagic, sizeof kMagic);
  hello.process[0] = process_word();
  hello.process[1] = static_cast<std::uint64_t>(::getpid());
  std::ifstream("/proc/sys/kernel/random/boot_id").read(hello.host, sizeof hello.host - 1);
  fill_random(hello.meeting);
  fill_random(hello.secret);
  hello.blob = blob;
  return hello;
}

socklen_t socket_name(const Hello& listener, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const std::string name = "snug-link-" + std::to_string(listener.meeting);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Descriptor open_socket() { return Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

bool wait_readable(int fd, Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - Deadline::clock::now());
    pollfd entry{fd, POLLIN, 0};
    const int n = ::poll(&entry, 1, static_cast<int>(std::clamp<long>(left.count(), 0, 1'000'000)));
    if (n >= 0 || errno != EINTR) return n > 0;
  }
}

Descriptor listen_at(const Hello& own) {
  Descriptor socket = open_socket();
  sockaddr_un address;
  const socklen_t length = socket_name(own, address);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(socket.get(), 4) != 0)
    return Descriptor();
  return socket;
}

template <class T>
Transfer post(Connection& connection, T& place) {
  const std::span<std::byte> in[] = {std::as_writable_bytes(std::span(&place, 1))};
  return connection.recv(kHelloTag, in);
}
template <class T>
Transfer say(Connection& connection, const T& word) {
  const std::span<const std::byte> out[] = {std::as_bytes(std::span(&word, 1))};
  return connection.send(kHelloTag, DType::kBytes, out);
}

// Until both are done, or fails. Their buffers are about to go: nothing may be written there later.
Status finish(Connection& connection, const Transfer& a, const Transfer& b,
              std::chrono::milliseconds timeout) {
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

Status exchange(Connection& connection, const Hello& own, Hello& peer,
                std::chrono::milliseconds timeout) {
  const Transfer received = post(connection, peer), sent = say(connection, own);
  if (Status s = finish(connection, received, sent, timeout); !s.ok()) return s;
  return std::memcmp(peer.magic, kMagic, sizeof kMagic) == 0 ? Status{} : kBroken;
}

// Who has not heard the secret over the connection is nobody.
using Secret = std::uint64_t[2];

bool knows_secret(int socket, const Secret& own, Deadline deadline) {
  Secret secret = {};
  const timeval second{1, 0};  // for whoever sends half of it
  if (::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second) != 0 ||
      !wait_readable(socket, deadline))
    return false;
  return ::recv(socket, secret, sizeof secret, MSG_WAITALL) == sizeof secret &&
         ((secret[0] ^ own[0]) | (secret[1] ^ own[1])) == 0;
}

// The kernel's word, not the peer's.
bool is_own_process(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         peer.pid == ::getpid();
}

}  // namespace

LinkMeeting& LinkMeeting::operator=(LinkMeeting&& other) noexcept {
  std::swap(memory_, other.memory_);
  socket_ = std::move(other.socket_);
  dialled_ = other.dialled_;
  is_same_process_ = other.is_same_process_;
  peer_ = other.peer_;
  return *this;
}

LinkMeeting::~LinkMeeting() {
  if (memory_ != nullptr) ::munmap(memory_, sizeof *memory_);
}

Status LinkMeeting::check_peer() const noexcept {
  pollfd entry{socket_.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0 ? kGone : Status{};
}

Status LinkMeeting::map(int fd) {
  void* mapped = ::mmap(nullptr, sizeof(LinkMemory), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return {Code::kIo, "cannot map shared memory"};
  memory_ = static_cast<LinkMemory*>(mapped);
  return {};
}

Status LinkMeeting::dial(const sockaddr_un& address, std::uint32_t length,
                         const std::uint64_t (&secret)[2], Deadline deadline) {
  dialled_ = true;
  socket_ = open_socket();
  if (!connect_local(socket_.get(), address, length, deadline)) return kNotThere;
  const Descriptor memory(::memfd_create("snug-link", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.get() < 0 || ::ftruncate(memory.get(), sizeof(LinkMemory)) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    return {Code::kIo, "cannot make shared memory"};
  if (Status s = map(memory.get()); !s.ok()) return s;
  char ok;
  if (::send(socket_.get(), secret, sizeof secret, MSG_NOSIGNAL) != sizeof secret ||
      !send_descriptor(socket_.get(), memory.get()) || !wait_readable(socket_.get(), deadline) ||
      ::recv(socket_.get(), &ok, 1, 0) != 1)
    return kGone;
  return {};
}

Status LinkMeeting::answer(int client, Deadline deadline) {
  if (!wait_readable(client, deadline)) return kGone;
  const Descriptor memory = receive_descriptor(client);
  struct stat info;
  const int seals = memory.get() < 0 ? -1 : ::fcntl(memory.get(), F_GET_SEALS);
  // Sealed, so that it cannot be taken away.
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(memory.get(), &info) != 0 ||
      static_cast<std::uint64_t>(info.st_size) != sizeof(LinkMemory))
    return kBroken;
  if (Status s = map(memory.get()); !s.ok()) return s;
  return ::send(client, "k", 1, MSG_NOSIGNAL) == 1 ? Status{} : kGone;
}

Status LinkMeeting::agree(bool is_ready, std::chrono::milliseconds timeout) {
  const char own = is_ready ? 'y' : 'n';
  char peer = 0;
  if (::send(socket_.get(), &own, 1, MSG_NOSIGNAL) != 1 ||
      !wait_readable(socket_.get(), Deadline::clock::now() + timeout) ||
      ::recv(socket_.get(), &peer, 1, 0) != 1)
    return kGone;
  return peer == 'y' ? Status{} : kCannot;
}

// Whoever dials says over the connection how that went: the other end need not wait for nothing.
Result<LinkMeeting> LinkMeeting::go_there(Connection& connection, const std::uint64_t (&secret)[2],
                                          const sockaddr_un& address, std::uint32_t length,
                                          std::chrono::milliseconds timeout) {
  LinkMeeting meeting;
  const Status dialled = meeting.dial(address, length, secret, Deadline::clock::now() + timeout);
  const std::uint64_t word = dialled.ok() ? 1 : 0;
  const Transfer said = say(connection, word);
  const Status s = finish(connection, said, said, timeout);
  if (!dialled.ok()) return dialled;
  return s.ok() ? Result<LinkMeeting>(std::move(meeting)) : s;
}

Result<LinkMeeting> LinkMeeting::wait_here(Connection& connection, int listener,
                                           const std::uint64_t (&secret)[2],
                                           std::chrono::milliseconds timeout) {
  LinkMeeting meeting;
  const Deadline deadline = Deadline::clock::now() + timeout;
  std::uint64_t word = 0;
  const Transfer heard = post(connection, word);
  Status s = kNotThere;
  while (Deadline::clock::now() < deadline && !heard.done()) {
    const auto moment = Deadline::clock::now() + std::chrono::milliseconds(20);
    if (!wait_readable(listener, std::min(deadline, moment))) continue;
    Descriptor client(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    const auto soon = std::min(deadline, Deadline::clock::now() + std::chrono::seconds(1));
    if (client.get() < 0 || !knows_secret(client.get(), secret, soon)) continue;
    s = meeting.answer(client.get(), deadline);
    if (s.ok()) meeting.socket_ = std::move(client);
    break;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Deadline::clock::now());
  const Status told =
      finish(connection, heard, heard, std::max(left, std::chrono::milliseconds(1)));
  if (!told.ok()) return told;
  if (!s.ok()) return s;
  return word == 1 ? Result<LinkMeeting>(std::move(meeting)) : kGone;
}

Result<LinkMeeting> LinkMeeting::meet(Connection& connection, const LinkBlob& blob,
                                      std::chrono::milliseconds timeout) {
  const Hello own = make_hello(blob);
  const Descriptor listener = listen_at(own);
  if (listener.get() < 0) return Status{Code::kIo, "cannot listen for the other end of the link"};
  Hello peer{};
  if (Status s = exchange(connection, own, peer, timeout); !s.ok()) return s;
  if (std::memcmp(own.host, peer.host, sizeof own.host) != 0) return kNotThere;
  if (own.meeting == peer.meeting) return kBroken;
  sockaddr_un address;
  const socklen_t length = socket_name(peer, address);
  auto meeting = own.meeting < peer.meeting
                     ? go_there(connection, peer.secret, address, length, timeout)
                     : wait_here(connection, listener.get(), own.secret, timeout);
  if (!meeting) return meeting;
  meeting->peer_ = peer.blob;
  meeting->is_same_process_ = std::equal(own.process, own.process + 2, peer.process) &&
                              is_own_process(meeting->socket_.get());
  return meeting;
}

}  // namespace snug::gpu_link
