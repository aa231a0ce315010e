// Which kernel table runs: chosen once, forcible by SNUG_FORCE.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "codec/kernels.h"
#include "snug/codec.h"

namespace snug::codec {
namespace {

struct Tables {
  TargetList<const Kernels*> all;
  TargetList<const char*> names;
  const Kernels* chosen = nullptr;

  Tables() noexcept {
#ifdef SNUG_HAVE_AVX512
    if (const Kernels* table = avx512_kernels()) all.push_back(table);
#endif
#ifdef SNUG_HAVE_HWY
    append_hwy_kernels(all);
#endif
    all.push_back(&kScalarKernels);
    for (const Kernels* table : all) names.push_back(table->name);
    chosen = all.front();
    const char* force = std::getenv("SNUG_FORCE");
    if (force == nullptr || *force == '\0') return;
    for (const Kernels* table : all)
      if (std::strcmp(table->name, force) == 0) {
        chosen = table;
        return;
      }
    std::fprintf(stderr, "snug: SNUG_FORCE=%s: this CPU has", force);
    for (const char* name : names) std::fprintf(stderr, " %s", name);
    std::fprintf(stderr, "; using %s\n", chosen->name);
  }
};

const Tables& tables() noexcept {
  static const Tables instance;
  return instance;
}

}  // namespace

const Kernels& kernels() noexcept { return *tables().chosen; }
std::span<const Kernels* const> all_kernels() noexcept { return tables().all; }

}  // namespace snug::codec

namespace snug {
const char* simd_target() noexcept { return codec::kernels().name; }
std::span<const char* const> simd_targets() noexcept { return codec::tables().names; }
}  // namespace snug
