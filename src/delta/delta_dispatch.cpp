// Which kernel table runs: the one with the name of the codec's, else the best.
#include <cstring>

#include "codec/kernels.h"
#include "delta/delta_kernels.h"

namespace snug::delta {
namespace {

struct Tables {
  codec::TargetList<const Kernels*> all;
  const Kernels* chosen = &kScalarKernels;

  Tables() noexcept {
#if __has_include("hwy/highway.h")
    append_hwy_kernels(all);
#endif
    all.push_back(&kScalarKernels);
    const char* name = codec::kernels().name;
    for (const Kernels* table : all)
      if (std::strcmp(table->name, name) == 0) {
        chosen = table;
        return;
      }
    chosen = all.front();
  }
};

const Tables& tables() noexcept {
  static const Tables instance;
  return instance;
}

}  // namespace

const Kernels& kernels() noexcept { return *tables().chosen; }
std::span<const Kernels* const> all_kernels() noexcept { return tables().all; }

}  // namespace snug::delta
