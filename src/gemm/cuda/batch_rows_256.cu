// The batch kernel with tiles of 208 to 256 rows of x.
#include "gemm/cuda/launch_batch.cuh"

namespace snug::gemm {

SNUG_LAUNCH_ROWS(208);
SNUG_LAUNCH_ROWS(224);
SNUG_LAUNCH_ROWS(240);
SNUG_LAUNCH_ROWS(256);

}  // namespace snug::gemm
