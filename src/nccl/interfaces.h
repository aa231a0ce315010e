// nccl/interfaces.h - the network interfaces NCCL's own socket transport would use.
//
// The same choice, names and speeds, so that NCCL tunes itself alike and sums in the
// same order with and without Snug.
#pragma once
#include <sys/socket.h>

#include <string>
#include <vector>

namespace snug::nccl {

struct Interface {
  std::string name;
  sockaddr_storage address;  // port 0
  std::string pci_path;      // empty for virtual interfaces
  int speed_mbps;
};

// Obeys NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY.
std::vector<Interface> find_interfaces();

// Whether `name` is in `list`, written as NCCL_SOCKET_IFNAME is: prefixes
// separated by commas, after "^" all but those, after "=" whole names.
bool interface_matches(const std::string& name, std::string_view list);

}  // namespace snug::nccl
