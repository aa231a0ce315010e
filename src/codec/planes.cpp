#include "codec/planes.h"

#include <bit>
#include <cstring>

#include "frame/bytes.h"

namespace snug::codec {

void split_planes(const std::uint8_t* src, std::size_t n, std::size_t width, bool rotate,
                  std::uint8_t* const* planes) noexcept {
  if (width == 2) return kernels().split2(src, n, rotate, planes[0], planes[1]);
  frame::with_width(width, [&](auto zero) {
    using U = decltype(zero);
    for (std::size_t i = 0; i < n; ++i) {
      U v;
      std::memcpy(&v, src + i * sizeof v, sizeof v);
      if (rotate) v = std::rotl(v, 1);
      for (std::size_t p = 0; p < sizeof v; ++p)
        planes[p][i] = static_cast<std::uint8_t>(v >> (8 * p));
    }
  });
}

void merge_planes(const std::uint8_t* const* planes, std::size_t n, std::size_t width, bool rotate,
                  std::uint8_t* dst) noexcept {
  if (width == 2) return kernels().merge2(planes[0], planes[1], n, rotate, dst);
  frame::with_width(width, [&](auto zero) {
    using U = decltype(zero);
    for (std::size_t i = 0; i < n; ++i) {
      U v = 0;
      for (std::size_t p = 0; p < sizeof v; ++p) v = static_cast<U>(v | U{planes[p][i]} << (8 * p));
      if (rotate) v = std::rotr(v, 1);
      std::memcpy(dst + i * sizeof v, &v, sizeof v);
    }
  });
}

}  // namespace snug::codec
