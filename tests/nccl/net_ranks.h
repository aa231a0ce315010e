// Drives the plugin's function table as NCCL does: ranks are processes, handles
// travel out of band, one thread polls everything.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nccl/inner_plugin.h"

namespace snug::test {

inline constexpr int kMaxRanks = 4;

// Memory that all ranks see: handles, and numbers for tests to leave notes in.
struct Shared {
  struct Mailbox {
    std::atomic<bool> full;
    char handle[NCCL_NET_HANDLE_MAXSIZE];
  };
  Mailbox mail[kMaxRanks][kMaxRanks][64];  // listener, connector, connection
  std::atomic<int> notes[16];
};

// One rank. Failing inside a rank ends its process with a message.
class Rank {
 public:
  Rank(int rank, Shared& shared, int abi_version = 12,
       const std::string& plugin = SNUG_NCCL_PLUGIN);

  nccl::InnerPlugin& net() { return *net_; }
  int rank() const { return rank_; }
  Shared& shared() { return shared_; }

  // Both polled to the end. `idx` tells connections of the same pair apart.
  void* connect_to(int peer, int idx = 0);
  void* accept_from(int peer, int idx = 0);
  // The two halves of accept_from, for ranks that do both at once.
  void* listen_for(int peer, int idx = 0);
  void* accept(void* listen_comm);

  // Polled until the plugin takes it.
  void* isend(void* comm, std::span<const std::byte> data, int tag = 0);
  void* irecv(void* comm, std::span<std::byte> data, int tag = 0);
  void* irecv(void* comm, const std::vector<std::span<std::byte>>& data, std::vector<int> tags);
  // Undoes the registrations first, as NCCL does.
  void close_send(void* comm);
  void close_recv(void* comm);

  // Polled until done; the sizes that test reported.
  std::vector<int> wait(void* request);
  // Polled until done or an error, which it returns.
  ncclResult_t wait_for_end(void* request);

 private:
  void* registered(void* comm, std::span<std::byte> data);
  void deregister_all(void* comm);

  struct Registration {
    void* comm;
    void* mhandle;
  };
  int rank_;
  Shared& shared_;
  std::unique_ptr<nccl::InnerPlugin> net_;
  std::vector<Registration> registrations_;
};

#define SNUG_RANK_CHECK(condition) \
  ((condition) ? (void)0 : ::snug::test::rank_failed(__FILE__, __LINE__, #condition))
[[noreturn]] void rank_failed(const char* file, int line, const char* what);

using Environment = std::vector<std::pair<std::string, std::string>>;

// Runs `body` once per rank in a process of its own, with these variables set.
// Returns the exit status of each: 0 is success, minus the signal if killed.
std::vector<int> run_ranks(int num_ranks, const Environment& environment,
                           const std::function<void(int rank, Shared& shared)>& body);

// Whether every rank succeeded; prints which one did not.
bool all_succeeded(const std::vector<int>& statuses);

// Open file descriptors and threads of this process.
int count_open_files();
int count_threads();

}  // namespace snug::test
