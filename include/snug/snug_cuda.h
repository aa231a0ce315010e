/* snug/snug_cuda.h - snug/cuda.h for C: tensors in GPU memory.
 *
 * Everything said there about memory, streams and trust holds here. `stream` is
 * a cudaStream_t; pointers are device memory unless they say host. Functions
 * return SNUG_OK once the work is enqueued; how it went is in the result on the
 * device, with a code of enum snug_code.
 */
#ifndef SNUG_SNUG_CUDA_H_
#define SNUG_SNUG_CUDA_H_

#include "snug/snug.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct snug_cuda_result {
  uint64_t num_bytes; /* size of the frame or tensor; 0 on error */
  uint32_t code;      /* enum snug_code */
  uint32_t reason;    /* for snug_cuda_reason() */
  uint64_t block;     /* where the problem is, or SNUG_NOWHERE */
} snug_cuda_result;

typedef struct snug_cuda_segment {
  void* data;
  uint64_t num_bytes;
} snug_cuda_segment;

typedef struct snug_cuda_options {
  int32_t dtype;                 /* enum snug_dtype */
  int32_t codec;                 /* enum snug_codec; a hint where a frame is decoded */
  int32_t log2_block;            /* 0: what suits a GPU */
  int32_t max_sms;               /* 0: no limit; see EncodeOptions::max_sms in snug/cuda.h */
  snug_cuda_result* host_result; /* pinned host memory for a copy, or NULL */
} snug_cuda_options;             /* NULL instead of one: BF16, entropy, zeros */

/* One tensor and its frame in a batch. */
typedef struct snug_cuda_item {
  void* tensor;
  uint64_t tensor_bytes;
  void* frame;
  uint64_t frame_bytes; /* room for the frame, or its size */
} snug_cuda_item;

/* One line that tells why, static text. */
SNUG_API const char* snug_cuda_reason(const snug_cuda_result* result);

/* Device memory that a call with these options needs; 0 if they are not acceptable. */
SNUG_API size_t snug_cuda_encode_workspace(size_t raw_bytes, const snug_cuda_options* options);
SNUG_API size_t snug_cuda_decode_workspace(size_t raw_bytes, const snug_cuda_options* options);
SNUG_API size_t snug_cuda_paged_workspace(size_t raw_bytes, size_t num_segments,
                                          const snug_cuda_options* options);
SNUG_API size_t snug_cuda_batch_workspace(size_t total_bytes, size_t num_items,
                                          const snug_cuda_options* options);
SNUG_API size_t snug_cuda_transcode_workspace(size_t raw_bytes, const snug_cuda_options* options);

SNUG_API int snug_cuda_encode(const void* src, size_t raw_bytes, void* frame, size_t frame_bytes,
                              void* workspace, size_t workspace_bytes, snug_cuda_result* result,
                              const snug_cuda_options* options, void* stream);
SNUG_API int snug_cuda_decode(const void* frame, size_t frame_bytes, void* dst, size_t dst_bytes,
                              void* workspace, size_t workspace_bytes, snug_cuda_result* result,
                              const snug_cuda_options* options, void* stream);

/* Gathers pieces into one frame, and scatters one frame to pieces. */
SNUG_API int snug_cuda_encode_paged(const snug_cuda_segment* segments, size_t num_segments,
                                    size_t raw_bytes, void* frame, size_t frame_bytes,
                                    void* workspace, size_t workspace_bytes,
                                    snug_cuda_result* result, const snug_cuda_options* options,
                                    void* stream);
SNUG_API int snug_cuda_decode_paged(const void* frame, size_t frame_bytes,
                                    const snug_cuda_segment* segments, size_t num_segments,
                                    size_t raw_bytes, void* workspace, size_t workspace_bytes,
                                    snug_cuda_result* result, const snug_cuda_options* options,
                                    void* stream);

/* The number of the graph capture that a stream is in; 0: none. Languages that
 * keep workspaces of their own need it: recorded calls must not share them. */
SNUG_API uint64_t snug_cuda_capture_id(void* stream);

/* Many tensors to many frames and back. `items` and `results` are arrays in device
 * memory; total_bytes is at least the sum of the tensor_bytes; log2_block is not 0. */
SNUG_API int snug_cuda_encode_batch(const snug_cuda_item* items, size_t num_items,
                                    size_t total_bytes, void* workspace, size_t workspace_bytes,
                                    snug_cuda_result* results, const snug_cuda_options* options,
                                    void* stream);
SNUG_API int snug_cuda_decode_batch(const snug_cuda_item* items, size_t num_items,
                                    size_t total_bytes, void* workspace, size_t workspace_bytes,
                                    snug_cuda_result* results, const snug_cuda_options* options,
                                    void* stream);

/* Rewrites a frame in another codec; `tensor` is scratch for the restored tensor. */
SNUG_API int snug_cuda_transcode(const void* frame, size_t frame_bytes, void* tensor,
                                 size_t tensor_bytes, void* new_frame, size_t new_frame_bytes,
                                 void* workspace, size_t workspace_bytes, snug_cuda_result* result,
                                 const snug_cuda_options* options, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* SNUG_SNUG_CUDA_H_ */
