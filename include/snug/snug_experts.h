/* snug/snug_experts.h - the C ABI of mixtures of experts (snug/experts.h).
 *
 * All that snug/snug_gpu.h says about errors, streams and results holds here. Pointers are device
 * memory unless the name of the function ends with host.
 */
#ifndef SNUG_SNUG_EXPERTS_H_
#define SNUG_SNUG_EXPERTS_H_

#include "snug/snug_gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A bank: matrices of n x k BF16 weights, packed, in slots of equal size. */
typedef struct snug_experts_shape {
  uint64_t experts, n, k;
  uint32_t parts; /* 2: the rows are gate and then up, n / 2 each; else 1 */
  int32_t kind;   /* enum snug_gemm_kind */
} snug_experts_shape;

/* Bytes of a slot and of a bank; 0 if the shape is out of range. */
SNUG_API size_t snug_experts_slot_bytes(const snug_experts_shape* shape);
SNUG_API size_t snug_experts_bank_bytes(const snug_experts_shape* shape);

/* Packs w[experts][n][k]; restores one expert; checks the headers of all slots.
 * SNUG_DST_TOO_SMALL with the number of an expert as status->block: its weights do not fit a slot.
 * Pack the bank as RAW. */
SNUG_API int snug_experts_pack_host(const void* w, const snug_experts_shape* shape, void* bank,
                                    size_t bank_bytes, snug_status* status);
SNUG_API int snug_experts_unpack_host(const void* bank, size_t bank_bytes,
                                      const snug_experts_shape* shape, uint64_t expert, void* w,
                                      size_t w_bytes, snug_status* status);
SNUG_API int snug_experts_inspect_host(const void* bank, size_t bank_bytes,
                                       const snug_experts_shape* shape, snug_status* status);

/* Packs `count` experts, w[count][n][k], into the slots from `first` on: results[count] say how
 * that went. Restores one expert to w[n][k]. */
SNUG_API size_t snug_experts_pack_workspace_bytes(const snug_experts_shape* shape, uint64_t count);
SNUG_API int snug_experts_pack(const void* w, const snug_experts_shape* shape, uint64_t first,
                               uint64_t count, void* bank, size_t bank_bytes, void* workspace,
                               size_t workspace_bytes, snug_cuda_result* results, void* stream,
                               snug_status* status);
SNUG_API int snug_experts_unpack(const void* bank, const snug_experts_shape* shape, uint64_t expert,
                                 void* w, void* stream, snug_status* status);

typedef struct snug_experts_args {
  const void* x; /* [m][k] BF16, rows ldx elements apart */
  uint64_t ldx, m;
  const int32_t* ids;   /* [m][top_k]; -1: no expert, adds nothing */
  const float* weights; /* [m][top_k] */
  void* y;              /* [m][k] BF16, rows ldy elements apart */
  uint64_t ldy;
  snug_cuda_result* result; /* NULL, or gets as code SNUG_OK, or SNUG_USAGE and as block the row of
                               the first id that is no expert; not for snug_cuda_status */
  uint32_t top_k;           /* 1 to 16 */
  uint32_t reserved;        /* 0 */
} snug_experts_args;

typedef struct snug_experts_plan {
  int32_t kernel; /* 1: few rows, 2: many rows; here and below, 0: choose for me */
  int32_t split;  /* few rows: warps that share two strips: 1, 2, 4 or 8 */
  int32_t rows;   /* many rows: rows of an expert in a tile: 16, 32, 64, 96 or 128 */
} snug_experts_plan;

/* A whole layer: gate_up is 2 N x K in two parts, down is K x N. A workspace of this size serves
 * every m <= max_m; it needs no initialisation and serves one call at a time. 0 if an argument is
 * out of range. plan may be NULL. */
SNUG_API size_t snug_experts_workspace_bytes(const snug_experts_shape* gate_up,
                                             const snug_experts_shape* down, uint32_t top_k,
                                             uint64_t max_m);
SNUG_API int snug_experts_layer(const void* gate_up_bank, const snug_experts_shape* gate_up,
                                const void* down_bank, const snug_experts_shape* down,
                                const snug_experts_args* args, void* workspace,
                                size_t workspace_bytes, const snug_experts_plan* plan, void* stream,
                                snug_status* status);

/* One projection: y_i = W_e x_i, where e is the expert of row i. Rows without one are not written.
 */
typedef struct snug_grouped_args {
  const void* x; /* [m][k] BF16, rows ldx elements apart */
  uint64_t ldx, m;
  void* y; /* [m][n] BF16, rows ldy elements apart */
  uint64_t ldy;
  const int32_t* ids;       /* [m]: the expert of each row, -1: none; or NULL */
  const int32_t* counts;    /* [experts], if ids is NULL: of the m / experts rows of each, the first
                               counts[e] have it */
  snug_cuda_result* result; /* as in snug_experts_args */
} snug_grouped_args;

SNUG_API size_t snug_grouped_workspace_bytes(const snug_experts_shape* shape, uint64_t max_m);
SNUG_API int snug_grouped(const void* bank, const snug_experts_shape* shape,
                          const snug_grouped_args* args, void* workspace, size_t workspace_bytes,
                          const snug_experts_plan* plan, void* stream, snug_status* status);

#ifdef __cplusplus
}
#endif

#endif /* SNUG_SNUG_EXPERTS_H_ */
