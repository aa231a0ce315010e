#include "nccl/net_ranks.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <thread>

namespace snug::test {
namespace {

void print_log(ncclDebugLogLevel level, unsigned long, const char*, int, const char* format, ...) {
  if (level != NCCL_LOG_WARN && std::getenv("SNUG_TEST_VERBOSE") == nullptr) return;
  std::va_list arguments;
  va_start(arguments, format);
  char line[600];
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "[%d] %s\n", static_cast<int>(::getpid()), line);
}

int count_entries(const char* folder) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

}  // namespace

[[noreturn]] void rank_failed(const char* file, int line, const char* what) {
  std::fprintf(stderr, "[%d] %s:%d: failed: %s\n", static_cast<int>(::getpid()), file, line, what);
  std::_Exit(1);
}

Rank::Rank(int rank, Shared& shared, int abi_version, const std::string& plugin)
    : rank_(rank), shared_(shared), net_(nccl::load_inner_plugin(plugin, abi_version)) {
  SNUG_RANK_CHECK(net_ != nullptr);
  SNUG_RANK_CHECK(net_->init(print_log) == ncclSuccess);
  int devices = 0;
  SNUG_RANK_CHECK(net_->devices(&devices) == ncclSuccess && devices >= 1);
}

void* Rank::listen_for(int peer, int idx) {
  void* listening = nullptr;
  Shared::Mailbox& mail = shared_.mail[rank_][peer][idx];
  SNUG_RANK_CHECK(net_->listen(0, mail.handle, &listening) == ncclSuccess && listening != nullptr);
  mail.full.store(true, std::memory_order_release);
  return listening;
}

void* Rank::accept(void* listening) {
  void* comm = nullptr;
  while (comm == nullptr) {
    SNUG_RANK_CHECK(net_->accept(listening, &comm) == ncclSuccess);
    if (comm == nullptr) std::this_thread::yield();
  }
  SNUG_RANK_CHECK(net_->close_listen(listening) == ncclSuccess);
  return comm;
}

void* Rank::accept_from(int peer, int idx) { return accept(listen_for(peer, idx)); }

void* Rank::connect_to(int peer, int idx) {
  Shared::Mailbox& mail = shared_.mail[peer][rank_][idx];
  while (!mail.full.load(std::memory_order_acquire)) std::this_thread::yield();
  char handle[NCCL_NET_HANDLE_MAXSIZE];
  std::memcpy(handle, mail.handle, sizeof handle);
  void* comm = nullptr;
  while (comm == nullptr) {
    SNUG_RANK_CHECK(net_->connect(0, handle, &comm) == ncclSuccess);
    if (comm == nullptr) std::this_thread::yield();
  }
  return comm;
}

void* Rank::registered(void* comm, std::span<std::byte> data) {
  void* mhandle = nullptr;
  SNUG_RANK_CHECK(net_->register_memory(comm, data.data(), data.size(), NCCL_PTR_HOST, &mhandle) ==
                  ncclSuccess);
  registrations_.push_back({comm, mhandle});
  return mhandle;
}

void* Rank::isend(void* comm, std::span<const std::byte> data, int tag) {
  auto* bytes = const_cast<std::byte*>(data.data());
  void *request = nullptr, *mhandle = registered(comm, {bytes, data.size()});
  while (request == nullptr) {
    SNUG_RANK_CHECK(net_->isend(comm, bytes, data.size(), tag, mhandle, &request) == ncclSuccess);
    if (request == nullptr) std::this_thread::yield();
  }
  return request;
}

void* Rank::irecv(void* comm, std::span<std::byte> data, int tag) {
  return irecv(comm, std::vector{data}, {tag});
}

void* Rank::irecv(void* comm, const std::vector<std::span<std::byte>>& data,
                  std::vector<int> tags) {
  std::vector<void*> pointers, mhandles;
  std::vector<std::size_t> sizes;
  for (const std::span<std::byte> buffer : data) {
    pointers.push_back(buffer.data());
    sizes.push_back(buffer.size());
    mhandles.push_back(registered(comm, buffer));
  }
  void* request = nullptr;
  while (request == nullptr) {
    SNUG_RANK_CHECK(net_->irecv(comm, static_cast<int>(data.size()), pointers.data(), sizes.data(),
                                tags.data(), mhandles.data(), &request) == ncclSuccess);
    if (request == nullptr) std::this_thread::yield();
  }
  return request;
}

void Rank::deregister_all(void* comm) {
  std::erase_if(registrations_, [&](const Registration& entry) {
    if (entry.comm != comm) return false;
    SNUG_RANK_CHECK(net_->deregister_memory(comm, entry.mhandle) == ncclSuccess);
    return true;
  });
}

void Rank::close_send(void* comm) {
  deregister_all(comm);
  SNUG_RANK_CHECK(net_->close_send(comm) == ncclSuccess);
}

void Rank::close_recv(void* comm) {
  deregister_all(comm);
  SNUG_RANK_CHECK(net_->close_recv(comm) == ncclSuccess);
}

std::vector<int> Rank::wait(void* request) {
  std::vector<int> sizes(NCCL_NET_MAX_RECVS, -1);
  for (int done = 0; done == 0;) {
    SNUG_RANK_CHECK(net_->test(request, &done, sizes.data()) == ncclSuccess);
    if (done == 0) std::this_thread::yield();
  }
  return sizes;
}

ncclResult_t Rank::wait_for_end(void* request) {
  int sizes[NCCL_NET_MAX_RECVS];
  for (int done = 0; done == 0; std::this_thread::yield())
    if (ncclResult_t result = net_->test(request, &done, sizes)) return result;
  return ncclSuccess;
}

std::vector<int> run_ranks(int num_ranks, const Environment& environment,
                           const std::function<void(int, Shared&)>& body) {
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* shared = new (memory) Shared{};
  std::vector<pid_t> children;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
      for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
      body(rank, *shared);
      std::exit(0);
    }
    children.push_back(child);
  }
  std::vector<int> statuses;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    statuses.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  ::munmap(memory, sizeof(Shared));
  return statuses;
}

bool all_succeeded(const std::vector<int>& statuses) {
  bool all = true;
  for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
    if (statuses[rank] == 0) continue;
    std::fprintf(stderr, "rank %zu ended with %d\n", rank, statuses[rank]);
    all = false;
  }
  return all;
}

int count_open_files() { return count_entries("/proc/self/fd"); }
int count_threads() { return count_entries("/proc/self/task"); }

}  // namespace snug::test
