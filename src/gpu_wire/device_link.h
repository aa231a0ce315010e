// gpu_wire/device_link.h - how a DeviceLink is put together; benchmarks slip a slower link in.
#pragma once
#include <functional>

#include "gpu_wire/pipe_gpu.h"
#include "snug/cuda_wire.h"

namespace snug::cuda {

using WrapEngine =
    std::function<std::unique_ptr<wire::SendEngine>(std::unique_ptr<wire::SendEngine>)>;

// As DeviceLink::open, with `wrap`, if there is one, around the sending engine.
Result<DeviceLink> open_device_link(wire::Connection& connection, const wire::Options& options,
                                    const WrapEngine& wrap);

}  // namespace snug::cuda
