// The C ABI of snug/gpu_load.h.
#include "capi/gpu_convert.h"
#include "capi/store_objects.h"
#include "snug/gpu_load.h"

using snug::capi::deref;

struct snug_cuda_loader {
  snug::cuda::Loader loader;
};

int snug_cuda_loader_open(int num_threads, uint64_t piece_bytes, snug_cuda_loader** loader,
                          snug_status* status) {
  return snug::capi::create(status, loader, [&] {
    snug::cuda::LoadOptions options;
    options.num_threads = num_threads;
    if (piece_bytes != 0) options.piece_bytes = piece_bytes;
    return snug::cuda::Loader::open(options);
  });
}

void snug_cuda_loader_free(snug_cuda_loader* loader) { delete loader; }

int snug_cuda_loader_load(snug_cuda_loader* loader, const snug_reader* reader,
                          const snug_load_target* targets, size_t num_targets, void* stream,
                          snug_status* status) {
  return snug::capi::call(status, [&] {
    return deref(loader).loader.load(deref(reader).reader, snug::capi::to_cpp(targets, num_targets),
                                     snug::capi::cpp(stream));
  });
}
