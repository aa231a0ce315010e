/* snug/snug.h - the C ABI of everything that runs on a CPU: codec, deltas, checkpoints, wire.
 *
 * The C++ headers (codec.h, delta.h, store.h, wire.h) have the same functions and say more.
 * Errors:  a function that can fail returns SNUG_OK or another value of enum snug_code. It also
 *          fills `status` unless that is NULL. Results are written only on success, and only
 *          where their pointers are not NULL.
 * Sizes:   a function whose name ends in _bytes returns a number of bytes: what a buffer must
 *          hold, or 0 if the arguments are not acceptable.
 * Memory:  the caller owns every buffer. Options may be NULL: that means the defaults. What a
 *          function writes to must not overlap anything else that it is given.
 * Objects: live until their _free function is called. It accepts NULL.
 * Threads: all functions are reentrant.
 * Trust:   frames, deltas, files and peers may be hostile; no access leaves the buffers given.
 * ABI:     within one major version, functions may be added; nothing else changes.
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

/* ---- errors, types, versions ------------------------------------------- */

enum snug_code {
  SNUG_OK = 0,
  SNUG_USAGE = 2,               /* an argument is not acceptable */
  SNUG_BAD_MAGIC = 3,           /* not a Snug frame or file */
  SNUG_UNSUPPORTED_VERSION = 4, /* written by a newer Snug */
  SNUG_CORRUPT = 5,             /* damaged or hostile input */
  SNUG_DST_TOO_SMALL = 6,       /* the buffer cannot hold the result */
  SNUG_IO = 7,                  /* the operating system refused a read or write */
  SNUG_EXISTS = 8,              /* refusing to overwrite */
  SNUG_NOT_FOUND = 9,           /* no such tensor, file or shard */
  SNUG_INTERNAL = 10,           /* a defect in Snug: please report it */
  SNUG_NO_DEVICE = 11,          /* no usable GPU, or the GPU reported an error */
  SNUG_TIMEOUT = 12,            /* the peer took longer than allowed */
  SNUG_PEER = 13,               /* the peer refused, disconnected or broke the protocol */
  SNUG_WRONG_BASE = 14          /* an update was made for another version of the data */
};

/* Signed and unsigned integers share one entry; block scales (E8M0) are bytes. */
/* clang-format off */
enum snug_dtype {
  SNUG_BYTES = 0, SNUG_BF16 = 1, SNUG_F16 = 2, SNUG_F32 = 3, SNUG_F64 = 4,
  SNUG_F8_E4M3 = 5, SNUG_F8_E5M2 = 6, SNUG_F4 = 7, /* F4: an "element" is a byte of two values */
  SNUG_I8 = 8, SNUG_I16 = 9, SNUG_I32 = 10, SNUG_I64 = 11, SNUG_BOOL = 12
};
enum snug_codec { /* bits of a BF16 value: 12 with FIXED, about 10.6 with ENTROPY */
  SNUG_RAW = 0, SNUG_CONSTANT = 1, SNUG_FIXED = 2, SNUG_ENTROPY = 3
};
/* clang-format on */
#define SNUG_NUM_CODECS 4
#define SNUG_NOWHERE UINT64_MAX /* a place or number that does not apply */
typedef struct snug_status {
  int32_t code;     /* enum snug_code */
  int32_t reserved; /* 0 */
  const char* what; /* static text, never NULL */
  uint64_t block;   /* block of the frame */
  uint64_t byte;    /* offset from the start of the frame or file */
  uint64_t found, expected;
  char line[464]; /* the whole message where it names a file or a tensor, else empty */
} snug_status;

/* The message as one line, e.g. "corrupt: block 17, byte 81920: checksum does not match". Cuts it
 * to buffer_bytes and returns the length of the whole line, like snprintf. */
SNUG_API size_t snug_status_text(const snug_status* status, char* buffer, size_t buffer_bytes);

/* Static text; "unknown" for a number that is not in the enum. */
SNUG_API const char* snug_code_name(int code);   /* "corrupt" */
SNUG_API const char* snug_dtype_name(int dtype); /* "bf16" */
SNUG_API const char* snug_codec_name(int codec); /* "entropy" */
SNUG_API size_t snug_elem_bytes(int dtype);

/* The library's version; the size of a struct by name, for bindings to compare with their own. */
SNUG_API const char* snug_version(void);
SNUG_API size_t snug_struct_bytes(const char* name);

/* The instruction set in use (SNUG_FORCE selects one), and what this CPU has, best first. */
SNUG_API const char* snug_simd_target(void);
SNUG_API const char* snug_simd_target_at(size_t idx);

/* ---- codec: one tensor in memory (snug/codec.h) ------------------------ */

typedef struct snug_encode_options {
  int32_t dtype;       /* enum snug_dtype */
  int32_t codec;       /* enum snug_codec: blocks that it does not make smaller are stored raw */
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

/* The largest frame of a tensor of raw_bytes. */
SNUG_API size_t snug_encode_bound_bytes(size_t raw_bytes, const snug_encode_options* options);

/* Writes one self-contained frame. Equal input and options give equal frames on CPU and GPU. */
SNUG_API int snug_encode(const void* raw, size_t raw_bytes, void* dst, size_t dst_bytes,
                         const snug_encode_options* options, size_t* frame_bytes,
                         snug_status* status);

/* Restores the exact bytes; num_threads 0: one per CPU. On error, dst is unspecified. */
SNUG_API int snug_decode(const void* frame, size_t frame_bytes, void* dst, size_t dst_bytes,
                         int num_threads, size_t* raw_bytes, snug_status* status);

/* Reads and checks the header only, the first 64 bytes. Sizes are claims until snug_decode
 * succeeds: check them against your own limit before you allocate. */
SNUG_API int snug_inspect(const void* frame, size_t frame_bytes, snug_frame_info* info,
                          snug_status* status);

/* Checks structure and every checksum without decoding. */
SNUG_API int snug_verify(const void* frame, size_t frame_bytes, snug_status* status);

/* Restores elements [first, first + count); reads only the blocks that hold them. */
SNUG_API int snug_decode_range(const void* frame, size_t frame_bytes, uint64_t first,
                               uint64_t count, void* dst, size_t dst_bytes, size_t* written,
                               snug_status* status);
SNUG_API int snug_frame_stats_of(const void* frame, size_t frame_bytes, snug_frame_stats* stats,
                                 snug_status* status);

/* On the calling thread, in a workspace of snug_workspace_bytes instead of allocating one. */
SNUG_API size_t snug_workspace_bytes(void);
SNUG_API int snug_encode_in(const void* raw, size_t raw_bytes, void* dst, size_t dst_bytes,
                            const snug_encode_options* options, void* workspace,
                            size_t workspace_bytes, size_t* frame_bytes, snug_status* status);
SNUG_API int snug_decode_in(const void* frame, size_t frame_bytes, void* dst, size_t dst_bytes,
                            void* workspace, size_t workspace_bytes, size_t* raw_bytes,
                            snug_status* status);

/* ---- deltas: what changed between two versions of a tensor (snug/delta.h) ---- */

typedef struct snug_delta_options {
  int32_t dtype;       /* enum snug_dtype */
  int32_t log2_block;  /* elements of a block: 12 to 16, or 0 for the best for files */
  int32_t allow_frame; /* not 0: store a whole frame where that is smaller */
  int32_t num_threads; /* 0: one per CPU */
} snug_delta_options;
#define SNUG_DELTA_OPTIONS_INIT \
  { SNUG_BF16, 0, 1, 1 }

typedef struct snug_delta_info {
  int32_t dtype;      /* enum snug_dtype */
  int32_t needs_base; /* 0: a full copy, which applies to any base */
  uint64_t raw_bytes, delta_bytes;
  uint64_t num_changed;            /* elements that differ */
  uint64_t base_hash, target_hash; /* snug_tensor_hash of both versions */
  uint64_t num_blocks;
  uint32_t block_elems, reserved; /* reserved: 0 */
} snug_delta_info;

/* The largest delta between two tensors of raw_bytes. */
SNUG_API size_t snug_delta_bound_bytes(size_t raw_bytes, const snug_delta_options* options);

/* Writes the delta from base to next, both of raw_bytes. A NULL base makes a full copy. */
SNUG_API int snug_delta_encode(const void* base, const void* next, size_t raw_bytes, void* dst,
                               size_t dst_bytes, const snug_delta_options* options,
                               size_t* delta_bytes, snug_status* status);

/* Writes the target to dst. On error, dst is unspecified. */
SNUG_API int snug_delta_apply(const void* delta, size_t delta_bytes, const void* base,
                              size_t base_bytes, void* dst, size_t dst_bytes, int num_threads,
                              size_t* raw_bytes, snug_status* status);

/* Turns `tensor` from base to target: all of it or, on any error, none of it. */
SNUG_API int snug_delta_apply_in_place(const void* delta, size_t delta_bytes, void* tensor,
                                       size_t tensor_bytes, int num_threads, snug_status* status);

/* Reads and checks the header only, the first 64 bytes. */
SNUG_API int snug_delta_inspect(const void* delta, size_t delta_bytes, snug_delta_info* info,
                                snug_status* status);

/* Writes the delta from the target back to base. */
SNUG_API int snug_delta_invert(const void* delta, size_t delta_bytes, const void* base,
                               size_t base_bytes, void* dst, size_t dst_bytes, int num_threads,
                               size_t* inverse_bytes, snug_status* status);

/* Identifies a version of a tensor; the same on CPU and GPU. */
SNUG_API uint64_t snug_tensor_hash(const void* tensor, size_t num_bytes, int num_threads);

/* ---- checkpoints: safetensors files (snug/store.h) --------------------- */

typedef struct snug_reader snug_reader;
typedef struct snug_reader_info {
  uint64_t num_tensors;
  uint64_t num_metadata;            /* entries of __metadata__ */
  uint64_t raw_bytes, stored_bytes; /* sizes of the plain file and of this one */
  int32_t compressed;               /* 1: written by snug compress */
  int32_t reserved;                 /* 0 */
} snug_reader_info;

typedef struct snug_tensor_info { /* its pointers are valid as long as the reader */
  const char* name;               /* ends with a zero; name_bytes if it contains others */
  uint64_t name_bytes;
  const char* dtype_name; /* as the file spells it: "BF16", "F8_E4M3", ... */
  const uint64_t* shape;
  uint64_t num_dims;
  uint64_t raw_bytes, stored_bytes; /* equal in a plain file */
  uint64_t file_offset;             /* of the stored bytes */
  int32_t dtype;                    /* enum snug_dtype */
  int32_t reserved;                 /* 0 */
} snug_tensor_info;

typedef struct snug_metadata_info { /* likewise */
  const char *key, *value;
  uint64_t key_bytes, value_bytes;
} snug_metadata_info;

/* Opens a plain or compressed file and checks its header. One reader serves many threads. */
SNUG_API int snug_reader_open(const char* path, snug_reader** reader, snug_status* status);
SNUG_API void snug_reader_free(snug_reader* reader);
SNUG_API int snug_reader_inspect(const snug_reader* reader, snug_reader_info* info,
                                 snug_status* status);

/* Tensors are numbered in the order of their data. snug_reader_find looks one up by name. Each
 * tensor that was asked for takes some 200 bytes until the reader is freed. */
SNUG_API int snug_reader_tensor(const snug_reader* reader, size_t idx, snug_tensor_info* info,
                                snug_status* status);
SNUG_API int snug_reader_find(const snug_reader* reader, const char* name, size_t* idx,
                              snug_status* status);
SNUG_API int snug_reader_metadata(const snug_reader* reader, size_t idx, snug_metadata_info* info,
                                  snug_status* status);

/* Restores a tensor, its rows [first_row, last_row) along dimension 0, or dst_bytes bytes from
 * byte `first` on. Reads and checks only the blocks that hold them. */
SNUG_API int snug_reader_read(const snug_reader* reader, size_t idx, void* dst, size_t dst_bytes,
                              int num_threads, size_t* written, snug_status* status);
SNUG_API int snug_reader_read_rows(const snug_reader* reader, size_t idx, uint64_t first_row,
                                   uint64_t last_row, void* dst, size_t dst_bytes, int num_threads,
                                   size_t* written, snug_status* status);
SNUG_API int snug_reader_read_bytes(const snug_reader* reader, size_t idx, uint64_t first,
                                    void* dst, size_t dst_bytes, int num_threads,
                                    snug_status* status);

/* Compresses a file or model folder; verifies the output before it gets its name. force: not 0
 * replaces an existing one. Ends with SNUG_IO soon after *stop becomes nonzero (NULL: never). */
SNUG_API int snug_compress_file(const char* in, const char* out, int codec, int num_threads,
                                int force, const volatile int* stop, snug_status* status);

/* ---- wire: tensors from process to process (snug/wire.h) --------------- */

typedef struct snug_wire_listener snug_wire_listener;
typedef struct snug_wire_connection snug_wire_connection;
typedef struct snug_wire_transfer snug_wire_transfer;
/* clang-format off */
enum snug_wire_mode { /* AUTO: whichever is fastest on this link */
  SNUG_WIRE_RAW = 0, SNUG_WIRE_FIXED = 1, SNUG_WIRE_ENTROPY = 2, SNUG_WIRE_AUTO = 3
};
/* clang-format on */
#define SNUG_WIRE_NUM_MODES 3
typedef struct snug_wire_options {
  const char* token;    /* 16 to 4095 bytes; NULL: $SNUG_TOKEN, or this user's secret on loopback */
  int32_t mode;         /* enum snug_wire_mode */
  int32_t num_lanes;    /* parallel connections, 1 to 16; 0: two or four */
  uint64_t chunk_bytes; /* 64 KiB to 4 MiB, a multiple of 64 KiB */
  int64_t timeout_ms;   /* of silence, after which the peer counts as lost */
  int64_t insecure;     /* 1: no token, no encryption, any user */
} snug_wire_options;
#define SNUG_WIRE_OPTIONS_INIT \
  { NULL, SNUG_WIRE_AUTO, 0, 1048576, 30000, 0 }

typedef struct snug_wire_stats {
  uint64_t raw_bytes;   /* sent or received, before encoding */
  uint64_t wire_bytes;  /* the same, as transmitted */
  uint64_t known_bytes; /* not sent: the receiver had them */
  uint64_t num_chunks[SNUG_WIRE_NUM_MODES];
  double goodput[SNUG_WIRE_NUM_MODES]; /* the controller's estimates, bytes per second */
} snug_wire_stats;

/* One piece of a message or tensor; pieces follow each other. */
typedef struct snug_segment {
  void* data;
  uint64_t num_bytes;
} snug_segment;

/* address: HOST:PORT, [IPV6]:PORT or shm:NAME. Connecting ends with SNUG_IO soon after a thread or
 * signal handler makes *stop nonzero (NULL: never). SNUG_TIMEOUT: no peer in patience_ms. */
SNUG_API int snug_wire_connect(const char* address, const snug_wire_options* options,
                               const volatile int* stop, snug_wire_connection** connection,
                               snug_status* status);
SNUG_API int snug_wire_listen(const char* address, const snug_wire_options* options,
                              snug_wire_listener** listener, snug_status* status);
SNUG_API int snug_wire_accept(snug_wire_listener* listener, int64_t patience_ms,
                              snug_wire_connection** connection, snug_status* status);
/* With the port that was taken; returns the length of the text, like snprintf. */
SNUG_API size_t snug_wire_listener_address(const snug_wire_listener* listener, char* buffer,
                                           size_t buffer_bytes);

/* A message goes to the receive with the same tag. Segments, at most 8 TiB together, must stay
 * valid and untouched until the transfer is done. */
SNUG_API int snug_wire_send(snug_wire_connection* connection, uint64_t tag, int dtype,
                            const snug_segment* segments, size_t num_segments,
                            snug_wire_transfer** transfer, snug_status* status);
SNUG_API int snug_wire_recv(snug_wire_connection* connection, uint64_t tag,
                            const snug_segment* segments, size_t num_segments,
                            snug_wire_transfer** transfer, snug_status* status);
/* SNUG_OK: all bytes are in place, verified. SNUG_TIMEOUT: not after patience_ms (< 0: forever). */
SNUG_API int snug_wire_wait(const snug_wire_transfer* transfer, int64_t patience_ms,
                            snug_status* status);
SNUG_API int snug_wire_is_done(const snug_wire_transfer* transfer); /* 1: done or failed */
SNUG_API uint64_t snug_wire_done_bytes(const snug_wire_transfer* transfer);

/* Short texts of at most 1 MiB. The 65th that waits to be read ends the connection. One longer
 * than buffer_bytes stays for the next call: SNUG_DST_TOO_SMALL, its size in *num_bytes. */
SNUG_API int snug_wire_send_note(snug_wire_connection* connection, const void* note,
                                 size_t num_bytes, snug_status* status);
SNUG_API int snug_wire_recv_note(snug_wire_connection* connection, int64_t patience_ms,
                                 void* buffer, size_t buffer_bytes, size_t* num_bytes,
                                 snug_status* status);
SNUG_API int snug_wire_stats_of(const snug_wire_connection* connection, snug_wire_stats* stats,
                                snug_status* status);

/* Closing or freeing a connection fails what waits on it. Freeing a transfer does not stop it. */
SNUG_API void snug_wire_connection_close(snug_wire_connection* connection);
SNUG_API void snug_wire_connection_free(snug_wire_connection* connection);
SNUG_API void snug_wire_listener_free(snug_wire_listener* listener);
SNUG_API void snug_wire_transfer_free(snug_wire_transfer* transfer);

#ifdef __cplusplus
}
#endif

#endif /* SNUG_SNUG_H_ */
