/* snug/snug_delta.h - the C ABI of deltas: what changed between two versions of a tensor.
 *
 * Everything that snug/delta.h says about hashes, memory and trust holds here,
 * everything that snug/snug.h says about buffers, errors and statuses too.
 */
#ifndef SNUG_SNUG_DELTA_H_
#define SNUG_SNUG_DELTA_H_

#include "snug/snug.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Start from SNUG_DELTA_OPTIONS_INIT, the defaults, and change what you need. */
typedef struct snug_delta_options {
  int32_t dtype;       /* enum snug_dtype */
  int32_t log2_block;  /* elements of a block: 12 to 16, or 0 for the best for files */
  int32_t allow_frame; /* not 0: hold a whole frame where that is smaller */
  int32_t num_threads; /* 0: one per CPU */
} snug_delta_options;
#define SNUG_DELTA_OPTIONS_INIT \
  { SNUG_BF16, 0, 1, 1 }

typedef struct snug_delta_info {
  int32_t dtype;      /* enum snug_dtype */
  int32_t needs_base; /* 0: a full copy, for any base */
  uint64_t raw_bytes;
  uint64_t delta_bytes;
  uint64_t num_changed;
  uint64_t base_hash;
  uint64_t target_hash;
  uint64_t num_blocks;
  uint32_t block_elems;
  uint32_t reserved; /* 0 */
} snug_delta_info;

/* The name of a version of a tensor. */
SNUG_API uint64_t snug_tensor_hash(const void* tensor, size_t num_bytes, int num_threads);

/* Largest delta; options NULL means the defaults. 0 if options or size are not acceptable. */
SNUG_API size_t snug_delta_bound(size_t raw_bytes, const snug_delta_options* options);

/* Writes the delta from base to next, both of raw_bytes, into dst. A base of NULL makes a
 * full copy that applies to any base. */
SNUG_API int snug_delta_encode(const void* base, const void* next, size_t raw_bytes, void* dst,
                               size_t dst_bytes, const snug_delta_options* options,
                               size_t* delta_bytes, snug_status* status);

/* Reads and checks the header only; `delta` may be just its first 64 bytes. */
SNUG_API int snug_delta_inspect(const void* delta, size_t delta_bytes, snug_delta_info* info,
                                snug_status* status);

/* Writes the target to dst. On error, dst is unspecified. raw_bytes may be NULL. */
SNUG_API int snug_delta_apply(const void* delta, size_t delta_bytes, const void* base,
                              size_t base_bytes, void* dst, size_t dst_bytes, int num_threads,
                              size_t* raw_bytes, snug_status* status);

/* Turns `tensor` from base to target: all of it or none of it. */
SNUG_API int snug_delta_apply_in_place(const void* delta, size_t delta_bytes, void* tensor,
                                       size_t tensor_bytes, int num_threads, snug_status* status);

/* Writes the delta from the target back to base. */
SNUG_API int snug_delta_invert(const void* delta, size_t delta_bytes, const void* base,
                               size_t base_bytes, void* dst, size_t dst_bytes, int num_threads,
                               size_t* inverse_bytes, snug_status* status);

#ifdef __cplusplus
}
#endif

#endif /* SNUG_SNUG_DELTA_H_ */
