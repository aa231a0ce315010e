/* snug/snug_load.h - the C ABI that loads many tensors of a checkpoint at once.
 *
 * Readers are those of snug/snug.h, and all that it says about errors holds here. The C++ headers
 * store.h (Reader::read_all) and gpu_load.h have the same functions and say more.
 */
#ifndef SNUG_SNUG_LOAD_H_
#define SNUG_SNUG_LOAD_H_

#include "snug/snug.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct snug_load_target {
  uint64_t idx;       /* of the tensor, as in snug_reader_tensor */
  void* dst;          /* host memory, or device memory for snug_cuda_loader_load */
  uint64_t dst_bytes; /* raw_bytes of the tensor */
} snug_load_target;

/* Restores tensors side by side, on several threads (0: one per CPU). On an error, what the targets
 * hold is unspecified. */
SNUG_API int snug_reader_load(const snug_reader* reader, const snug_load_target* targets,
                              size_t num_targets, int num_threads, snug_status* status);

/* ---- to a GPU; in libraries built with CUDA ----------------------------- */

/* Pinned memory and streams, which later calls use again. */
typedef struct snug_cuda_loader snug_cuda_loader;

/* For the device that is current in this call. num_threads 0: one per CPU, at most 12. piece_bytes,
 * what a thread handles at a time, is 0 for the default. */
SNUG_API int snug_cuda_loader_open(int num_threads, uint64_t piece_bytes, snug_cuda_loader** loader,
                                   snug_status* status);
SNUG_API void snug_cuda_loader_free(snug_cuda_loader* loader);

/* Restores tensors to device memory, after what is on `stream` (a cudaStream_t) already. Returns
 * when all is done. */
SNUG_API int snug_cuda_loader_load(snug_cuda_loader* loader, const snug_reader* reader,
                                   const snug_load_target* targets, size_t num_targets,
                                   void* stream, snug_status* status);

#ifdef __cplusplus
}
#endif

#endif /* SNUG_SNUG_LOAD_H_ */
