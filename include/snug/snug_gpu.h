/* snug/snug_gpu.h - the C ABI of everything that runs on a GPU, and of matrices packed for it.
 *
 * The C++ headers (cuda.h, gemm.h, gpu_link.h) have the same functions and say more. All that
 * snug/snug.h says about errors, sizes and objects holds here. Pointers are device memory unless
 * they say host; `stream` is a cudaStream_t. A call returns SNUG_OK once its work is enqueued.
 * How the work ended is in a snug_cuda_result in device memory: copy it to the host, then call
 * snug_cuda_status.
 */
#ifndef SNUG_SNUG_GPU_H_
#define SNUG_SNUG_GPU_H_

#include "snug/snug.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- codec (snug/cuda.h) ----------------------------------------------- */

typedef struct snug_cuda_result {
  uint64_t num_bytes; /* size of the frame, tensor or packed matrix; 0 on error */
  uint32_t code;      /* enum snug_code */
  uint32_t reason;    /* for snug_cuda_status */
  uint64_t block;     /* where the problem is, or SNUG_NOWHERE */
} snug_cuda_result;

typedef struct snug_cuda_options {
  int32_t dtype;                 /* enum snug_dtype */
  int32_t codec;                 /* enum snug_codec; a hint where a frame is decoded */
  int32_t log2_block;            /* 0: what suits a GPU */
  int32_t max_sms;               /* 0: no limit; see EncodeOptions::max_sms in snug/cuda.h */
  snug_cuda_result* host_result; /* pinned host memory for a copy of the result, or NULL */
} snug_cuda_options;             /* NULL instead of one: BF16, entropy, zeros */

/* One tensor and its frame in a batch. */
typedef struct snug_cuda_item {
  void* tensor;
  uint64_t tensor_bytes;
  void* frame;
  uint64_t frame_bytes; /* room for the frame, or its size */
} snug_cuda_item;

/* Fills `status` from a result in host memory and returns its code. */
SNUG_API int snug_cuda_status(const snug_cuda_result* host_result, snug_status* status);

SNUG_API size_t snug_cuda_encode_workspace_bytes(size_t raw_bytes,
                                                 const snug_cuda_options* options);
SNUG_API size_t snug_cuda_decode_workspace_bytes(size_t raw_bytes,
                                                 const snug_cuda_options* options);

SNUG_API int snug_cuda_encode(const void* src, size_t raw_bytes, void* frame, size_t frame_bytes,
                              void* workspace, size_t workspace_bytes, snug_cuda_result* result,
                              const snug_cuda_options* options, void* stream, snug_status* status);
SNUG_API int snug_cuda_decode(const void* frame, size_t frame_bytes, void* dst, size_t dst_bytes,
                              void* workspace, size_t workspace_bytes, snug_cuda_result* result,
                              const snug_cuda_options* options, void* stream, snug_status* status);

/* Gathers segments (an array in device memory) into one frame, and scatters a frame to them. */
SNUG_API size_t snug_cuda_paged_workspace_bytes(size_t raw_bytes, size_t num_segments,
                                                const snug_cuda_options* options);
SNUG_API int snug_cuda_encode_paged(const snug_segment* segments, size_t num_segments,
                                    size_t raw_bytes, void* frame, size_t frame_bytes,
                                    void* workspace, size_t workspace_bytes,
                                    snug_cuda_result* result, const snug_cuda_options* options,
                                    void* stream, snug_status* status);
SNUG_API int snug_cuda_decode_paged(const void* frame, size_t frame_bytes,
                                    const snug_segment* segments, size_t num_segments,
                                    size_t raw_bytes, void* workspace, size_t workspace_bytes,
                                    snug_cuda_result* result, const snug_cuda_options* options,
                                    void* stream, snug_status* status);

/* Many tensors to many frames and back. `items` and `results` are arrays in device memory;
 * total_bytes is at least the sum of the tensor_bytes; log2_block is not 0. */
SNUG_API size_t snug_cuda_batch_workspace_bytes(size_t total_bytes, size_t num_items,
                                                const snug_cuda_options* options);
SNUG_API int snug_cuda_encode_batch(const snug_cuda_item* items, size_t num_items,
                                    size_t total_bytes, void* workspace, size_t workspace_bytes,
                                    snug_cuda_result* results, const snug_cuda_options* options,
                                    void* stream, snug_status* status);
SNUG_API int snug_cuda_decode_batch(const snug_cuda_item* items, size_t num_items,
                                    size_t total_bytes, void* workspace, size_t workspace_bytes,
                                    snug_cuda_result* results, const snug_cuda_options* options,
                                    void* stream, snug_status* status);

/* Rewrites a frame in another codec; `tensor` is scratch for the restored tensor. */
SNUG_API size_t snug_cuda_transcode_workspace_bytes(size_t raw_bytes,
                                                    const snug_cuda_options* options);
SNUG_API int snug_cuda_transcode(const void* frame, size_t frame_bytes, void* tensor,
                                 size_t tensor_bytes, void* new_frame, size_t new_frame_bytes,
                                 void* workspace, size_t workspace_bytes, snug_cuda_result* result,
                                 const snug_cuda_options* options, void* stream,
                                 snug_status* status);

/* Identifies the graph capture that a stream is in; 0: none. Callers that cache workspaces need
 * it: calls recorded in different graphs must not share one. */
SNUG_API uint64_t snug_cuda_capture_id(void* stream);

/* ---- deltas (snug/cuda.h) ---------------------------------------------- */

typedef struct snug_cuda_delta_options {
  int32_t dtype;                 /* enum snug_dtype, elements of one or two bytes */
  int32_t log2_block;            /* elements of a block: 12 to 14, or 0 for 13 */
  snug_cuda_result* host_result; /* pinned host memory for a copy of the result, or NULL */
} snug_cuda_delta_options;       /* NULL instead of one: BF16, zeros */

SNUG_API size_t snug_cuda_delta_encode_workspace_bytes(size_t raw_bytes,
                                                       const snug_cuda_delta_options* options);
SNUG_API size_t snug_cuda_delta_apply_workspace_bytes(size_t raw_bytes,
                                                      const snug_cuda_delta_options* options);

/* Writes the delta from base to next, both of raw_bytes. `delta` needs at most
 * snug_delta_bound_bytes. */
SNUG_API int snug_cuda_delta_encode(const void* base, const void* next, size_t raw_bytes,
                                    void* delta, size_t delta_bytes, void* workspace,
                                    size_t workspace_bytes, snug_cuda_result* result,
                                    const snug_cuda_delta_options* options, void* stream,
                                    snug_status* status);

/* Turns `tensor` from base to target: all of it or, if the result says so, none of it. */
SNUG_API int snug_cuda_delta_apply(const void* delta, size_t delta_bytes, void* tensor,
                                   size_t tensor_bytes, void* workspace, size_t workspace_bytes,
                                   snug_cuda_result* result, const snug_cuda_delta_options* options,
                                   void* stream, snug_status* status);

/* Writes the target to other memory than the base, which is faster. Both have raw_bytes. */
SNUG_API int snug_cuda_delta_apply_to(const void* delta, size_t delta_bytes, const void* base,
                                      void* target, size_t raw_bytes, void* workspace,
                                      size_t workspace_bytes, snug_cuda_result* result,
                                      const snug_cuda_delta_options* options, void* stream,
                                      snug_status* status);

/* Writes snug_tensor_hash of a tensor to *hash in device memory. The workspace is that of
 * snug_cuda_delta_apply. */
SNUG_API int snug_cuda_tensor_hash(const void* tensor, size_t num_bytes, uint64_t* hash,
                                   void* workspace, size_t workspace_bytes, void* stream,
                                   snug_status* status);

/* ---- packed matrices: on the CPU, without CUDA (snug/gemm.h) ----------- */

#define SNUG_GEMM_HEADER_BYTES 256
#define SNUG_GEMM_ALIGN 256 /* of packed matrices and workspaces in device memory */

enum snug_gemm_kind {
  SNUG_GEMM_RAW = 0,  /* 16 bits per weight, in the layout of FIXED */
  SNUG_GEMM_FIXED = 1 /* about 12.07 bits per weight; lossless, not quantised */
};

typedef struct snug_gemm_matrix {
  const void* data;
  uint64_t num_bytes; /* used bytes of the buffer */
  uint64_t n, k;
  uint64_t num_escaped; /* weights outside their strip's palette */
  int32_t kind;         /* enum snug_gemm_kind */
  int32_t reserved;     /* 0 */
} snug_gemm_matrix;

/* The largest packed form of an n x k BF16 matrix. */
SNUG_API size_t snug_gemm_packed_bound_bytes(uint64_t n, uint64_t k, int kind);

/* Packs w[n][k] in host memory, rows ld elements apart, and restores it. SNUG_DST_TOO_SMALL in a
 * buffer of snug_gemm_packed_bound_bytes: too many weights are outside their palettes; pack as
 * RAW. Unpacking writes no more than w_bytes, whatever the header claims. */
SNUG_API int snug_gemm_pack_host(const void* w, uint64_t ld, uint64_t n, uint64_t k, int kind,
                                 void* dst, size_t dst_bytes, size_t* used_bytes,
                                 snug_status* status);
SNUG_API int snug_gemm_unpack_host(const void* packed, size_t packed_bytes, void* w, size_t w_bytes,
                                   uint64_t ld, snug_status* status);

/* Checks the first SNUG_GEMM_HEADER_BYTES, in host memory, of a packed matrix of num_bytes.
 * Leaves matrix->data NULL. */
SNUG_API int snug_gemm_inspect(const void* host_header, size_t header_bytes, uint64_t num_bytes,
                               snug_gemm_matrix* matrix, snug_status* status);

/* Checksums of a packed matrix, one for each of its snug_gemm_num_strips(n) strips of 16 rows: keep
 * them beside a matrix that is saved, and verify it when it has been loaded. SNUG_CORRUPT from
 * verify: status->block is the first damaged strip, whose rows begin at 16 times that number. */
SNUG_API size_t snug_gemm_num_strips(uint64_t n);
SNUG_API int snug_gemm_strip_sums_host(const void* packed, size_t packed_bytes, uint64_t* sums,
                                       size_t num_sums, snug_status* status);
SNUG_API int snug_gemm_verify_host(const void* packed, size_t packed_bytes, const uint64_t* sums,
                                   size_t num_sums, snug_status* status);

/* ---- linear layers (snug/gemm.h) --------------------------------------- */

enum snug_gemm_kernel {
  SNUG_GEMM_AUTO = 0,
  SNUG_GEMM_GENERIC = 1,  /* any GPU from sm_80 on */
  SNUG_GEMM_FEW_ROWS = 2, /* sm_90, m <= 16 */
  SNUG_GEMM_BATCH = 3,    /* sm_90, any m */
  SNUG_GEMM_UNPACK = 4    /* restores panels, then calls cuBLASLt; any m */
};

enum snug_gemm_policy {
  SNUG_GEMM_MEMORY = 0, /* always packed */
  SNUG_GEMM_SPEED = 1   /* dense where packing would be slower */
};

typedef struct snug_gemm_plan {
  int32_t kernel;  /* enum snug_gemm_kernel */
  int32_t split_k; /* parts that k is divided into; here and below, 0: choose for me;
                      BATCH: 1, 2, 4, or -1: as even out the work (stream-K) */
  int32_t warps;   /* FEW_ROWS: warps that share a strip (16 rows of W): 8 or 16 */
  int32_t strips;  /* BATCH: strips in the tile of a thread block: 4, 8 or 12 */
  int32_t tile_m;  /* BATCH: rows of x in a tile: a multiple of 16, at most 256 */
} snug_gemm_plan;

typedef struct snug_gemm_choice {
  int32_t packed; /* 0: keep the dense matrix */
  float gain;     /* speed over cuBLAS: measured by tune, or else expected; 0: unknown */
  snug_gemm_plan plan;
} snug_gemm_choice;

/* Packs w[n][k], rows ld elements apart; SNUG_DST_TOO_SMALL in the result as above. */
SNUG_API size_t snug_gemm_pack_workspace_bytes(uint64_t n, uint64_t k);
SNUG_API int snug_gemm_pack(const void* w, uint64_t ld, uint64_t n, uint64_t k, int kind, void* dst,
                            size_t dst_bytes, void* workspace, size_t workspace_bytes,
                            snug_cuda_result* result, void* stream, snug_status* status);

/* The same from a Snug frame of the BF16 tensor, 16-byte aligned. */
SNUG_API size_t snug_gemm_pack_frame_workspace_bytes(uint64_t n, uint64_t k);
SNUG_API int snug_gemm_pack_frame(const void* frame, size_t frame_bytes, uint64_t n, uint64_t k,
                                  int kind, void* dst, size_t dst_bytes, void* workspace,
                                  size_t workspace_bytes, snug_cuda_result* result, void* stream,
                                  snug_status* status);

/* Reads and checks the header of a packed matrix; waits for the stream. A matrix that was packed
 * or written must be opened before it is used. */
SNUG_API int snug_gemm_open(const void* data, uint64_t num_bytes, void* stream,
                            snug_gemm_matrix* matrix, snug_status* status);

/* The checksums as above, which are in device memory too; SNUG_CORRUPT comes in the result. */
SNUG_API int snug_gemm_strip_sums(const snug_gemm_matrix* matrix, uint64_t* sums, void* stream,
                                  snug_status* status);
SNUG_API int snug_gemm_verify(const snug_gemm_matrix* matrix, const uint64_t* sums,
                              snug_cuda_result* result, void* stream, snug_status* status);

/* Restores the exact matrix, rows ld elements apart. */
SNUG_API int snug_gemm_unpack(const snug_gemm_matrix* matrix, void* w, uint64_t ld, void* stream,
                              snug_status* status);

/* Applies a delta of the dense BF16 matrix to a packed one: writes the new matrix to new_packed
 * and leaves the old one as it is. */
SNUG_API size_t snug_gemm_apply_delta_workspace_bytes(uint64_t n, uint64_t k);
SNUG_API int snug_gemm_apply_delta(const snug_gemm_matrix* matrix, const void* delta,
                                   size_t delta_bytes, int kind, void* new_packed,
                                   size_t new_packed_bytes, void* workspace, size_t workspace_bytes,
                                   snug_cuda_result* result, const snug_cuda_delta_options* options,
                                   void* stream, snug_status* status);

/* A workspace of this size serves every m <= max_m. Initialise it once; then it serves one call
 * at a time (one stream). Ask again after tuning or loading a table: other plans may need more. */
SNUG_API size_t snug_gemm_linear_workspace_bytes(uint64_t n, uint64_t k, uint64_t max_m);
SNUG_API int snug_gemm_init_workspace(void* workspace, size_t workspace_bytes, void* stream,
                                      snug_status* status);

/* y[m][n] = x[m][k] W^T + bias[n]; bias and plan may be NULL. */
SNUG_API int snug_gemm_linear(const snug_gemm_matrix* matrix, const void* x, uint64_t ldx,
                              uint64_t m, const void* bias, void* y, uint64_t ldy, void* workspace,
                              size_t workspace_bytes, const snug_gemm_plan* plan, void* stream,
                              snug_status* status);

/* What AUTO does and what the policy says, on the current device; also as one line of text, whose
 * length is returned like snprintf's. */
SNUG_API int snug_gemm_choose(uint64_t n, uint64_t k, uint64_t m, int policy,
                              snug_gemm_choice* choice, snug_status* status);
SNUG_API size_t snug_gemm_explain(uint64_t n, uint64_t k, uint64_t m, int policy, char* buffer,
                                  size_t buffer_bytes);

/* Measures the plans that fit and remembers the best; waits for the device. Overwrites y. */
SNUG_API int snug_gemm_tune(const snug_gemm_matrix* matrix, const void* x, uint64_t ldx, uint64_t m,
                            void* y, uint64_t ldy, void* workspace, size_t workspace_bytes,
                            void* stream, snug_gemm_choice* choice, snug_status* status);

/* The tuning table as text, whose length is returned like snprintf's, and back. */
SNUG_API size_t snug_gemm_tuning_text(char* buffer, size_t buffer_bytes);
SNUG_API int snug_gemm_load_tuning(const char* text, snug_status* status);

/* ---- messages in GPU memory (snug/gpu_link.h) -------------------------- */

/* As snug_wire_send and snug_wire_recv with segments in device memory, through the host. The
 * other end may be a CPU's. */
SNUG_API int snug_cuda_wire_send(snug_wire_connection* connection, uint64_t tag, int dtype,
                                 const snug_segment* segments, size_t num_segments,
                                 snug_wire_transfer** transfer, snug_status* status);
SNUG_API int snug_cuda_wire_recv(snug_wire_connection* connection, uint64_t tag, int dtype,
                                 const snug_segment* segments, size_t num_segments,
                                 snug_wire_transfer** transfer, snug_status* status);

/* A link moves messages from GPU memory to GPU memory between two processes of one host. Both
 * ends open it, each with its end of one connection. SNUG_TIMEOUT (the other end did not open it)
 * ends the connection too. mode: enum snug_wire_mode; timeout_ms: 1 ms to a year. A link belongs
 * to the device that is current when it is opened: all its segments must be there. */
typedef struct snug_link snug_link;
SNUG_API int snug_link_open(snug_wire_connection* connection, int mode, int64_t timeout_ms,
                            snug_link** link, snug_status* status);
SNUG_API int snug_link_send(snug_link* link, uint64_t tag, int dtype, const snug_segment* segments,
                            size_t num_segments, snug_wire_transfer** transfer,
                            snug_status* status);
SNUG_API int snug_link_recv(snug_link* link, uint64_t tag, int dtype, const snug_segment* segments,
                            size_t num_segments, snug_wire_transfer** transfer,
                            snug_status* status);
SNUG_API int snug_link_stats_of(const snug_link* link, snug_wire_stats* sent,
                                snug_wire_stats* received, snug_status* status);
/* Transfers that are not done fail. */
SNUG_API void snug_link_free(snug_link* link);

#ifdef __cplusplus
}
#endif

#endif /* SNUG_SNUG_GPU_H_ */
