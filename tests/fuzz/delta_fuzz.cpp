// A delta from outside on a tensor of ours, as it came and with its header resealed; and a
// delta of ours between two tensors from outside.
#include <cstring>
#include <vector>

#include "delta/delta_format.h"
#include "fuzz/fuzz_frame.h"
#include "snug/delta.h"

namespace {

using namespace snug;
using Bytes = std::vector<std::byte>;

void apply_to(std::span<const std::byte> delta, std::span<const std::byte> base) {
  const auto info = delta::inspect(delta);
  if (!info.ok() || info->raw_bytes > test::kMaxDecodedBytes) return;
  Bytes dst(info->raw_bytes), tensor(base.begin(), base.end());
  const bool applied = delta::apply(delta, base, dst).ok();
  const bool in_place = delta::apply_in_place(delta, tensor).ok();
  if (base.size() == info->raw_bytes) test::require(applied == in_place);
  if (applied) test::require(delta::tensor_hash(dst) == info->target_hash);
  test::require(in_place ? tensor == dst : std::equal(tensor.begin(), tensor.end(), base.begin()));
}

// Hashes of base and header are made right, so that blocks are decoded.
void reseal(Bytes& delta, std::span<const std::byte> base) {
  const auto header = delta::read_header(delta);
  if (!header.ok() || header->payload_start() > delta.size()) return;
  const std::uint64_t hash = delta::tensor_hash(base);
  std::memcpy(delta.data() + 24, &hash, 8);
  const std::uint32_t sum =
      delta::head_checksum(reinterpret_cast<std::uint8_t*>(delta.data()), header->payload_start());
  std::memcpy(delta.data() + 56, &sum, 4);
}

void round_trip(std::span<const std::byte> bytes, DType dtype) {
  const std::size_t half = bytes.size() / 2;
  const auto base = bytes.first(half), next = bytes.subspan(half, half);
  const delta::Options options = {dtype, 12, false, 1};
  Bytes delta(delta::encode_bound(half, options)), out(half);
  const auto num_bytes = delta::encode(base, next, delta, options);
  test::require(num_bytes.ok());
  delta.resize(*num_bytes);
  test::require(delta::apply(delta, base, out).ok());
  test::require(std::equal(out.begin(), out.end(), next.begin()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  apply_to(bytes, {});
  if (const auto info = delta::inspect(bytes); info.ok() && info->raw_bytes <= 1 << 20) {
    Bytes base(info->raw_bytes);
    for (std::size_t i = 0; i < base.size(); ++i) base[i] = static_cast<std::byte>(i * 37 >> 3);
    Bytes delta(bytes.begin(), bytes.end());
    reseal(delta, base);
    apply_to(delta, base);
  }
  if (size > 0) round_trip(bytes.subspan(1), static_cast<DType>(data[0] % kNumDTypes));
  return 0;
}
