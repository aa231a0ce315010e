// store/read_tensor.h - any part of one tensor out of a plain or compressed file.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "store/tensor_file.h"

namespace snug::store {

// Restores bytes [first, first + dst.size()) of tensor `idx`, which has them. Reads only the blocks
// that hold them.
StoreStatus read_tensor(const TensorFile& file, std::size_t idx, std::uint64_t first,
                        std::span<std::byte> dst, int num_threads);

}  // namespace snug::store
