// Rates of the CPU codecs on BF16, next to memcpy (the roofline) and to peers in
// the same run: zstd -1, and byte planes with zstd's Huffman coder, which is the
// best published way to this ratio.
//
//   cpu_codec_bench [--mib N] [--runs N] [--file RAW_BF16] [--json]
#include <zstd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "codec/kernels.h"
#include "snug/codec.h"

namespace {

using Bytes = std::vector<std::byte>;
constexpr std::size_t kChunk = 256 << 10;

// Memory as frameworks allocate it: aligned to a cache line, pages touched.
struct Buffer {
  explicit Buffer(std::size_t n)
      : size(n), data(static_cast<std::byte*>(std::aligned_alloc(64, (n + 63) / 64 * 64))) {
    std::memset(data, 1, n);
  }
  ~Buffer() { std::free(data); }
  Buffer(const Buffer&) = delete;
  std::span<std::byte> span() const { return {data, size}; }
  std::size_t size;
  std::byte* data;
};

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::uint16_t to_bf16(float f) {
  std::uint32_t u;
  std::memcpy(&u, &f, 4);
  return static_cast<std::uint16_t>((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

// Rows of 4096 values, sigma 0.02 with a lognormal factor of 0.15 a row. 32 MiB
// of them are repeated: larger than any cache, quick to make.
void fill_gaussian(std::span<std::byte> out) {
  std::mt19937_64 rng(1);
  std::normal_distribution<float> normal(0, 1);
  std::vector<std::uint16_t> part(std::min<std::size_t>(out.size() / 2, 16 << 20));
  float scale = 0;
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (i % 4096 == 0) scale = 0.02f * std::exp(0.15f * normal(rng));
    part[i] = to_bf16(scale * normal(rng));
  }
  for (std::size_t at = 0; at < out.size(); at += part.size() * 2)
    std::memcpy(out.data() + at, part.data(), std::min(part.size() * 2, out.size() - at));
}

double exponent_entropy(std::span<const std::byte> raw) {
  std::vector<double> counts(256);
  for (std::size_t i = 0; i + 1 < raw.size(); i += 2) {
    std::uint16_t v;
    std::memcpy(&v, raw.data() + i, 2);
    counts[v >> 7 & 255] += 1;
  }
  double h = 0;
  for (const double c : counts)
    if (c > 0)
      h -= c / static_cast<double>(raw.size() / 2) *
           std::log2(c / static_cast<double>(raw.size() / 2));
  return h;
}

struct Row {
  std::string name;
  std::function<std::size_t()> encode;  // returns the compressed size
  std::function<void()> decode;
  std::vector<double> encode_s, decode_s;
  std::size_t size = 0;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Byte planes in chunks of 256 KiB, the exponent plane through zstd's Huffman
// coder alone (a strongly negative level finds no matches).
struct PlanesHuffman {
  std::span<const std::byte> raw;
  std::span<std::byte> packed, back;
  std::vector<std::uint8_t> lo, hi;
  ZSTD_CCtx* cctx = ZSTD_createCCtx();
  ZSTD_DCtx* dctx = ZSTD_createDCtx();

  PlanesHuffman(std::span<const std::byte> r, std::span<std::byte> p, std::span<std::byte> b)
      : raw(r), packed(p), back(b), lo(kChunk / 2), hi(kChunk / 2) {
    ZSTD_CCtx_setParameter(cctx, ZSTD_c_compressionLevel, -1000);
    ZSTD_CCtx_setParameter(cctx, ZSTD_c_experimentalParam5, 1);  // always code literals
  }
  ~PlanesHuffman() {
    ZSTD_freeCCtx(cctx);
    ZSTD_freeDCtx(dctx);
  }
  std::size_t encode() {
    std::size_t at = 0;
    for (std::size_t i = 0; i < raw.size(); i += kChunk) {
      const std::size_t n = std::min(kChunk, raw.size() - i) / 2;
      snug::codec::kernels().split2(reinterpret_cast<const std::uint8_t*>(raw.data()) + i, n, true,
                                    lo.data(), hi.data());
      std::memcpy(packed.data() + at, lo.data(), n);
      at += n;
      const std::size_t size =
          ZSTD_compress2(cctx, packed.data() + at + 8, packed.size() - at - 8, hi.data(), n);
      if (ZSTD_isError(size)) std::abort();
      std::memcpy(packed.data() + at, &size, 8);
      at += 8 + size;
    }
    return at;
  }
  void decode() {
    std::size_t at = 0;
    for (std::size_t i = 0; i < raw.size(); i += kChunk) {
      const std::size_t n = std::min(kChunk, raw.size() - i) / 2;
      const auto* low = reinterpret_cast<const std::uint8_t*>(packed.data()) + at;
      at += n;
      std::size_t size;
      std::memcpy(&size, packed.data() + at, 8);
      if (ZSTD_isError(ZSTD_decompressDCtx(dctx, hi.data(), n, packed.data() + at + 8, size)))
        std::abort();
      at += 8 + size;
      snug::codec::kernels().merge2(low, hi.data(), n, true,
                                    reinterpret_cast<std::uint8_t*>(back.data()) + i);
    }
  }
};

Row snug_row(std::span<const std::byte> raw, std::span<std::byte> packed, std::span<std::byte> back,
             snug::Codec codec, int threads) {
  auto size = std::make_shared<std::size_t>(0);
  Row row;
  row.name = std::string("snug ") + snug::codec_name(codec) +
             (threads > 1 ? ", " + std::to_string(threads) + " threads" : "");
  row.encode = [=] {
    auto n = snug::encode(raw, packed, {.codec = codec, .num_threads = threads});
    if (!n) std::abort();
    return *size = *n;
  };
  row.decode = [=] {
    if (!snug::decode(packed.first(*size), back, threads)) std::abort();
  };
  return row;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t mib = 256;
  int runs = 11;
  bool json = false;
  std::string file;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--mib" && i + 1 < argc)
      mib = std::strtoull(argv[++i], nullptr, 10);
    else if (arg == "--runs" && i + 1 < argc)
      runs = std::atoi(argv[++i]);
    else if (arg == "--file" && i + 1 < argc)
      file = argv[++i];
    else if (arg == "--json")
      json = true;
    else {
      std::fprintf(stderr,
                   "usage: cpu_codec_bench [--mib N] [--runs N] [--file RAW_BF16] [--json]\n");
      return 2;
    }
  }
  const std::size_t n = mib << 20;
  Buffer raw(n), packed(n + n / 8 + 4096), back(n);
  if (file.empty()) {
    fill_gaussian(raw.span());
  } else {
    std::FILE* f = std::fopen(file.c_str(), "rb");
    if (f == nullptr) return std::perror(file.c_str()), 1;
    Bytes content(n);
    content.resize(std::fread(content.data(), 1, n, f) / 2 * 2);
    std::fclose(f);
    if (content.empty()) return std::fprintf(stderr, "%s: empty\n", file.c_str()), 1;
    for (std::size_t at = 0; at < n; at += content.size())
      std::memcpy(raw.data + at, content.data(), std::min(content.size(), n - at));
  }
  const double bound = (8 + exponent_entropy(raw.span())) / 16;

  const auto copy = [&] {
    for (std::size_t at = 0; at < n; at += kChunk)
      std::memcpy(back.data + at, raw.data + at, std::min(kChunk, n - at));
  };
  PlanesHuffman huffman(raw.span(), packed.span(), back.span());
  std::vector<Row> rows;
  rows.push_back({"memcpy, 256 KiB chunks",
                  [&] {
                    copy();
                    return n;
                  },
                  copy,
                  {},
                  {}});
  for (const auto codec : {snug::Codec::kEntropy, snug::Codec::kFixed})
    for (const int threads : {1, 2})
      rows.push_back(snug_row(raw.span(), packed.span(), back.span(), codec, threads));
  rows.push_back({"byte planes + zstd's Huffman",
                  [&] { return huffman.encode(); },
                  [&] { huffman.decode(); },
                  {},
                  {}});
  std::size_t zstd_size = 0;
  rows.push_back(
      {"zstd -1",
       [&] { return zstd_size = ZSTD_compress(packed.data, packed.size, raw.data, n, 1); },
       [&] {
         if (ZSTD_isError(ZSTD_decompress(back.data, n, packed.data, zstd_size))) std::abort();
       },
       {},
       {}});
  // One run of each in turn, so that a busy moment of the machine hits all alike.
  for (int run = 0; run < runs; ++run) {
    for (Row& row : rows) {
      if (row.name == "zstd -1" && run >= 3) continue;
      row.encode_s.push_back(seconds_of([&] { row.size = row.encode(); }));
      std::memset(back.data, 0, 4096);
      row.decode_s.push_back(seconds_of([&] { row.decode(); }));
      if (std::memcmp(raw.data, back.data, n) != 0)
        return std::fprintf(stderr, "%s: wrong bytes\n", row.name.c_str()), 1;
    }
  }
  const double gb = static_cast<double>(n) / 1e9;
  const double copy_rate = gb / median(rows[0].decode_s);
  if (json)
    std::printf("{\"mib\": %zu, \"simd\": \"%s\", \"bound\": %.4f, \"rows\": [", mib,
                snug::simd_target(), bound);
  else
    std::printf(
        "%zu MiB BF16, %s, %s kernels, median of %d; exponent bound %.4f\n\n| | ratio | encode "
        "GB/s | x memcpy | decode GB/s | x memcpy |\n|---|---|---|---|---|---|\n",
        mib, file.empty() ? "Gaussian" : file.c_str(), snug::simd_target(), runs, bound);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const double e = gb / median(row.encode_s), d = gb / median(row.decode_s),
                 ratio = static_cast<double>(row.size) / static_cast<double>(n);
    if (json)
      std::printf(
          "%s{\"name\": \"%s\", \"ratio\": %.4f, \"encode_gbs\": %.3f, \"decode_gbs\": %.3f}",
          i ? ", " : "", row.name.c_str(), ratio, e, d);
    else
      std::printf("| %s | %.4f | %.2f | %.2f | %.2f | %.2f |\n", row.name.c_str(), ratio, e,
                  e / copy_rate, d, d / copy_rate);
  }
  if (json) std::printf("]}\n");
  return 0;
}
