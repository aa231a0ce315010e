// gpu_link/cuda/link.h - opens a Link with an engine of choice, such as a slower one in benchmarks.
#pragma once
#include <functional>

#include "gpu_link/cuda/link_gpu.h"
#include "snug/gpu_link.h"

namespace snug::cuda {

using WrapEngine =
    std::function<std::unique_ptr<gpu_link::SendEngine>(std::unique_ptr<gpu_link::SendEngine>)>;

// As Link::open, with `wrap`, if there is one, around the sending engine.
Result<Link> open_link(wire::Connection& connection, wire::Mode mode,
                       std::chrono::milliseconds timeout, const WrapEngine& wrap);

}  // namespace snug::cuda
