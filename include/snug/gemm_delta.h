// snug/gemm_delta.h - weight updates for matrices that are resident in the form that linear()
// multiplies from (snug/gemm.h).
//
// Memory:  nothing is allocated. The workspace holds the dense matrix and what packing needs.
// Streams: the call only enqueues work and can be captured into a CUDA graph.
// Safety:  the packed matrix is not touched. The new one goes to another buffer and is
//          complete, and made from weights with the hash the delta names, if the result is
//          kOk: then open() it and let go of the old one. Keep the old one to go back.
#pragma once
#include <cstddef>
#include <cstdint>

#include "snug/cuda_delta.h"
#include "snug/gemm.h"
#include "snug/status.h"

namespace snug::gemm {

// 0 if n or k is 0 or too large.
std::size_t apply_delta_workspace_bytes(std::uint64_t n, std::uint64_t k) noexcept;

// `delta` (device memory, 16-byte aligned) was made from the dense matrix, its n rows one behind
// the other, as BF16 in blocks of at most 2^14 elements. The new matrix is packed as `kind` into
// new_packed, for which packed_bound() bytes are enough. `result` (device memory) gets the bytes
// used, or why there are none: see pack_status(). kWrongBase: the matrix is another version than
// the delta was made for. kDstTooSmall in a buffer of packed_bound() bytes: too many weights are
// outside of their palettes; pack as kRaw.
Status apply_delta(const Matrix& matrix, cuda::Source delta, Kind kind, cuda::Target new_packed,
                   cuda::Target workspace, DeviceResult* result, const cuda::DeltaOptions& options,
                   Stream stream) noexcept;

}  // namespace snug::gemm
