// Any bytes as a safetensors header.
#include <cstring>
#include <string_view>

#include "fuzz/fuzz_frame.h"
#include "store/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace snug;
  if (size < store::kLengthBytes) return 0;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  std::uint64_t json_bytes;
  std::memcpy(&json_bytes, data, sizeof json_bytes);
  const std::span<const std::byte, store::kLengthBytes> length(bytes, store::kLengthBytes);
  // As a file: the data behind the header is what the length leaves.
  if (const auto checked = store::check_header_length(length, size); checked.ok())
    test::require(*checked == json_bytes && *checked <= size - store::kLengthBytes);

  // As a header alone, of a file with as much data as the length field says.
  const std::string_view json(reinterpret_cast<const char*>(data) + store::kLengthBytes,
                              size - store::kLengthBytes);
  const std::uint64_t num_data_bytes = json_bytes & 0xFFFFFFFFFF;
  const auto layout = store::parse_layout(json, store::kLengthBytes + json.size() + num_data_bytes);
  if (!layout.ok()) {
    test::require(layout.status().status.what[0] != '\0');
    return 0;
  }
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < layout->slots.size(); ++i) {
    const store::Slot slot = layout->slots[i];
    test::require(slot.begin == end && slot.end >= slot.begin);
    end = slot.end;
    test::require(layout->slots.find(slot.name) == i);
    test::require(slot.shape().size() <= 64);
  }
  test::require(end == num_data_bytes);
  return 0;
}
