// net/pass_descriptor.h - open files from process to process, over a Unix socket.
#pragma once
#include <sys/un.h>

#include "net/descriptor.h"
#include "net/socket.h"

namespace snug::net {

// False at the deadline, too: anybody on this host can fill the queue of a listener, and
// connect() alone would wait there for ever.
bool connect_local(int socket, const sockaddr_un& address, socklen_t length,
                   Deadline deadline);
// One byte and a descriptor.
bool send_descriptor(int socket, int fd);
// What came; none if it was something else.
Descriptor receive_descriptor(int socket);

}  // namespace snug::net
