/* snug/snug_cuda_wire.h - snug/gpu_link.h for C: messages in GPU memory.
 *
 * Everything said there about memory, streams and trust holds here, everything in
 * snug/snug_wire.h about objects too. Segments are pieces of device memory of the
 * device that is current in the call; they follow each other in the message.
 */
#ifndef SNUG_SNUG_CUDA_WIRE_H_
#define SNUG_SNUG_CUDA_WIRE_H_

#include "snug/snug_cuda.h"
#include "snug/snug_wire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As snug_wire_send and snug_wire_recv, through the host; the other end may be a CPU's. */
SNUG_API int snug_cuda_wire_send(snug_wire_connection* connection, uint64_t tag, int dtype,
                                 const snug_cuda_segment* segments, size_t num_segments,
                                 snug_wire_transfer** transfer, snug_status* status);
SNUG_API int snug_cuda_wire_recv(snug_wire_connection* connection, uint64_t tag, int dtype,
                                 const snug_cuda_segment* segments, size_t num_segments,
                                 snug_wire_transfer** transfer, snug_status* status);

/* GPU memory to GPU memory between two processes of one host. Both ends open it, each
 * with its end of one connection; SNUG_TIMEOUT, because the other end does not, ends the
 * connection too. mode: enum snug_wire_mode; timeout_ms: 1 ms to a year. A link belongs to
 * the device that is current when it is opened: all its segments must lie there. */
typedef struct snug_cuda_link snug_cuda_link;
SNUG_API int snug_cuda_link_open(snug_wire_connection* connection, int mode, int64_t timeout_ms,
                                 snug_cuda_link** link, snug_status* status);
SNUG_API int snug_cuda_link_send(snug_cuda_link* link, uint64_t tag, int dtype,
                                 const snug_cuda_segment* segments, size_t num_segments,
                                 snug_wire_transfer** transfer, snug_status* status);
SNUG_API int snug_cuda_link_recv(snug_cuda_link* link, uint64_t tag, int dtype,
                                 const snug_cuda_segment* segments, size_t num_segments,
                                 snug_wire_transfer** transfer, snug_status* status);
/* What was sent and what was received; either may be NULL. */
SNUG_API void snug_cuda_link_stats(const snug_cuda_link* link, snug_wire_stats* sent,
                                   snug_wire_stats* received);
/* Transfers that are not done fail. NULL is fine. */
SNUG_API void snug_cuda_link_free(snug_cuda_link* link);

#ifdef __cplusplus
}
#endif

#endif /* SNUG_SNUG_CUDA_WIRE_H_ */
