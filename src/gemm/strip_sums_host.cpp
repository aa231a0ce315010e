// Checksums of packed matrices on the CPU: what the GPU's kernel must equal.
#include <cstring>

#include "frame/checksum.h"
#include "gemm/tile_format.h"

namespace snug::gemm {
namespace {

Status error(Code code, const char* what, std::uint64_t found, std::uint64_t expected) {
  return {code, what, kNowhere, kNowhere, found, expected};
}

class PackedStrips {
 public:
  PackedStrips(const Matrix& matrix, const std::byte* packed)
      : layout_(matrix.n, matrix.k, matrix.kind),
        words_(layout_.tiles_per_strip, matrix.kind),
        is_raw_(matrix.kind == Kind::kRaw),
        num_overflows_((matrix.num_bytes - layout_.overflows) / kOverflowBytes),
        packed_(reinterpret_cast<const std::uint8_t*>(packed)) {}

  std::uint64_t sum_of(std::uint64_t strip) const {
    const std::uint64_t first = strip * layout_.tiles_per_strip;
    std::uint64_t sum =
        frame::checksum_terms(packed_ + layout_.tiles + first * layout_.tile_bytes,
                              layout_.tiles_per_strip * layout_.tile_bytes, words_.tiles);
    if (!is_raw_) {
      const std::uint8_t* escapes = packed_ + layout_.escapes + first * kEscapeBytes;
      sum += frame::checksum_terms(escapes, layout_.tiles_per_strip * kEscapeBytes, words_.escapes);
      sum += frame::checksum_terms(packed_ + layout_.palettes + strip * kPaletteSize, kPaletteSize,
                                   words_.palette);
      for (std::uint64_t t = 0; t < layout_.tiles_per_strip; ++t)
        sum += overflow_terms(escapes + t * kEscapeBytes, t);
    }
    return frame::wide_checksum(sum, strip + 1);
  }

 private:
  // Of the overflow that a tile names, if it does. One that does not exist is read by nobody.
  std::uint64_t overflow_terms(const std::uint8_t* escape_words, std::uint64_t tile) const {
    std::uint32_t mark, number;
    std::memcpy(&mark, escape_words, 4);
    std::memcpy(&number, escape_words + 4, 4);
    if (mark != kOverflowMark || number >= num_overflows_) return 0;
    return frame::checksum_terms(
        packed_ + layout_.overflows + number * std::uint64_t{kOverflowBytes}, kOverflowBytes,
        words_.overflows + tile * (kOverflowBytes / 4));
  }

  const Layout layout_;
  const StripWords words_;
  const bool is_raw_;
  const std::uint64_t num_overflows_;
  const std::uint8_t* const packed_;
};

// Calls f(strip, sum) until it returns an error.
template <class F>
Status for_each_sum(std::span<const std::byte> packed, std::size_t num_sums, const F& f) {
  const Result<Matrix> matrix = inspect(packed, packed.size());
  if (!matrix.ok()) return matrix.status();
  const std::uint64_t strips = num_strips(matrix->n);
  if (num_sums != strips)
    return error(Code::kUsage, "a matrix has one checksum for every 16 rows", num_sums, strips);
  const PackedStrips sums(*matrix, packed.data());
  for (std::uint64_t strip = 0; strip < strips; ++strip)
    if (Status s = f(strip, sums.sum_of(strip)); !s.ok()) return s;
  return {};
}

}  // namespace

Status strip_sums_host(std::span<const std::byte> packed, std::span<std::uint64_t> sums) noexcept {
  return for_each_sum(packed, sums.size(), [&](std::uint64_t strip, std::uint64_t sum) {
    sums[strip] = sum;
    return Status{};
  });
}

Status verify_host(std::span<const std::byte> packed,
                   std::span<const std::uint64_t> sums) noexcept {
  return for_each_sum(packed, sums.size(), [&](std::uint64_t strip, std::uint64_t sum) -> Status {
    if (sum == sums[strip]) return {};
    return {Code::kCorrupt, "16 rows, from row 16 x block on, do not match their checksum", strip};
  });
}

}  // namespace snug::gemm
