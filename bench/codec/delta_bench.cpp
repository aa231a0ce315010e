// delta_bench [--data FILE]: deltas between two versions of BF16 weights on one core, next
// to memcpy and to what others do: XOR of both versions under zstd -1, and zstd with the old
// version as prefix (zstd --patch-from).
//
// FILE is a safetensors file with tensors named before.*, after1.* and after8.*; Gaussian
// weights that move by a step are always measured. Medians of 11 runs; GB/s of new weights.
#include <zstd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "codec/delta_inputs.h"
#include "snug/codec.h"
#include "snug/delta.h"

namespace {

constexpr std::size_t kBenchBytes = std::size_t{64} << 20;
constexpr std::size_t kNumElems = std::size_t{1} << 21;  // made at once, then repeated

// Repeats both versions up to 64 MiB, so that no cache holds them. XOR + zstd does not see
// that: repetitions lie further apart than its window at this level.
void repeat(Versions& v) {
  const std::size_t n = v.base.size();
  for (Bytes* bytes : {&v.base, &v.next}) {
    bytes->resize(kBenchBytes);
    for (std::size_t i = n; i < kBenchBytes; ++i) (*bytes)[i] = (*bytes)[i - n];
  }
}

double median_gbs(const std::function<void()>& work, std::size_t num_bytes = kBenchBytes) {
  std::vector<double> seconds;
  for (int i = 0; i < 12; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  seconds.erase(seconds.begin());  // page faults
  std::nth_element(seconds.begin(), seconds.begin() + 5, seconds.end());
  return static_cast<double>(num_bytes) / seconds[5] / 1e9;
}

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "delta_bench: %s\n", what);
  std::exit(1);
}

void row(const char* what, std::size_t stored, double encode, double apply,
         std::size_t num_bytes = kBenchBytes) {
  std::printf("| %s | %.3f %% | %.2f | %.2f |\n", what,
              100. * static_cast<double>(stored) / static_cast<double>(num_bytes), encode, apply);
  std::fflush(stdout);
}

void bench_snug(const Versions& v, int log2_block) {
  const snug::delta::Options options{snug::DType::kBF16, log2_block, true, 1};
  Bytes delta(snug::delta::encode_bound(kBenchBytes, options)), out(kBenchBytes);
  std::size_t n = 0;
  const double encode =
      median_gbs([&] { n = *snug::delta::encode(v.base, v.next, delta, options); });
  const auto update = std::span<const std::byte>(delta).first(n);
  const double apply =
      median_gbs([&] { require(snug::delta::apply(update, v.base, out).ok(), "apply failed"); });
  require(out == v.next, "apply gives other bytes");
  row(("snug delta, blocks of 2^" + std::to_string(log2_block)).c_str(), n, encode, apply);
}

void bench_xor_zstd(const Versions& v) {
  Bytes difference(kBenchBytes), packed(ZSTD_compressBound(kBenchBytes)), out(kBenchBytes);
  const auto exclusive_or = [&](const Bytes& a, const Bytes& b, Bytes& to) {
    for (std::size_t i = 0; i < kBenchBytes; ++i) to[i] = a[i] ^ b[i];
  };
  std::size_t n = 0;
  const double encode = median_gbs([&] {
    exclusive_or(v.base, v.next, difference);
    n = ZSTD_compress(packed.data(), packed.size(), difference.data(), kBenchBytes, 1);
  });
  const double apply = median_gbs([&] {
    ZSTD_decompress(difference.data(), kBenchBytes, packed.data(), n);
    exclusive_or(v.base, difference, out);
  });
  require(out == v.next, "XOR gives other bytes");
  row("XOR + zstd -1", n, encode, apply);
}

// Without repetitions, which its window would hold.
void bench_zstd_prefix(const Versions& v) {
  const std::size_t n = v.next.size();
  Bytes packed(ZSTD_compressBound(n)), out(n);
  ZSTD_CCtx* compress = ZSTD_createCCtx();
  ZSTD_DCtx* restore = ZSTD_createDCtx();
  ZSTD_CCtx_setParameter(compress, ZSTD_c_compressionLevel, 1);
  ZSTD_CCtx_setParameter(compress, ZSTD_c_windowLog, 27);
  ZSTD_CCtx_setParameter(compress, ZSTD_c_enableLongDistanceMatching, 1);
  std::size_t stored = 0;
  const double encode = median_gbs(
      [&] {
        ZSTD_CCtx_refPrefix(compress, v.base.data(), n);
        stored = ZSTD_compress2(compress, packed.data(), packed.size(), v.next.data(), n);
      },
      n);
  const double apply = median_gbs(
      [&] {
        ZSTD_DCtx_refPrefix(restore, v.base.data(), n);
        ZSTD_decompressDCtx(restore, out.data(), n, packed.data(), stored);
      },
      n);
  require(out == v.next, "zstd gives other bytes");
  row("zstd -1 --patch-from", stored, encode, apply, n);
  ZSTD_freeCCtx(compress);
  ZSTD_freeDCtx(restore);
}

void bench(Versions v) {
  const Versions once = v;
  repeat(v);
  std::size_t changed = 0;
  for (std::size_t i = 0; i < kBenchBytes; i += 2)
    changed += v.base[i] != v.next[i] || v.base[i + 1] != v.next[i + 1];
  std::printf(
      "\n%s: %.2f %% of the values changed\n\n| | size | encode | apply |\n|---|---|---|---|\n",
      v.name.c_str(), 200. * static_cast<double>(changed) / static_cast<double>(kBenchBytes));
  for (const int log2_block : {16, 14, 13}) bench_snug(v, log2_block);
  bench_xor_zstd(v);
  bench_zstd_prefix(once);
  Bytes out(kBenchBytes);
  const double copy = median_gbs([&] { std::memcpy(out.data(), v.next.data(), kBenchBytes); });
  const double compare = median_gbs([&] {
    // Both versions are read, nothing is found: what comparing them costs at least.
    require(std::memcmp(v.next.data(), out.data(), kBenchBytes) == 0, "copy differs");
  });
  row("memcpy, memcmp of equal versions", kBenchBytes, copy, compare);
}

}  // namespace

int main(int argc, char** argv) {
  std::printf("One core, %s, GB/s of new weights\n", snug::simd_target());
  if (argc == 3 && std::strcmp(argv[1], "--data") == 0) {
    const auto reader = snug::Reader::open(argv[2]);
    require(reader.ok(), "cannot read the data");
    bench(load_versions(*reader, "after1"));
    bench(load_versions(*reader, "after8"));
  }
  bench(gaussian_versions(1e-6, kNumElems));
  bench(gaussian_versions(3e-6, kNumElems));
  return 0;
}
