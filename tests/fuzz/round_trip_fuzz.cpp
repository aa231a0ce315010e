// Any bytes as a tensor of any type: what is encoded comes back.
#include "fuzz/fuzz_frame.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace snug;
  if (size < 2) return 0;
  static std::vector<std::byte> workspace(workspace_bytes());
  const EncodeOptions options{static_cast<DType>(data[0] % kNumDTypes),
                              static_cast<Codec>(data[1] % kNumCodecs),
                              12 + data[1] / kNumCodecs % 6, 1};
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> raw(bytes + 2, bytes + size);
  std::vector<std::byte> frame(encode_bound(raw.size(), options)), restored(raw.size());
  const auto frame_size = encode(raw, frame, options, workspace);
  test::require(frame_size.ok());
  frame.resize(*frame_size);
  test::require(decode(frame, restored, workspace).ok() && restored == raw);
  return 0;
}
