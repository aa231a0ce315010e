// Any bytes as a frame.
#include "fuzz/fuzz_frame.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  snug::test::read_frame({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
