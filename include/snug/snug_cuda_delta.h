/* snug/snug_cuda_delta.h - snug/cuda_delta.h for C: deltas between tensors in GPU memory.
 *
 * Everything said there about memory, streams and trust holds here, and what snug/snug_cuda.h
 * says about results. Functions return SNUG_OK once the work is enqueued.
 */
#ifndef SNUG_SNUG_CUDA_DELTA_H_
#define SNUG_SNUG_CUDA_DELTA_H_

#include "snug/snug_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct snug_cuda_delta_options {
  int32_t dtype;                 /* enum snug_dtype, elements of one or two bytes */
  int32_t log2_block;            /* elements of a block: 12 to 14, or 0 for 13 */
  snug_cuda_result* host_result; /* pinned host memory for a copy, or NULL */
} snug_cuda_delta_options;       /* NULL instead of one: BF16, zeros */

/* Device memory that a call with these options needs; 0 if they are not acceptable. */
SNUG_API size_t snug_cuda_delta_encode_workspace(size_t raw_bytes,
                                                 const snug_cuda_delta_options* options);
SNUG_API size_t snug_cuda_delta_apply_workspace(size_t raw_bytes,
                                                const snug_cuda_delta_options* options);

/* Writes the delta from base to next, both of raw_bytes; snug_delta_bound bytes are enough. */
SNUG_API int snug_cuda_delta_encode(const void* base, const void* next, size_t raw_bytes,
                                    void* delta, size_t delta_bytes, void* workspace,
                                    size_t workspace_bytes, snug_cuda_result* result,
                                    const snug_cuda_delta_options* options, void* stream);

/* Turns `tensor` from base to target: all of it or, if the result says so, none of it. */
SNUG_API int snug_cuda_delta_apply(const void* delta, size_t delta_bytes, void* tensor,
                                   size_t tensor_bytes, void* workspace, size_t workspace_bytes,
                                   snug_cuda_result* result, const snug_cuda_delta_options* options,
                                   void* stream);

/* Writes the target to other memory than the base, which is faster. Both have raw_bytes. */
SNUG_API int snug_cuda_delta_apply_to(const void* delta, size_t delta_bytes, const void* base,
                                      void* target, size_t raw_bytes, void* workspace,
                                      size_t workspace_bytes, snug_cuda_result* result,
                                      const snug_cuda_delta_options* options, void* stream);

/* snug_tensor_hash of a tensor on the device, left in *hash on the device. The workspace is
 * that of snug_cuda_delta_apply. */
SNUG_API int snug_cuda_tensor_hash(const void* tensor, size_t num_bytes, uint64_t* hash,
                                   void* workspace, size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SNUG_SNUG_CUDA_DELTA_H_ */
