/* Deltas through the C ABI, compiled as C99. */
#include <stdio.h>
#include <string.h>

#include "snug/snug.h"

enum { kBytes = 20000, kRoom = 30000 };
static unsigned char base[kBytes], next[kBytes], out[kBytes], delta[kRoom], undo[kRoom];

#define CHECK(condition)                                               \
  do {                                                                 \
    if (!(condition)) {                                                \
      fprintf(stderr, "line %d: %s is false\n", __LINE__, #condition); \
      return 1;                                                        \
    }                                                                  \
  } while (0)

int main(void) {
  const snug_delta_options options = SNUG_DELTA_OPTIONS_INIT;
  snug_delta_info info;
  snug_status status;
  size_t delta_bytes, undo_bytes, raw_bytes, i;
  for (i = 0; i < kBytes; ++i) base[i] = next[i] = (unsigned char)(i * 7 >> 4);
  for (i = 0; i < kBytes; i += 100) next[i] ^= 1;

  CHECK(snug_delta_bound_bytes(kBytes, &options) <= kRoom);
  CHECK(snug_delta_encode(base, next, kBytes, delta, kRoom, NULL, &delta_bytes, NULL) == SNUG_OK);
  CHECK(delta_bytes < kBytes / 20);
  CHECK(snug_delta_inspect(delta, delta_bytes, &info, &status) == SNUG_OK);
  CHECK(info.dtype == SNUG_BF16 && info.needs_base == 1 && info.raw_bytes == kBytes);
  CHECK(info.num_changed == 200 && info.base_hash == snug_tensor_hash(base, kBytes, 1));
  CHECK(info.target_hash == snug_tensor_hash(next, kBytes, 2));
  CHECK(snug_delta_apply(delta, delta_bytes, base, kBytes, out, kBytes, 1, &raw_bytes, &status) ==
        SNUG_OK);
  CHECK(raw_bytes == kBytes && memcmp(out, next, kBytes) == 0);

  CHECK(snug_delta_invert(delta, delta_bytes, base, kBytes, undo, kRoom, 1, &undo_bytes, NULL) ==
        SNUG_OK);
  memcpy(out, base, kBytes);
  CHECK(snug_delta_apply_in_place(delta, delta_bytes, out, kBytes, 1, NULL) == SNUG_OK);
  CHECK(memcmp(out, next, kBytes) == 0);
  CHECK(snug_delta_apply_in_place(delta, delta_bytes, out, kBytes, 1, &status) == SNUG_WRONG_BASE);
  CHECK(status.code == SNUG_WRONG_BASE && memcmp(out, next, kBytes) == 0);
  CHECK(snug_delta_apply_in_place(undo, undo_bytes, out, kBytes, 1, NULL) == SNUG_OK);
  CHECK(memcmp(out, base, kBytes) == 0);

  /* Without a base: a full copy, for anybody. */
  CHECK(snug_delta_encode(NULL, next, kBytes, delta, kRoom, &options, &delta_bytes, NULL) ==
        SNUG_OK);
  CHECK(snug_delta_inspect(delta, delta_bytes, &info, NULL) == SNUG_OK && info.needs_base == 0);
  CHECK(snug_delta_apply(delta, delta_bytes, NULL, 0, out, kBytes, 1, NULL, NULL) == SNUG_OK);
  CHECK(memcmp(out, next, kBytes) == 0);

  CHECK(snug_delta_apply(NULL, 5, base, kBytes, out, kBytes, 1, NULL, NULL) == SNUG_USAGE);
  CHECK(snug_delta_inspect(base, kBytes, &info, NULL) == SNUG_BAD_MAGIC);
  return 0;
}
