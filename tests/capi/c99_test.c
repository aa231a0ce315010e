/* snug.h in plain C99: a round trip with every function. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "snug/snug.h"

#define CHECK(condition)                                                \
  do {                                                                  \
    if (!(condition)) {                                                 \
      fprintf(stderr, "line %d: not true: %s\n", __LINE__, #condition); \
      exit(1);                                                          \
    }                                                                   \
  } while (0)

enum { kNumElems = 10000 };

static void fill(uint16_t* values) {
  uint32_t state = 1;
  size_t i;
  for (i = 0; i < kNumElems; ++i) {
    state = state * 1664525u + 1013904223u;
    values[i] = (uint16_t)(0x3C00u | (state >> 24));
  }
}

static void round_trip(int codec) {
  static uint16_t raw[kNumElems], restored[kNumElems], part[100];
  snug_encode_options options = SNUG_ENCODE_OPTIONS_INIT;
  snug_status status;
  snug_frame_info info;
  snug_frame_stats stats;
  size_t bound, size = 0, restored_size = 0, again = 0;
  void *frame, *copy, *workspace;

  fill(raw);
  options.codec = codec;
  options.log2_block = 12;
  bound = snug_encode_bound_bytes(sizeof raw, &options);
  CHECK(bound > sizeof raw && bound < sizeof raw + 1000);
  frame = malloc(bound);
  copy = malloc(bound);
  workspace = malloc(snug_workspace_bytes());
  CHECK(frame != NULL && copy != NULL && workspace != NULL);

  CHECK(snug_encode(raw, sizeof raw, frame, bound, &options, &size, &status) == SNUG_OK);
  CHECK(status.code == SNUG_OK && size <= bound);
  CHECK(snug_encode_in(raw, sizeof raw, copy, bound, &options, workspace, snug_workspace_bytes(),
                       &again, NULL) == SNUG_OK);
  CHECK(again == size && memcmp(frame, copy, size) == 0);

  CHECK(snug_inspect(frame, 64, &info, NULL) == SNUG_OK);
  CHECK(info.dtype == SNUG_BF16 && info.raw_bytes == sizeof raw && info.frame_bytes == size);
  CHECK(info.num_elems == kNumElems && info.num_blocks == 3 && info.block_elems == 4096);
  CHECK(snug_verify(frame, size, &status) == SNUG_OK);
  CHECK(snug_frame_stats_of(frame, size, &stats, NULL) == SNUG_OK);
  CHECK(stats.num_blocks[codec] == 3);

  CHECK(snug_decode(frame, size, restored, sizeof restored, 2, &restored_size, &status) == SNUG_OK);
  CHECK(restored_size == sizeof raw && memcmp(raw, restored, sizeof raw) == 0);
  memset(restored, 0, sizeof restored);
  CHECK(snug_decode_in(frame, size, restored, sizeof restored, workspace, snug_workspace_bytes(),
                       NULL, NULL) == SNUG_OK);
  CHECK(memcmp(raw, restored, sizeof raw) == 0);
  CHECK(snug_decode_range(frame, size, 4000, 100, part, sizeof part, &restored_size, &status) ==
        SNUG_OK);
  CHECK(restored_size == sizeof part && memcmp(raw + 4000, part, sizeof part) == 0);

  free(frame);
  free(copy);
  free(workspace);
}

int main(void) {
  round_trip(SNUG_RAW);
  round_trip(SNUG_FIXED);
  round_trip(SNUG_ENTROPY);
  CHECK(strcmp(snug_version(), SNUG_VERSION_STRING) == 0);
  return 0;
}
