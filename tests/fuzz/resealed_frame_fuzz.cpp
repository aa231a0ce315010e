// Any bytes as a frame whose checksums are made right, so that parsers and
// kernels behind them are reached.
#include "fuzz/fuzz_frame.h"
#include "support/reseal.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> frame(bytes, bytes + size);
  snug::test::reseal(frame);
  snug::test::read_frame(frame);
  return 0;
}
