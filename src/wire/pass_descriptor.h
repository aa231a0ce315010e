// wire/pass_descriptor.h - open files from process to process, over a Unix socket.
#pragma once
#include "wire/part_folder.h"

namespace snug::wire {

// One byte and a descriptor.
bool send_descriptor(int socket, int fd);
// What came; none if it was something else.
Descriptor receive_descriptor(int socket);

}  // namespace snug::wire
