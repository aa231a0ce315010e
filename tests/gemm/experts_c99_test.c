/* The part of snug_experts.h that needs no GPU, in plain C99: sizes, and a bank packed, checked and
 * restored. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "snug/snug_experts.h"

#define CHECK(condition)                                                \
  do {                                                                  \
    if (!(condition)) {                                                 \
      fprintf(stderr, "line %d: not true: %s\n", __LINE__, #condition); \
      exit(1);                                                          \
    }                                                                   \
  } while (0)

enum { kExperts = 3, kRows = 32, kColumns = 128, kWeights = kRows * kColumns };

static uint16_t weights[kExperts * kWeights], restored[kWeights];

static void round_trip(int kind) {
  const snug_experts_shape shape = {kExperts, kRows, kColumns, 2, kind};
  const size_t slot_bytes = snug_experts_slot_bytes(&shape);
  const size_t bank_bytes = snug_experts_bank_bytes(&shape);
  unsigned char* const bank = malloc(bank_bytes);
  snug_status status;
  uint64_t expert;
  CHECK(slot_bytes > 0 && bank_bytes == kExperts * slot_bytes && bank != NULL);
  CHECK(snug_experts_pack_host(weights, &shape, bank, bank_bytes, &status) == SNUG_OK);
  CHECK(snug_experts_inspect_host(bank, bank_bytes, &shape, &status) == SNUG_OK);
  for (expert = 0; expert < kExperts; ++expert) {
    CHECK(snug_experts_unpack_host(bank, bank_bytes, &shape, expert, restored, sizeof restored,
                                   NULL) == SNUG_OK);
    CHECK(memcmp(restored, weights + expert * kWeights, sizeof restored) == 0);
  }

  CHECK(snug_experts_inspect_host(bank, bank_bytes - 1, &shape, NULL) == SNUG_CORRUPT);
  bank[slot_bytes + 16] ^= 1; /* in the header of the second slot */
  CHECK(snug_experts_inspect_host(bank, bank_bytes, &shape, &status) == SNUG_CORRUPT);
  CHECK(status.code == SNUG_CORRUPT && status.block == 1);
  free(bank);
}

int main(void) {
  const snug_experts_shape no_parts = {kExperts, kRows, kColumns, 0, SNUG_GEMM_FIXED};
  uint32_t state = 1;
  size_t i;
  for (i = 0; i < kExperts * kWeights; ++i) {
    state = state * 1664525u + 1013904223u;
    weights[i] = (uint16_t)(0x3C00u | (state >> 24));
  }
  round_trip(SNUG_GEMM_RAW);
  round_trip(SNUG_GEMM_FIXED);
  CHECK(snug_experts_slot_bytes(&no_parts) == 0 && snug_experts_bank_bytes(&no_parts) == 0);
  CHECK(snug_experts_slot_bytes(NULL) == 0);
  CHECK(snug_experts_inspect_host(NULL, 0, NULL, NULL) == SNUG_USAGE);
  return 0;
}
