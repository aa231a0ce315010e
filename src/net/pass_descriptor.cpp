#include "net/pass_descriptor.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace snug::net {
namespace {

// How long a socket's calls may wait; zero: for ever.
bool limit_sends(int socket, std::chrono::microseconds limit) {
  timeval value{};
  value.tv_sec = static_cast<time_t>(limit.count() / 1'000'000);
  value.tv_usec = static_cast<suseconds_t>(limit.count() % 1'000'000);
  return ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &value, sizeof value) == 0;
}

}  // namespace

bool connect_local(int socket, const sockaddr_un& address, socklen_t length,
                   Deadline deadline) {
  using std::chrono::microseconds;
  constexpr microseconds kLeast{1000}, kMost = std::chrono::hours(24);
  const auto left =
      std::chrono::duration_cast<microseconds>(deadline - Deadline::clock::now());
  return limit_sends(socket, std::clamp(left, kLeast, kMost)) &&
         ::connect(socket, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
         limit_sends(socket, microseconds(0));
}

bool send_descriptor(int socket, int fd) {
  char byte = 'm';
  iovec piece{&byte, 1};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  cmsghdr* control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(control), &fd, sizeof fd);
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

Descriptor receive_descriptor(int socket) {
  char byte;
  iovec piece{&byte, 1};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return Descriptor();
  const cmsghdr* control = CMSG_FIRSTHDR(&message);
  if (control == nullptr || control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS)
    return Descriptor();
  // Padding leaves room for a second one; whatever came is ours to close.
  Descriptor first;
  for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= control->cmsg_len; at += sizeof(int)) {
    int fd;
    std::memcpy(&fd, CMSG_DATA(control) + at, sizeof fd);
    Descriptor owned(fd);
    if (at == 0) first = std::move(owned);
  }
  return first;
}

}  // namespace snug::net
