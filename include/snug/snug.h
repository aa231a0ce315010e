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

#ifdef __cplusplus
}
#endif

#endif /* SNUG_SNUG_H_ */
