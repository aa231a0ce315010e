// nccl/staging.h - what both ends of a stacked connection share: registered buffers to
// send from and receive into. They are kept for reuse, since registration is slow.
#pragma once
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "nccl/inner_plugin.h"
#include "nccl/net.h"
#include "nccl/stats.h"
#include "nccl/worker_pool.h"

namespace snug::nccl {

class Staging {
 public:
  struct Buffer {
    struct Free {
      void operator()(std::byte* memory) const { std::free(memory); }
    };
    std::unique_ptr<std::byte, Free> memory;
    std::size_t size = 0;
    void* mhandle = nullptr;
    bool in_use = false;
    std::span<std::byte> bytes() const { return {memory.get(), size}; }
  };

  Staging(InnerPlugin& inner, void* comm) : inner_(inner), comm_(comm) {}
  // To be called before the communicator is closed. The memory itself stays until after
  // that: threads of the inner plugin may use it until its close returns.
  void deregister_all() {
    for (auto& buffer : buffers_) (void)inner_.deregister_memory(comm_, buffer->mhandle);
  }

  // nullptr if the inner plugin registers no more.
  Buffer* take(std::size_t size) {
    for (auto& buffer : buffers_)
      if (!buffer->in_use && buffer->size >= size) return buffer->in_use = true, buffer.get();
    constexpr std::size_t kPage = 4096;
    auto buffer = std::make_unique<Buffer>();
    buffer->size = (size + kPage - 1) / kPage * kPage;
    buffer->memory.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, buffer->size)));
    if (buffer->memory == nullptr ||
        inner_.register_memory(comm_, buffer->memory.get(), buffer->size, NCCL_PTR_HOST,
                               &buffer->mhandle) != ncclSuccess)
      return nullptr;
    buffer->in_use = true;
    buffers_.push_back(std::move(buffer));
    return buffers_.back().get();
  }
  void give_back(Buffer* buffer) {
    if (buffer != nullptr) buffer->in_use = false;
  }

 private:
  InnerPlugin& inner_;
  void* comm_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

template <class Base>
class StackedComm : public Base {
 public:
  StackedComm(InnerPlugin& inner, void* comm, WorkerPool& pool)
      : inner_(inner),
        inner_comm_(comm),
        pool_(pool),
        staging_(inner, comm),
        stats_(stats_of_peer(std::string("through ") + inner.name())) {}

  ncclResult_t register_memory(void* data, std::size_t size, int type, void** mhandle) override {
    return inner_.register_memory(inner_comm_, data, size, type, mhandle);
  }
  ncclResult_t deregister_memory(void* mhandle) override {
    return inner_.deregister_memory(inner_comm_, mhandle);
  }

 protected:
  InnerPlugin& inner_;
  void* const inner_comm_;
  WorkerPool& pool_;
  Staging staging_;
  PeerStats& stats_;
};

}  // namespace snug::nccl
