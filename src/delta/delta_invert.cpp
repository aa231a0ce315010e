// The way back: a delta of its own, made from both versions.
#include <bit>
#include <memory>

#include "delta/delta_tensor.h"
#include "snug/delta.h"

namespace snug::delta {

Result<std::size_t> invert(std::span<const std::byte> delta, std::span<const std::byte> base,
                           std::span<std::byte> dst, int num_threads) noexcept {
  const auto info = inspect(delta);
  if (!info) return info.status();
  // The sizes must agree before memory is taken for what a header claims.
  if (base.size() != info->raw_bytes)
    return frame::failure(Code::kWrongBase, kOtherSize, base.size(), info->raw_bytes);
  const std::unique_ptr<std::byte[]> target(new (std::nothrow) std::byte[base.size()]);
  if (target == nullptr) return kNoMemory;
  const std::span<std::byte> next(target.get(), base.size());
  if (const auto done = apply(delta, base, next, num_threads); !done) return done;
  const int log2_block = std::bit_width(info->block_elems) - 1;
  return encode(next, base, dst, {info->dtype, log2_block, true, num_threads});
}

}  // namespace snug::delta
