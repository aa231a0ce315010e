// store/load_tensors.h - any parts of any tensors of a plain or compressed file to memory.
#pragma once
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "codec/block.h"
#include "store/load_queue.h"

namespace snug::store {

// Workspaces that calls leave to later ones: to touch the pages of a fresh one takes longer than to
// decode a small tensor.
class WorkspacePool {
 public:
  std::unique_ptr<codec::Workspace> take();
  void give_back(std::unique_ptr<codec::Workspace> workspace) noexcept;

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<codec::Workspace>> idle_;
};

// Fills all targets. Reads only the blocks that hold their bytes. On an error, what they hold is
// unspecified.
StoreStatus load_tensors(const TensorFile& file, std::span<const LoadTarget> targets,
                         WorkspacePool& workspaces, int num_threads);

}  // namespace snug::store
