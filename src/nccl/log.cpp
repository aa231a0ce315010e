#include "nccl/log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace snug::nccl {
namespace {

std::atomic<ncclDebugLogger_t> logger_in_use{nullptr};

void write_line(ncclDebugLogLevel level, const char* format, std::va_list arguments) noexcept {
  char line[512];
  std::vsnprintf(line, sizeof line, format, arguments);
  if (ncclDebugLogger_t logger = logger_in_use.load(std::memory_order_relaxed))
    logger(level, NCCL_NET_LOG_SUBSYS, "snug", 0, "NET/Snug: %s", line);
}

}  // namespace

void set_logger(ncclDebugLogger_t logger) noexcept { logger_in_use.store(logger); }

void warn(const char* format, ...) noexcept {
  std::va_list arguments;
  va_start(arguments, format);
  write_line(NCCL_LOG_WARN, format, arguments);
  va_end(arguments);
}

void info(const char* format, ...) noexcept {
  std::va_list arguments;
  va_start(arguments, format);
  write_line(NCCL_LOG_INFO, format, arguments);
  va_end(arguments);
}

}  // namespace snug::nccl
