// gpu_link/cuda/link.h - how a Link is put together; benchmarks slip a slower link in.
#pragma once
#include <functional>

#include "gpu_link/cuda/link_gpu.h"
#include "snug/gpu_link.h"

namespace snug::cuda {

using WrapEngine =
    std::function<std::unique_ptr<wire::SendEngine>(std::unique_ptr<wire::SendEngine>)>;

// As Link::open, with `wrap`, if there is one, around the sending engine.
Result<Link> open_link(wire::Connection& connection, const wire::Options& options,
                                    const WrapEngine& wrap);

}  // namespace snug::cuda
