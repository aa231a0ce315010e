// snug_link_open with a link that is held back to SNUG_BENCH_GBITS Gbit/s, for benchmarks of what
// is above the C ABI. libsnug_c_paced.so is libsnug_c.so with this function in place of its own.
#include <chrono>
#include <cstdlib>

#include "capi/gpu_convert.h"
#include "capi/wire_objects.h"
#include "gpu_link/cuda/link.h"
#include "support/paced_engine.h"

struct snug_link {  // as in gpu_link_capi.cpp, whose other functions take it
  snug::cuda::Link link;
};

int snug_link_open(snug_wire_connection* connection, int mode, int64_t timeout_ms, snug_link** link,
                   snug_status* status) {
  const char* const gbits = std::getenv("SNUG_BENCH_GBITS");
  const double bytes_per_second = (gbits == nullptr ? 0 : std::atof(gbits)) * 1e9 / 8;
  return snug::capi::create(status, link, [&] {
    return snug::cuda::open_link(snug::capi::deref(connection).connection,
                                 snug::capi::to_mode(mode), std::chrono::milliseconds(timeout_ms),
                                 [=](std::unique_ptr<snug::gpu_link::SendEngine> engine) {
                                   return std::make_unique<snug::bench::PacedEngine>(
                                       std::move(engine), bytes_per_second);
                                 });
  });
}
