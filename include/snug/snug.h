/* snug/snug.h - the C ABI: the same power as snug/codec.h, for every language.
 *
 * Memory:  the caller owns every buffer. Calls allocate scratch memory of
 *          snug_workspace_bytes() per thread, except the *_in variants, which
 *          use the caller's.
 * Threads: all functions are reentrant.
 * Trust:   a frame may be hostile; no access ever leaves the buffers given.
 * Errors:  functions return SNUG_OK or a code that never changes its number,
 *          and fill `status` (which may be NULL) with what is wrong and where.
 *          Results are written only on success.
 * ABI:     numbers, struct layouts and functions stay as they are within one
 *          major version; new functions may be added.
 */
#ifndef SNUG_SNUG_H_
#define SNUG_SNUG_H_

#include <stddef.h>
#include <stdint.h>

#define SNUG_VERSION_MAJOR 0
#define SNUG_VERSION_MINOR 1
#define SNUG_VERSION_PATCH 0
#define SNUG_VERSION_STRING "0.1.0"

#if defined(__GNUC__)
#define SNUG_API __attribute__((visibility("default")))
#else
#define SNUG_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum snug_code {
  SNUG_OK = 0,
  SNUG_USAGE = 2,               /* an argument is not acceptable */
  SNUG_BAD_MAGIC = 3,           /* not a Snug frame */
  SNUG_UNSUPPORTED_VERSION = 4, /* written by a newer Snug */
  SNUG_CORRUPT = 5,             /* damaged or hostile input */
  SNUG_DST_TOO_SMALL = 6,       /* the buffer cannot hold the result */
  SNUG_IO = 7,                  /* the operating system refused a read or write */
  SNUG_EXISTS = 8,              /* refusing to overwrite */
  SNUG_NOT_FOUND = 9,           /* no such tensor, file or shard */
  SNUG_INTERNAL = 10,           /* a defect in Snug: please report it */
  SNUG_NO_DEVICE = 11,          /* no usable GPU, or the GPU reported an error */
  SNUG_TIMEOUT = 12,            /* the other side took longer than allowed */
  SNUG_PEER = 13,               /* the other side refused, went away or broke the protocol */
  SNUG_WRONG_BASE = 14          /* an update was made for another version of the data */
};

/* Signed and unsigned integers share one entry; block scales (E8M0) are bytes. */
enum snug_dtype {
  SNUG_BYTES = 0,
  SNUG_BF16 = 1,
  SNUG_F16 = 2,
  SNUG_F32 = 3,
  SNUG_F64 = 4,
  SNUG_F8_E4M3 = 5,
  SNUG_F8_E5M2 = 6,
  SNUG_F4 = 7, /* two values a byte; an "element" is that byte */
  SNUG_I8 = 8,
  SNUG_I16 = 9,
  SNUG_I32 = 10,
  SNUG_I64 = 11,
  SNUG_BOOL = 12
};

enum snug_codec {
  SNUG_RAW = 0,
  SNUG_CONSTANT = 1,
  SNUG_FIXED = 2,  /* 12 bits a BF16 value */
  SNUG_ENTROPY = 3 /* about 10.6 bits a BF16 value */
};
#define SNUG_NUM_CODECS 4

/* Stands in snug_status for "does not apply". */
#define SNUG_NOWHERE UINT64_MAX

typedef struct snug_status {
  int32_t code;     /* enum snug_code */
  int32_t reserved; /* 0 */
  const char* what; /* static text, never NULL */
  uint64_t block;   /* block of the frame */
  uint64_t byte;    /* offset from the start of the frame */
  uint64_t found;
  uint64_t expected;
} snug_status;

/* Start from SNUG_ENCODE_OPTIONS_INIT, the defaults, and change what you need. */
typedef struct snug_encode_options {
  int32_t dtype;       /* enum snug_dtype */
  int32_t codec;       /* enum snug_codec: what to try; raw where it does not help */
  int32_t log2_block;  /* elements of a block: 12 to 17, or 0 for the best for files */
  int32_t num_threads; /* 0: one per CPU */
} snug_encode_options;
#define SNUG_ENCODE_OPTIONS_INIT \
  { SNUG_BF16, SNUG_ENTROPY, 0, 1 }

typedef struct snug_frame_info {
  int32_t dtype;        /* enum snug_dtype */
  uint32_t block_elems; /* elements in every block but the last */
  uint64_t raw_bytes;   /* size after decoding */
  uint64_t frame_bytes; /* size of the whole frame */
  uint64_t num_elems;   /* whole elements in raw_bytes */
  uint64_t num_blocks;
} snug_frame_info;

typedef struct snug_frame_stats {
  uint64_t num_blocks[SNUG_NUM_CODECS]; /* by enum snug_codec */
  uint64_t num_bytes[SNUG_NUM_CODECS];  /* payload bytes */
} snug_frame_stats;

/* Largest frame snug_encode can produce; options NULL means the defaults.
 * 0 if the options or the size are not acceptable. */
SNUG_API size_t snug_encode_bound(size_t raw_bytes, const snug_encode_options* options);

/* Scratch memory that one thread of encode or decode needs. */
SNUG_API size_t snug_workspace_bytes(void);

/* Writes one self-contained frame of raw[0..raw_bytes) into dst. Never fails
 * with SNUG_DST_TOO_SMALL if dst_bytes >= snug_encode_bound(raw_bytes, options).
 * Equal input and options give equal frames everywhere. Any size goes: bytes
 * beyond the last whole element are kept too. */
SNUG_API int snug_encode(const void* raw, size_t raw_bytes, void* dst, size_t dst_bytes,
                         const snug_encode_options* options, size_t* frame_bytes,
                         snug_status* status);

/* The same on the calling thread alone, without allocating. */
SNUG_API int snug_encode_in(const void* raw, size_t raw_bytes, void* dst, size_t dst_bytes,
                            const snug_encode_options* options, void* workspace,
                            size_t workspace_bytes, size_t* frame_bytes, snug_status* status);

/* Reads and checks the header only; `frame` may be just its first 64 bytes.
 * Sizes are claims until snug_decode succeeds: check them against your own
 * limit before allocating. */
SNUG_API int snug_inspect(const void* frame, size_t frame_bytes, snug_frame_info* info,
                          snug_status* status);

/* Restores the exact bytes given to snug_encode, on num_threads threads (0: one
 * per CPU). On error, dst is unspecified. raw_bytes may be NULL. */
SNUG_API int snug_decode(const void* frame, size_t frame_bytes, void* dst, size_t dst_bytes,
                         int num_threads, size_t* raw_bytes, snug_status* status);

/* The same on the calling thread alone, without allocating. */
SNUG_API int snug_decode_in(const void* frame, size_t frame_bytes, void* dst, size_t dst_bytes,
                            void* workspace, size_t workspace_bytes, size_t* raw_bytes,
                            snug_status* status);

/* Restores elements [first, first + count), reading only the blocks that hold
 * them. *written (may be NULL) becomes count times the bytes of an element. */
SNUG_API int snug_decode_range(const void* frame, size_t frame_bytes, uint64_t first,
                               uint64_t count, void* dst, size_t dst_bytes, size_t* written,
                               snug_status* status);

/* Checks structure and every checksum without decoding. */
SNUG_API int snug_verify(const void* frame, size_t frame_bytes, snug_status* status);

/* Blocks and payload bytes of each codec in a frame. */
SNUG_API int snug_frame_stats_of(const void* frame, size_t frame_bytes, snug_frame_stats* stats,
                                 snug_status* status);

/* One line of text, e.g. "corrupt: block 17, byte 81920: checksum does not
 * match, found 7, expected 9". Writes at most buffer_bytes, terminating zero
 * included, and returns the length of the whole line, like snprintf. */
SNUG_API size_t snug_status_text(const snug_status* status, char* buffer, size_t buffer_bytes);

/* Static text; "unknown" for numbers that mean nothing. */
SNUG_API const char* snug_code_name(int code);   /* "corrupt" */
SNUG_API const char* snug_dtype_name(int dtype); /* "bf16" */
SNUG_API const char* snug_codec_name(int codec); /* "entropy" */

/* Bytes of one element; 0 for a number that is no dtype. */
SNUG_API size_t snug_elem_bytes(int dtype);

/* The instruction set in use ("scalar", "avx2", "avx512", "neon", ...); the
 * environment variable SNUG_FORCE chooses another one. */
SNUG_API const char* snug_simd_target(void);

/* Those this CPU can run, best first; NULL once idx is past the last. */
SNUG_API const char* snug_simd_target_at(size_t idx);

/* The version of the library that is linked, e.g. "0.1.0". */
SNUG_API const char* snug_version(void);

/* ---- deltas: what changed between two versions of a tensor ------------- */

/* Start from SNUG_DELTA_OPTIONS_INIT, the defaults, and change what you need. */
typedef struct snug_delta_options {
  int32_t dtype;       /* enum snug_dtype */
  int32_t log2_block;  /* elements of a block: 12 to 16, or 0 for the best for files */
  int32_t allow_frame; /* not 0: hold a whole frame where that is smaller */
  int32_t num_threads; /* 0: one per CPU */
} snug_delta_options;
#define SNUG_DELTA_OPTIONS_INIT \
  { SNUG_BF16, 0, 1, 1 }

typedef struct snug_delta_info {
  int32_t dtype;      /* enum snug_dtype */
  int32_t needs_base; /* 0: a full copy, for any base */
  uint64_t raw_bytes;
  uint64_t delta_bytes;
  uint64_t num_changed;
  uint64_t base_hash;
  uint64_t target_hash;
  uint64_t num_blocks;
  uint32_t block_elems;
  uint32_t reserved; /* 0 */
} snug_delta_info;

/* The name of a version of a tensor. */
SNUG_API uint64_t snug_tensor_hash(const void* tensor, size_t num_bytes, int num_threads);

/* Largest delta; options NULL means the defaults. 0 if options or size are not acceptable. */
SNUG_API size_t snug_delta_bound(size_t raw_bytes, const snug_delta_options* options);

/* Writes the delta from base to next, both of raw_bytes, into dst. A base of NULL makes a
 * full copy that applies to any base. */
SNUG_API int snug_delta_encode(const void* base, const void* next, size_t raw_bytes, void* dst,
                               size_t dst_bytes, const snug_delta_options* options,
                               size_t* delta_bytes, snug_status* status);

/* Reads and checks the header only; `delta` may be just its first 64 bytes. */
SNUG_API int snug_delta_inspect(const void* delta, size_t delta_bytes, snug_delta_info* info,
                                snug_status* status);

/* Writes the target to dst. On error, dst is unspecified. raw_bytes may be NULL. */
SNUG_API int snug_delta_apply(const void* delta, size_t delta_bytes, const void* base,
                              size_t base_bytes, void* dst, size_t dst_bytes, int num_threads,
                              size_t* raw_bytes, snug_status* status);

/* Turns `tensor` from base to target: all of it or none of it. */
SNUG_API int snug_delta_apply_in_place(const void* delta, size_t delta_bytes, void* tensor,
                                       size_t tensor_bytes, int num_threads, snug_status* status);

/* Writes the delta from the target back to base. */
SNUG_API int snug_delta_invert(const void* delta, size_t delta_bytes, const void* base,
                               size_t base_bytes, void* dst, size_t dst_bytes, int num_threads,
                               size_t* inverse_bytes, snug_status* status);

/* ---- packing matrices on the CPU, for linear layers on a GPU ----------- */

#define SNUG_GEMM_HEADER_BYTES 256
#define SNUG_GEMM_ALIGN 256 /* of packed matrices and workspaces */

enum snug_gemm_kind {
  SNUG_GEMM_RAW = 0,  /* 16 bits a weight, in the order of FIXED: its twin for tests */
  SNUG_GEMM_FIXED = 1 /* about 12.07 bits a weight; lossless, not quantised */
};

typedef struct snug_gemm_matrix {
  const void* data;
  uint64_t num_bytes; /* what is used of the buffer */
  uint64_t n, k;
  uint64_t num_escaped; /* weights outside their strip's palette */
  int32_t kind;         /* enum snug_gemm_kind */
  int32_t reserved;     /* 0 */
} snug_gemm_matrix;

/* Room that packing may need; 0 if n or k is 0 or too large. */
SNUG_API size_t snug_gemm_packed_bound(uint64_t n, uint64_t k, int kind);

/* Packs w[n][k], rows ld apart, and back. */
SNUG_API int snug_gemm_pack_host(const void* w, uint64_t ld, uint64_t n, uint64_t k, int kind,
                                 void* dst, size_t dst_bytes, size_t* used_bytes,
                                 snug_status* status);
SNUG_API int snug_gemm_unpack_host(const void* packed, size_t packed_bytes, void* w, uint64_t ld,
                                   snug_status* status);

/* Reads and checks the first SNUG_GEMM_HEADER_BYTES of a packed matrix of num_bytes;
 * matrix->data is left NULL. */
SNUG_API int snug_gemm_inspect(const void* host_header, size_t header_bytes, uint64_t num_bytes,
                               snug_gemm_matrix* matrix, snug_status* status);

/* ---- wire: tensors from process to process ----------------------------- */

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

#endif /* SNUG_SNUG_H_ */
