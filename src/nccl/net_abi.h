// nccl/net_abi.h - the part of NCCL's network plugin interface that Snug speaks.
//
// NCCL looks for tables named ncclNetPlugin_v8 ... _v12 and takes the newest it
// knows (2.19-2.22: v8, 2.23-2.25: v9, 2.26: v10, 2.27-2.29: v11, 2.30: v12).
// Field order and types below are that binary interface, which tests/nccl check.
// Names follow NCCL's so that the two can be compared side by side.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6
} ncclResult_t;

typedef enum {
  NCCL_LOG_NONE = 0,
  NCCL_LOG_VERSION,
  NCCL_LOG_WARN,
  NCCL_LOG_INFO,
  NCCL_LOG_ABORT,
  NCCL_LOG_TRACE
} ncclDebugLogLevel;
typedef void (*ncclDebugLogger_t)(ncclDebugLogLevel level, unsigned long flags, const char* file,
                                  int line, const char* format, ...);
typedef ncclResult_t (*ncclProfilerCallback_t)(void** event, int type, void* handle,
                                               std::int64_t plugin, void* data);

typedef struct ncclNetDeviceHandle
    ncclNetDeviceHandle_t;  // device offload, which Snug does not have

enum { NCCL_PTR_HOST = 1, NCCL_PTR_CUDA = 2, NCCL_PTR_DMABUF = 4 };
enum { NCCL_NET_DEVICE_HOST = 0 };
enum { NCCL_NET_HANDLE_MAXSIZE = 128, NCCL_NET_MAX_REQUESTS = 32, NCCL_NET_MAX_RECVS = 8 };
enum { NCCL_NET_LOG_SUBSYS = 16 };  // NCCL_NET in NCCL_DEBUG_SUBSYS

typedef struct {
  int ndevs;
  int devs[4];
} ncclNetVDeviceProps_v9_t;

typedef struct {
  int ndevs;
  int devs[8];
} ncclNetVDeviceProps_v12_t;

// What the versions of the properties share.
#define SNUG_NCCL_COMMON_NAME \
  char* name;                 \
  char* pciPath;              \
  std::uint64_t guid;         \
  int ptrSupport;             \
  int regIsGlobal
#define SNUG_NCCL_COMMON_LIMITS \
  int speed; /* Mbit/s */       \
  int port;                     \
  float latency;                \
  int maxComms;                 \
  int maxRecvs;                 \
  int netDeviceType;            \
  int netDeviceVersion

typedef struct {
  SNUG_NCCL_COMMON_NAME;
  SNUG_NCCL_COMMON_LIMITS;
} ncclNetProperties_v8_t;

typedef struct {
  SNUG_NCCL_COMMON_NAME;
  int forceFlush;
  SNUG_NCCL_COMMON_LIMITS;
  ncclNetVDeviceProps_v9_t vProps;
  std::size_t maxP2pBytes, maxCollBytes;
} ncclNetProperties_v9_t;
typedef ncclNetProperties_v9_t ncclNetProperties_v10_t;

typedef struct {
  SNUG_NCCL_COMMON_NAME;
  int forceFlush;
  SNUG_NCCL_COMMON_LIMITS;
  ncclNetVDeviceProps_v9_t vProps;
  std::size_t maxP2pBytes, maxCollBytes;
  int maxMultiRequestSize;
} ncclNetProperties_v11_t;

typedef struct {
  SNUG_NCCL_COMMON_NAME;
  int forceFlush;
  SNUG_NCCL_COMMON_LIMITS;
  ncclNetVDeviceProps_v12_t vProps;
  std::size_t maxP2pBytes, maxCollBytes;
  int maxMultiRequestSize;
  std::int16_t railId, planeId;
} ncclNetProperties_v12_t;

typedef struct {
  int trafficClass;
} ncclNetCommConfig_t;

typedef struct ncclNetAttr ncclNetAttr_t;  // hints about the collective; unused

// What the tables share: the end of a connection's life.
#define SNUG_NCCL_COMMON_TAIL                                                         \
  ncclResult_t (*iflush)(void* comm, int n, void** data, int* sizes, void** mhandles, \
                         void** request);                                             \
  ncclResult_t (*test)(void* request, int* done, int* sizes);                         \
  ncclResult_t (*closeSend)(void* comm);                                              \
  ncclResult_t (*closeRecv)(void* comm);                                              \
  ncclResult_t (*closeListen)(void* comm);                                            \
  ncclResult_t (*getDeviceMr)(void* comm, void* mhandle, void** device_mhandle);      \
  ncclResult_t (*irecvConsumed)(void* comm, int n, void* request)

#define SNUG_NCCL_COMMON_MEMORY                                                                \
  ncclResult_t (*accept)(void* listen_comm, void** comm, ncclNetDeviceHandle_t** device_comm); \
  ncclResult_t (*regMr)(void* comm, void* data, std::size_t size, int type, void** mhandle);   \
  ncclResult_t (*regMrDmaBuf)(void* comm, void* data, std::size_t size, int type,              \
                              std::uint64_t offset, int fd, void** mhandle);                   \
  ncclResult_t (*deregMr)(void* comm, void* mhandle)

typedef struct {
  const char* name;
  ncclResult_t (*init)(ncclDebugLogger_t log);
  ncclResult_t (*devices)(int* num_devices);
  ncclResult_t (*getProperties)(int device, ncclNetProperties_v8_t* properties);
  ncclResult_t (*listen)(int device, void* handle, void** listen_comm);
  ncclResult_t (*connect)(int device, void* handle, void** comm,
                          ncclNetDeviceHandle_t** device_comm);
  SNUG_NCCL_COMMON_MEMORY;
  ncclResult_t (*isend)(void* comm, void* data, int size, int tag, void* mhandle, void** request);
  ncclResult_t (*irecv)(void* comm, int n, void** data, int* sizes, int* tags, void** mhandles,
                        void** request);
  SNUG_NCCL_COMMON_TAIL;
} ncclNet_v8_t;

typedef struct {
  const char* name;
  ncclResult_t (*init)(ncclDebugLogger_t log);
  ncclResult_t (*devices)(int* num_devices);
  ncclResult_t (*getProperties)(int device, ncclNetProperties_v9_t* properties);
  ncclResult_t (*listen)(int device, void* handle, void** listen_comm);
  ncclResult_t (*connect)(int device, void* handle, void** comm,
                          ncclNetDeviceHandle_t** device_comm);
  SNUG_NCCL_COMMON_MEMORY;
  ncclResult_t (*isend)(void* comm, void* data, std::size_t size, int tag, void* mhandle,
                        void** request);
  ncclResult_t (*irecv)(void* comm, int n, void** data, std::size_t* sizes, int* tags,
                        void** mhandles, void** request);
  SNUG_NCCL_COMMON_TAIL;
  ncclResult_t (*makeVDevice)(int* device, ncclNetVDeviceProps_v9_t* properties);
} ncclNet_v9_t;

typedef struct {
  const char* name;
  ncclResult_t (*init)(ncclDebugLogger_t log, ncclProfilerCallback_t profiler);
  ncclResult_t (*devices)(int* num_devices);
  ncclResult_t (*getProperties)(int device, ncclNetProperties_v10_t* properties);
  ncclResult_t (*listen)(int device, void* handle, void** listen_comm);
  ncclResult_t (*connect)(int device, ncclNetCommConfig_t* config, void* handle, void** comm,
                          ncclNetDeviceHandle_t** device_comm);
  SNUG_NCCL_COMMON_MEMORY;
  ncclResult_t (*isend)(void* comm, void* data, std::size_t size, int tag, void* mhandle,
                        void* phandle, void** request);
  ncclResult_t (*irecv)(void* comm, int n, void** data, std::size_t* sizes, int* tags,
                        void** mhandles, void** phandles, void** request);
  SNUG_NCCL_COMMON_TAIL;
  ncclResult_t (*makeVDevice)(int* device, ncclNetVDeviceProps_v9_t* properties);
} ncclNet_v10_t;

#define SNUG_NCCL_PER_COMM_TABLE(version, vdevice_version)                                   \
  typedef struct {                                                                           \
    const char* name;                                                                        \
    ncclResult_t (*init)(void** context, std::uint64_t comm_id, ncclNetCommConfig_t* config, \
                         ncclDebugLogger_t log, ncclProfilerCallback_t profiler);            \
    ncclResult_t (*devices)(int* num_devices);                                               \
    ncclResult_t (*getProperties)(int device, ncclNetProperties_v##version##_t* properties); \
    ncclResult_t (*listen)(void* context, int device, void* handle, void** listen_comm);     \
    ncclResult_t (*connect)(void* context, int device, void* handle, void** comm,            \
                            ncclNetDeviceHandle_t** device_comm);                            \
    SNUG_NCCL_COMMON_MEMORY;                                                                 \
    ncclResult_t (*isend)(void* comm, void* data, std::size_t size, int tag, void* mhandle,  \
                          void* phandle, void** request);                                    \
    ncclResult_t (*irecv)(void* comm, int n, void** data, std::size_t* sizes, int* tags,     \
                          void** mhandles, void** phandles, void** request);                 \
    SNUG_NCCL_COMMON_TAIL;                                                                   \
    ncclResult_t (*makeVDevice)(int* device,                                                 \
                                ncclNetVDeviceProps_v##vdevice_version##_t* properties);     \
    ncclResult_t (*finalize)(void* context);                                                 \
    ncclResult_t (*setNetAttr)(void* context, ncclNetAttr_t* attributes);                    \
  } ncclNet_v##version##_t
SNUG_NCCL_PER_COMM_TABLE(11, 9);
SNUG_NCCL_PER_COMM_TABLE(12, 12);

}  // extern "C"

namespace snug::nccl {

// Between two versions: the fields that all of them have; the others become zero.
template <class From, class To>
void copy_common_properties(const From& from, To& to) {
  to = {};
  to.name = from.name;
  to.pciPath = from.pciPath;
  to.guid = from.guid;
  to.ptrSupport = from.ptrSupport;
  to.regIsGlobal = from.regIsGlobal;
  to.speed = from.speed;
  to.port = from.port;
  to.latency = from.latency;
  to.maxComms = from.maxComms;
  to.maxRecvs = from.maxRecvs;
  to.netDeviceType = from.netDeviceType;
  to.netDeviceVersion = from.netDeviceVersion;
}

}  // namespace snug::nccl
