// Encodes a tensor in GPU memory, and nothing else.
#include <snug/cuda.h>

int main() {
  const snug::cuda::EncodeOptions options;
  const snug::Status status = snug::cuda::encode({}, {}, {}, nullptr, options, nullptr);
  return status.ok() ? 1 : 0;
}
