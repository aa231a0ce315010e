/* snug/snug_gemm_delta.h - snug/gemm_delta.h for C: weight updates for packed matrices.
 *
 * Everything said there about memory, streams and safety holds here.
 */
#ifndef SNUG_SNUG_GEMM_DELTA_H_
#define SNUG_SNUG_GEMM_DELTA_H_

#include "snug/snug_cuda_delta.h"
#include "snug/snug_gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The workspace of a call; 0 if n or k is 0 or too large. */
SNUG_API size_t snug_gemm_delta_workspace(uint64_t n, uint64_t k);

/* Applies a delta of the dense BF16 matrix to a packed one. That is not touched: the new one, of
 * enum snug_gemm_kind, goes to new_packed. Its bytes, or why there are none, are left in *result
 * on the device: copy it to the host and ask snug_gemm_pack_status. */
SNUG_API int snug_gemm_apply_delta(const snug_gemm_matrix* matrix, const void* delta,
                                   size_t delta_bytes, int kind, void* new_packed,
                                   size_t new_packed_bytes, void* workspace, size_t workspace_bytes,
                                   snug_cuda_result* result, const snug_cuda_delta_options* options,
                                   void* stream, snug_status* status);

#ifdef __cplusplus
}
#endif

#endif /* SNUG_SNUG_GEMM_DELTA_H_ */
