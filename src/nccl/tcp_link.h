// nccl/tcp_link.h - makes the sockets of one connection.
//
// NCCL polls connect and accept; a thread of each attempt does the waiting.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "nccl/greeter.h"
#include "nccl/settings.h"
#include "net/socket.h"

namespace snug::nccl {

struct Link {
  net::Socket control;
  std::vector<net::Socket> data;
  std::string peer;
  bool same_frames = true;  // both ends read the same frame version

  // Ends every wait in these sockets.
  void shut_down() const noexcept;
};

// A connection being made. The rest may be read once `finished` is true.
struct LinkAttempt {
  std::atomic<bool> finished{false};
  ncclResult_t result = ncclSuccess;
  Link link;
};

std::shared_ptr<LinkAttempt> start_connecting(const Handle& handle, const Settings& settings);
// Waits for a peer without limit; shutting the greeter down ends it.
std::shared_ptr<LinkAttempt> start_accepting(std::shared_ptr<Greeter> greeter,
                                             const Settings& settings);

// Says which versions do not agree; returns ncclInvalidUsage.
ncclResult_t refuse_protocol(const std::string& peer, std::uint32_t theirs);

// "host:pid" of this process.
std::string process_name();

}  // namespace snug::nccl
