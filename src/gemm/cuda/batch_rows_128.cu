// The batch kernel with tiles of 80 to 128 rows of x.
#include "gemm/cuda/launch_batch.cuh"

namespace snug::gemm {

SNUG_LAUNCH_ROWS(80);
SNUG_LAUNCH_ROWS(96);
SNUG_LAUNCH_ROWS(112);
SNUG_LAUNCH_ROWS(128);

}  // namespace snug::gemm
