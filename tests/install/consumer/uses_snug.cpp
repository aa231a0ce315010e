// A program of a user of the library: one call of the codec, one of the store.
#include <snug/codec.h>
#include <snug/store.h>

#include <vector>

int main() {
  const std::vector<std::byte> raw(1000);
  std::vector<std::byte> frame(snug::encode_bound(raw.size()));
  const auto size = snug::encode(raw, frame);
  const auto missing = snug::verify_path("no such file");
  return size.ok() && missing.status().status.code == snug::Code::kNotFound ? 0 : 1;
}
