// nccl/profiler_abi.h - the part of NCCL's profiler plugin interface, version 5, that Snug speaks.
//
// NCCL 2.28 and later look for ncclProfiler_v5 in the library of the network plugin if
// NCCL_PROFILER_PLUGIN names no other. Field order and types are that binary interface.
#pragma once
#include <cstddef>
#include <cstdint>

#include "nccl/net_abi.h"

extern "C" {

// Bits of the mask in which a profiler says what it wants to hear of.
enum : std::uint64_t {
  ncclProfileCollApi = 1 << 9,
  ncclProfileP2pApi = 1 << 10,
  ncclProfileKernelLaunch = 1 << 11
};

typedef struct {
  std::uint64_t type;
  void* parentObj;
  int rank;
  union {
    struct {
      const char* func;
      std::size_t count;
      const char* datatype;
      int root;
      void* stream;
      bool graphCaptured;
    } collApi;
    struct {
      const char* func;
      std::size_t count;
      const char* datatype;
      void* stream;
      bool graphCaptured;
    } p2pApi;
    struct {
      void* stream;
    } kernelLaunch;
    char room[128];  // events that Snug does not ask for are larger
  };
} ncclProfilerEventDescr_v5_t;

typedef struct {
  const char* name;
  ncclResult_t (*init)(void** context, std::uint64_t commId, int* eActivationMask,
                       const char* commName, int nNodes, int nranks, int rank,
                       ncclDebugLogger_t logfn);
  ncclResult_t (*startEvent)(void* context, void** eHandle, ncclProfilerEventDescr_v5_t* eDescr);
  ncclResult_t (*stopEvent)(void* eHandle);
  ncclResult_t (*recordEventState)(void* eHandle, int eState, void* eStateArgs);
  ncclResult_t (*finalize)(void* context);
} ncclProfiler_v5_t;

}  // extern "C"
