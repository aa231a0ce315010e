// nccl/log.h - messages through NCCL's own log, so that NCCL_DEBUG governs them.
#pragma once
#include "nccl/net_abi.h"

namespace snug::nccl {

void set_logger(ncclDebugLogger_t logger) noexcept;

// Something the user should act on. Printed from NCCL_DEBUG=WARN on.
__attribute__((format(printf, 1, 2))) void warn(const char* format, ...) noexcept;
// Printed with NCCL_DEBUG=INFO.
__attribute__((format(printf, 1, 2))) void info(const char* format, ...) noexcept;

inline constexpr const char* kInstallTheSame = "Install the same Snug on every rank.";

}  // namespace snug::nccl
