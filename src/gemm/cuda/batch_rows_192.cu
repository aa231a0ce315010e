// The batch kernel with tiles of 144 to 192 rows of x.
#include "gemm/cuda/launch_batch.cuh"

namespace snug::gemm {

SNUG_LAUNCH_ROWS(144);
SNUG_LAUNCH_ROWS(160);
SNUG_LAUNCH_ROWS(176);
SNUG_LAUNCH_ROWS(192);

}  // namespace snug::gemm
