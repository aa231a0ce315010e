/* snug/snug_wire.h - the C ABI of the wire: tensors from process to process.
 *
 * Everything that snug/wire.h says about completion, memory, threads and trust
 * holds here, everything that snug/snug.h says about errors and statuses too.
 * Objects are made by the function that returns them and live until their
 * _free function is called. Memory given to send and recv must stay, untouched,
 * until the transfer is done.
 */
#ifndef SNUG_SNUG_WIRE_H_
#define SNUG_SNUG_WIRE_H_

#include "snug/snug.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct snug_wire_listener snug_wire_listener;
typedef struct snug_wire_connection snug_wire_connection;
typedef struct snug_wire_transfer snug_wire_transfer;

enum snug_wire_mode {
  SNUG_WIRE_RAW = 0,
  SNUG_WIRE_FIXED = 1,
  SNUG_WIRE_ENTROPY = 2,
  SNUG_WIRE_AUTO = 3 /* whichever is fastest on this link */
};
#define SNUG_WIRE_NUM_MODES 3

/* Start from SNUG_WIRE_OPTIONS_INIT, the defaults, and change what you need. */
typedef struct snug_wire_options {
  const char* token;    /* shared secret of both sides, 8 bytes or more; NULL: none */
  int32_t mode;         /* enum snug_wire_mode */
  int32_t num_lanes;    /* parallel connections, 1 to 16; 0: two or four */
  uint64_t chunk_bytes; /* 64 KiB to 4 MiB, a multiple of 64 KiB */
  int64_t timeout_ms;   /* of silence, before the peer counts as lost */
} snug_wire_options;
#define SNUG_WIRE_OPTIONS_INIT \
  { NULL, SNUG_WIRE_AUTO, 0, 1048576, 30000 }

typedef struct snug_wire_stats {
  uint64_t raw_bytes;   /* sent or received, before encoding */
  uint64_t wire_bytes;  /* the same as it travelled */
  uint64_t known_bytes; /* not sent: the receiver had them */
  uint64_t num_chunks[SNUG_WIRE_NUM_MODES];
  double goodput[SNUG_WIRE_NUM_MODES]; /* estimates of the controller, bytes a second */
} snug_wire_stats;

/* One piece of a message. Pieces follow each other; they may lie anywhere. */
typedef struct snug_wire_segment {
  void* data;
  size_t num_bytes;
} snug_wire_segment;

/* HOST:PORT, [IPV6]:PORT or shm:NAME; options NULL means the defaults. */
SNUG_API int snug_wire_connect(const char* address, const snug_wire_options* options,
                               snug_wire_connection** connection, snug_status* status);
SNUG_API int snug_wire_listen(const char* address, const snug_wire_options* options,
                              snug_wire_listener** listener, snug_status* status);
/* The address with the port that was taken; returns its length, like snprintf. */
SNUG_API size_t snug_wire_listener_address(const snug_wire_listener* listener, char* buffer,
                                           size_t buffer_bytes);
/* SNUG_TIMEOUT if nobody has connected by then. */
SNUG_API int snug_wire_accept(snug_wire_listener* listener, int64_t patience_ms,
                              snug_wire_connection** connection, snug_status* status);

/* A message meets the receive of the same tag. Segments of more than 8 TiB
 * together are refused with SNUG_USAGE. */
SNUG_API int snug_wire_send(snug_wire_connection* connection, uint64_t tag, int dtype,
                            const snug_wire_segment* segments, size_t num_segments,
                            snug_wire_transfer** transfer, snug_status* status);
SNUG_API int snug_wire_recv(snug_wire_connection* connection, uint64_t tag,
                            const snug_wire_segment* segments, size_t num_segments,
                            snug_wire_transfer** transfer, snug_status* status);
/* SNUG_OK when all bytes are in their place and verified; SNUG_TIMEOUT if it is
 * still on its way after patience_ms (negative: as long as it takes). */
SNUG_API int snug_wire_wait(const snug_wire_transfer* transfer, int64_t patience_ms,
                            snug_status* status);
SNUG_API int snug_wire_is_done(const snug_wire_transfer* transfer);
SNUG_API uint64_t snug_wire_done_bytes(const snug_wire_transfer* transfer);

/* Short texts beside the tensors, at most 1 MiB. At most 64 may wait to be read:
 * one more ends the connection. recv_note writes at most buffer_bytes; one that is
 * longer stays for the next call, SNUG_DST_TOO_SMALL and its size in *num_bytes. */
SNUG_API int snug_wire_send_note(snug_wire_connection* connection, const void* note,
                                 size_t num_bytes, snug_status* status);
SNUG_API int snug_wire_recv_note(snug_wire_connection* connection, int64_t patience_ms,
                                 void* buffer, size_t buffer_bytes, size_t* num_bytes,
                                 snug_status* status);

SNUG_API void snug_wire_stats_of(const snug_wire_connection* connection, snug_wire_stats* stats);

/* Freeing a connection closes it: transfers that are not done fail. A transfer
 * may be freed at any time; that does not stop it. NULL is fine everywhere. */
SNUG_API void snug_wire_connection_free(snug_wire_connection* connection);
SNUG_API void snug_wire_listener_free(snug_wire_listener* listener);
SNUG_API void snug_wire_transfer_free(snug_wire_transfer* transfer);

#ifdef __cplusplus
}
#endif

#endif /* SNUG_SNUG_WIRE_H_ */
