// The batch kernel with tiles of 16 to 64 rows of x.
#include "gemm/cuda/launch_batch.cuh"

namespace snug::gemm {

SNUG_LAUNCH_ROWS(16);
SNUG_LAUNCH_ROWS(32);
SNUG_LAUNCH_ROWS(48);
SNUG_LAUNCH_ROWS(64);

}  // namespace snug::gemm
