// os/pass_descriptor.h - a descriptor from one process to another, over a Unix socket.
#pragma once
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "os/descriptor.h"

namespace snug::os {

// One byte, with room for one descriptor beside it.
struct DescriptorMessage {
  DescriptorMessage() {
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = space;
    header.msg_controllen = sizeof space;
  }
  char byte = 'm';
  iovec piece{&byte, 1};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
};

inline bool send_descriptor(int socket, int fd) noexcept {
  DescriptorMessage message;
  cmsghdr* control = CMSG_FIRSTHDR(&message.header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(control), &fd, sizeof fd);
  return ::sendmsg(socket, &message.header, MSG_NOSIGNAL) == 1;
}

// Without a descriptor if the next message brings none.
inline Descriptor receive_descriptor(int socket) noexcept {
  DescriptorMessage message;
  ssize_t n;
  while ((n = ::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) continue;
  const cmsghdr* control = n == 1 ? CMSG_FIRSTHDR(&message.header) : nullptr;
  if (control == nullptr || control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS)
    return Descriptor();
  // Padding leaves room for a second one: all that arrived must be closed.
  Descriptor first;
  for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= control->cmsg_len; at += sizeof(int)) {
    int fd;
    std::memcpy(&fd, CMSG_DATA(control) + at, sizeof fd);
    Descriptor owned(fd);
    if (at == 0) first = std::move(owned);
  }
  return first;
}

}  // namespace snug::os
