/* snug/snug_gpu.h is C, and says no to nonsense before it needs a GPU. */
#include <stdio.h>
#include <stdlib.h>

#include "snug/snug_gpu.h"

#define CHECK(condition)                                                \
  do {                                                                  \
    if (!(condition)) {                                                 \
      fprintf(stderr, "line %d: %s is not so\n", __LINE__, #condition); \
      exit(1);                                                          \
    }                                                                   \
  } while (0)

int main(void) {
  snug_status status;
  snug_link* link = NULL;
  snug_wire_transfer* transfer = NULL;
  snug_segment segment = {NULL, 8};
  CHECK(snug_link_open(NULL, SNUG_WIRE_AUTO, 1000, &link, &status) == SNUG_USAGE);
  CHECK(status.code == SNUG_USAGE && link == NULL);
  CHECK(snug_link_send(NULL, 1, 1, &segment, 1, &transfer, &status) == SNUG_USAGE);
  CHECK(snug_link_recv(NULL, 1, 1, &segment, 1, &transfer, NULL) == SNUG_USAGE);
  CHECK(snug_cuda_wire_send(NULL, 1, 1, &segment, 1, &transfer, NULL) == SNUG_USAGE);
  CHECK(snug_cuda_wire_recv(NULL, 1, 1, &segment, 1, &transfer, NULL) == SNUG_USAGE);
  CHECK(transfer == NULL);
  CHECK(snug_link_stats_of(NULL, NULL, NULL, &status) == SNUG_USAGE);
  snug_link_free(NULL);
  puts("passed");
  return 0;
}
