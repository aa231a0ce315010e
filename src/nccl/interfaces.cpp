#include "nccl/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string_view>

namespace snug::nccl {
namespace {

constexpr int kMaxInterfaces = 16;
constexpr int kUnknownSpeed = 10'000;  // what NCCL assumes, too

int wanted_family() {
  const char* text = std::getenv("NCCL_SOCKET_FAMILY");
  if (text == nullptr) return AF_UNSPEC;
  if (std::strcmp(text, "AF_INET") == 0) return AF_INET;
  return std::strcmp(text, "AF_INET6") == 0 ? AF_INET6 : AF_UNSPEC;
}

int speed_of(const std::string& name) {
  int speed = 0;
  std::ifstream("/sys/class/net/" + name + "/speed") >> speed;
  return speed > 0 ? speed : kUnknownSpeed;
}

std::string pci_path_of(const std::string& name) {
  char path[PATH_MAX];
  return ::realpath(("/sys/class/net/" + name + "/device").c_str(), path) != nullptr ? path : "";
}

bool is_usable(const ifaddrs& entry, int family) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_RUNNING) == 0) return false;
  const int its_family = entry.ifa_addr->sa_family;
  if (its_family == AF_INET6) {
    const auto* address = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr);
    if (IN6_IS_ADDR_LOOPBACK(&address->sin6_addr)) return false;
  } else if (its_family != AF_INET) {
    return false;
  }
  return family == AF_UNSPEC || family == its_family;
}

std::vector<Interface> matching(std::string_view list) {
  ifaddrs* entries = nullptr;
  if (::getifaddrs(&entries) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(entries, &::freeifaddrs);
  std::vector<Interface> found;
  const int family = wanted_family();
  for (const ifaddrs* entry = entries; entry != nullptr && found.size() < kMaxInterfaces;
       entry = entry->ifa_next) {
    if (!is_usable(*entry, family)) continue;
    const std::string name = entry->ifa_name;
    if (!interface_matches(name, list)) continue;
    // Only the first address of an interface counts.
    if (std::ranges::any_of(found, [&](const Interface& other) { return other.name == name; }))
      continue;
    Interface interface { name, {}, pci_path_of(name), speed_of(name) };
    std::memcpy(&interface.address, entry->ifa_addr,
                entry->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    found.push_back(std::move(interface));
  }
  return found;
}

}  // namespace

bool interface_matches(const std::string& name, std::string_view list) {
  const bool negated = list.starts_with('^');
  if (negated) list.remove_prefix(1);
  const bool exact = list.starts_with('=');
  if (exact) list.remove_prefix(1);
  bool listed = false;
  while (!list.empty()) {
    const auto comma = std::min(list.find(','), list.size());
    const std::string_view item = list.substr(0, comma).substr(0, list.substr(0, comma).find(':'));
    listed = listed || (!item.empty() && (exact ? name == item : name.starts_with(item)));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return listed != negated;
}

std::vector<Interface> find_interfaces() {
  const char* wanted = std::getenv("NCCL_SOCKET_IFNAME");
  if (wanted != nullptr && std::strlen(wanted) > 1) return matching(wanted);
  for (const char* list : {"ib", "^docker,lo,virbr", "docker", "lo", "virbr"})
    if (auto found = matching(list); !found.empty()) return found;
  return {};
}

}  // namespace snug::nccl
