/* snug/snug_gemm.h - snug/gemm.h for C: linear layers on compressed weights.
 *
 * Everything said there about memory, streams, results and trust holds here.
 * `stream` is a cudaStream_t; pointers are device memory unless they say host.
 * Functions return SNUG_OK or a code of enum snug_code and fill `status` (which
 * may be NULL). BF16 throughout; shapes and leading dimensions count elements.
 */
#ifndef SNUG_SNUG_GEMM_H_
#define SNUG_SNUG_GEMM_H_

#include "snug/snug_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SNUG_GEMM_HEADER_BYTES 256
#define SNUG_GEMM_ALIGN 256 /* of packed matrices and workspaces */

enum snug_gemm_kind {
  SNUG_GEMM_RAW = 0,   /* 16 bits a weight, in the order of NIBBLE: its twin */
  SNUG_GEMM_NIBBLE = 1 /* about 12.07 bits */
};

enum snug_gemm_kernel {
  SNUG_GEMM_AUTO = 0,
  SNUG_GEMM_GENERIC = 1, /* any GPU from sm_80 on */
  SNUG_GEMM_DECODE = 2,  /* sm_90, m <= 16 */
  SNUG_GEMM_BATCH = 3,   /* sm_90, any m */
  SNUG_GEMM_UNPACK = 4   /* restore panels, then cuBLASLt; any m */
};

enum snug_gemm_policy {
  SNUG_GEMM_MEMORY = 0, /* always packed */
  SNUG_GEMM_SPEED = 1   /* dense where packing would be slower */
};

typedef struct snug_gemm_matrix {
  const void* data;
  uint64_t num_bytes; /* what is used of the buffer */
  uint64_t n, k;
  uint64_t num_patches; /* weights outside of their strip's palette */
  int32_t kind;         /* enum snug_gemm_kind */
  int32_t reserved;     /* 0 */
} snug_gemm_matrix;

typedef struct snug_gemm_plan {
  int32_t kernel;  /* enum snug_gemm_kernel */
  int32_t splits;  /* parts that k is cut into; here and below, 0: choose for me */
  int32_t warps;   /* DECODE: warps that share a strip; BATCH: strips of a thread block (gemm.h) */
  int32_t columns; /* BATCH: rows of x in a tile: 16, 32, 64, 128 or 256 */
} snug_gemm_plan;

typedef struct snug_gemm_choice {
  int32_t packed; /* 0: keep the dense matrix */
  float gain;     /* measured speed over cuBLAS on this GPU; 0: not measured */
  snug_gemm_plan plan;
} snug_gemm_choice;

/* ---- packing ---- */

/* Room that packing may need, and the workspace of the call; 0 if n or k is 0 or too large. */
SNUG_API size_t snug_gemm_packed_bound(uint64_t n, uint64_t k, int kind);
SNUG_API size_t snug_gemm_pack_workspace(uint64_t n, uint64_t k);
SNUG_API size_t snug_gemm_pack_frame_workspace(uint64_t n, uint64_t k);

/* Packs w[n][k], rows ld apart. The bytes used, or why not, are left in *result on the device:
 * copy it to the host and ask snug_gemm_pack_status. SNUG_DST_TOO_SMALL there in a buffer of
 * snug_gemm_packed_bound bytes means: too many weights outside of their palettes; pack as RAW. */
SNUG_API int snug_gemm_pack(const void* w, uint64_t ld, uint64_t n, uint64_t k, int kind, void* dst,
                            size_t dst_bytes, void* workspace, size_t workspace_bytes, snug_cuda_result* result,
                            void* stream, snug_status* status);

/* The same from a Snug frame of the BF16 tensor, in device memory, 16-byte aligned. */
SNUG_API int snug_gemm_pack_frame(const void* frame, size_t frame_bytes, uint64_t n, uint64_t k, int kind,
                                  void* dst, size_t dst_bytes, void* workspace, size_t workspace_bytes,
                                  snug_cuda_result* result, void* stream, snug_status* status);

/* Fills status from a result on the host; returns its code. */
SNUG_API int snug_gemm_pack_status(const snug_cuda_result* host_result, snug_status* status);

/* The same bytes in host memory, on the CPU. */
SNUG_API int snug_gemm_pack_host(const void* w, uint64_t ld, uint64_t n, uint64_t k, int kind, void* dst,
                                 size_t dst_bytes, size_t* used_bytes, snug_status* status);
SNUG_API int snug_gemm_unpack_host(const void* packed, size_t packed_bytes, void* w, uint64_t ld,
                                   snug_status* status);

/* Reads and checks the header of a packed matrix: in host memory (its first
 * SNUG_GEMM_HEADER_BYTES will do; matrix->data is left NULL), or in device
 * memory, which waits for the stream. A matrix must be opened after it was
 * packed or written, before it is used. */
SNUG_API int snug_gemm_inspect(const void* host_header, size_t header_bytes, uint64_t num_bytes,
                               snug_gemm_matrix* matrix, snug_status* status);
SNUG_API int snug_gemm_open(const void* data, uint64_t num_bytes, void* stream, snug_gemm_matrix* matrix,
                            snug_status* status);

/* Restores the exact matrix, rows ld apart. */
SNUG_API int snug_gemm_unpack(const snug_gemm_matrix* matrix, void* w, uint64_t ld, void* stream,
                              snug_status* status);

/* ---- multiplying ---- */

/* A workspace of this size serves every m <= max_m. Set it up once with
 * snug_gemm_init_workspace; then it serves calls one at a time (one stream). */
SNUG_API size_t snug_gemm_linear_workspace(uint64_t n, uint64_t k, uint64_t max_m);
SNUG_API int snug_gemm_init_workspace(void* workspace, size_t workspace_bytes, void* stream, snug_status* status);

/* y[m][n] = x[m][k] W^T + bias[n]; bias and plan may be NULL. */
SNUG_API int snug_gemm_linear(const snug_gemm_matrix* matrix, const void* x, uint64_t ldx, uint64_t m,
                              const void* bias, void* y, uint64_t ldy, void* workspace, size_t workspace_bytes,
                              const snug_gemm_plan* plan, void* stream, snug_status* status);

/* ---- choosing ---- */

/* What AUTO does and what the policy says, on the current device. */
SNUG_API int snug_gemm_choose(uint64_t n, uint64_t k, uint64_t m, int policy, snug_gemm_choice* choice);

/* The same as one line; returns the length of the whole line, like snprintf. */
SNUG_API size_t snug_gemm_explain(uint64_t n, uint64_t k, uint64_t m, int policy, char* buffer,
                                  size_t buffer_bytes);

/* Measures the plans that fit and remembers the best; waits for the device. y is overwritten. */
SNUG_API int snug_gemm_tune(const snug_gemm_matrix* matrix, const void* x, uint64_t ldx, uint64_t m, void* y,
                            uint64_t ldy, void* workspace, size_t workspace_bytes, void* stream,
                            snug_gemm_choice* choice, snug_status* status);

/* The tuning table as text (returns the whole length, like snprintf), and back. */
SNUG_API size_t snug_gemm_tuning_text(char* buffer, size_t buffer_bytes);
SNUG_API int snug_gemm_load_tuning(const char* text, snug_status* status);

#ifdef __cplusplus
}
#endif

#endif /* SNUG_SNUG_GEMM_H_ */
