#include "net/local_peer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "os/pass_descriptor.h"

namespace snug::net {
namespace {

constexpr Status kNoMemory{Code::kIo, "cannot make shared memory"};

// A Unix socket, and its address under an abstract name.
struct LocalSocket {
  explicit LocalSocket(const std::string& name)
      : socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    address.sun_family = AF_UNIX;
    const std::size_t n = std::min(name.size(), kMaxLocalName);
    std::memcpy(address.sun_path + 1, name.data(), n);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  }
  const sockaddr* where() const { return reinterpret_cast<const sockaddr*>(&address); }

  Socket socket;
  sockaddr_un address{};
  socklen_t length;
};
static_assert(kMaxLocalName == sizeof(sockaddr_un::sun_path) - 1);

ucred credentials_of(const Socket& peer) noexcept {
  ucred credentials{-1, ~uid_t{0}, ~gid_t{0}};
  socklen_t length = sizeof credentials;
  ::getsockopt(peer.fd(), SOL_SOCKET, SO_PEERCRED, &credentials, &length);
  return credentials;
}

}  // namespace

bool is_same_user(const Socket& peer) noexcept { return credentials_of(peer).uid == ::geteuid(); }
bool is_own_process(const Socket& peer) noexcept { return credentials_of(peer).pid == ::getpid(); }

Result<Listener> listen_local(const std::string& name) {
  LocalSocket local(name);
  if (::bind(local.socket.fd(), local.where(), local.length) != 0)
    return Status{Code::kUsage, "the name is in use; choose another"};
  if (::listen(local.socket.fd(), 128) != 0) return Status{Code::kIo, "cannot listen"};
  return Listener(std::move(local.socket));
}

Result<Socket> connect_local(const std::string& name, Deadline deadline) {
  LocalSocket local(name);
  while (::connect(local.socket.fd(), local.where(), local.length) != 0) {
    if (errno != EAGAIN && errno != EINTR)
      return Status{Code::kPeer, "connection refused: nobody listens there"};
    if (Deadline::clock::now() >= deadline)
      return Status{Code::kTimeout, "the listener accepts no connection"};
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return std::move(local.socket);
}

Result<SharedMemory> SharedMemory::map(int fd, std::size_t num_bytes) {
  void* mapped = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return Status{Code::kIo, "cannot map shared memory"};
  SharedMemory memory;
  memory.data_ = mapped;
  memory.num_bytes_ = num_bytes;
  return memory;
}

Result<SharedMemory> SharedMemory::create(std::size_t num_bytes, const Socket& peer) {
  const os::Descriptor fd(::memfd_create("snug", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0 || ::ftruncate(fd.get(), static_cast<off_t>(num_bytes)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    return kNoMemory;
  if (!os::send_descriptor(peer.fd(), fd.get()))
    return Status{Code::kPeer, "the peer closed the connection"};
  return map(fd.get(), num_bytes);
}

Result<SharedMemory> SharedMemory::receive(std::size_t num_bytes, const Socket& peer,
                                           Deadline deadline) {
  if (Status s = peer.wait_readable(deadline); !s.ok()) return s;
  const os::Descriptor fd = os::receive_descriptor(peer.fd());
  struct stat info;
  const int seals = fd.get() < 0 ? -1 : ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd.get(), &info) != 0 ||
      static_cast<std::uint64_t>(info.st_size) != num_bytes)
    return Status{Code::kPeer, "the peer's shared memory is unusable; update both ends"};
  return map(fd.get(), num_bytes);
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, num_bytes_);
}

}  // namespace snug::net
